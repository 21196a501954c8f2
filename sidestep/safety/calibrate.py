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


def calibrate(model: M, evidence: Evidence, categories: Int[np.ndarray, " batch"]) -> M:
    """`model` with the calibration under which these categories, of trajectories of this evidence, are most likely.

    minimise  sum_i -log P(category_i) + PRIOR / 2 |theta|^2,  theta = 0 being the network as it is: the prior keeps a
    perfect score on a few trajectories from making the model infinitely sure.
    """
    from scipy.optimize import minimize  # slow to import

    start, unflatten = ravel_pytree(type(model.calibration).identity())
    padded = np.full(jax.tree.leaves(evidence)[0].shape[0], -1)
    padded[: len(categories)] = categories

    def objective(theta: np.ndarray) -> float:
        calibration = unflatten(jnp.asarray(theta, start.dtype))
        return (
            float(_log_loss(model.with_calibration(calibration), evidence, jnp.asarray(padded)))
            + PRIOR / 2 * theta @ theta
        )

    found = minimize(objective, np.zeros(start.size), method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3})
    return model.with_calibration(unflatten(jnp.asarray(found.x, start.dtype)))


def uncalibrated(model: M) -> M:
    return model.with_calibration(type(model.calibration).identity())


@jit_balanced
def _log_loss(model: SafetyModel, evidence: Evidence, categories: Array) -> Float[Array, ""]:
    """Sum over the rows whose category is not -1, which is padding."""
    of_truth = jnp.take_along_axis(model.conclude(evidence), jnp.maximum(categories, 0)[:, None], axis=1)[:, 0]
    return -jnp.sum(jnp.where(categories >= 0, of_truth, 0.0))
