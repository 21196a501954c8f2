"""A run as a notebook shows it: the finding, the certificate, the pictures before and after."""

import base64
import io
from html import escape

from sidestep.certification.words import bound_in_words, verdict_in_words
from sidestep.report.finding import finding, in_digits
from sidestep.report.folder import Folder
from sidestep.report.page import Html, join, tag
from sidestep.report.scenes import before_and_after

COLOURS = {"good": "#1d6b45", "fair": "#7a5200", "bad": "#98291f"}  # read on white and on dark grounds


def answer_html(folder: Folder) -> Html:
    """For `_repr_html_`: it stands on a ground of its own, since nobody knows the notebook's colours."""
    result = folder.finished
    if result is None:
        return tag("p", f"{folder.config.model}: this run has not finished ({folder.path}).")
    found = finding(result, folder.scale, folder.kept)
    heads = ("constraint", "observed", "bound", "verdict")
    cells = [
        (
            verdict.text,
            "–" if verdict.estimate is None else f"{verdict.estimate:.3f}",
            bound_in_words(verdict),
            verdict_in_words(verdict),
        )
        for verdict in result.constraints or ()
    ]
    rows = [tag("tr", *(tag("td", cell) for cell in row)) for row in cells]
    table = tag("table", tag("tr", *(tag("th", head) for head in heads)), *rows) if rows else ""
    labels = "–" if result.labels_used is None else f"{result.labels_used:,}"
    earned = f"return {in_digits(result.returns.mean)}; " if result.returns else ""
    spent = tag("p", f"{earned}{labels} labels, {result.audit_labels:,} more in audits; {folder.path}")
    return tag(
        "div",
        tag("p", tag("b", folder.config.model), ": ", found.sentence, style=f"color:{COLOURS[found.kind]}"),
        join([table, _picture(folder, found.sentence), spent]),
        style="background:#fff;color:#20262b;padding:0.6em;max-width:60em",
    )


def _picture(folder: Folder, words: str) -> Html:
    """Before and after; nothing where the run kept no picture, since a notebook must not wait for rollouts."""
    if folder.kept is None:
        return Html("")
    buffer = io.BytesIO()
    before_and_after(folder).savefig(buffer, format="png", dpi=80)
    data = base64.b64encode(buffer.getvalue()).decode()
    return Html(f'<img alt="{escape(words)}" style="max-width:100%" src="data:image/png;base64,{data}">')
