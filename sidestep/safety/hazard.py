"""The hazard model: a recurrent state gives every step its own non-negative hazard, nested over severities."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.safety.base import Actions, Lengths, States, real_steps
from sidestep.safety.event_times import log_likelihood
from sidestep.safety.recurrent import PRECISION, Shape, affine, dropout, uniform
from sidestep.safety.recurrent_model import RecurrentModel
from sidestep.safety.survival import Hazards, Stretch, category_log_probabilities, nested

INITIAL_BIAS = -3.0  # a hazard of 0.05 per step: neither "all safe" nor "all lost" before the first label is seen


class HazardModel(RecurrentModel):
    """P(category < k) = exp(-sum_t c_t^k), c_t^1 = softplus(w . h_t + b), c_t^k = c_t^{k-1} * sigmoid(w_k . h_t + b_k).

    The recurrent state h_t has seen steps 0, ..., t, so the hazard of a step is what this step adds, given the past.
    """

    kind: ClassVar[str] = "hazard"
    default_shape: ClassVar[Shape] = Shape(layers=1, units=16, dropout=0.0, encoder=(64, 64, 8))

    calibration: Stretch
    calibration_type: ClassVar = Stretch

    def make_head(self, units, categories, weight_key, bias_key):
        bias = jnp.zeros(categories - 1, PRECISION).at[0].set(INITIAL_BIAS)
        return uniform(weight_key, (units, categories - 1), units), bias

    def hazards(self, states: States, actions: Actions, length: Lengths, key: PRNGKeyArray | None = None) -> Hazards:
        """Of every step, before calibration; zero after the end."""
        mask = real_steps(states.shape[-2], length)
        layers_key, head_key = (None, None) if key is None else jax.random.split(key)
        outputs = self.recurrent(self.inputs(states, actions, mask), layers_key)
        steps = self._step_hazards(dropout(outputs, self.recurrent.dropout, head_key))
        return jax.tree.map(lambda part: jnp.where(mask[..., None], part, 0.0), steps)

    def evidence(self, states, actions, length, key=None):
        """The hazards summed over the steps, H^k = sum_t c_t^k."""
        return _summed(self.hazards(states, actions, length, key))

    def conclude(self, evidence):
        return category_log_probabilities(self.calibration(evidence))

    def learn_marked(self, states, actions, length, windows, key):
        steps = self.hazards(states, actions, length, key)
        return self.conclude(_summed(steps)), log_likelihood(steps, length, windows), ()

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
        return nested(affine(outputs, self.head_weight, self.head_bias))


def _summed(steps: Hazards) -> Hazards:
    return jax.tree.map(lambda part: jnp.sum(part, axis=-2), steps)
