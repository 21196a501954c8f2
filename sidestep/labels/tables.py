"""Trajectories as a table with one row per step, and the check that every row of one is good.

    trajectory, step, <state columns>, <action columns>, reward
        [, policy, round, seed, label, annotator, mark_<severity>..., comment]

`trajectory` is any name that a trajectory's rows share; they come together, with steps 0, 1, 2, ... The columns from
`policy` on may be missing; what they say is said of the whole trajectory, on each of its rows or on some. `mark_mild`
is the step at which it first was mild. A blank label is no label yet; `cannot tell` is an annotator's answer. A table
of state-action pairs leaves out `trajectory` and `step`: each row is then a trajectory of one step.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sidestep.core.constraints import CANNOT_TELL, Scale
from sidestep.core.errors import InputError
from sidestep.labels.marks import NO_MARK, Marks, marks_fault
from sidestep.labels.packing import unpack
from sidestep.labels.schema import checked_comment

if TYPE_CHECKING:
    from sidestep.core.model import Trajectory
    from sidestep.labels.store import Store

Cell = str | float | None  # of a row, as CSV and Parquet give it
KEYS = ("trajectory", "step")
SOURCES = ("policy", "round", "seed")  # where a trajectory came from
LISTED = 20  # problems that are spelled out; the others are counted


class BadRows(InputError):
    """A file that cannot be imported: the first problem is the message, the first twenty are in `problems`."""

    def __init__(self, problems: Sequence[tuple[str, str]], others: str, total: int) -> None:
        place, first = problems[0]
        super().__init__(f"{first}{others}; nothing was imported", place=place)
        self.problems = tuple(f"{place}: {problem}" for place, problem in problems)
        self.total = total


class Problems:
    """Collects what is wrong with a file, by the number of the line, row or trajectory."""

    def __init__(self, path: str, unit: str) -> None:
        self.path, self.unit = path, unit
        self.total = 0
        self._first: list[tuple[int, str]] = []

    def add(self, number: int, problem: str) -> None:
        self.total += 1
        if len(self._first) < LISTED or number < self._first[-1][0]:
            self._first = sorted([*self._first, (number, problem)], key=itemgetter(0))[:LISTED]

    def raise_if_any(self) -> None:
        if self.total:
            rest = [str(number) for number, _ in self._first[1:]] + ["..."] * (self.total > LISTED)
            others = f"; {self.total - 1} more in {self.unit} {', '.join(rest)}" if rest else ""
            raise BadRows([(self.place(number), problem) for number, problem in self._first], others, self.total)

    def place(self, number: int) -> str:
        return f"{self.path}:{number}" if self.unit == "line" else f"{self.path}: {self.unit} {number}"


class Remark(NamedTuple):
    """What is said of a trajectory as a whole."""

    policy: str | None
    round: int | None
    seed: int | None
    said: "Said | None"  # its label, if it has one


class Said(NamedTuple):
    """A label in a file."""

    category: int | None  # None: the annotator cannot tell
    annotator: str  # "" where the file names nobody
    marks: Marks
    comment: str | None


class Batch(NamedTuple):
    """Checked trajectories and what is said of each, ready for the store."""

    trajectories: "Trajectory"
    remarks: list[Remark]


def mark_columns(scale: Scale) -> tuple[str, ...]:
    """The columns of marks, one for each severity."""
    return tuple(f"mark_{name}" for name in scale.categories[1:])


def remark_columns(scale: Scale) -> tuple[str, ...]:
    """The columns of what is said of a trajectory as a whole."""
    return (*SOURCES, "label", "annotator", *mark_columns(scale), "comment")


def number_columns(store: "Store") -> tuple[str, ...]:
    """The columns of numbers: state, action, reward. A name that is taken elsewhere gets its part in front."""
    states, actions = store.state_names, store.action_names
    taken = {*KEYS, *remark_columns(store.scale), "reward", *(set(states) & set(actions))}
    return (
        *(f"state:{name}" if name in taken else name for name in states),
        *(f"action:{name}" if name in taken else name for name in actions),
        "reward",
    )


def read_table(
    store: "Store", header: Sequence[str], rows: Iterable[tuple[int, Sequence[Cell]]], problems: Problems
) -> Batch:
    """The trajectories in `rows`, each (number of the line or row, cells); raises when any row is bad."""
    known = (*number_columns(store), *KEYS, *remark_columns(store.scale))
    check_header(header, known, number_columns(store), problems.place(1))
    if ("trajectory" in header) != ("step" in header):
        raise InputError("columns 'trajectory' and 'step' go together", place=problems.place(1))
    reader = _Reader(store, header, problems)
    for number, cells in rows:
        reader.read(number, cells)
    return reader.finish()


def check_header(header: Sequence[str], known: Sequence[str], needed: Sequence[str], place: str) -> None:
    missing = [name for name in needed if name not in header]
    if missing:
        raise InputError(f"there is no column '{missing[0]}' among {', '.join(header)}", place=place)
    for name in header:
        if name not in known:
            raise InputError(f"column '{name}' is not one of {', '.join(known)}", place=place)
        if header.count(name) > 1:
            raise InputError(f"column '{name}' appears twice", place=place)


def read_remark(number: int, texts: Mapping[str, str], length: int, scale: Scale, problems: Problems) -> Remark:
    """What is said of a trajectory, from texts, "" for nothing; `number` names it in a problem."""
    return Remark(
        texts.get("policy") or None,
        read_whole(texts.get("round", ""), "round", number, problems),
        read_whole(texts.get("seed", ""), "seed", number, problems),
        read_said(number, texts, length, scale, problems),
    )


def read_said(number: int, texts: Mapping[str, str], length: int, scale: Scale, problems: Problems) -> Said | None:
    """The label of a trajectory of this length; None where it is blank, and the question is not answered yet."""
    label = texts.get("label", "")
    steps = {name: read_step(texts.get(f"mark_{name}", ""), name, number, problems) for name in scale.categories[1:]}
    marks = tuple((name, step) for name, step in steps.items() if step is not None)
    comment = read_comment(texts.get("comment", ""), number, problems)
    if not label:
        for what in ("a mark",) * bool(marks) + ("a comment",) * bool(comment):
            problems.add(number, f"there is {what} and no label; give one, or '{CANNOT_TELL}'")
        return None
    cannot_tell = label.casefold() == CANNOT_TELL
    category = None if cannot_tell else scale.find(label)
    if category is None and not cannot_tell:
        problems.add(number, f"label '{label}' is not on the scale {scale}")
    elif fault := marks_fault(marks, category, length, scale):
        problems.add(number, fault)
    return Said(category, texts.get("annotator", ""), marks, comment)


def read_step(text: str, name: str, number: int, problems: Problems) -> int | None:
    """The step of a mark; None for a blank or -1. Spreadsheets may have written 3.0 for 3."""
    step = read_whole(text.removesuffix(".0"), f"mark_{name}", number, problems)
    return None if step == NO_MARK else step


def read_comment(text: str, number: int, problems: Problems) -> str | None:
    try:
        return checked_comment(text)
    except InputError as error:
        problems.add(number, str(error))
        return None


def read_whole(text: str, name: str, number: int, problems: Problems) -> int | None:
    """A whole number that SQLite can hold, None for an empty text."""
    try:
        value = int(text) if text else None
    except ValueError:
        value = 2**63
    if value is not None and not -(2**63) <= value < 2**63:
        problems.add(number, f"{name} is '{text}', which is not a whole number of 64 bits")
        return None
    return value


class _Reader:
    """Takes rows one by one and puts trajectories together."""

    def __init__(self, store: "Store", header: Sequence[str], problems: Problems) -> None:
        self.store, self.problems = store, problems
        self.header = list(header)
        self.names = number_columns(store)
        self.numbers_of = itemgetter(*(self.header.index(name) for name in self.names))
        self.keys = tuple(self.header.index(name) for name in KEYS if name in header)
        self.remark_names = [name for name in remark_columns(store.scale) if name in header]
        self.remark_columns = [self.header.index(name) for name in self.remark_names]
        self.numbers = array("d")
        self.row_numbers = array("q")
        self.lengths: list[int] = []
        self.remarks: list[tuple[int, dict[str, str]]] = []
        self.ended: set[str] = set()
        self.last_said: list[Cell] = []
        self.key: str | None = None
        self.next_step = 0

    def read(self, number: int, cells: Sequence[Cell]) -> None:
        if len(cells) != len(self.header):
            self.problems.add(number, f"there are {len(cells)} cells where the header has {len(self.header)}")
            self.next_step += 1
            return
        self._place_row(number, cells)
        try:
            self.numbers.extend(map(float, self.numbers_of(cells)))
        except (TypeError, ValueError):
            del self.numbers[len(self.row_numbers) * len(self.names) :]
            self.numbers.extend(
                self._number(number, *named) for named in zip(self.names, self.numbers_of(cells), strict=True)
            )
        self.row_numbers.append(number)
        self.lengths[-1] += 1
        said = [cells[column] for column in self.remark_columns]
        if said != self.last_said:
            self.last_said = said
            self._remark(number, said)

    def finish(self) -> Batch:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is reported as such
            numbers = np.array(self.numbers, float).astype(np.float32).reshape(-1, len(self.names))
        for row in np.flatnonzero(~np.isfinite(numbers).all(axis=1)).tolist():
            column = int(np.argmin(np.isfinite(numbers[row])))
            value = self.numbers[row * len(self.names) + column]
            self.problems.add(self.row_numbers[row], f"{self.names[column]} is {value}, not a finite float32 number")
        remarks = [
            read_remark(number, texts, length, self.store.scale, self.problems)
            for (number, texts), length in zip(self.remarks, self.lengths, strict=True)
        ]
        self.problems.raise_if_any()
        sizes = len(self.store.state_names), len(self.store.action_names)
        return Batch(unpack([numbers.astype("<f4").tobytes()], self.lengths, *sizes), remarks)

    def _place_row(self, number: int, cells: Sequence[Cell]) -> None:
        """Find the trajectory that a row belongs to, or begin it, and check that it is the next step."""
        key, step = (_text(cells[column]) for column in self.keys) if self.keys else (str(number), "0")
        if not key:
            self.problems.add(number, "trajectory is empty")
        if key != self.key:
            if key in self.ended:
                self.problems.add(number, f"trajectory '{key}' goes on after other rows; its rows must be together")
            if self.key is not None:
                self.ended.add(self.key)
            self.key, self.next_step = key, 0
            self.lengths.append(0)
            self.remarks.append((number, {}))
            self.last_said = []
        if step != str(self.next_step):
            found = read_whole(step, "step", number, self.problems)
            if found is None and not step:
                self.problems.add(number, "step is empty")
            elif found is not None and found != self.next_step:
                self.problems.add(number, f"step is {found} where {self.next_step} comes next in trajectory '{key}'")
                self.next_step = found
        self.next_step += 1

    def _remark(self, number: int, said: Sequence[Cell]) -> None:
        earlier = self.remarks[-1][1]
        for name, cell in zip(self.remark_names, said, strict=True):
            text = _text(cell)
            if text and text != earlier.setdefault(name, text):
                self.problems.add(number, f"{name} is '{text}', and '{earlier[name]}' earlier in the same trajectory")

    def _number(self, number: int, name: str, cell: Cell) -> float:
        try:
            return float("" if cell is None else cell)
        except ValueError:
            self.problems.add(number, f"{name} is '{cell}', not a number" if _text(cell) else f"{name} is empty")
            return 0.0


def _text(cell: Cell) -> str:
    return "" if cell is None else str(cell).strip()
