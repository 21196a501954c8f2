"""Figures of Matplotlib without its global state: no window is opened, no backend of the user's is changed."""

from typing import Any

from matplotlib.figure import Figure


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float] | None = None, **more: Any) -> Any:
    """(figure, axes), as `pyplot.subplots` gives them; nothing need be closed."""
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **more)
