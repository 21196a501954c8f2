"""The multipliers and what their rule remembers."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.core.model import AnyArray
from sidestep.planning.methods import MultiplierRule


class Multipliers(eqx.Module):
    """The multipliers lambda >= 0 and what their rule remembers."""

    value: Float[AnyArray, "*run constraint"]
    first: Float[AnyArray, "*run constraint"]  # Adam's first moment; PID: the integral; relative: the smoothed cost
    second: Float[AnyArray, "*run constraint"]  # Adam's second moment; PID: the last violation
    updates: Array

    @classmethod
    def start(cls, count: int, rule: MultiplierRule) -> "Multipliers":
        zeros = jnp.zeros(count)
        return cls(jnp.full(count, rule.start, float), zeros, zeros, jnp.zeros((), int))
