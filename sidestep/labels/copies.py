"""Blind copies: a trajectory that is asked about again, so that nobody can tell that it was.

A store knows trajectories by their content, and one trajectory of a store has one answer of each annotator. A further
opinion is asked for on a copy, which looks the same: its rewards differ from the original's in the last bits alone,
the first reward by as many of them as the copy's number, the last one by the number of the audit that asks.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

if TYPE_CHECKING:
    from sidestep.core.model import Trajectory

OF_AUDIT = 4096  # copies of a trajectory of one step in one audit, at most


def blind_copies(trajectories: "Trajectory", numbers: Int[np.ndarray, " batch"], audit: int) -> "Trajectory":
    """Copy `numbers[i]` of trajectory i, for this audit."""
    rewards = np.array(trajectories.rewards, np.float32)
    length, rows = np.asarray(trajectories.length), np.arange(len(rewards))
    single = length == 1
    first = np.where(single, numbers + OF_AUDIT * audit, numbers)
    rewards[rows, 0] = _away_from_zero(rewards[rows, 0], first)
    last = np.where(single, 0, length - 1)
    rewards[rows, last] = _away_from_zero(rewards[rows, last], np.where(single, 0, audit))
    return replace(trajectories, rewards=rewards)  # type: ignore[arg-type]  # NumPy's do as well


def _away_from_zero(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Each value so many float32 numbers further from zero: their bits, read as whole numbers, are in that order."""
    bits = np.asarray(values, np.float32).view(np.uint32) + steps.astype(np.uint32)
    return bits.view(np.float32)
