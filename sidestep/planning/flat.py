"""Rewards that no derivative sees: steps, counts, thresholds."""

import jax
import jax.numpy as jnp

from sidestep.compiling import run_once
from sidestep.model import Model, sample_uniform_action

PROBES, STEPS = 32, 4  # trajectories of random actions, and their steps, at which the reward is looked at


def flat_reward(model: Model) -> bool:
    """Whether the derivative of the reward with respect to state and action is zero wherever one looks.

    A planner that scales gradients to a common length would follow its rounding errors.
    """
    return float(_steepest(model, jax.random.key(0))) == 0.0


@run_once
def _steepest(model: Model, key: jax.Array) -> jax.Array:
    def one(key):
        def step(state, key):
            action = sample_uniform_action(model, state, key)
            slopes = jax.grad(lambda state, action: model.step(state, action, key)[1], argnums=(0, 1))(state, action)
            return model.step(state, action, key)[0], jnp.max(jnp.abs(jnp.concatenate(slopes)))

        return jax.lax.scan(step, model.reset(key), jax.random.split(key, STEPS))[1]

    return jnp.max(jax.vmap(one)(jax.random.split(key, PROBES)))
