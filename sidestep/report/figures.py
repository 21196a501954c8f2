"""The curves of a run, each a small figure of its own, and the safety model's pictures in the page's format."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from sidestep.core.constraints import Constraint
from sidestep.planning.rows import PlanRow
from sidestep.report.drawings import shade
from sidestep.report.svg import FAINT, INK, SIZE
from sidestep.runs.records import Round
from sidestep.runtime.figures import subplots
from sidestep.safety.explain import Explanation
from sidestep.safety.plots import blame_plot, reliability_plot

Histories = Sequence[Sequence[PlanRow]]  # the rows of each seed
Stroke = Literal["-", "--"]
WIDE = 30.0  # ratio of largest to smallest multiplier from which the axis is logarithmic


def epochs(rows: Sequence[PlanRow]) -> tuple[np.ndarray, list[float]]:
    """Epochs done at each row, counted on from round to round, and where rounds begin."""
    done: list[float] = []
    begins: list[float] = []
    before = last = 0.0
    for previous, row in zip([None, *rows], rows, strict=False):
        epoch = float(row.epoch)
        if previous is not None and row.round != previous.round:
            before = done[-1] if epoch <= last else before
            begins.append(done[-1])
        done.append(before + epoch)
        last = epoch
    return np.array(done), begins


def return_curves(histories: Histories) -> Figure:
    """Mean return of the tests; dots where the safety model calls the policy feasible."""
    figure, axes = _over_epochs(histories)
    for number, rows in enumerate(histories):
        colour = f"C{number % 6}"
        x, y = epochs(rows)[0], _column(rows, "mean_return")
        feasible = np.array([bool(row.feasible) for row in rows])
        axes.plot(x, y, color=colour, linewidth=1.4)
        axes.plot(x[feasible], y[feasible], "o", color=colour, markersize=4)
    axes.set(ylabel="return")
    _clip_to_bulk(axes, np.concatenate([_column(rows, "mean_return") for rows in histories]))
    return figure


def side_effect_curves(histories: Histories, names: Sequence[str], constraints: Sequence[Constraint]) -> Figure:
    """Shares of the categories: what the safety model predicts, dashed, and what the rule sees."""
    figure, axes = _over_epochs(histories)
    alpha = 0.9 if len(histories) == 1 else 0.5
    true = predicted = False
    for rows in histories:
        x = epochs(rows)[0]
        for category in range(len(names)):
            for column, line in (("mean_true", "-"), ("mean_predicted", "--")):
                y = _column(rows, column, category)
                if np.isfinite(y).any():
                    true, predicted = true or line == "-", predicted or line == "--"
                    axes.plot(x, y, line, color=shade(category), alpha=alpha, linewidth=1.3)
    _bounds(axes, constraints)
    axes.set(ylabel="frequency", ylim=(-0.03, 1.03))
    strokes: list[tuple[str, Stroke]] = [("true", "-"), ("predicted", "--")]
    _legend(figure, names, [one for one, drawn in zip(strokes, (true, predicted), strict=True) if drawn], constraints)
    return figure


def multiplier_curves(histories: Histories, texts: Sequence[str]) -> Figure:
    """How hard each constraint pulled."""
    figure, axes = _over_epochs(histories)
    values = []
    for rows in histories:
        for number, _ in enumerate(texts):
            y = _column(rows, "train_multipliers", number)
            axes.plot(epochs(rows)[0], y, color=f"C{number % 6}", linewidth=1.4, alpha=0.9)
            values.append(y[np.isfinite(y)])
    flat = np.concatenate(values)
    if len(flat) and flat.min() > 0 and flat.max() / flat.min() > WIDE:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    axes.set(ylabel="multiplier")
    handles = [Line2D([], [], color=f"C{number % 6}", label=text) for number, text in enumerate(texts)]
    figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def round_returns(rounds: Sequence[Round]) -> Figure:
    """Return of each round's policy against the labels spent by then; open circles where it is called infeasible."""
    figure, axes = subplots()
    x, y = _column(rounds, "labels"), _column(rounds, "mean_return")
    feasible = np.array([row.feasible is not False for row in rounds])
    axes.plot(x, y, color="C0", linewidth=1.4)
    axes.plot(x[feasible], y[feasible], "o", color="C0", markersize=5)
    axes.plot(x[~feasible], y[~feasible], "o", color="C0", markersize=5, markerfacecolor="none")
    axes.set(xlabel="labels used", ylabel="return")
    return figure


