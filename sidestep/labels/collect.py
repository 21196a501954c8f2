"""Trajectories worth labelling before anything is known: random behaviour that covers the state space.

Independent random actions average out and stay near the start. An explorer holds its action for a while, and every
trajectory has its own habits: how long it holds, and whether it prefers small, even or large actions.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.model import Model, Policy, Trajectory, rollout_batch, sample_uniform_action
from sidestep.runtime.compilation import jit_fast_compile

HOLDS = (1.0, 0.3, 0.1, 0.0)  # chances of a new action at a step, one of them for each trajectory
LEANINGS = (1.0, 4.0, 0.25)  # u -> u^e moves uniform draws to neither end, to the low end, to the high end


class ExploringPolicy(Policy):
    """Holds a random action, draws a new one now and then, leans to one end of the bounds."""

    model: Model = eqx.field(static=True)

    def start(self):
        return {"action": jnp.zeros(self.model.spec.action.size), "change": jnp.ones(()), "leaning": jnp.ones(())}

    def act(self, state, clock, memory, key):
        habit_key, change_key, action_key = jax.random.split(key, 3)
        hold_key, lean_key = jax.random.split(habit_key)
        first = clock == 0
        change = jnp.where(first, jax.random.choice(hold_key, jnp.asarray(HOLDS)), memory["change"])
        leaning = jnp.where(first, jax.random.choice(lean_key, jnp.asarray(LEANINGS)), memory["leaning"])
        renew = first | (jax.random.uniform(change_key) < change)
        share = jnp.where(renew, self._leaned(state, action_key, leaning), memory["action"])
        return placed(self.model, state, share), {"action": share, "change": change, "leaning": leaning}

    def _leaned(self, state: Array, key: PRNGKeyArray, leaning: Array) -> Array:
        """A random action as shares of its range; choices have no ends to lean to."""
        low, high = finite_bounds(self.model, state)
        action = sample_uniform_action(self.model, state, key)
        share = jnp.clip((action - low) / jnp.maximum(high - low, 1e-9), 0.0, 1.0)
        real = np.concatenate([np.full(v.size, v.kind == "real") for v in self.model.spec.action.variables])
        return jnp.where(real, share**leaning, share)


def placed(model: Model, state: Array, share: Array) -> Array:
    """The action at these shares of its range in this state."""
    low, high = finite_bounds(model, state)
    return low + share * (high - low)


def finite_bounds(model: Model, state: Array) -> tuple[Array, Array]:
    """Action bounds, with -3 and 3 in place of none."""
    low, high = model.action_bounds(state)
    return jnp.where(jnp.isfinite(low), low, -3.0), jnp.where(jnp.isfinite(high), high, 3.0)


def explore(model: Model, key: PRNGKeyArray, count: int) -> Trajectory:
    """`count` trajectories of explorers."""
    return explorers(model, key, count)[0]


@jit_fast_compile
def explorers(model: Model, key: PRNGKeyArray, count: int) -> tuple[Trajectory, Float[Array, "batch time action"]]:
    """`count` trajectories of explorers, and their actions as shares of their range."""
    keys = jax.random.split(key, count)
    return rollout_batch(model, ExploringPolicy(model), keys, trace=lambda memory: memory["action"])
