"""Pictures of a safety model: its calibration, and what it blames."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from sidestep.safety.explain import Explanation
from sidestep.safety.report import BINS, reliability

STATES = 6  # entries of the state that a blame plot shows


def reliability_plot(probabilities: np.ndarray, categories: np.ndarray) -> Figure:
    """Predicted probability of the best category against how often it was true, and how the predictions spread."""
    best, true = probabilities[:, 0], np.asarray(categories) == 0
    predicted, observed, _ = zip(*reliability(best, true), strict=True)
    figure = Figure(figsize=(5.0, 6.0), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1.0, linestyle="--")
    axes.plot(predicted, observed, "o-", color="#2a9d8f")
    axes.set(ylabel="observed frequency", title="Probability of the best category", ylim=(-0.02, 1.02))
    below.hist(best, np.linspace(0.0, 1.0, BINS + 1), color="#8ab8b2")
    below.set(xlabel="predicted", ylabel="trajectories", yscale="log")
    return figure


def blame_plot(found: Explanation, names: Sequence[str]) -> Figure:
    """The states over time, and below them each step's share of the blame; dashed lines where people set marks."""
    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    steps = np.arange(len(found.shares))
    for name, line in list(zip(names, found.states.T, strict=True))[:STATES]:
        axes.plot(steps, line, label=name)
    axes.legend(fontsize=8)
    axes.set(title=f"likeliest: {found.categories[int(found.probabilities.argmax())]}")
    below.bar(steps, found.shares, color="#c8463c")
    for name, step in found.marks:
        for part in (axes, below):
            part.axvline(step, color="#555555", linewidth=1.0, linestyle="--")
        axes.annotate(f" {name}", (step, 1.0), xycoords=("data", "axes fraction"), va="top", fontsize=8)
    below.set(xlabel="step", ylabel=f"blame for {found.categories[found.severity]}+")
    return figure
