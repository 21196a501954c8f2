"""Ways to look at trajectories: where each step is drawn, and what is drawn around the steps, as data.

A domain describes its views with these records; the report draws them, and a run keeps them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sidestep.core.model import Spec, Trajectory

Points = tuple[np.ndarray, np.ndarray]  # x and y of each step, each (batch, time)
Values = Callable[[Trajectory], np.ndarray]  # (batch, time)
MOST_ENTRIES = 4  # of the state of a model without views of its own
TONES = range(5)  # of a cell: 0 free, 1 to 3 ever worse ground, 4 wall


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Zone:
    """A named rectangle on the plane."""

    name: str
    x: Interval
    y: Interval


@dataclass(frozen=True)
class Spot:
    """A place on the plane."""

    meaning: Literal["start", "goal"]
    x: float
    y: float


@dataclass(frozen=True)
class Cells:
    """A text map: the tone of each character (0 if not given), and the characters that are written on their cell."""

    rows: tuple[str, ...]
    tones: dict[str, int]
    letters: str = ""

    def __post_init__(self) -> None:
        if not self.rows or not self.rows[0] or len({len(row) for row in self.rows}) > 1:
            raise ValueError("the rows of a map are equally long")
        if not set(self.tones.values()) <= set(TONES):
            raise ValueError(f"a tone is a whole number from {TONES[0]} to {TONES[-1]}")


@dataclass(frozen=True)
class Frame:
    """What is drawn around the steps of trajectories."""

    kind: Literal["plane", "map", "time"]
    title: str
    x_label: str = ""
    y_label: str = ""
    x_range: Interval | None = None
    y_range: Interval | None = None
    zones: tuple[Zone, ...] = ()
    spots: tuple[Spot, ...] = ()
    band: Interval | None = None  # values that are wanted
    limit: float | None = None  # a value that should not be passed for long
    cells: Cells | None = None


@dataclass(frozen=True)
class View:
    """One way to look at trajectories."""

    frame: Frame
    points: Callable[[Trajectory], Points]


def on_plane(
    spec: Spec,
    zones: tuple[Zone, ...] = (),
    spots: tuple[Spot, ...] = (),
    x_range: Interval | None = None,
    y_range: Interval | None = None,
) -> View:
    """The path of a state with two entries."""
    x, y = spec.state.names

    def points(trajectory: Trajectory) -> Points:
        states = np.asarray(trajectory.states)
        return states[..., 0], states[..., 1]

    return View(Frame("plane", "the path on the plane", x, y, x_range, y_range, zones, spots), points)


def on_map(spec: Spec, cells: Cells) -> View:
    """The cell of each step, from the one-hot variables `row` and `column`; shifted a little from the middle of the
    cell, differently for each trajectory, so that all of them can be seen."""

    def points(trajectory: Trajectory) -> Points:
        row, column = (np.asarray(spec.state.take(trajectory.states, n)).argmax(axis=2) for n in ("row", "column"))
        jitter = np.random.default_rng(0).uniform(-0.25, 0.25, (len(row), 2))
        return column + jitter[:, :1], row + jitter[:, 1:]

    return View(Frame("map", "the walk on the map", cells=cells), points)


def over_time(title: str, values: Values, *, band: Interval | None = None, limit: float | None = None) -> View:
    """A number over the steps; the title up to its first comma names the axis."""

    def points(trajectory: Trajectory) -> Points:
        numbers = values(trajectory)
        return np.broadcast_to(np.arange(numbers.shape[1]), numbers.shape), numbers

    return View(Frame("time", f"{title}, over time", "step", title.partition(",")[0], band=band, limit=limit), points)


def entry(spec: Spec, name: str) -> Values:
    """The state's entry of this name."""
    where = spec.state.names.index(name)
    return lambda trajectory: np.asarray(trajectory.states)[..., where]


def mean_of(spec: Spec, names: list[str]) -> Values:
    """The mean of these entries of the state."""
    where = [spec.state.names.index(name) for name in names]
    return lambda trajectory: np.asarray(trajectory.states)[..., where].mean(axis=2)


def default_views(spec: Spec, most: int = MOST_ENTRIES) -> list[View]:
    """Of a model without views of its own: the plane if its state is a pair of reals, else its first entries."""
    if spec.state.size == 2 and spec.state.kinds == {"real"}:
        return [on_plane(spec)]
    return [over_time(name, values) for name, values in _entries(spec)[:most]]


def plane_of(spec: Spec, x: str, y: str) -> View:
    """The path of two entries of the state, by their names."""
    frame = Frame("plane", f"the path of {x} and {y}", x, y)
    return View(frame, lambda trajectory: (entry(spec, x)(trajectory), entry(spec, y)(trajectory)))


def _entries(spec: Spec) -> list[tuple[str, Values]]:
    """The entries of a state; a one-hot variable is one entry, the index of its 1."""
    found: list[tuple[str, Values]] = []
    for variable in spec.state.variables:
        where = spec.state.slices[variable.name]
        if variable.kind == "one-hot":
            found.append((variable.name, lambda t, where=where: np.asarray(t.states)[..., where].argmax(axis=2)))
        else:
            found += [(name, entry(spec, name)) for name in spec.state.names[where]]
    return found
