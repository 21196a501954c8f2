"""Projected ascent:  lambda <- clip(lambda + rate * min(v, v_max), 0, max)."""

import jax.numpy as jnp
from jaxtyping import Array

from sidestep.planning.methods import Projected
from sidestep.planning.multipliers.state import Multipliers


def update(rule: Projected, old: Multipliers, cost: Array, tolerance: Array) -> Multipliers:
    step = rule.rate * jnp.minimum(cost - tolerance, rule.violation_max)
    value = jnp.clip(old.value + step, 0.0, rule.max)
    return Multipliers(value, old.first, old.second, old.updates + 1)
