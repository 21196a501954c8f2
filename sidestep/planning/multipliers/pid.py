"""A PID controller:  lambda = clip(Kp * v + Ki * integral of v + Kd * growth of v, 0, max).

Ki is the rate, and the integral is kept in [0, max / Ki].
"""

import jax.numpy as jnp
from jaxtyping import Array

from sidestep.planning.methods import PID
from sidestep.planning.multipliers.state import Multipliers


def update(rule: PID, old: Multipliers, cost: Array, tolerance: Array) -> Multipliers:
    violation = cost - tolerance
    limit = rule.max / rule.rate
    started = jnp.where(old.updates == 0, rule.start / rule.rate, old.first)
    integral = jnp.clip(started + violation, 0.0, limit)
    growth = jnp.where(old.updates == 0, 0.0, jnp.maximum(violation - old.second, 0.0))
    value = rule.proportional * violation + rule.rate * integral + rule.derivative * growth
    return Multipliers(jnp.clip(value, 0.0, rule.max), integral, violation, old.updates + 1)
