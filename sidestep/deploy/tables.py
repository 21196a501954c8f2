"""A small table that shows itself, in a terminal and in a notebook, and becomes a data frame where pandas is there."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

Value = str | int | float | bool | None
SHOWN = 20  # rows, of which half are the first and half the last


class Table(Sequence[Mapping[str, Value]]):
    """Rows with the same columns: `table["return"]` is a column, `table[0]` a row, `len(table)` the number of rows."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        self.columns, self.rows = tuple(columns), [tuple(row) for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, which):
        """A column by its name, as an array; a row by its number, as a dictionary; or some of the rows."""
        if isinstance(which, str):
            place = self.columns.index(which)
            return np.array([row[place] for row in self.rows])
        if isinstance(which, slice):
            return Table(self.columns, self.rows[which])
        return dict(zip(self.columns, self.rows[which], strict=True))

    def to_pandas(self) -> Any:
        """A data frame."""
        import pandas  # slow to import, and not needed otherwise

        return pandas.DataFrame(self.rows, columns=list(self.columns))

    def __repr__(self) -> str:
        return self.text()

    def text(self, most: int | None = SHOWN) -> str:
        """Columns of numbers to the right, others to the left; of many rows the first and the last `most`."""
        cells = [self.columns, *self._shown(most)]
        places = range(len(self.columns))
        widths = [max(len(row[place]) for row in cells) for place in places]
        text = [any(isinstance(row[place], str) for row in self.rows) for place in places]
        lines = (
            "  ".join(row[at].ljust(widths[at]) if text[at] else row[at].rjust(widths[at]) for at in places)
            for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._shown(SHOWN))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _shown(self, most: int | None) -> list[tuple[str, ...]]:
        text = [tuple(map(in_short, row)) for row in self.rows]
        if most is None or len(text) <= most:
            return text
        return [*text[: most // 2], tuple("..." for _ in self.columns), *text[-most // 2 :]]


def in_short(value: Value) -> str:
    """A number with few digits."""
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)
