"""The hazard model: a recurrent state gives every step its own non-negative hazard, nested over severities."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.safety.base import SafetyModel, Standardisation, check_sizes, real_steps
from sidestep.safety.classifier import check_recurrent
from sidestep.safety.recurrent import PRECISION, Cell, Recurrent, affine, dropout
from sidestep.safety.survival import Hazards, Stretch, category_log_probabilities

INITIAL_BIAS = -3.0  # a hazard of 0.05 a step: neither "all safe" nor "all lost" before the first label is seen


class HazardModel(SafetyModel):
    """c_t^1 = softplus(w . h_t + b),  c_t^k = c_t^{k-1} * sigmoid(w_k . h_t + b_k),  P(category < k) = exp(-sum_t c_t^k).

    h_t has seen steps 0, ..., t, so the hazard of a step is what this step adds, given the past.
    """

    kind: ClassVar[str] = "hazard"

    encoder_weight: Float[Array, "input encoder"]
    encoder_bias: Float[Array, " encoder"]
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
        self, state_size, action_size, categories, *, key, cell="gru", layers=1, units=64, encoder=0, dropout=0.0
    ):
        k1, k2, k3 = jax.random.split(key, 3)
        n = state_size + action_size
        self.encoder_weight = jax.random.normal(k3, (n, encoder), PRECISION)
        self.encoder_bias = jax.random.normal(jax.random.fold_in(k3, 1), (encoder,), PRECISION)
        self.recurrent = Recurrent(cell, encoder + n, units, layers, dropout, key=k1)
        self.head_weight = jax.random.uniform(k2, (units, categories - 1), PRECISION, -(units**-0.5), units**-0.5)
        self.head_bias = jnp.full((categories - 1,), 0.0, PRECISION).at[0].set(INITIAL_BIAS)
        self.standardisation = Standardisation.identity(n)
        self.calibration = Stretch.identity()
        self.state_size, self.action_size, self.categories, self.cell = state_size, action_size, categories, cell

    def config(self):
        return {}

    def step_hazards(self, outputs):
        u = affine(outputs, self.head_weight, self.head_bias)
        gates = jax.nn.sigmoid(u[..., 1:])
        worse = jax.nn.softplus(u[..., :1])
        w = [worse[..., 0]]
        g = []
        for k in range(self.categories - 2):
            g.append(w[-1] * jax.nn.sigmoid(-u[..., k + 1]))
            w.append(w[-1] * gates[..., k])
        return Hazards(jnp.stack(w, -1), jnp.stack(g, -1) if g else jnp.zeros((*outputs.shape[:-1], 0)))

    def per_step(self, states, actions, length, key=None):
        mask = real_steps(states.shape[-2], length)
        x = self.inputs(states, actions, mask)
        if self.encoder_bias.shape[0]:
            x = jnp.concatenate([x, jnp.tanh(affine(x, self.encoder_weight, self.encoder_bias))], -1)
        out = dropout(self.recurrent(x, key), self.recurrent.dropout, key)
        return jax.tree.map(lambda c: jnp.where(mask[..., None], c, 0.0), self.step_hazards(out))

    def evidence(self, states, actions, length, key=None):
        return jax.tree.map(lambda c: c.sum(-2), self.per_step(states, actions, length, key))

    def conclude(self, evidence):
        return category_log_probabilities(self.calibration(evidence))

    def blame_weights(self, states, actions, length, severity):
        return self.per_step(states, actions, length).worse[..., severity - 1]

    def start(self):
        pass

    def advance(self, m, s, a):
        pass

    def risk(self, m):
        pass

    def features(self, m):
        pass
