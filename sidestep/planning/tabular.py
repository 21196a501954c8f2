"""Trajectories for an epoch of PPO, with the constraints' costs and gradients, over the tables of a finite model."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from sidestep.planning.config import PlanConfig
from sidestep.planning.exact import cost_tables
from sidestep.planning.learner import Learner, split
from sidestep.planning.linearised_costs import STEPS, linearised_costs, trajectories
from sidestep.planning.methods import PPO, PathwiseCost
from sidestep.planning.problem import Problem
from sidestep.planning.tabular_rollouts import encoding, log_policy, rollout_table, through_model


class TableBatch(eqx.Module):
    """The trajectories of an epoch as PPO sees them; of a step it sees the index of its state."""

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

    def update_statistics(self, learner: Learner, discount: float) -> Learner:
        returns = self.rewards @ discount ** jnp.arange(self.rewards.shape[1], dtype=self.rewards.dtype)
        return replace(learner, returns=learner.returns.updated(returns[:, None], jnp.ones(len(returns))))


def table_batch(
    problem: Problem, config: PlanConfig, method: PPO, learner: Learner, key: PRNGKeyArray
) -> tuple[TableBatch, Float[Array, " constraint"], PyTree]:
    """Trajectories of the policy, their mean costs, and the constraints' gradients by the configured method.

    A share of the trajectories starts anywhere (`PPO.start_share`), so that ways around a side effect are tried too;
    their costs do not count.
    """
    finite, spec = problem.table, problem.model.spec
    learned, rest = split(learner.policy, learner.value, config)
    table, pullback = jax.vjp(lambda learned: log_policy(problem, eqx.combine(learned, rest)[0]), learned)
    # It falls to zero at half of the epochs.
    share = jnp.maximum(method.start_share * (1.0 - learner.progress(config) / 0.5), 0.0)
    spread = jnp.floor(method.batch * share).astype(int)
    rollouts = rollout_table(finite, spec.horizon, table, key, method.batch, spread)
    states, actions, mask = (column.T for column in rollouts[:3])
    trajectory = trajectories(problem, rollouts)
    batch = TableBatch(states, actions[..., None].astype(jnp.float32), trajectory.rewards, mask, problem)
    if not problem.constraints:
        return batch, jnp.zeros(0), None
    if problem.counts_steps:
        costs = cost_tables(problem)
        paid = jnp.sum(jnp.where(mask[None], costs[:, states, actions], 0.0), axis=2)
    else:
        paid = problem.costs(trajectory).T
    counted = jnp.arange(method.batch) < method.batch - spread
    mean = jnp.sum(jnp.where(counted[None], paid, 0.0), axis=1) / jnp.sum(counted, dtype=paid.dtype)
    if isinstance(config.constraint, PathwiseCost):
        discount = spec.discount if config.constraint.discount else 1.0
        if not problem.counts_steps:
            costs = linearised_costs(problem, config.constraint, trajectory, jax.random.fold_in(key, STEPS))
        by_chance = jnp.stack([through_model(finite, table, cost, rollouts, discount) for cost in costs])
        cotangents = by_chance * jnp.exp(table)[None]  # d pi = pi d log pi
    else:
        # eq. 9: the cotangent of log pi(a | s) is C(tau) - d wherever tau meets the pair
        advantage = paid - jnp.asarray(problem.tolerances)[:, None]
        weight = jnp.where(mask[None], advantage[:, :, None], 0.0) / method.batch
        cotangents = jnp.zeros((len(paid), *table.shape)).at[:, states, actions].add(weight)
    return batch, mean, jax.vmap(lambda cotangent: pullback(cotangent)[0])(cotangents)
