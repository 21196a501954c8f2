"""Gradients of expected return and expected cost with respect to the policy, each from one batch of trajectories."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sidestep.model import Trajectory, rollout_batch
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, split, with_statistics
from sidestep.planning.problem import Problem
from sidestep.policies import NetworkPolicy


def pathwise(
    problem: Problem, config: PlanConfig, learner: Learner, keys: PRNGKeyArray, *, reward: bool = True
) -> tuple[Any, Trajectory, Any, Float[Array, "batch constraint"]]:
    """Pathwise derivatives (eq. 11): through policy, model and safety model, with the noise held fixed.

        grad_theta E[f(tau)] = E_noise[ grad_theta f(tau(theta, noise)) ]

    Returns gradients stacked as (reward if asked for, each constraint), the trajectories, (observations, raws), and the
    costs of the trajectories.
    """
    learned, rest = split(learner.policy, learner.value, config)

    def roll(learned):
        policy, _ = eqx.combine(learned, rest)
        trajectory, traced = rollout_batch(problem.model, policy, keys, trace=lambda m: (m.observation, m.raw))
        floats, length = eqx.partition(trajectory, eqx.is_inexact_array)
        return floats, (length, traced)

    floats, through_model, (length, traced) = jax.vjp(roll, learned, has_aux=True)
    trajectory = eqx.combine(floats, length)
    cotangents = []
    if reward:
        discount = problem.model.spec.discount if config.discount_training else 1.0
        cotangents.append(jax.grad(lambda f: jnp.mean(eqx.combine(f, length).returns(discount)))(floats))
    if problem.constraints and config.constraint_gradient == "pathwise":

        def mean_surrogates(f):
            surrogates, costs = problem.judged(eqx.combine(f, length), config.constraint_form, config.log_cap)
            return jnp.mean(surrogates, axis=0), costs

        values, through_safety, costs = jax.vjp(mean_surrogates, floats, has_aux=True)
        cotangents += [through_safety(row)[0] for row in jnp.eye(len(values), dtype=values.dtype)]
    else:
        costs = problem.costs(trajectory) if problem.constraints else jnp.zeros((len(trajectory), 0))
    if not cotangents:
        return None, trajectory, traced, costs
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cotangents)
    gradients = jax.vmap(lambda cotangent: through_model(cotangent)[0])(stacked)
    return gradients, *jax.lax.stop_gradient((trajectory, traced, costs))


def score_function(
    problem: Problem,
    config: PlanConfig,
    learner: Learner,
    trajectory: Trajectory,
    traced: Any,
    costs: Float[Array, "batch constraint"],
) -> Any:
    """The model-free estimator (eq. 9), for each constraint, with -d_i as its baseline; `costs` are those of the
    trajectories.

    grad_theta E[C_i] = E[ (C_i(tau) - d_i) * sum_t grad_theta log pi_theta(a_t | s_t) ]

    Where all trajectories cost the same that says nothing; with the form `log`, -log(1 - C_i) above its mean stands in
    place of C_i - d_i, and tells the bad from the hopeless.
    """
    learned, rest = split(learner.policy, learner.value, config)
    if config.constraint_form == "log":
        surrogates = problem.surrogate(trajectory, "log", config.log_cap)
        advantage = surrogates - jnp.mean(surrogates, axis=0, keepdims=True)
    else:
        advantage = costs - jnp.asarray(problem.tolerances)[None, :]
    advantage = jax.lax.stop_gradient(advantage)

    def weighted_likelihood(learned):
        policy, _ = eqx.combine(learned, rest)
        likelihood = trajectory_log_prob(policy, trajectory, traced)
        return jnp.mean(advantage * likelihood[:, None], axis=0)

    values, pullback = jax.vjp(weighted_likelihood, learned)
    return jax.vmap(lambda row: pullback(row)[0])(jnp.eye(len(values), dtype=values.dtype))


def trajectory_log_prob(policy: NetworkPolicy, trajectory: Trajectory, traced: Any) -> Float[Array, " batch"]:
    """sum_t log pi(a_t | s_t) over the real steps."""
    observations, raws = traced
    steps = jax.vmap(jax.vmap(policy.log_prob))(observations, raws)
    return jnp.sum(jnp.where(trajectory.mask, steps, 0.0), axis=1)


class SampledBatch(eqx.Module):
    """The trajectories of an epoch as PPO sees them."""

    trajectory: Trajectory
    seen: Float[Array, "batch time inputs"]
    raws: Float[Array, "batch time raw"]

    @property
    def rewards(self) -> Float[Array, "batch time"]:
        return self.trajectory.rewards

    @property
    def mask(self) -> Bool[Array, "batch time"]:
        return self.trajectory.mask

    def observe(self, seen: Float[Array, "step inputs"]) -> Float[Array, "step inputs"]:
        return seen

    def evaluate(self, learner: Learner) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
        """V and log pi of every step."""
        assert learner.value is not None
        values = jax.vmap(jax.vmap(learner.value))(self.seen)[..., 0]
        return values, jax.vmap(jax.vmap(learner.policy.log_prob))(self.seen, self.raws)

    def noted(self, learner: Learner, discount: float) -> Learner:
        return with_statistics(learner, self.trajectory, discount)


def sampled_batch(
    problem: Problem, config: PlanConfig, learner: Learner, key: PRNGKeyArray
) -> tuple[SampledBatch, Float[Array, " constraint"], Any]:
    """Trajectories of the policy, their mean costs, and the constraints' gradients by the configured method."""
    keys = jax.random.split(key, config.batch)
    gradients, trajectory, traced, costs = pathwise(problem, config, learner, keys, reward=False)
    if problem.constraints and config.constraint_gradient == "score":
        gradients = score_function(problem, config, learner, trajectory, traced, costs)
    return SampledBatch(trajectory, *traced), jnp.mean(costs, axis=0), gradients
