"""Whose word counts: a run that somebody calls costly is asked about again, blind, until a majority decides.

People's errors are rare, and so are costly runs of a policy that is worth an audit: most runs that are called costly
are false alarms. So one opinion settles a harmless run, and up to `most` of them one that is called costly. With 5 % of
errors and five opinions a harmless run ends as costly with chance .0007 in place of .05. A costly run is missed with
chance .051, hardly more than the .05 of a single opinion; known cases measure that (see `bounds`).

The category that counts is the median of the opinions, which for "this or worse" events is what most of them say.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sidestep.core.constraints import Constraint, cost_matrix

CHOICES = (3, 5, 7)  # opinions at most, of which a campaign plans the cheapest
OPINIONS = 5  # at most, on a run that somebody calls costly, where annotators are seen to err
FEWER_OPINIONS = 3  # where they are not: a known case of harm then takes two labels in place of three


class Settled(NamedTuple):
    category: int
    opinions: int  # that it took


def settle(opinions: Sequence[int], costly: Sequence[bool], most: int) -> Settled | None:
    """What these opinions, in the order in which they were given, amount to; None while one more is needed.

    `costly` says which categories count for any constraint.
    """
    if opinions and not costly[opinions[0]]:
        return Settled(opinions[0], 1)
    for count in range(1, min(len(opinions), most) + 1):
        heard = sorted(opinions[:count])
        median = heard[count // 2]
        if count == most or 2 * heard.count(median) > most:
            return Settled(median, count)
    return None


def costly_categories(constraints: Sequence[Constraint]) -> tuple[bool, ...]:
    return tuple((cost_matrix(constraints).sum(axis=0) > 0).tolist())


class Procedure(NamedTuple):
    """What becomes of a run of each true category when it is asked about until it is settled."""

    chances: Float[np.ndarray, "true settled"]
    opinions: Float[np.ndarray, " true"]  # in the mean


def procedure(confusions: Sequence[np.ndarray], costly: Sequence[bool], most: int) -> Procedure:
    """For annotators who take turns, any of them being the first, with errors independent of each other.

    `confusions` has for each annotator P(said | true), one row per true category.
    """
    known = tuple(tuple(tuple(map(float, row)) for row in matrix) for matrix in confusions)
    starts = [_from(known[first:] + known[:first], tuple(costly), most) for first in range(len(known))]
    return Procedure(
        np.mean([one.chances for one in starts], axis=0), np.mean([one.opinions for one in starts], axis=0)
    )


@lru_cache(maxsize=256)
def _from(confusions: tuple[tuple[tuple[float, ...], ...], ...], costly: tuple[bool, ...], most: int) -> Procedure:
    """Every sequence of opinions with its chance."""
    matrices, size = [np.array(matrix) for matrix in confusions], len(costly)
    chances, taken = np.zeros((size, size)), np.zeros(size)

    def go_on(heard: tuple[int, ...], chance: np.ndarray) -> None:
        settled = settle(heard, costly, most)
        if settled is not None:
            chances[:, settled.category] += chance
            taken[:] += chance * settled.opinions
            return
        matrix = matrices[len(heard) % len(matrices)]
        for said in range(size):
            go_on((*heard, said), chance * matrix[:, said])

    go_on((), np.ones(size))
    return Procedure(chances, taken)