def round_side_effects(rounds: Sequence[Round], names: Sequence[str], constraints: Sequence[Constraint]) -> Figure:
    """Shares of the categories in each round: among the labels of its policy, and by the safety model, dashed."""
    figure, axes = subplots()
    x = _column(rounds, "round")
    strokes: list[tuple[str, Stroke]] = [("labelled", "-"), ("predicted", "--")]
    kinds = [(column, line) for column, line in strokes if any(getattr(row, column) for row in rounds)]
    for column, line in kinds:
        for category in range(len(names)):
            y = _column(rounds, column, category)
            axes.plot(x, y, line, color=shade(category), linewidth=1.3, marker="o", markersize=3)
    _bounds(axes, constraints)
    axes.set(xlabel="round", ylabel="frequency", ylim=(-0.03, 1.03))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, names, kinds, constraints)
    return figure


def calibration(probabilities: np.ndarray, categories: np.ndarray) -> Figure:
    figure = reliability_plot(probabilities, categories)
    figure.set_size_inches(SIZE[0], 4.2)
    _plain_numbers(figure.axes[1].yaxis)
    return figure


def blame_over_time(found: Explanation, names: Sequence[str]) -> Figure:
    figure = blame_plot(found, names)
    figure.set_size_inches(SIZE[0], 4.3)
    figure.axes[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _over_epochs(histories: Histories) -> tuple[Figure, Axes]:
    """Axes with a thin vertical line where a round begins."""
    figure, axes = subplots()
    for begin in sorted({begin for rows in histories for begin in epochs(rows)[1]}):
        axes.axvline(begin, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set(xlabel="epoch")
    return figure, axes


def _column(rows: Sequence[PlanRow] | Sequence[Round], name: str, entry: int | None = None) -> np.ndarray:
    """One number per row; NaN where a row has none."""

    def of(row: PlanRow | Round) -> float:
        value = getattr(row, name)
        if entry is not None:
            value = value[entry] if value is not None and entry < len(value) else None
        return np.nan if value is None else float(value)

    return np.array([of(row) for row in rows], float)


def _bounds(axes: Axes, constraints: Sequence[Constraint]) -> None:
    for constraint in constraints:
        axes.axhline(constraint.bound, color=shade(constraint.weights.index(1)), linewidth=1.0, linestyle=":")


def _legend(
    figure: Figure, names: Sequence[str], lines: Sequence[tuple[str, Stroke]], constraints: Sequence[Constraint]
) -> None:
    """Colours are categories, strokes say who counts them, dots are the constraints."""
    handles = [Line2D([], [], color=shade(k), linewidth=2.0, label=name) for k, name in enumerate(names)]
    handles += [Line2D([], [], color=INK, linewidth=1.0, linestyle=line, label=word) for word, line in lines]
    for constraint in constraints:
        colour = shade(constraint.weights.index(1))
        handles.append(Line2D([], [], color=colour, linewidth=1.0, linestyle=":", label=constraint.text))
    figure.legend(handles=handles, loc="outside upper left", ncols=3, columnspacing=1.2)


def _clip_to_bulk(axes: Axes, values: np.ndarray) -> None:
    """Keep a few disastrous tests at the beginning from flattening the rest of the curve."""
    values = values[np.isfinite(values)]
    if len(values) < 8:
        return
    low, high = np.quantile(values, [0.1, 1.0])
    if low < high and values.min() < low - 2.0 * (high - low):
        axes.set(ylim=(low - 0.3 * (high - low), high + 0.1 * (high - low)), ylabel="return (the lowest cut off)")


def _plain_numbers(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
