"""What stands in the files of a run's folder, field by field, and how they are read.

This is the one place where a file of a run that is damaged, or that a stranger made up, is told from a good one: what
passes here has every field that is needed, in its form. Only result.json and audits.json are described elsewhere
(`certification/records.py`), and the state of a campaign (`campaign/records.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.records import JsonObject, Number, checked, to_json
from sidestep.planning.rows import PlanRow
from sidestep.runtime.files import read_bytes

FORMAT, READS = 2, (1, 2)  # runs of format 1 have no copies of their inputs
MOST_SEEDS = 1000  # policies trained at once
LARGEST_SEED = 2**31  # seeds lie between minus this and this
T = TypeVar("T")


@dataclass(frozen=True)
class Copy:
    """A file that the model or the rule is made of: where it is kept in the folder, and its hash."""

    file: str
    sha256: str

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.file).parts
        if len(parts) < 2 or parts[0] != "inputs" or ".." in parts or "\\" in self.file or "\0" in self.file:
            raise InputError(f"a copy is kept in inputs/, not in '{self.file}'")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """config.json: what was asked for."""

    format: int = FORMAT
    version: str = ""  # of Sidestep
    kind: Literal["plan", "campaign"] = "plan"
    model: str
    rule: str | None = None
    people: bool = False  # people label, although the model has a rule of its own
    constraints: tuple[str, ...] = ()
    categories: tuple[str, ...] = Scale().categories
    method: str = "default"
    seed: int = 0
    seeds: int = 1  # policies trained at once, from this seed on
    labels: int | None = None  # the budget of a campaign
    settings: JsonObject = field(default_factory=dict)  # of the planner; of the campaign, where it is one
    planning: JsonObject = field(default_factory=dict)  # of a campaign's planner
    inputs: dict[str, Copy] | None = None  # for each file as the references name it, its copy
    live: tuple[Literal["model", "expert"], ...] = ()  # what was a Python object, and has no reference
    store: str | None = None  # the label store, where it is not the run's own
    loosest: tuple[str, ...] = ()  # constraints of a sweep, for whose tolerances these rounds are
    forked: bool = False  # whether the rounds were those of a sweep

    def __post_init__(self) -> None:
        if self.format not in READS:
            raise InputError(f"its format is {self.format}, and this version of sidestep reads 1 and 2")
        if self.kind == "campaign" and not self.constraints:
            raise InputError("a campaign has at least one constraint, and 'constraints' is empty")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise InputError(f"'seeds' must lie between 1 and {MOST_SEEDS}, not {self.seeds}")
        if not -LARGEST_SEED < self.seed < LARGEST_SEED:
            raise InputError(f"'seed' must lie between -2^31 and 2^31, not {self.seed}")

    @property
    def scale(self) -> Scale:
        return Scale(self.categories)


@dataclass(frozen=True)
class Slot:
    """One policy of the bank in a round: what it aims at, and what the safety model predicts of it."""

    tolerance: tuple[float, ...]
    mean_return: float
    costs: tuple[float, ...]


@dataclass(frozen=True)
class Round:
    """A line of rounds.jsonl: what a round came to. Figures that stand for it are those of the bank's middle policy."""

    round: int
    labels: int = 0
    asked: int = 0
    mean_return: Number = nan  # "return" in the file
    predicted: tuple[Number, ...] | None = None  # frequency of each category
    labelled: tuple[Number, ...] | None = None  # the same among the labels of the policy's own rollouts
    margin: Number | None = None
    optimism: Number | None = None
    slots: tuple[Slot, ...] = ()
    accuracy: Number | None = None
    log_loss: Number | None = None
    ece: Number | None = None
    seconds: Number | None = None
    feasible: bool | None = None

    def to_json(self) -> JsonObject:
        return {("return" if name == "mean_return" else name): value for name, value in to_json(self).items()}


@dataclass(frozen=True)
class PlanClock:
    """The header of state.safetensors of a planning run: how far it is."""

    epoch: int
    rows: int  # of metrics.jsonl that belong to it


def read_config(file: Path) -> RunConfig:
    data = read_json(file)
    config = checked(RunConfig, data, str(file))
    if isinstance(data, dict) and "format" not in data:
        raise InputError("the runconfig has no 'format'", place=str(file))
    if config.format > 1 and config.inputs is None:
        raise InputError("it does not say which copies of its inputs the run holds ('inputs')", place=str(file))
    return config


def read_rounds(file: Path) -> list[Round]:
    rows = []
    for number, row in enumerate(read_rows(file), 1):
        slots = row.get("slots")
        if isinstance(slots, list):
            row = {**row, "slots": [_renamed(slot) for slot in slots]}
        rows.append(checked(Round, _renamed(row), f"{file}:{number}"))
    return rows


def _renamed(row: object) -> object:
    """`return` is a word of Python."""
    return {**row, "mean_return": row["return"]} if isinstance(row, dict) and "return" in row else row


def read_metrics(file: Path) -> list[PlanRow]:
    """A value that is null is taken as one that is not there."""
    rows = [{name: value for name, value in row.items() if value is not None} for row in read_rows(file)]
    return [checked(PlanRow, row, f"{file}:{number}") for number, row in enumerate(rows, 1)]


def read_rows(file: Path) -> list[JsonObject]:
    """All complete lines; a last one that a kill or a full disk cut short is left out."""
    if not file.exists():
        return []
    rows = []
    for number, line in enumerate(_text(file).split("\n")[:-1], 1):
        row = _parsed(line, f"{file}:{number}")
        if not isinstance(row, dict):
            raise InputError(f"expected a JSON object, not {type(row).__name__}", place=f"{file}:{number}")
        rows.append(row)
    return rows


def require_tests(rows: Sequence[PlanRow], seeds: int, constraints: int, categories: int, file: Path) -> None:
    """Every row tells of a test what a run that goes on will look at."""
    for number, row in enumerate(rows, 1):
        lengths = []
        if constraints:  # without any, a row tells of no more categories than occurred
            lengths = [(row.mean_costs, constraints), (row.train_multipliers, constraints)]
            lengths += [(part, categories) for part in (row.mean_true, row.mean_predicted) if part]
        lengths_fit = all(len(part) == length for part, length in lengths)
        norms_fit = len(row.train_gradient_norms or ()) in (0, constraints, constraints + 1)
        known = row.mean_return is not None and row.feasible is not None
        if not (lengths_fit and norms_fit and known and 0 <= row.seed_index < seeds):
            raise InputError("is not a test of this run; put the file back as it was", place=f"{file}:{number}")


def read_json(file: Path) -> object:
    return _parsed(_text(file), str(file))


def _text(file: Path) -> str:
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected text in UTF-8 and found something else at byte {error.start}", place=str(file)
        ) from None


def _parsed(text: str, place: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({error})", place=place) from None


def _without_repetition(pairs: list[tuple[str, object]]) -> Mapping[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' stands twice in one object")
    return content
