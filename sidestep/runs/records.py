"""What stands in the files of a run's folder, field by field, and how they are read.

This is the one place where a file of a run that is damaged, or that a stranger made up, is told from a good one: what
passes here has every field that is needed, in its form. Only result.json and audits.json are described elsewhere
(`certification/records.py`), and the state of a campaign (`campaign/records.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.records import Number, checked, to_json
from sidestep.runtime.files import read_bytes

READS = (1, 2)  # formats; runs of format 1 have no copies of their inputs
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


@dataclass(frozen=True)
class RunConfig:
    """config.json: what was asked for."""

    format: int
    model: str
    kind: Literal["plan", "campaign"] = "plan"
    rule: str | None = None
    people: bool = False  # people label, although the model has a rule of its own
    constraints: tuple[str, ...] = ()
    categories: tuple[str, ...] = Scale().categories
    method: str = "default"
    seed: int = 0
    seeds: int = 1  # policies trained at once, from this seed on
    labels: int | None = None  # the budget of a campaign
    settings: dict[str, Any] = field(default_factory=dict)  # of the planner; of the campaign, where it is one
    planning: dict[str, Any] = field(default_factory=dict)  # of a campaign's planner
    inputs: dict[str, Copy] | None = None  # for each file as the references name it, its copy
    version: str = ""

    def __post_init__(self) -> None:
        if self.format not in READS:
            raise InputError(f"its format is {self.format}, and this version of sidestep reads 1 and 2")
        if self.format > 1 and self.inputs is None:
            raise InputError("it does not say which copies of its inputs the run holds ('inputs')")
        if self.kind == "campaign" and not self.constraints:
            raise InputError("a campaign has at least one constraint, and 'constraints' is empty")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise InputError(f"'seeds' must lie between 1 and {MOST_SEEDS}, not {self.seeds}")
        if not -LARGEST_SEED < self.seed < LARGEST_SEED:
            raise InputError(f"'seed' must lie between -2^31 and 2^31, not {self.seed}")


@dataclass(frozen=True)
class Metric:
    """A line of metrics.jsonl: one test of one of the policies that are trained together."""

    seed_index: int = 0
    epoch: int = 0
    round: int | None = None
    feasible: bool | None = None
    seconds: Number | None = None
    mean_return: Number | None = None
    mean_costs: tuple[Number, ...] | None = None
    mean_predicted: tuple[Number, ...] | None = None
    mean_true: tuple[Number, ...] | None = None
    train_multipliers: tuple[Number, ...] | None = None
    train_gradient_norms: tuple[Number, ...] | None = None


@dataclass(frozen=True)
class Round:
    """A line of rounds.jsonl: what a round of a campaign came to."""

    round: int = 0
    returns: Number | None = None  # "return" in the file
    labels: int = 0
    asked: int = 0
    predicted: tuple[Number, ...] | None = None
    labelled: tuple[Number, ...] | None = None
    feasible: bool | None = None
    margin: Number | None = None
    accuracy: Number | None = None
    log_loss: Number | None = None
    ece: Number | None = None
    seconds: Number | None = None


@dataclass(frozen=True)
class PlanClock:
    """The header of state.safetensors of a planning run: how far it is."""

    epoch: int
    rows: int  # of metrics.jsonl that belong to it


def read_config(file: Path) -> dict[str, Any]:
    """config.json with every field that a run may have."""
    data = read_json(file)
    config = checked(RunConfig, data, str(file))
    return {**data, **to_json(config)}


def read_settings(kind: type[T], data: Any, file: Path) -> T:
    """The planner's or the campaign's settings from config.json."""
    return checked(kind, data, f"{file}, settings")


def read_rows(file: Path, kind: type[Any]) -> list[dict[str, Any]]:
    """All complete lines; a last one that a kill or a full disk cut short is left out."""
    if not file.exists():
        return []
    rows = []
    for number, line in enumerate(_text(file).split("\n")[:-1], 1):
        row = _parsed(line, f"{file}:{number}")
        fields = (
            {("returns" if name == "return" else name): row[name] for name in row} if isinstance(row, dict) else row
        )
        checked(kind, fields, f"{file}:{number}")
        rows.append(row)
    return rows


def require_tests(rows: Sequence[dict[str, Any]], seeds: int, constraints: int, categories: int, file: Path) -> None:
    """Every row tells of a test what a run that goes on will look at."""
    for number, row in enumerate(rows, 1):
        wanted = {}
        if constraints:  # without any, a row tells of no more categories than occurred
            wanted = {"mean_costs": constraints, "train_multipliers": constraints}
            wanted |= {name: categories for name in ("mean_true", "mean_predicted") if row.get(name) is not None}
        lengths_fit = all(row.get(name) is not None and len(row[name]) == length for name, length in wanted.items())
        norms_fit = len(row.get("train_gradient_norms") or ()) in (0, constraints, constraints + 1)
        known = row.get("mean_return") is not None and row.get("feasible") is not None
        if not (lengths_fit and norms_fit and known and 0 <= row.get("seed_index", 0) < seeds):
            raise InputError("is not a test of this run; put the file back as it was", place=f"{file}:{number}")


def read_json(file: Path) -> Any:
    return _parsed(_text(file), str(file))


def _text(file: Path) -> str:
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected text in UTF-8 and found something else at byte {error.start}", place=str(file)
        ) from None


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({error})", place=place) from None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' stands twice in one object")
    return content
