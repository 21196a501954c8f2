"""Draws trajectories in the views of their domain, coloured by category."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from sidestep.core.model import Model, Trajectory
from sidestep.core.views import Cells, Frame, Points, View, Zone, default_views
from sidestep.models.domains import find_domain
from sidestep.report.kept import Scene
from sidestep.runtime.figures import subplots

SHADES = ("#2a9d8f", "#e9a23b", "#c8463c", "#a05fb0", "#7284c4")  # categories, best first
UNKNOWN = "#80868c"  # trajectories that nobody has judged
LINES = 60  # trajectories in one drawing
DOTS = 3000  # steps in one drawing up to which each has its dot
HEIGHT = {"plane": 4.3, "map": 4.3, "time": 3.3}  # inches of a picture


def shade(category: int) -> str:
    return SHADES[int(category) % len(SHADES)] if category >= 0 else UNKNOWN


def views(model: Model) -> list[View]:
    """The ways to look at this model, the most telling one first: its own, its domain's, or those of any model."""
    own = getattr(model, "views", None)
    if own is not None:
        return own()
    domain = find_domain(model.spec.family)
    return (domain.views(model) if domain else []) or default_views(model.spec)


def draw(model: Model, trajectory: Trajectory, categories: np.ndarray, names: tuple[str, ...]) -> Figure:
    """A picture of some trajectories, coloured by category."""
    view = views(model)[0]
    figure = draw_view(view.frame, view.points(trajectory), np.asarray(trajectory.length), categories, names)
    figure.set_size_inches(7.0, 5.0)
    figure.axes[0].set_title(f"{model.spec.name}: {min(LINES, len(trajectory))} trajectories")
    return figure


def draw_view(
    frame: Frame, points: Points, length: np.ndarray, categories: np.ndarray, names: tuple[str, ...]
) -> Figure:
    """The first trajectories in one view, coloured by category; -1 is a category that nobody knows."""
    figure, axes = _framed(frame)
    _draw_paths(axes, points, length, categories)
    _legend(figure, [categories], names)
    return figure


def draw_beside(frame: Frame, scenes: Sequence[Scene], view: int, names: tuple[str, ...]) -> Figure:
    """Trajectories of several policies in one view, in one figure with the same axes."""
    size = (4.5 * len(scenes), HEIGHT[frame.kind] + 0.4)
    figure, panels = subplots(1, len(scenes), figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes, scene in zip(panels[0], scenes, strict=True):
        _draw_frame(axes, frame)
        _draw_paths(axes, scene.points[view], scene.length, scene.categories)
        axes.set_title(scene.words)
    _legend(figure, [scene.categories for scene in scenes], names)
    return figure


def _draw_paths(axes: Axes, points: Points, length: np.ndarray, categories: np.ndarray) -> None:
    xs, ys = points
    categories = np.asarray(categories)[:LINES]
    dots = "." if length[: len(categories)].sum() <= DOTS else ""
    for index in np.argsort(categories, kind="stable"):  # the worst on top: they are few, and what one looks for
        path = xs[index, : length[index]], ys[index, : length[index]]
        axes.plot(*path, color=shade(categories[index]), alpha=0.6, linewidth=1.0, marker=dots, markersize=2.5)


def _legend(figure: Figure, categories: Sequence[np.ndarray], names: tuple[str, ...]) -> None:
    present = [k for k in range(len(names)) if any((np.asarray(one)[:LINES] == k).any() for one in categories)]
    if present:
        handles = [Line2D([], [], color=shade(k), linewidth=2.0, label=names[k]) for k in present]
        figure.legend(handles=handles, loc="outside upper left", ncols=4)


def draw_blame(frame: Frame, points: Points, shares: np.ndarray, category: int) -> Figure:
    """One trajectory in one view, with a disc at each step as large as its share of the blame."""
    figure, axes = _framed(frame)
    xs, ys = (part[0, : len(shares)] for part in points)
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


def _framed(frame: Frame) -> tuple[Figure, Axes]:
    """A figure with all that is around the steps, and no trajectory yet."""
    figure, axes = subplots(figsize=(4.5, HEIGHT[frame.kind]))
    _draw_frame(axes, frame)
    return figure, axes


def _draw_frame(axes: Axes, frame: Frame) -> None:
    axes.set(xlabel=frame.x_label, ylabel=frame.y_label)
    if frame.kind == "plane":
        axes.set(aspect="equal")
    for zone in frame.zones:
        _draw_zone(axes, zone)
    for spot in frame.spots:
        marker, size = {"start": ("s", 6), "goal": ("*", 13)}[spot.meaning]
        ink = matplotlib.rcParams["text.color"]
        axes.plot(spot.x, spot.y, marker=marker, linestyle="none", color=ink, markersize=size, zorder=4)
    if frame.band is not None:
        axes.axhspan(frame.band.low, frame.band.high, color=SHADES[0], alpha=0.14, linewidth=0)
    if frame.limit is not None:
        axes.axhline(frame.limit, color=SHADES[2], linewidth=1.2, linestyle="--")
    if frame.cells is not None:
        _draw_cells(axes, frame.cells)
    if frame.x_range is not None:
        axes.set(xlim=(frame.x_range.low, frame.x_range.high))
    if frame.y_range is not None:
        axes.set(ylim=(frame.y_range.low, frame.y_range.high))


def _draw_zone(axes: Axes, zone: Zone) -> None:
    corner, width, height = (zone.x.low, zone.y.low), zone.x.high - zone.x.low, zone.y.high - zone.y.low
    axes.add_patch(Rectangle(corner, width, height, color="#a98274", alpha=0.3, linewidth=0, zorder=0))
    middle = (zone.x.low + zone.x.high) / 2
    axes.text(middle, zone.y.high + 0.15, zone.name, color="#a9674f", fontsize=9, ha="center")


def _draw_cells(axes: Axes, cells: Cells) -> None:
    colours = ListedColormap(["#80868c10", "#e9a23b50", "#d0746070", "#c8463c90", "#80868cc0"])
    height, width = len(cells.rows), len(cells.rows[0])
    tones = np.array([[cells.tones.get(cell, 0) for cell in row] for row in cells.rows])
    edges = np.arange(width + 1) - 0.5, np.arange(height + 1) - 0.5
    axes.pcolormesh(*edges, tones, cmap=colours, vmin=0, vmax=4, edgecolors="#80868c30", linewidth=0.4)
    for y, row in enumerate(cells.rows):
        for x, cell in enumerate(row):
            if cell in cells.letters:
                axes.text(x, y, cell, ha="center", va="center", fontweight="bold", zorder=4)
    axes.set(xticks=[], yticks=[], aspect="equal", ylim=(height - 0.5, -0.5), xlim=(-0.5, width - 0.5))
    axes.grid(False)
