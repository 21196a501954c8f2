"""Trajectories drawn on their domain: paths on the plane, walks on the map, or lines over time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from sidestep.labels.rules import DIRTY_X, DIRTY_Y, SERVER_LIMIT, SERVER_ROOM, UNBALANCED
from sidestep.model import Model, Trajectory
from sidestep.models.map_text import SUFFIXES

SHADES = ("#2a9d8f", "#e9a23b", "#c8463c", "#a05fb0", "#7284c4")  # categories, best first
UNKNOWN = "#80868c"  # trajectories that nobody has judged
LINES = 60  # trajectories in one drawing
DOTS = 3000  # steps in one drawing up to which each has its dot
ENTRIES = 4  # of the state of a model that we know nothing about
TALL = 4.3  # inches of a picture whose two directions are alike
COMFORT = (20.0, 23.5)  # degrees that HVAC's reward asks for


class View(NamedTuple):
    """One way to look at trajectories: where each step is drawn, and what is drawn around them."""

    title: str
    points: Callable[[Trajectory], tuple[np.ndarray, np.ndarray]]  # x and y, each (batch, time)
    surround: Callable[[Any], None]  # draws on the axes
    height: float = 3.3  # of its picture, in inches


def shade(category: int) -> str:
    return SHADES[int(category) % len(SHADES)] if category >= 0 else UNKNOWN


def views(model: Any) -> list[View]:
    """The ways to look at this model, the most telling one first."""
    if model.spec.family in SUFFIXES.values():
        return [View("the walk on the map", lambda t: _cells(model, t), lambda axes: _map(axes, model.map), TALL)]
    if model.spec.family == "hvac":
        others = [name for name in model.spec.state.names if name.startswith("temp[") and name != SERVER_ROOM]
        return [
            _over_time(f"{SERVER_ROOM}, the server room", _entry(model, SERVER_ROOM), COMFORT, SERVER_LIMIT),
            _over_time("other rooms, their mean temperature", _mean_of(model, others), COMFORT),
        ]
    if model.spec.family == "reservoir":
        return _reservoir_views(model)
    if model.spec.state.size == 2 and model.spec.state.kinds == {"real"}:
        return [_plane(model)]
    return [_over_time(name, values) for name, values in _entries(model)]


def draw(model: Model, trajectory: Trajectory, categories: np.ndarray, names: tuple[str, ...]) -> Figure:
    """A picture of some trajectories, coloured by category."""
    figure = draw_view(views(model)[0], trajectory, categories, names)
    figure.set_size_inches(7.0, 5.0)
    figure.axes[0].set_title(f"{model.spec.name}: {min(LINES, len(trajectory))} trajectories")
    return figure


def draw_view(view: View, trajectory: Trajectory, categories: np.ndarray, names: tuple[str, ...]) -> Figure:
    """The first trajectories in one view, coloured by category; -1 is a category that nobody knows."""
    figure, axes = plt.subplots(figsize=(4.5, view.height), layout="constrained")
    view.surround(axes)
    xs, ys = view.points(trajectory)
    categories, length = np.asarray(categories)[:LINES], np.asarray(trajectory.length)
    dots = "." if length[: len(categories)].sum() <= DOTS else ""
    for index, category in enumerate(categories):
        path = xs[index, : length[index]], ys[index, : length[index]]
        axes.plot(*path, color=shade(category), alpha=0.6, linewidth=1.0, marker=dots, markersize=2.5)
    present = [k for k in range(len(names)) if (categories == k).any()]
    if present:
        handles = [plt.Line2D([], [], color=shade(k), linewidth=2.0, label=names[k]) for k in present]
        figure.legend(handles=handles, loc="outside upper left", ncols=4)
    return figure


def draw_blame(view: View, one: Trajectory, shares: np.ndarray, category: int) -> Figure:
    """One trajectory in one view, with a disc at each step as large as its share of the blame."""
    figure, axes = plt.subplots(figsize=(4.5, view.height), layout="constrained")
    view.surround(axes)
    xs, ys = (part[0, : len(shares)] for part in view.points(one))
    axes.plot(xs, ys, color=UNKNOWN, linewidth=1.0, marker=".", markersize=3)
    axes.scatter(xs, ys, s=600.0 * shares, color=shade(category), alpha=0.55, linewidth=0, zorder=3)
    return figure


def same_frame(figures: list[Figure]) -> None:
    """Give pictures that are to be compared the same axes."""
    axes = [figure.axes[0] for figure in figures]
    for which in ("x", "y"):
        limits = np.array([getattr(one, f"get_{which}lim")() for one in axes])
        upward = limits[0, 0] <= limits[0, 1]
        ends = (limits.min(), limits.max()) if upward else (limits.max(), limits.min())
        for one in axes:
            getattr(one, f"set_{which}lim")(*ends)


def _plane(model: Model) -> View:
    x, y = model.spec.state.names

    def surround(axes: Any) -> None:
        axes.set(xlabel=x, ylabel=y, aspect="equal")
        if model.spec.family == "navigation":
            corner, width, height = (DIRTY_X[0], DIRTY_Y[0]), DIRTY_X[1] - DIRTY_X[0], DIRTY_Y[1] - DIRTY_Y[0]
            axes.add_patch(plt.Rectangle(corner, width, height, color="#a98274", alpha=0.3, linewidth=0, zorder=0))
            axes.text(sum(DIRTY_X) / 2, DIRTY_Y[1] + 0.15, "dirty zone", color="#a9674f", fontsize=9, ha="center")
            ink = plt.rcParams["text.color"]
            axes.plot(1.0, 1.0, "s", color=ink, markersize=6, zorder=4)
            axes.plot(8.0, 9.0, marker="*", color=ink, markersize=13, zorder=4)
            axes.set(xlim=(-4, 11), ylim=(-3, 13))

    def points(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        states = np.asarray(trajectory.states)
        return states[..., 0], states[..., 1]

    return View("the path on the plane", points, surround, TALL)


def _map(axes: Any, rows: tuple[str, ...]) -> None:
    tones = {".": 0, "S": 0, "G": 0, "B": 0, "F": 1, "@": 2, "H": 3, "x": 4, "X": 4}
    colours = ListedColormap(["#80868c10", "#e9a23b50", "#d0746070", "#c8463c90", "#80868cc0"])
    height, width = len(rows), len(rows[0])
    cells = np.array([[tones[cell] for cell in row] for row in rows])
    edges = np.arange(width + 1) - 0.5, np.arange(height + 1) - 0.5
    axes.pcolormesh(*edges, cells, cmap=colours, vmin=0, vmax=4, edgecolors="#80868c30", linewidth=0.4)
    for y, line in enumerate(rows):
        for x, cell in enumerate(line):
            if cell in "SGB":
                axes.text(x, y, cell, ha="center", va="center", fontweight="bold", zorder=4)
    axes.set(xticks=[], yticks=[], aspect="equal", ylim=(height - 0.5, -0.5), xlim=(-0.5, width - 0.5))
    axes.grid(False)


def _cells(model: Any, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """The cell of each step; a little beside its middle, and not the same for each trajectory, so that all are seen."""
    row, column = (np.asarray(model.spec.state.take(trajectory.states, n)).argmax(axis=2) for n in ("row", "column"))
    jitter = np.random.default_rng(0).uniform(-0.25, 0.25, (len(row), 2))
    return column + jitter[:, :1], row + jitter[:, 1:]


def _over_time(
    title: str,
    values: Callable[[Trajectory], np.ndarray],
    band: tuple[float, float] | None = None,
    limit: float | None = None,
) -> View:
    """A number over the steps, with the band that is wanted and the limit that is not to be passed for long."""

    def surround(axes: Any) -> None:
        if band is not None:
            axes.axhspan(*band, color=SHADES[0], alpha=0.14, linewidth=0)
        if limit is not None:
            axes.axhline(limit, color=SHADES[2], linewidth=1.2, linestyle="--")
        axes.set(xlabel="step", ylabel=title.partition(",")[0])

    def points(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        numbers = values(trajectory)
        return np.broadcast_to(np.arange(numbers.shape[1]), numbers.shape), numbers

    return View(f"{title}, over time", points, surround)


def _entry(model: Model, name: str) -> Callable[[Trajectory], np.ndarray]:
    where = model.spec.state.names.index(name)
    return lambda trajectory: np.asarray(trajectory.states)[..., where]


def _mean_of(model: Model, names: list[str]) -> Callable[[Trajectory], np.ndarray]:
    where = [model.spec.state.names.index(name) for name in names]
    return lambda trajectory: np.asarray(trajectory.states)[..., where].mean(axis=2)


def _entries(model: Model) -> list[tuple[str, Callable[[Trajectory], np.ndarray]]]:
    """The first entries of a state, a one-hot variable by the place of its 1."""
    found: list[tuple[str, Callable[[Trajectory], np.ndarray]]] = []
    space = model.spec.state
    for variable in space.variables:
        where = space.slices[variable.name]
        if variable.kind == "one-hot":
            found.append((variable.name, lambda t, where=where: np.asarray(t.states)[..., where].argmax(axis=2)))
        else:
            found += [(name, _entry(model, name)) for name in space.names[where]]
    return found[:ENTRIES]


def _reservoir_views(model: Model) -> list[View]:
    from sidestep.models.builtin import RESERVOIRS

    capacity = np.array([RESERVOIRS[i % len(RESERVOIRS)][3] for i in range(model.spec.state.size)])

    def gap(trajectory: Trajectory) -> np.ndarray:
        share = np.asarray(trajectory.states) / capacity
        return share.max(axis=2) - share.min(axis=2)

    first = model.spec.state.names[0]
    return [
        _over_time("gap in shares of capacity, from the fullest to the emptiest", gap, limit=UNBALANCED),
        _over_time(f"{first}, with the range that is wanted", _entry(model, first), RESERVOIRS[0][4:6]),
    ]
