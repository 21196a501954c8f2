"""Trajectories drawn on their domain: paths on the plane, walks on the map, or lines over time."""

from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from sidestep.labels.rules import DIRTY_X, DIRTY_Y, SERVER_LIMIT
from sidestep.model import Model, Trajectory

SHADES = ("#2a9d8f", "#e9a23b", "#c8463c", "#6d2e6b", "#22223b")  # categories, best first
LINES = 60  # trajectories in one drawing


def draw(model: Model, trajectory: Trajectory, categories: np.ndarray, names: tuple[str, ...]) -> Figure:
    """A picture of some trajectories, coloured by category."""
    shown = trajectory[: min(LINES, len(trajectory))]
    categories = np.asarray(categories)[: len(shown)]
    figure, axes = plt.subplots(figsize=(7.0, 5.0), layout="constrained")
    if hasattr(model, "map"):
        _on_map(axes, model, shown, categories)
    elif model.spec.state.size == 2:
        _on_plane(axes, model, shown, categories)
    else:
        _over_time(axes, model, shown, categories)
    present = [k for k in range(len(names)) if (categories == k).any()]
    handles = [plt.Line2D([], [], color=SHADES[k % len(SHADES)], label=names[k]) for k in present]
    axes.legend(handles=handles, loc="upper left", framealpha=0.9)
    return figure


def _on_plane(axes: Any, model: Model, trajectory: Trajectory, categories: np.ndarray) -> None:
    states, length = np.asarray(trajectory.states), np.asarray(trajectory.length)
    for path, steps, category in zip(states, length, categories, strict=True):
        axes.plot(*path[:steps].T, color=SHADES[category], alpha=0.6, linewidth=1.0, marker=".", markersize=3)
    axes.plot(*states[0, 0], "ks", markersize=6)
    if model.spec.family == "navigation":
        corner, width, height = (DIRTY_X[0], DIRTY_Y[0]), DIRTY_X[1] - DIRTY_X[0], DIRTY_Y[1] - DIRTY_Y[0]
        axes.add_patch(plt.Rectangle(corner, width, height, color="#8d6e63", alpha=0.25, zorder=0))
        axes.text(DIRTY_X[0] + 0.1, DIRTY_Y[1] - 0.6, "dirty zone", color="#5d4037", fontsize=9)
        axes.plot(8.0, 9.0, marker="*", color="black", markersize=13)
        axes.set(xlim=(-6, 14), ylim=(-5, 15))
    x, y = model.spec.state.names
    axes.set(xlabel=x, ylabel=y, aspect="equal", title=f"{model.spec.name}: {len(states)} trajectories")


def _on_map(axes: Any, model: Any, trajectory: Trajectory, categories: np.ndarray) -> None:
    rows = model.map
    tones = {".": 0, "S": 0, "G": 0, "B": 0, "F": 1, "@": 2, "H": 3, "x": 4, "X": 4}
    colours = ListedColormap(["#fbfaf7", "#f3dfb3", "#dfb9a8", "#d28f86", "#4a4a4a"])
    axes.imshow([[tones[cell] for cell in row] for row in rows], cmap=colours, vmin=0, vmax=4)
    row, column = (np.asarray(model.spec.state.take(trajectory.states, name)) for name in ("row", "column"))
    jitter = np.random.default_rng(0).uniform(-0.25, 0.25, (len(categories), 2))
    for index, category in enumerate(categories):
        steps = int(trajectory.length[index])
        ys, xs = row[index, :steps].argmax(axis=1), column[index, :steps].argmax(axis=1)
        axes.plot(xs + jitter[index, 0], ys + jitter[index, 1], color=SHADES[category], alpha=0.5, linewidth=1.0)
    for y, line in enumerate(rows):
        for x, cell in enumerate(line):
            if cell in "SGB":
                axes.text(x, y, cell, ha="center", va="center", fontweight="bold")
    axes.set(xticks=[], yticks=[], title=f"{model.spec.name}: {len(categories)} trajectories")


def _over_time(axes: Any, model: Model, trajectory: Trajectory, categories: np.ndarray) -> None:
    """One entry of the state over time: the server room where there is one, else the first."""
    name = "temp[r2]" if model.spec.family == "hvac" else model.spec.state.names[0]
    values = np.asarray(model.spec.state.take(trajectory.states, name))
    values = values[..., 0] if values.ndim == 3 else values
    for line, steps, category in zip(values, np.asarray(trajectory.length), categories, strict=True):
        axes.plot(line[:steps], color=SHADES[category], alpha=0.6, linewidth=1.0)
    if model.spec.family == "hvac":
        axes.axhspan(20.0, 23.5, color="#2a9d8f", alpha=0.12)
        axes.axhline(SERVER_LIMIT, color="#c8463c", linewidth=1.0, linestyle="--")
    axes.set(xlabel="step", ylabel=name, title=f"{model.spec.name}: {len(values)} trajectories")
