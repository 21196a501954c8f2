"""Temperature: one number that makes a softmax more or less sure without changing its order."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.safety.base import Frozen
from sidestep.safety.recurrent import PRECISION


class Temperature(Frozen):
    """log softmax(logits / temperature)."""

    log_temperature: Float[Array, ""]

    @staticmethod
    def identity() -> "Temperature":
        return Temperature(jnp.zeros((), PRECISION))

    def __call__(self, logits: Float[Array, "*batch categories"]) -> Float[Array, "*batch categories"]:
        return jax.nn.log_softmax(logits * jnp.exp(-self.log_temperature))
