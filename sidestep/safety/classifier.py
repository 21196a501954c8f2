"""The paper's classifier: recurrent layers over (state, action), mean over time, linear head, softmax."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.errors import InputError
from sidestep.safety.base import SafetyModel, Standardisation, check_sizes, real_steps
from sidestep.safety.recurrent import PRECISION, Cell, Recurrent, affine, dropout
from sidestep.safety.softmax import Temperature


class Classifier(SafetyModel):
    """softmax(W mean_t h_t + b), h_t from GRU (or LSTM) layers, with dropout between layers and before the head."""

    kind: ClassVar[str] = "classifier"

    recurrent: Recurrent
    head_weight: Float[Array, "units categories"]
    head_bias: Float[Array, " categories"]
    standardisation: Standardisation
    calibration: Temperature
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
        layers: int = 2,
        units: int = 64,
        dropout: float = 0.5,
    ):
        check_sizes(state_size, action_size, categories)
        check_recurrent(cell, layers, units, dropout)
        recurrent_key, weight_key, bias_key = jax.random.split(key, 3)
        self.recurrent = Recurrent(cell, state_size + action_size, units, layers, dropout, key=recurrent_key)
        bound = units**-0.5
        self.head_weight = jax.random.uniform(weight_key, (units, categories), PRECISION, -bound, bound)
        self.head_bias = jax.random.uniform(bias_key, (categories,), PRECISION, -bound, bound)
        self.standardisation = Standardisation.identity(state_size + action_size)
        self.calibration = Temperature.identity()
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

        return jnp.linalg.norm(jax.grad(total_log_survival)(inputs) * inputs, axis=-1) * mask

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


def check_recurrent(cell: str, layers: int, units: int, dropout: float) -> None:
    if cell not in ("gru", "lstm"):
        raise InputError(f"the recurrent cell is 'gru' or 'lstm', not {cell!r}")
    if layers < 1 or units < 1:
        raise InputError(f"a recurrent model needs at least one layer and one unit, not {layers} and {units}")
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout is a share in [0, 1), not {dropout}")
