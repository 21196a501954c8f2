"""Ascent by Adam on l = log lambda, whose gradient is  lambda * v: the rule of the paper's code."""

import jax.numpy as jnp
from jaxtyping import Array

from sidestep.planning.methods import LogAdam
from sidestep.planning.multipliers.state import Multipliers

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's


def update(rule: LogAdam, old: Multipliers, cost: Array, tolerance: Array) -> Multipliers:
    gradient = old.value * (cost - jnp.maximum(tolerance, rule.never))
    updates = old.updates + 1
    count = updates.astype(gradient.dtype)
    first = BETA_1 * old.first + (1 - BETA_1) * gradient
    second = BETA_2 * old.second + (1 - BETA_2) * gradient**2
    step = (first / (1 - BETA_1**count)) / (jnp.sqrt(second / (1 - BETA_2**count)) + EPSILON)
    value = jnp.minimum(old.value * jnp.exp(rule.rate * step), rule.max)
    return Multipliers(value, first, second, updates)
