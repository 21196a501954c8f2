"""What commands print. Text that a user gave (names, paths, notes) is shown as it is, and never read as markup.

Nothing else imports rich: a style is given beside a text, as in `say(("certified", "green"), " at last")`.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sidestep.core.errors import printable
from sidestep.core.records import Json

Part = str | tuple[str, str]  # a text, or a text and its style
_own: list[TextIO] = []  # standard output, while `own_output` keeps it for what is printed here


@contextmanager
def own_output() -> Iterator[None]:
    """Standard output is for what is printed here: what else is printed meanwhile, by a model of the user's, say, goes
    to standard error."""
    _own.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _own.pop()


def say_json(content: Json) -> None:
    """Print an object as one line of JSON."""
    print(json.dumps(content), file=_own[-1] if _own else sys.stdout, flush=True)


def say(*parts: Part, stderr: bool = False, quiet: bool = False, wrap: bool = False) -> None:
    """Print one line. Unless `wrap` is given it stays one, so that paths and commands in it can be copied."""
    if not quiet:
        _console(stderr).print(_text(parts), soft_wrap=not wrap)


def show_table(header: Sequence[str], rows: Iterable[Sequence[Part]]) -> None:
    """Print a table without lines; `header` may be empty."""
    table = Table(*header, box=None, pad_edge=False, show_header=bool(header))
    for row in rows:
        table.add_row(*(_text([cell]) for cell in row))
    _console().print(table)


class Bar:
    """A progress bar on standard error that can also print lines above itself."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def update(self, completed: int | None = None, words: str | None = None) -> None:
        self._progress.update(self._task, completed=completed, description=words)

    def hide(self, hidden: bool) -> None:
        """Out of the way, or back again."""
        if not self._progress.disable:
            (self._progress.stop if hidden else self._progress.start)()

    def say(self, *parts: Part) -> None:
        if not self._progress.disable:
            self._progress.console.print(_text(parts), soft_wrap=True)


@contextmanager
def progress_bar(unit: str, total: int, quiet: bool) -> Iterator[Bar]:
    """A bar over `total` units; with `quiet` it shows and says nothing."""
    columns = (
        TextColumn(unit + " {task.completed}/{task.total}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=_console(stderr=True), disable=quiet) as progress:
        yield Bar(progress, total)


def _console(stderr: bool = False) -> Console:
    file = _own[-1] if _own and not stderr else None
    return Console(file=file, stderr=stderr, markup=False, emoji=False, highlight=False)


def _text(parts: Sequence[Part]) -> Text:
    text = Text()
    for part in parts:
        words, style = (part, "") if isinstance(part, str) else part
        text.append("\n".join(map(printable, words.split("\n"))), style)
    return text
