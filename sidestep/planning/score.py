"""The score function, a model-free estimator (eq. 9), for each constraint, with -d_i as its baseline.

    grad_theta E[C_i] = E[ (C_i(tau) - d_i) * sum_t grad_theta log pi_theta(a_t | s_t) ]

Where all trajectories cost the same that says nothing; with the form `log`, -log(1 - C_i) minus its mean stands in
place of C_i - d_i, and tells the bad from the hopeless.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from sidestep.core.model import Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, split
from sidestep.planning.methods import Score
from sidestep.planning.pathwise import Sample
from sidestep.planning.problem import Problem
from sidestep.policies.networks import NetworkPolicy


def score_function(problem: Problem, config: PlanConfig, method: Score, learner: Learner, sample: Sample) -> PyTree:
    """The gradients of the constraints' costs, stacked, from trajectories and their costs."""
    learned, rest = split(learner.policy, learner.value, config)
    if method.form == "log":
        surrogates = problem.surrogate(sample.trajectory, "log", method.cap)
        advantage = surrogates - jnp.mean(surrogates, axis=0, keepdims=True)
    else:
        advantage = sample.costs - jnp.asarray(problem.tolerances)[None, :]
    advantage = jax.lax.stop_gradient(advantage)

    def weighted_likelihood(learned):
        policy, _ = eqx.combine(learned, rest)
        likelihood = trajectory_log_prob(policy, sample.trajectory, sample.traced)
        return jnp.mean(advantage * likelihood[:, None], axis=0)

    values, pullback = jax.vjp(weighted_likelihood, learned)
    return jax.vmap(lambda row: pullback(row)[0])(jnp.eye(len(values), dtype=values.dtype))


def trajectory_log_prob(
    policy: NetworkPolicy, trajectory: Trajectory, traced: tuple[Array, Array]
) -> Float[Array, " batch"]:
    """sum_t log pi(a_t | s_t) over the real steps."""
    observations, raws = traced
    steps = jax.vmap(jax.vmap(policy.log_prob))(observations, raws)
    return jnp.sum(jnp.where(trajectory.mask, steps, 0.0), axis=1)
