"""A safety model that knows the rule: for telling what the planner loses from what the learned safety model loses."""

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.safety.base import Layers, SafetyModel, Standardisation, Temperature, real_steps

Depth = Callable[[Array, Array], Array]  # how deep a state (and action) lies in the region of the event; < 0: outside
EDGE = 0.02  # width of the region's edge
LEAST = 1e-20  # chance


class CounterOracle(SafetyModel):
    """Counts the steps in a region: at `thresholds[k - 1]` of them the category is k or worse.

    A step counts with probability e = sigmoid(depth / EDGE), and the distribution of the count follows step by step:
    P(n) <- (1 - e) P(n) + e P(n - 1). EDGE is small against the noise of the problems, so this is the rule, and yet
    every trajectory near a region's edge has a derivative.
    """

    kind: ClassVar[str] = "counter oracle"

    depth: Depth = eqx.field(static=True)
    thresholds: tuple[int, ...] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)

    @property
    def categories(self) -> int:  # type: ignore[override]
        return len(self.thresholds) + 1

    @property
    def standardisation(self) -> Standardisation:  # type: ignore[override]
        return Standardisation.identity(self.state_size + self.action_size)

    @property
    def calibration(self) -> Temperature:  # type: ignore[override]
        return Temperature.identity()

    @property
    def input_weight(self) -> Float[Array, "input units"]:
        return jnp.ones((self.state_size + self.action_size, 1))

    def shape(self) -> Layers:
        return Layers()

    def event(self, states: Array, actions: Array) -> Array:
        """The probability that a step counts: 1 in the region and 0 outside."""
        return jax.nn.sigmoid(self.depth(states, actions) / EDGE)

    def evidence(self, states, actions, length, key=None):
        """The distribution of the number of events."""
        mask = real_steps(states.shape[-2], length)
        events = jnp.where(mask, self.event(states, actions), 0.0)
        first = jnp.broadcast_to(self.start(), (*events.shape[:-1], self.thresholds[-1] + 1))
        return jax.lax.scan(lambda chances, e: (_counted(chances, e), None), first, jnp.moveaxis(events, -1, 0))[0]

    def conclude(self, evidence):
        edges = (0, *self.thresholds, evidence.shape[-1])
        chances = [jnp.sum(evidence[..., low:high], axis=-1) for low, high in pairwise(edges)]
        return jnp.log(jnp.stack(chances, axis=-1) + LEAST)

    def blame_weights(self, states, actions, length, severity):
        mask = real_steps(states.shape[-2], length)
        return jnp.where(mask, self.event(states, actions), 0.0)

    def start(self):
        return jnp.zeros(self.thresholds[-1] + 1).at[0].set(1.0)

    def advance(self, memory, state, action):
        return _counted(memory, self.event(state, action))

    def risk(self, memory):
        return jnp.stack([jnp.sum(memory[..., number:], axis=-1) for number in self.thresholds], axis=-1)

    def features(self, memory):
        """The probability that there was one event, were two, ..."""
        return jnp.cumsum(memory[::-1])[::-1][1:]


def _counted(chances: Float[Array, "*batch count"], event: Float[Array, "*batch"]) -> Float[Array, "*batch count"]:
    """The distribution after a step that counts with this probability; the last entry stands for so many or more."""
    event = event[..., None]
    moved = jnp.concatenate([jnp.zeros_like(chances[..., :1]), chances[..., :-1]], axis=-1)
    after = (1.0 - event) * chances + event * moved
    return after.at[..., -1].add(event[..., 0] * chances[..., -1])


def in_box(low: tuple[float, ...], high: tuple[float, ...]) -> Depth:
    """The depth in a box of the first entries of the state."""

    def depth(states: Array, actions: Array) -> Array:
        seen = states[..., : len(low)]
        return jnp.min(jnp.minimum(seen - jnp.asarray(low), jnp.asarray(high) - seen), axis=-1)

    return depth
