"""Lagrange multipliers: how strongly each constraint pulls, moved by its violation  v_i = E[C_i] - d_i  (eq. 7).

The relative rule is ours. A violation of 0.05 cannot show more than 0.05 when a constraint is met, but 0.95 when it is
not, so a multiplier that climbs on plain violations comes down twenty times slower than it went up. Measured relative
to cost and tolerance both ways are alike, and a multiplicative step needs no unit.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.planning.config import PlanConfig

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
COST_MEMORY = 0.8  # of the smoothed cost


class Multipliers(eqx.Module):
    """The multipliers lambda >= 0 and what their rule remembers."""

    value: Float[Array, " constraint"]
    first: Float[Array, " constraint"]  # Adam's first moment; PID: the integral; relative: the smoothed cost
    second: Float[Array, " constraint"]  # Adam's second moment; PID: the last violation
    updates: Array

    @classmethod
    def start(cls, count: int, config: PlanConfig) -> "Multipliers":
        zeros = jnp.zeros(count)
        return cls(jnp.full(count, config.multiplier_start, float), zeros, zeros, jnp.zeros((), int))

    def moved(self, cost: Float[Array, " constraint"], tolerance: Array, config: PlanConfig) -> "Multipliers":
        """After an epoch in which the constraints cost this much in the mean."""
        if config.multiplier in ("relative", "log-adam"):
            tolerance = jnp.maximum(tolerance, config.never)
        if config.multiplier == "relative":
            return _relative(self, cost, tolerance, config)
        rule = {"projected": _projected, "log-adam": _log_adam, "pid": _pid}[config.multiplier]
        return rule(self, cost - tolerance, config)


def _relative(old: Multipliers, cost: Array, tolerance: Array, config: PlanConfig) -> Multipliers:
    """lambda <- clip(lambda * exp(rate * (c - d) / (c + d)), min, max) of the smoothed cost c."""
    smoothed = jnp.where(old.updates == 0, cost, COST_MEMORY * old.first + (1 - COST_MEMORY) * cost)
    step = config.multiplier_rate * (smoothed - tolerance) / (smoothed + tolerance)
    value = jnp.clip(old.value * jnp.exp(step), config.multiplier_min, config.multiplier_max)
    return Multipliers(value, smoothed, old.second, old.updates + 1)


def _projected(old: Multipliers, violation: Array, config: PlanConfig) -> Multipliers:
    """lambda <- clip(lambda + rate * min(v, v_max), 0, max)."""
    step = config.multiplier_rate * jnp.minimum(violation, config.violation_max)
    value = jnp.clip(old.value + step, 0.0, config.multiplier_max)
    return Multipliers(value, old.first, old.second, old.updates + 1)


def _log_adam(old: Multipliers, violation: Array, config: PlanConfig) -> Multipliers:
    """Ascent by Adam on l = log lambda, whose gradient is  lambda * v."""
    gradient = old.value * violation
    updates = old.updates + 1
    first = BETA_1 * old.first + (1 - BETA_1) * gradient
    second = BETA_2 * old.second + (1 - BETA_2) * gradient**2
    step = (first / (1 - BETA_1**updates)) / (jnp.sqrt(second / (1 - BETA_2**updates)) + EPSILON)
    value = jnp.minimum(old.value * jnp.exp(config.multiplier_rate * step), config.multiplier_max)
    return Multipliers(value, first, second, updates)


def _pid(old: Multipliers, violation: Array, config: PlanConfig) -> Multipliers:
    """lambda = clip(Kp * v + Ki * integral of v + Kd * growth of v, 0, max), the integral kept in [0, max / Ki]."""
    limit = config.multiplier_max / config.multiplier_rate
    started = jnp.where(old.updates == 0, config.multiplier_start / config.multiplier_rate, old.first)
    integral = jnp.clip(started + violation, 0.0, limit)
    growth = jnp.where(old.updates == 0, 0.0, jnp.maximum(violation - old.second, 0.0))
    value = config.pid_proportional * violation + config.multiplier_rate * integral + config.pid_derivative * growth
    return Multipliers(jnp.clip(value, 0.0, config.multiplier_max), integral, violation, old.updates + 1)
