"""The paper's estimators on a finite model: walks, their costs and the constraints' gradients for an epoch of PPO."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import cost_tables
from sidestep.planning.learner import Learner, split
from sidestep.planning.prices import PRICED_STEPS, pair_prices, trajectories
from sidestep.planning.problem import Problem
from sidestep.planning.walks import encoding, log_policy, through_model, walk


def serves(problem: Problem, config: PlanConfig) -> bool:
    """Whether an epoch can be walked over tables: finite model, policy of the state."""
    return hasattr(problem.model, "finite") and config.observe == "state"


class TableBatch(eqx.Module):
    """The trajectories of an epoch as PPO sees them; what is seen of a step is the place of its state."""

    seen: Int[Array, "batch time"]
    raws: Float[Array, "batch time 1"]
    rewards: Float[Array, "batch time"]
    mask: Bool[Array, "batch time"]
    problem: Problem = eqx.field(static=True)

    def observe(self, seen: Int[Array, " step"]) -> Float[Array, "step entry"]:
        return encoding(self.problem)[seen]

    def evaluate(self, learner: Learner) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """V(s_t) and log pi(a_t | s_t)."""
        assert learner.value is not None
        values = jax.vmap(learner.value)(encoding(self.problem))[:, 0]
        return values[self.seen], log_policy(self.problem, learner.policy)[self.seen, self.raws[..., 0].astype(int)]

    def noted(self, learner: Learner, discount: float) -> Learner:
        returns = self.rewards @ discount ** jnp.arange(self.rewards.shape[1])
        return replace(learner, returns=learner.returns.updated(returns[:, None], jnp.ones(len(returns))))


def table_batch(
    problem: Problem, config: PlanConfig, learner: Learner, key: PRNGKeyArray
) -> tuple[TableBatch, Float[Array, " constraint"], Any]:
    """Walks of the policy, their mean costs, and the constraints' gradients by the method of the configuration.

    A share of the walks begins anywhere (`PlanConfig.start_share`), so that ways around a side effect are tried too;
    their costs do not count.
    """
    model: Any = problem.model
    learned, rest = split(learner.policy, learner.value, config)
    table, pullback = jax.vjp(lambda learned: log_policy(problem, eqx.combine(learned, rest)[0]), learned)
    spread = jnp.floor(config.batch * learner.start_share(config)).astype(int)
    walks = walk(model, table, key, config.batch, spread)
    states, actions, mask = (column.T for column in walks[:3])
    told = trajectories(problem, walks)
    batch = TableBatch(states, actions[..., None].astype(jnp.float32), told.rewards, mask, problem)
    if not problem.constraints:
        return batch, jnp.zeros(0), None
    by_step = problem.safety.summed
    if by_step:
        costs = cost_tables(problem)
        paid = jnp.sum(jnp.where(mask[None], costs[:, states, actions], 0.0), axis=2)
    else:
        paid = problem.costs(told).T
    counted = jnp.arange(config.batch) < config.batch - spread
    mean = jnp.sum(jnp.where(counted[None], paid, 0.0), axis=1) / jnp.sum(counted)
    if config.constraint_gradient == "score":
        # eq. 9: the cotangent of log pi(a | s) is C(tau) - d wherever tau meets the pair
        advantage = paid - jnp.asarray(problem.tolerances)[:, None]
        weight = jnp.where(mask[None], advantage[:, :, None], 0.0) / config.batch
        cotangents = jnp.zeros((len(paid), *table.shape)).at[:, states, actions].add(weight)
    else:
        discount = model.spec.discount if config.discount_training else 1.0
        prices = costs if by_step else pair_prices(problem, config, told, jax.random.fold_in(key, PRICED_STEPS))
        by_chance = jnp.stack([through_model(model, table, price, walks, discount) for price in prices])
        cotangents = by_chance * jnp.exp(table)[None]  # d pi = pi d log pi
    return batch, mean, jax.vmap(lambda cotangent: pullback(cotangent)[0])(cotangents)
