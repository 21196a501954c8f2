"""The relative rule, which is ours:  lambda <- clip(lambda * exp(rate * (c - d) / (c + d)), min, max).

A constraint with d = 0.05 has a violation of at most 0.95 when it is violated and at least -0.05 when it is met, so a
multiplier that follows plain violations falls twenty times more slowly than it rises. Measured relative to cost and
tolerance both directions are alike, and a multiplicative step needs no unit. c is the smoothed cost.
"""

import jax.numpy as jnp
from jaxtyping import Array

from sidestep.planning.methods import Relative
from sidestep.planning.multipliers.state import Multipliers

COST_MEMORY = 0.8  # of the smoothed cost


def update(rule: Relative, old: Multipliers, cost: Array, tolerance: Array) -> Multipliers:
    tolerance = jnp.maximum(tolerance, rule.never)
    smoothed = jnp.where(old.updates == 0, cost, COST_MEMORY * old.first + (1 - COST_MEMORY) * cost)
    step = rule.rate * (smoothed - tolerance) / (smoothed + tolerance)
    value = jnp.clip(old.value * jnp.exp(step), rule.min, rule.max)
    return Multipliers(value, smoothed, old.second, old.updates + 1)
