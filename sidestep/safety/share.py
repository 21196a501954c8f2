"""The share model: steps without memory, for side effects of single steps and of the share of steps alike.

A sum of hazards fits what any one step may cause. It does not fit "unsafe when a tenth of the steps are dangerous": a
dangerous step weighs much in a walk of thirty and little in one of five hundred. So a trajectory has to survive both a
sum and a mean.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.safety.base import Layers, Lengths, NetworkModel, real_steps
from sidestep.safety.recurrent import PRECISION, Dense, affine, uniform
from sidestep.safety.survival import Hazards, Stretch, category_log_probabilities, nested

INITIAL_BIAS = -4.0  # of the summed hazards: they come in where a mean does not explain the labels
INITIAL_POWER = 2.0


class Steps(NamedTuple):
    """What steps add to the sum and to the mean; or their totals over a trajectory."""

    summed: Hazards
    shared: Hazards


class ShareModel(NetworkModel):
    """P(category < k) = exp(-H^k) with H^k = sum_t c_t^k + (mean_t m_t^k)^gamma, c_t, m_t = softplus(MLP(s_t, a_t)).

    A large power gamma makes a threshold of the mean.
    """

    kind: ClassVar[str] = "share"

    layers: tuple[Dense, ...]
    head_weight: Float[Array, "units outputs"]
    head_bias: Float[Array, " outputs"]
    log_power: Float[Array, ""]
    calibration: Stretch

    def __init__(
        self,
        state_size: int,
        action_size: int,
        categories: int,
        *,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = (64, 64),
    ):
        super().__init__(state_size, action_size, categories, Stretch.identity())
        if not hidden or min(hidden) < 1:
            raise InputError(f"a share model needs at least one hidden layer of at least one unit, not {hidden}")
        sizes = (state_size + action_size, *hidden)
        *layer_keys, head_key = jax.random.split(key, len(hidden) + 1)
        self.layers = tuple(
            Dense(before, after, False, key=k)
            for before, after, k in zip(sizes[:-1], sizes[1:], layer_keys, strict=True)
        )
        self.head_weight = uniform(head_key, (hidden[-1], 2 * (categories - 1)), hidden[-1])
        self.head_bias = jnp.zeros(2 * (categories - 1), PRECISION).at[0].set(INITIAL_BIAS)
        self.log_power = jnp.log(jnp.asarray(INITIAL_POWER, PRECISION))

    @property
    def input_weight(self) -> Float[Array, "input units"]:
        return self.layers[0].input_weight

    def shape(self) -> Layers:
        return Layers(hidden=tuple(layer.bias.shape[-1] for layer in self.layers))

    def steps(self, states: Float[Array, "*batch state"], actions: Float[Array, "*batch action"]) -> Steps:
        """c and m of single steps."""
        return self._steps(self.inputs(states, actions))

    def evidence(self, states, actions, length, key=None):
        """H^k before calibration."""
        mask = real_steps(states.shape[-2], length)
        return self.gathered(self._steps(self.inputs(states, actions, mask)), length)

    def gathered(self, steps: Steps, length: Lengths) -> Hazards:
        """The evidence of trajectories from what their steps, (*batch, time), say."""
        mask = real_steps(steps.summed.worse.shape[-2], length)
        totals = jax.tree.map(lambda part: jnp.sum(jnp.where(mask[..., None], part, 0.0), axis=-2), steps)
        return self._total(totals, length)

    def conclude(self, evidence):
        return category_log_probabilities(self.calibration(evidence))

    def blame_weights(self, states, actions, length, severity):
        """The step's share of H^k: its own hazard, and its part of the mean's."""
        mask = real_steps(states.shape[-2], length)
        steps = self._steps(self.inputs(states, actions, mask))
        summed, shared = (jnp.where(mask, part.worse[..., severity - 1], 0.0) for part in steps)
        total = jnp.sum(shared, axis=-1, keepdims=True)
        mean = total / jnp.maximum(jnp.asarray(length, total.dtype)[..., None], 1.0)
        return summed + mean ** jnp.exp(self.log_power) * shared / jnp.maximum(total, jnp.finfo(total.dtype).tiny)

    def start(self):
        nothing = jnp.zeros(self.categories - 1, self.head_bias.dtype)
        hazards = Hazards(nothing, nothing[1:])
        return Steps(hazards, hazards), jnp.zeros((), self.head_bias.dtype)

    def advance(self, memory, state, action):
        totals, length = memory
        return jax.tree.map(jnp.add, totals, self.steps(state, action)), length + 1.0

    def risk(self, memory):
        return -jnp.expm1(-self.calibration(self._total(*memory)).worse)

    def features(self, memory):
        return self.risk(memory)

    def _steps(self, values: Float[Array, "*batch input"]) -> Steps:
        for layer in self.layers:
            values = layer(values)
        summed, shared = jnp.split(affine(values, self.head_weight, self.head_bias), 2, axis=-1)
        return Steps(nested(summed), nested(shared))

    def _total(self, totals: Steps, length: Array) -> Hazards:
        """Sum and powered mean of the hazards of so many steps."""
        count = jnp.maximum(jnp.asarray(length, self.log_power.dtype), 1.0)[..., None]
        mean = Hazards(*(part / count for part in totals.shared))
        powered = Stretch(jnp.zeros_like(self.log_power), self.log_power)(mean)
        return jax.tree.map(jnp.add, totals.summed, powered)
