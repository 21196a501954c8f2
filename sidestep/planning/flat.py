"""Returns that no derivative sees: rewards made of steps, counts or thresholds, or states that are rounded."""

import jax
import jax.numpy as jnp

from sidestep.compiling import run_once
from sidestep.model import Model, OpenLoopPolicy, rollout_batch, sample_uniform_action

PROBES = 32  # sequences of random actions at which the return is looked at


def flat_return(model: Model) -> bool:
    """Whether the derivative of the return with respect to the actions is zero wherever one looks.

    A planner that scales gradients to a common length would follow its rounding errors.
    """
    return float(_steepest(model, jax.random.key(0))) == 0.0


@run_once
def _steepest(model: Model, key: jax.Array) -> jax.Array:
    def one(key):
        state = model.reset(key)
        actions = jax.vmap(lambda own: sample_uniform_action(model, state, own))(
            jax.random.split(key, model.spec.horizon)
        )

        def total(actions):
            return rollout_batch(model, OpenLoopPolicy(actions), key[None])[0].returns()[0]

        return jnp.max(jnp.abs(jax.grad(total)(actions)))

    return jnp.max(jax.vmap(one)(jax.random.split(key, PROBES)))
