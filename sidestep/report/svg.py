"""Matplotlib's figures as inline SVG: transparent, in the page's own ink and type, the same bytes every time."""

import contextlib
import io
import re
from collections.abc import Iterator
from html import escape
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

from sidestep.report.page import Html

INK = "#010203"  # stands for the colour of the page's text, which is dark by day and light by night
FAINT = "#80868c"  # of grids and guides: reads on both grounds
SIZE = (4.5, 3.3)  # inches; at this width type stays readable on a phone
CYCLE = ("#2a9d8f", "#d9822b", "#7b6fd0", "#c8463c", "#4c8fd6", "#a8762f")

STYLE: Any = {  # matplotlib's own type lists every name
    "figure.figsize": SIZE,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.transparent": True,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a user's name is a dollar sign
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=CYCLE),
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "font.size": 10,
    "font.family": ["sans-serif"],
    "svg.fonttype": "none",
    "svg.hashsalt": "sidestep",
}


GROUND: Any = {"figure.facecolor": "white", "axes.facecolor": "white", "savefig.transparent": False}


@contextlib.contextmanager
def style(*, ground: bool = False) -> Iterator[None]:
    """How figures look; with `ground` on white, where nobody knows what they will stand on."""
    with matplotlib.rc_context(STYLE | GROUND if ground else STYLE):
        yield


def svg(name: str, words: str, figure: Figure) -> Html:
    """The figure for a page that holds others: `name` keeps their ids apart, `words` are read out."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    for part in ("metadata", "style"):
        text = re.sub(rf"\s*<{part}\b.*?</{part}>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    body = text[text.index(">", text.index("<svg")) + 1 :].replace(INK, "currentColor").rstrip()
    return Html(f'<svg viewBox="{box.group(1)}" role="img" aria-label="{escape(words)}">{body}')
