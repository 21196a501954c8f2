"""Trajectories for an epoch of PPO, with the constraints' costs and gradients, on any model."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from sidestep.core.model import Trajectory
from sidestep.planning.config import PlanConfig
from sidestep.planning.learner import Learner, with_statistics
from sidestep.planning.methods import PPO, Score
from sidestep.planning.pathwise import pathwise
from sidestep.planning.problem import Problem
from sidestep.planning.score import score_function


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

    def update_statistics(self, learner: Learner, discount: float) -> Learner:
        return with_statistics(learner, self.trajectory, discount)


def sampled_batch(
    problem: Problem, config: PlanConfig, method: PPO, learner: Learner, key: PRNGKeyArray
) -> tuple[SampledBatch, Float[Array, " constraint"], PyTree]:
    """Trajectories of the policy, their mean costs, and the constraints' gradients by the configured method."""
    sample = pathwise(problem, config, learner, jax.random.split(key, method.batch), reward=False)
    gradients = sample.gradients
    if problem.constraints and isinstance(config.constraint, Score):
        gradients = score_function(problem, config, config.constraint, learner, sample)
    return SampledBatch(sample.trajectory, *sample.traced), jnp.mean(sample.costs, axis=0), gradients
