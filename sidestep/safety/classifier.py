"""The paper's classifier: recurrent layers over (state, action), mean over time, linear head, softmax."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from sidestep.safety.base import Temperature, real_steps
from sidestep.safety.recurrent import Shape, affine, dropout, uniform
from sidestep.safety.recurrent_model import RecurrentModel


class Classifier(RecurrentModel):
    """softmax(W mean_t h_t + b), h_t from GRU (or LSTM) layers, with dropout between layers and before the head."""

    kind: ClassVar[str] = "classifier"
    default_shape: ClassVar[Shape] = Shape(layers=2, units=64, dropout=0.5)

    calibration: Temperature
    calibration_type: ClassVar = Temperature

    def make_head(self, units, categories, weight_key, bias_key):
        return uniform(weight_key, (units, categories), units), uniform(bias_key, (categories,), units)

    def evidence(self, states, actions, length, key=None):
        mask = real_steps(states.shape[-2], length)
        return self._logits(self.inputs(states, actions, mask), mask, key)

    def conclude(self, evidence):
        return self.calibration(evidence)

    def blame_weights(self, states, actions, length, severity):
        """Norm of gradient times input, step by step, of log P(category < severity)."""
        mask = real_steps(states.shape[-2], length)
        inputs = self.inputs(states, actions, mask)

        def total_log_survival(inputs):
            log_probabilities = self.conclude(self._logits(inputs, mask, None))
            return jnp.sum(jax.nn.logsumexp(log_probabilities[..., :severity], axis=-1))

        return jnp.linalg.norm(jax.grad(total_log_survival)(inputs) * inputs, axis=-1) * mask.astype(inputs.dtype)

    def start(self):
        return self.recurrent.start(), jnp.zeros_like(self.head_weight[:, 0]), jnp.zeros((), int)

    def advance(self, memory, state, action):
        hidden, total, count = memory
        hidden, output = self.recurrent.step(hidden, self.inputs(state, action))
        return hidden, total + output, count + 1

    def risk(self, memory):
        log_probabilities = self.conclude(affine(self._running_mean(memory), self.head_weight, self.head_bias))
        return jnp.cumsum(jnp.exp(log_probabilities)[::-1])[::-1][1:]

    def features(self, memory):
        return jnp.concatenate([self._running_mean(memory), self.risk(memory)])

    def _logits(self, inputs, mask, key):
        layers_key, head_key = (None, None) if key is None else jax.random.split(key)
        outputs = self.recurrent(inputs, layers_key)
        total = jnp.sum(jnp.where(mask[..., None], outputs, 0.0), axis=-2)
        mean = total / jnp.maximum(jnp.sum(mask, axis=-1), 1)[..., None].astype(total.dtype)
        return affine(dropout(mean, self.recurrent.dropout, head_key), self.head_weight, self.head_bias)

    def _running_mean(self, memory):
        _, total, count = memory
        return total / jnp.maximum(count, 1).astype(total.dtype)
