"""The frontier as a figure, as a table, and as a page on which every point opens its run."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from sidestep.frontier.records import Frontier, Level, Point, levels
from sidestep.report.page import Html, badge, facts, figures, join, number, page, paragraph, section, table, tag
from sidestep.report.svg import FAINT, INK, style, svg
from sidestep.runtime.files import atomic_write

PAGE, PICTURE = "frontier.html", "frontier.svg"
HEADS = ("tolerance", "certified", "proven", "observed", "return", "95 % interval", "exact optimum", "below it")


def write_page(out: Path, frontier: Frontier) -> Path:
    """frontier.html with the figure inside, and the figure in a file of its own."""
    with style():
        drawn = frontier_figure(frontier)
        with plt.rc_context({"figure.facecolor": "white", "text.color": "black"}):
            drawn.savefig(out / PICTURE, format="svg", metadata={"Date": None}, transparent=False)
        picture = svg("frontier", _words(frontier), drawn).replace("xlink:href", "href")
        text = page(f"Sidestep: the price of safety, {frontier.request.model}", *_parts(frontier, Html(picture)))
    atomic_write(out / PAGE, text)
    return out / PAGE


def frontier_figure(frontier: Frontier) -> Figure:
    """Return against certified probability: one mark per run, a line through the means, the exact optimum beside it."""
    figure, axes = plt.subplots(layout="constrained")
    for place, method in enumerate(frontier.request.methods):
        colour = f"C{place}"
        points = [point for point in frontier.points if point.method == method and point.mean is not None]
        for certified in (True, False):
            some = [point for point in points if point.certified == certified]
            marks = axes.scatter(
                [point.proven for point in some],
                [point.mean or 0.0 for point in some],
                s=22,
                facecolors=colour if certified else "none",
                edgecolors=colour,
                zorder=3,
            )
            marks.set_urls([f"{point.run}/report.html" for point in some])
        rows = [level for level in levels(frontier) if level.method == method and level.mean is not None]
        _line(axes, rows, colour, method if len(frontier.request.methods) > 1 else "certified")
    exact = [(_bound(one.tolerance), one.value) for one in frontier.exact if one.value is not None]
    if exact:
        axes.plot(*zip(*exact, strict=True), color=INK, linestyle="--", linewidth=1.0, label="exact optimum")
    event = frontier.request.tolerances[0].partition(_operator(frontier))[0]
    axes.set(xlabel=f"probability of {event} that is proven", ylabel="return")
    for tolerance in frontier.request.tolerances:
        axes.axvline(_bound(tolerance), color=FAINT, linewidth=0.6, linestyle=":")
    figure.legend(loc="outside upper left", ncols=3)
    return figure


def _line(axes: plt.Axes, rows: list[Level], colour: str, name: str) -> None:
    axes.plot([level.proven for level in rows], [level.mean or 0.0 for level in rows], color=colour, label=name)
    for level in rows:
        if level.interval is not None:
            axes.vlines(level.proven, *level.interval, color=colour, linewidth=1.0)


def table_rows(frontier: Frontier) -> list[tuple[str, ...]]:
    """One row per tolerance and method, as text; the columns are HEADS."""
    return [_row(level) for level in levels(frontier)]


def _row(level: Level) -> tuple[str, ...]:
    between = "–" if level.interval is None else f"{number(level.interval[0])} to {number(level.interval[1])}"
    return (
        level.tolerance,
        f"{level.certified} of {level.seeds}",
        number(level.proven),
        number(level.estimate),
        number(level.mean),
        between,
        number(level.exact, 6),
        "–" if level.gap is None else f"{level.gap:.3f}",
    )


def _parts(frontier: Frontier, picture: Html) -> list[Html]:
    request = frontier.request
    several = len(request.methods) > 1
    heads = ("method", *HEADS, "runs") if several else (*HEADS, "runs")
    rows = [
        (*((level.method,) if several else ()), *_row(level), _runs(frontier.at(level.tolerance, level.method)))
        for level in levels(frontier)
    ]
    caption = (
        "Every mark is a run and opens its report; hollow ones are not certified. Bars: 95 % intervals of the mean."
    )
    return [
        tag("header", tag("h1", f"The price of safety: {request.model}"), paragraph(sentence(frontier))),
        section("The frontier", figures((picture, caption)), table(heads, rows)),
        section("What it took", facts(_spent(frontier))),
    ]


def sentence(frontier: Frontier) -> str:
    """What the strictest tolerance costs, compared with the loosest."""
    rows = [level for level in levels(frontier) if level.method == frontier.request.methods[0]]
    loose, strict = rows[0], rows[-1]
    if loose.mean is None or strict.mean is None:
        return "Not every tolerance has a policy."
    return (
        f"{strict.tolerance} earns {number(strict.mean)}, which is {number(loose.mean - strict.mean)} less than "
        f"{loose.tolerance} with {number(loose.mean)}."
    )


def _runs(points: list[Point]) -> Html:
    links = [
        join([tag("a", f"seed {point.seed}", href=f"{point.run}/report.html"), " ", _verdict(point)])
        for point in points
    ]
    return join(links, " ")


def _verdict(point: Point) -> Html:
    return badge("certified", "good") if point.certified else badge("not certified", "bad")


def _spent(frontier: Frontier) -> list[tuple[str, object]]:
    paid, used = frontier.labels, frontier.used_labels
    return [
        ("labels", f"{paid:,}, each paid for once; {used:,} in as many separate campaigns"),
        ("labels of audits", f"{frontier.audit_labels:,}"),
        ("time of all runs", f"{sum(point.seconds for point in frontier.points):,.0f} s"),
        ("command", frontier.command),
        ("version", frontier.version),
    ]


def _words(frontier: Frontier) -> str:
    return f"return against proven probability: {sentence(frontier)}"


def _operator(frontier: Frontier) -> str:
    return ">=" if ">=" in frontier.request.tolerances[0] else "<="


def _bound(tolerance: str) -> float:
    text = tolerance.rpartition("=")[2]
    return float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
