"""HTML from Python, in one rule: text is escaped, and only what these functions made is not."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


class Html(str):
    """Markup that is ready to be put into a page."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: str) -> Html:
    """An element; children that are not Html are text. `class_` and the like lose their underscore."""
    said = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{said}>{join(children)}</{name}>")


def join(children: Iterable[object], between: str = "") -> Html:
    return Html(
        escape(between).join(
            child if isinstance(child, Html) else escape(str(child)) for child in children if child != ""
        )
    )


def paragraph(*children: object) -> Html:
    return tag("p", *children)


def missing(sentence: str) -> Html:
    """What stands in place of a part that is not there."""
    return tag("p", sentence, class_="missing")


def section(title: str, *children: object, name: str = "") -> Html:
    return tag("section", tag("h2", title), *children, **({"id": name} if name else {}))


def folded(title: str, *children: object) -> Html:
    """A section that is opened by who wants it."""
    return tag("details", tag("summary", tag("h3", title)), *children, class_="section")


def table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table; where the screen is too narrow for it, every row becomes a list of its cells with their heads."""
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in heads)))
    body = tag("tbody", *(_row(heads, row) for row in rows))
    return tag("div", tag("table", head, body), class_="scroll")


def _row(heads: Sequence[object], row: Sequence[object]) -> Html:
    return tag("tr", *(tag("td", cell, data_head=str(head)) for head, cell in zip(heads, row, strict=True)))


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Names and values, one below the other; pairs without a value are left out."""
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value not in ("", None))
    )


def figures(*pictures: tuple[Html, object]) -> Html:
    """Pictures with their captions, as many beside each other as the screen allows."""
    shown = (tag("figure", picture, tag("figcaption", caption)) for picture, caption in pictures)
    return tag("div", *shown, class_="figures")


def code(text: str) -> Html:
    return tag("pre", tag("code", text), class_="scroll")


def badge(word: str, kind: str) -> Html:
    """A word on a coloured ground; kinds are good, fair, bad."""
    return tag("span", word, class_=f"badge {kind}")


def page(title: str, *children: object) -> str:
    """The whole file. It asks nothing of the network, and says so to the browser too."""
    style = Html(files("sidestep.report").joinpath("page.css").read_text(encoding="utf-8"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = [
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="color-scheme" content="light dark">'),
        tag("title", title),
        tag("style", style),
    ]
    body = tag("body", tag("main", *children))
    return f'<!DOCTYPE html>\n<html lang="en">\n{tag("head", *head)}\n{body}\n</html>\n'


def number(value: object, digits: int = 4) -> str:
    """Short, with a dash for what is absent or no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}" if abs(value) < 1e4 else f"{value:,.0f}"


def duration(seconds: object) -> str:
    if not isinstance(seconds, int | float) or seconds != seconds:
        return "–"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
