"""Calibration: the one or two numbers that make probabilities mean what they say, fitted on held-out labels."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from sidestep.runtime.compilation import jit_balanced
from sidestep.safety.base import Evidence, SafetyModel

M = TypeVar("M", bound=SafetyModel)

PRIOR = 1.0  # strength of the belief in "no change", in held-out trajectories at one unit of log-temperature


def calibrate(
    model: M,
    evidence: Evidence,
    categories: Int[np.ndarray, " batch"],
    likelihood: Float[np.ndarray, "batch categories"] | None = None,
) -> M:
    """`model` with the calibration under which these categories, of trajectories of this evidence, are most likely.

    minimise  sum_i -log P(category_i) + PRIOR / 2 |theta|^2,  theta = 0 being the network as it is: the prior keeps a
    perfect score on a few trajectories from making the model infinitely sure. Where annotators err, P(category_i) is
    sum_t P(t) likelihood_i[t].
    """
    from scipy.optimize import minimize  # slow to import

    start, unflatten = ravel_pytree(type(model.calibration).identity())
    weights = np.zeros((jax.tree.leaves(evidence)[0].shape[0], model.categories), np.float32)
    weights[: len(categories)] = np.eye(model.categories)[categories] if likelihood is None else likelihood
    said = jnp.asarray(weights)

    def objective(theta: np.ndarray) -> float:
        calibration = unflatten(jnp.asarray(theta, start.dtype))
        return float(_log_loss(model.with_calibration(calibration), evidence, said)) + PRIOR / 2 * theta @ theta

    found = minimize(objective, np.zeros(start.size), method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3})
    return model.with_calibration(unflatten(jnp.asarray(found.x, start.dtype)))


def uncalibrated(model: M) -> M:
    return model.with_calibration(type(model.calibration).identity())


@jit_balanced
def _log_loss(model: SafetyModel, evidence: Evidence, said: Float[Array, "batch categories"]) -> Float[Array, ""]:
    """Sum of -log sum_t P(t) said_t over the rows that are not padding, which has zeros."""
    log_said = jnp.where(said > 0, jnp.log(jnp.where(said > 0, said, 1.0)), -jnp.inf)
    of_said = jax.nn.logsumexp(model.conclude(evidence) + log_said, axis=1)
    return -jnp.sum(jnp.where(jnp.any(said > 0, axis=1), of_said, 0.0))
