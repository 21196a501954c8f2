"""When each severity may have been reached, by an annotator's marks and by the category alone."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from sidestep.core.model import AnyArray


class Windows(NamedTuple):
    """Severity k = 1, ..., K - 1 was first reached at one of the steps first, ..., last; never: both are the length."""

    first: Int[AnyArray, "*batch levels"]
    last: Int[AnyArray, "*batch levels"]
    marked: Bool[AnyArray, "*batch levels"]  # whether an annotator said so, rather than the category alone


def windows_of(
    marks: Int[np.ndarray, "batch levels"],
    categories: Int[np.ndarray, " batch"],
    length: Int[np.ndarray, " batch"],
    slack: int,
) -> Windows:
    """What marks (-1: none) and categories say together; severities of one trajectory come in their order."""
    reached = np.arange(1, marks.shape[1] + 1)[None, :] <= categories[:, None]
    marked, end = reached & (marks >= 0), length[:, None]
    first = np.where(marked, np.maximum(marks - slack, 0), np.where(reached, 0, end))
    last = np.where(marked, np.minimum(marks + slack, end - 1), np.where(reached, end - 1, end))
    first = np.maximum.accumulate(first, axis=1)
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    return Windows(first.astype(np.int32), last.astype(np.int32), marked)  # type: ignore[arg-type]  # NumPy's do as well
