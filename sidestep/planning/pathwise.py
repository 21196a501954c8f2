"""Pathwise derivatives (eq. 11): through policy, model and safety model, with the noise held fixed.

grad_theta E[f(tau)] = E_noise[ grad_theta f(tau(theta, noise)) ]
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from sidestep.core.model import Trajectory, rollout_batch
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, split
from sidestep.planning.methods import Pathwise, PathwiseCost
from sidestep.planning.problem import Problem


class Sample(NamedTuple):
    """Trajectories of a policy, and the pathwise gradients that were asked for."""

    gradients: PyTree  # stacked: the reward's if asked for, then each constraint's; None if none was asked for
    trajectory: Trajectory
    traced: tuple[Array, Array]  # observations and raw actions of every step
    costs: Float[Array, "batch constraint"]


def pathwise(
    problem: Problem, config: PlanConfig, learner: Learner, keys: Key[Array, " batch"], *, reward: bool = True
) -> Sample:
    """One trajectory for each key, and derivatives of the mean return (`reward`) and of the constraints' mean costs (if
    their method is pathwise)."""
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
        discounted = isinstance(config.reward, Pathwise) and config.reward.discount
        discount = problem.model.spec.discount if discounted else 1.0
        cotangents.append(jax.grad(lambda f: jnp.mean(eqx.combine(f, length).returns(discount)))(floats))
    if problem.constraints and isinstance(config.constraint, PathwiseCost):
        method = config.constraint

        def mean_surrogates(f):
            surrogates, costs = problem.judged(eqx.combine(f, length), method.form, method.cap)
            return jnp.mean(surrogates, axis=0), costs

        values, through_safety, costs = jax.vjp(mean_surrogates, floats, has_aux=True)
        cotangents += [through_safety(row)[0] for row in jnp.eye(len(values), dtype=values.dtype)]
    else:
        costs = problem.costs(trajectory) if problem.constraints else jnp.zeros((len(trajectory), 0))
    if not cotangents:
        return Sample(None, trajectory, traced, costs)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cotangents)
    gradients = jax.vmap(lambda cotangent: through_model(cotangent)[0])(stacked)
    return Sample(gradients, *jax.lax.stop_gradient((trajectory, traced, costs)))
