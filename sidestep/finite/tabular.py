"""The policy that an exact method finds: a table of action probabilities."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.core.model import FiniteModel, Policy


class TabularPolicy(Policy):
    """pi(a | s) = table[s, a]; `model` tells which row a state vector belongs to."""

    table: Float[Array, "*run state action"]
    model: FiniteModel = eqx.field(static=True)

    def act(self, state, clock, memory, key):
        chances = self.table[self.model.indices(state)]
        choice = jax.random.categorical(key, jnp.log(chances))
        return jax.nn.one_hot(choice, chances.shape[-1], dtype=state.dtype), memory

    def mean(self) -> "TabularPolicy":
        """Itself: where the optimum mixes actions, the mixture is the optimum."""
        return self
