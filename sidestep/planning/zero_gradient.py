"""Returns whose gradient is zero: piecewise constant rewards (counts, thresholds), or states that are rounded."""

import jax
import jax.numpy as jnp

from sidestep.core.model import Model, OpenLoopPolicy, rollout_batch, sample_uniform_action
from sidestep.runtime.compilation import jit_fast_compile

PROBES = 32  # sequences of random actions at which the gradient is computed


def has_zero_gradient(model: Model) -> bool:
    """Whether the derivative of the return with respect to the actions is zero at every probe.

    A planner that scales gradients to a common length would follow their rounding errors.
    """
    return float(_largest_derivative(model, jax.random.key(0))) == 0.0


@jit_fast_compile
def _largest_derivative(model: Model, key: jax.Array) -> jax.Array:
    def one(key):
        state = model.reset(key)
        actions = jax.vmap(lambda own: sample_uniform_action(model, state, own))(
            jax.random.split(key, model.spec.horizon)
        )

        def total(actions):
            return rollout_batch(model, OpenLoopPolicy(actions), key[None])[0].returns()[0]

        return jnp.max(jnp.abs(jax.grad(total)(actions)))

    return jnp.max(jax.vmap(one)(jax.random.split(key, PROBES)))
