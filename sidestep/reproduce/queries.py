"""Random questions to an expert about single state-action pairs."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.core.model import Trajectory
from sidestep.finite.graph import reachable
from sidestep.labels.rules import Rule
from sidestep.labels.store import single_steps


class Answers(NamedTuple):
    """Pairs that were asked about, by their place in the table, and what the expert said."""

    states: np.ndarray
    actions: np.ndarray
    pairs: Trajectory  # the same as trajectories of one step
    categories: np.ndarray


def random_queries(model: Any, rule: Rule, budget: int, key: PRNGKeyArray) -> Answers:
    """`budget` pairs out of those that a trajectory can meet, none twice; a larger budget asks about all of them."""
    finite = model.finite
    actions = finite.reward.shape[1]
    met = reachable(finite, np.ones(finite.reward.shape, bool)) & ~finite.absorbing
    every = np.flatnonzero(np.repeat(met, actions))
    chosen = every[np.asarray(jax.random.permutation(key, len(every)))[:budget]]
    state, action = np.divmod(chosen, actions)
    pairs = single_steps(finite.encoding[state], np.eye(actions)[action], finite.reward[state, action])
    assert rule.step_categories is not None
    return Answers(state, action, pairs, np.asarray(rule.step_categories(pairs))[:, 0])
