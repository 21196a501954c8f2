"""What a round asks: plain rollouts of every policy of the bank, and others around them that teach the most."""

import equinox as eqx
import jax
import numpy as np

from sidestep.campaign.schedule import SLOTS
from sidestep.core.model import Model, Trajectory, require_finite, rollout
from sidestep.labels.collect import explore, explorers
from sidestep.planning.bank import BankPolicy, PolicyBank
from sidestep.planning.diversity import elites
from sidestep.runtime.compilation import jit_fast_compile
from sidestep.safety.base import SafetyModel
from sidestep.safety.select import How, choose, spread

PLAIN_SHARE = 0.45  # of a round's questions: they also tell the true cost of the policies
POOL = 150  # trajectories per policy among which the others are chosen
EXPLORERS = 8  # explorers among which each of the first questions is chosen
FEWEST_EXPLORERS = 1000  # from whose actions the elites are bred
NOISE = (0.3, 0.15)  # deviation of the pool's actions, in the first and the last round


def first_questions(model: Model, how: How, count: int, key: jax.Array) -> list[tuple[str, Trajectory]]:
    """Explorers that have been to places far apart, and good trajectories of every kind; or any explorers."""
    if how == "random":
        return [("explorer", require_finite(model.spec, explore(model, key, count)))]
    explore_key, elite_key = jax.random.split(key)
    pool, shares = explorers(model, explore_key, max(EXPLORERS * count, FEWEST_EXPLORERS))
    found = require_finite(model.spec, pool)
    best = require_finite(model.spec, elites(model, count // 2, pool, shares, elite_key))
    return [("explorer", found[spread(found, count - count // 2)]), ("elite", best)]


def round_questions(
    model: Model,
    how: How,
    bank: PolicyBank,
    safety: SafetyModel,
    known: Trajectory,
    count: int,
    progress: float,
    key: jax.Array,
) -> tuple[list[Trajectory], Trajectory]:
    """(plain rollouts of each policy of the bank, others around them); `known` are the labelled trajectories."""
    plain = max(round(count * PLAIN_SHARE / SLOTS), 1)
    plain_key, pool_key, choose_key = jax.random.split(key, 3)
    noise = NOISE[0] * (NOISE[1] / NOISE[0]) ** progress
    means = plain_rollouts(model, bank.policies, plain, plain_key)
    pool = _stacked_rollouts(model, bank.noisy(noise), POOL, pool_key)
    pool = require_finite(model.spec, _flat(pool))
    others = pool[choose(how, safety, pool, known, max(count - plain * SLOTS, 0), choose_key)]
    return [jax.tree.map(lambda leaf, i=i: leaf[i], means) for i in range(SLOTS)], others


def plain_rollouts(model: Model, policies: BankPolicy, count: int, key: jax.Array) -> Trajectory:
    """`count` rollouts of each policy of a stack by its mean action."""
    found = jax.tree.map(np.asarray, _stacked_rollouts(model, policies.mean(), count, key))
    require_finite(model.spec, _flat(found))
    return found


def _flat(stacked: Trajectory) -> Trajectory:
    """The trajectories of all policies as one batch."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), stacked)


@jit_fast_compile
def _stacked_rollouts(model: Model, policies: BankPolicy, count: int, key: jax.Array) -> Trajectory:
    keys = jax.random.split(key, len(jax.tree.leaves(policies)[0]))
    return eqx.filter_vmap(lambda policy, own: rollout(model, policy, own, count))(policies, keys)
