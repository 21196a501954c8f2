"""The hazard model: a recurrent state gives every step its own non-negative hazard, nested over severities."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sidestep.safety.base import SafetyModel, Standardisation, check_sizes, real_steps
from sidestep.safety.classifier import check_recurrent
from sidestep.safety.recurrent import PRECISION, Cell, Recurrent, affine, dropout
from sidestep.safety.survival import Hazards, Stretch, category_log_probabilities

INITIAL_BIAS = -3.0  # a hazard of 0.05 a step: neither "all safe" nor "all lost" before the first label is seen


class HazardModel(SafetyModel):
    """P(category < k) = exp(-sum_t c_t^k), c_t^1 = softplus(w . h_t + b), c_t^k = c_t^{k-1} * sigmoid(w_k . h_t + b_k).

    The recurrent state h_t has seen steps 0, ..., t, so the hazard of a step is what this step adds, given the past.
    """

    kind: ClassVar[str] = "hazard"

    recurrent: Recurrent
    head_weight: Float[Array, "units categories-1"]
    head_bias: Float[Array, " categories-1"]
    standardisation: Standardisation
    calibration: Stretch
    state_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    categories: int = eqx.field(static=True)
    cell: Cell = eqx.field(static=True)

    def __init__(
        self,
        state_size: int,
        action_size: int,
        categories: int,
        *,
        key: PRNGKeyArray,
        cell: Cell = "gru",
        layers: int = 1,
        units: int = 32,
        dropout: float = 0.0,
    ):
        check_sizes(state_size, action_size, categories)
        check_recurrent(cell, layers, units, dropout)
        recurrent_key, head_key = jax.random.split(key)
        inputs = state_size + action_size
        self.recurrent = Recurrent(cell, inputs, units, layers, dropout, key=recurrent_key)
        bound = units**-0.5
        self.head_weight = jax.random.uniform(head_key, (units, categories - 1), PRECISION, -bound, bound)
        self.head_bias = jnp.zeros(categories - 1, PRECISION).at[0].set(INITIAL_BIAS)
        self.standardisation = Standardisation.identity(inputs)
        self.calibration = Stretch.identity()
        self.state_size, self.action_size, self.categories, self.cell = state_size, action_size, categories, cell

    @property
    def input_weight(self) -> Float[Array, "input units"]:
        return self.recurrent.layers[0].input_weight

    def config(self) -> dict[str, Any]:
        return {
            "cell": self.cell,
            "layers": len(self.recurrent.layers),
            "units": self.head_weight.shape[-2],
            "dropout": self.recurrent.dropout,
        }

    def hazards(
        self,
        states: Float[Array, "*batch time state"],
        actions: Float[Array, "*batch time action"],
        length: Int[Array, "*batch"],
        key: PRNGKeyArray | None = None,
    ) -> Hazards:
        """Of every step, before calibration; zero after the end."""
        mask = real_steps(states.shape[-2], length)
        layers_key, head_key = (None, None) if key is None else jax.random.split(key)
        outputs = self.recurrent(self.inputs(states, actions, mask), layers_key)
        steps = self._step_hazards(dropout(outputs, self.recurrent.dropout, head_key))
        return jax.tree.map(lambda part: jnp.where(mask[..., None], part, 0.0), steps)

    def evidence(self, states, actions, length, key=None):
        """The hazards summed over the steps, H^k = sum_t c_t^k."""
        return jax.tree.map(lambda part: jnp.sum(part, axis=-2), self.hazards(states, actions, length, key))

    def conclude(self, evidence):
        return category_log_probabilities(self.calibration(evidence))

    def blame_weights(self, states, actions, length, severity):
        """The step's own hazard."""
        return self.hazards(states, actions, length).worse[..., severity - 1]

    def start(self):
        nothing = jnp.zeros(self.categories - 1, self.head_bias.dtype)
        return self.recurrent.start(), Hazards(nothing, nothing[1:])

    def advance(self, memory, state, action):
        hidden, total = memory
        hidden, output = self.recurrent.step(hidden, self.inputs(state, action))
        return hidden, jax.tree.map(jnp.add, total, self._step_hazards(output))

    def risk(self, memory):
        return -jnp.expm1(-self.calibration(memory[1]).worse)

    def features(self, memory):
        """What the last layer remembers, and the risk so far."""
        hidden = memory[0][-1]
        return jnp.concatenate([hidden[0] if self.cell == "lstm" else hidden, self.risk(memory)])

    def _step_hazards(self, outputs: Float[Array, "*batch units"]) -> Hazards:
        raw = affine(outputs, self.head_weight, self.head_bias)
        worse, gaps = [jax.nn.softplus(raw[..., 0])], []
        for k in range(1, self.categories - 1):
            gaps.append(worse[-1] * jax.nn.sigmoid(-raw[..., k]))
            worse.append(worse[-1] * jax.nn.sigmoid(raw[..., k]))
        return Hazards(jnp.stack(worse, axis=-1), jnp.stack(gaps, axis=-1) if gaps else raw[..., :0])
