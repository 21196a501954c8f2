"""Markov-HA-S (Saisubramanian, Kamar and Zilberstein): human approval, strict, and lexicographic planning.

The agent asks about random state-action pairs within a budget. A strict expert disapproves of every side effect,
however mild. A random forest carries the answers over to pairs that were not asked about, from features of the state
and the action. Then the task comes first, up to a slack, and the least predicted penalty second. The slack is what
the best plan earns more than the best plan without side effects: knowledge that the method is given.

Here lexicographic value iteration lets every single choice lose the slack. Where the forest errs, a plan may then lose
it many times over, or find the safe choice beyond it. Slack in total, by linear programs, does neither.
"""

from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.core.model import FiniteModel, Trajectory
from sidestep.finite.graph import reachable
from sidestep.finite.lexicographic import lexicographic, lexicographic_lp
from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.finite.values import from_start, value_iteration
from sidestep.labels.rules import Rule
from sidestep.labels.store import single_steps
from sidestep.models.grids import Grid
from sidestep.reproduce.exact import PENALTY, side_effects

TREES = 100

Slack = Literal["choice", "total"]


class Answers(NamedTuple):
    """Pairs that were asked about, by their place in the table, and what the expert said."""

    states: np.ndarray
    actions: np.ndarray
    pairs: Trajectory  # the same as trajectories of one step
    categories: np.ndarray


def random_queries(model: FiniteModel, rule: Rule, budget: int, key: PRNGKeyArray) -> Answers:
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


class ApprovalPlan(NamedTuple):
    policies: dict[Slack, np.ndarray]  # (N, A)
    predicted: np.ndarray  # (N, A), penalty
    slack: float
    queries: int  # the budget, or the number of pairs if that is smaller


def markov_ha_s(model: Grid, rule: Rule, budget: int, key: PRNGKeyArray) -> ApprovalPlan:
    """Ask, learn the penalty, plan."""
    query_key, forest_key = jax.random.split(key)
    answers = random_queries(model, rule, budget, query_key)
    seed = int(jax.random.randint(forest_key, (), 0, 2**31 - 1))
    predicted = predicted_penalty(model, answers, max(rule.penalties), seed)
    slack = price_of_safety(model, rule)
    policies: dict[Slack, np.ndarray] = {
        "choice": lexicographic(model.finite, predicted, slack=slack).policy,
        "total": lexicographic_lp(model.finite, predicted, slack=slack).policy,
    }
    return ApprovalPlan(policies, predicted, slack, len(answers.states))


def price_of_safety(model: Grid, rule: Rule) -> float:
    """What the best plan without side effects costs more than the best plan."""
    best = from_start(model.finite, value_iteration(model.finite).values)
    return best - occupancy_lp(model.finite, [Bound(side_effects(model, rule)[PENALTY], 0.0, PENALTY)]).value


def predicted_penalty(model: Grid, answers: Answers, penalty: float, seed: int) -> np.ndarray:
    """The forest's penalty of every pair (N, A): 0 where the expert approves, `penalty` where not."""
    try:
        from sklearn.ensemble import RandomForestRegressor  # an extra, and takes a second
    except ImportError:
        raise InputError("needs scikit-learn; pip install 'sidestep[reproduce]'", place="Markov-HA-S") from None

    states, actions = model.finite.reward.shape
    features, choices = state_features(model), np.eye(actions)
    asked = np.concatenate([features[answers.states], choices[answers.actions]], axis=1)
    every = np.concatenate([np.repeat(features, actions, axis=0), np.tile(choices, (states, 1))], axis=1)
    forest = RandomForestRegressor(TREES, random_state=seed)
    forest.fit(asked, penalty * (answers.categories > 0))
    return forest.predict(every).reshape(states, actions)


def state_features(model: Grid) -> np.ndarray:
    """Of each state (N, F): where it is as numbers, its status, and the kind of ground under the agent."""
    row, column = np.divmod(model.cell, len(model.map[0]))
    status = model.status[:, None] == np.arange(len(model.statuses))[None, :]
    ground = [model.on == surface for surface in model.kind.surfaces]
    return np.column_stack([row, column, status, *ground]).astype(float)
