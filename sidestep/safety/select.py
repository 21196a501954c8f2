"""What to ask next: which of many trajectories a label would teach the most.

A trajectory is worth a question when the members of the ensemble disagree on it, when it lies close to the boundary
between the best category and the rest, and when it goes where no labelled one has been. The three are turned into
ranks, since their units have nothing in common, and the questions are spread: one that is taken makes its like less
urgent.
"""

from typing import Literal

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sidestep.core.model import Trajectory
from sidestep.runtime.compilation import jit_fast_compile
from sidestep.safety.base import SafetyModel

How = Literal["well", "random"]
NEIGHBOURS = 512  # labelled trajectories that novelty is measured against


def choose(
    how: How, safety: SafetyModel, pool: Trajectory, labelled: Trajectory, count: int, key: PRNGKeyArray
) -> Int[np.ndarray, " count"]:
    """Rows of `pool` to ask about, at most `count` of them, in order."""
    count = min(count, len(pool))
    shuffled = np.asarray(jax.random.permutation(key, len(pool)))
    if how == "random":
        return np.sort(shuffled[:count])
    urgency = _ranks(np.asarray(disagreement(safety, pool))) + _ranks(closeness(safety, pool))
    places = summary(pool)
    known = summary(labelled[np.asarray(jax.random.permutation(key, len(labelled)))[:NEIGHBOURS]])
    scale = places.std(axis=0) + 1e-9
    nearest = _distances(places / scale, known / scale).min(axis=1)
    return np.sort(_spread(urgency, places / scale, nearest, count))


@jit_fast_compile
def disagreement(safety: SafetyModel, pool: Trajectory) -> Float[Array, " pool"]:
    """Mutual information of category and member; zero when there is one member only."""
    return safety.disagreement(pool.states, pool.actions, pool.length)


def closeness(safety: SafetyModel, pool: Trajectory) -> Float[np.ndarray, " pool"]:
    """1 where the best category has probability one half, 0 where the model is sure."""
    best = np.exp(np.asarray(_log_probabilities(safety, pool)))[:, 0]
    return 1.0 - np.abs(2.0 * best - 1.0)


@jit_fast_compile
def _log_probabilities(safety: SafetyModel, pool: Trajectory) -> Float[Array, "pool categories"]:
    return safety.log_probabilities(pool.states, pool.actions, pool.length)


def summary(trajectory: Trajectory) -> Float[np.ndarray, "pool feature"]:
    """Where a trajectory has been: its state at four times, evenly spread over its own length."""
    states, length = np.asarray(trajectory.states), np.asarray(trajectory.length)
    times = np.stack([((length - 1) * share).astype(int) for share in (0.25, 0.5, 0.75, 1.0)], axis=1)
    return states[np.arange(len(states))[:, None], times].reshape(len(states), -1)


def spread(pool: Trajectory, count: int) -> Int[np.ndarray, " count"]:
    """Rows of `pool` that have been to places far apart from each other, before any label is known."""
    places = summary(pool)
    places = places / (places.std(axis=0) + 1e-9)
    return np.sort(_spread(np.zeros(len(pool)), places, np.full(len(pool), np.inf), min(count, len(pool))))


def _spread(urgency: np.ndarray, places: np.ndarray, nearest: np.ndarray, count: int) -> np.ndarray:
    """Greedy: the most urgent and newest first; what is taken counts as known from then on."""
    taken: list[int] = []
    for _ in range(count):
        score = urgency + _ranks(nearest)
        score[taken] = -np.inf
        best = int(np.argmax(score))
        taken.append(best)
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return np.array(taken, int)


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    return np.sqrt(np.maximum(squares, 0.0))


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 0 (smallest) to 1 (largest); equal values share a rank."""
    _, inverse = np.unique(values, return_inverse=True)
    return inverse / max(inverse.max(), 1)
