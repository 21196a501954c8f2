"""The Markov classifier: a small network on one (state, action), for side effects that a single step shows."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.safety.base import (
    Actions,
    Frozen,
    Layers,
    Lengths,
    NetworkModel,
    States,
    Temperature,
    check_dropout,
    real_steps,
)
from sidestep.safety.event_times import log_likelihood
from sidestep.safety.recurrent import PRECISION, affine, dropout, uniform
from sidestep.safety.survival import Hazards, category_log_probabilities

MOMENTUM = 0.1  # of the running statistics, as PyTorch's default
EPSILON = 1e-5


class RunningStatistics(Frozen):
    """Mean and variance of a layer's activations, averaged over the minibatches of a fit."""

    mean: Float[Array, " units"]
    variance: Float[Array, " units"]


class NormalisedLayer(eqx.Module):
    """linear -> batch norm -> relu -> dropout."""

    weight: Float[Array, "input units"]
    bias: Float[Array, " units"]
    scale: Float[Array, " units"]
    shift: Float[Array, " units"]
    statistics: RunningStatistics

    def __init__(self, input_size: int, units: int, *, key: PRNGKeyArray):
        weight_key, bias_key = jax.random.split(key)
        self.weight = uniform(weight_key, (input_size, units), input_size)
        self.bias = uniform(bias_key, (units,), input_size)
        self.scale, self.shift = jnp.ones(units, PRECISION), jnp.zeros(units, PRECISION)
        self.statistics = RunningStatistics(jnp.zeros(units, PRECISION), jnp.ones(units, PRECISION))

    def __call__(self, inputs: Float[Array, "*batch input"]) -> Float[Array, "*batch units"]:
        return self._normalise(affine(inputs, self.weight, self.bias), self.statistics)

    def learn(self, inputs: Array, mask: Bool[Array, "*batch"]) -> tuple[Array, RunningStatistics]:
        """Normalised by this batch's own real steps, and the running statistics with them mixed in."""
        linear = affine(inputs, self.weight, self.bias)
        over = tuple(range(linear.ndim - 1))
        weights = mask[..., None].astype(linear.dtype)
        count = jnp.maximum(jnp.sum(weights), 1.0)
        mean = jnp.sum(linear * weights, axis=over) / count
        variance = jnp.sum(jnp.square(linear - jnp.broadcast_to(mean, linear.shape)) * weights, axis=over) / count
        unbiased = variance * count / jnp.maximum(count - 1.0, 1.0)
        running = jax.tree.map(
            lambda old, new: jax.lax.stop_gradient(old + MOMENTUM * (new - old)),
            self.statistics,
            RunningStatistics(mean, unbiased),
        )
        return self._normalise(linear, RunningStatistics(mean, variance)), running

    def _normalise(self, linear: Array, statistics: RunningStatistics) -> Array:
        factor = self.scale * jax.lax.rsqrt(statistics.variance + EPSILON)
        offset = self.shift - statistics.mean * factor
        return jax.nn.relu(linear * jnp.broadcast_to(factor, linear.shape) + jnp.broadcast_to(offset, linear.shape))


class MarkovClassifier(NetworkModel):
    """p_t = softmax(MLP(s_t, a_t)) for every step, and P(category < k) = prod_t P(step t below k) for a trajectory.

    It is a hazard model without memory: c_t^k = -log P(step t below k). A labelled step is a trajectory of length 1.
    """

    kind: ClassVar[str] = "markov"

    layers: tuple[NormalisedLayer, ...]
    head_weight: Float[Array, "units categories"]
    head_bias: Float[Array, " categories"]
    calibration: Temperature
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        state_size: int,
        action_size: int,
        categories: int,
        *,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = (32, 32),
        dropout: float = 0.5,
    ):
        super().__init__(state_size, action_size, categories, Temperature.identity())
        if not hidden or min(hidden) < 1:
            raise InputError(f"a Markov classifier needs at least one hidden layer of at least one unit, not {hidden}")
        check_dropout(dropout)
        sizes = (state_size + action_size, *hidden)
        *layer_keys, weight_key, bias_key = jax.random.split(key, len(hidden) + 2)
        self.layers = tuple(
            NormalisedLayer(before, after, key=k)
            for before, after, k in zip(sizes[:-1], sizes[1:], layer_keys, strict=True)
        )
        self.head_weight = uniform(weight_key, (hidden[-1], categories), hidden[-1])
        self.head_bias = uniform(bias_key, (categories,), hidden[-1])
        self.dropout = dropout

    @property
    def per_step(self) -> bool:
        return True

    @property
    def input_weight(self) -> Float[Array, "input units"]:
        return self.layers[0].weight

    def shape(self) -> Layers:
        return Layers(hidden=tuple(layer.bias.shape[-1] for layer in self.layers), dropout=self.dropout)

    def step_log_probabilities(
        self, states: Float[Array, "*batch state"], actions: Float[Array, "*batch action"]
    ) -> Float[Array, "*batch categories"]:
        """Of single steps."""
        return self.calibration(self._logits(self.inputs(states, actions)))

    def expected_counts(self, states: States, actions: Actions, length: Lengths) -> Float[Array, "*batch categories"]:
        """Expected number of steps of each category, sum_t p_t(k): the paper's constraint for Markovian ones."""
        logits, mask = self.evidence(states, actions, length)
        return jnp.sum(jnp.where(mask[..., None], jnp.exp(self.calibration(logits)), 0.0), axis=-2)

    def evidence(self, states, actions, length, key=None):
        mask = real_steps(states.shape[-2], length)
        return self._logits(self.inputs(states, actions, mask)), mask

    def conclude(self, evidence):
        return category_log_probabilities(Hazards(*(jnp.sum(part, axis=-2) for part in self._hazards(*evidence))))

    def learn(self, states, actions, length, key):
        evidence, statistics = self._learn(states, actions, length, key)
        return self.conclude(evidence), statistics

    def learn_marked(self, states, actions, length, windows, key):
        evidence, statistics = self._learn(states, actions, length, key)
        return self.conclude(evidence), log_likelihood(self._hazards(*evidence), length, windows), statistics

    def _hazards(self, logits: Array, mask: Array) -> Hazards:
        """Of every step; zero after the end."""
        steps = step_hazards(self.calibration(logits))
        return Hazards(*(jnp.where(mask[..., None], part, 0.0) for part in steps))

    def _learn(self, states, actions, length, key):
        """The evidence in training, or without a key as it is; and the running statistics."""
        if key is None:
            return self.evidence(states, actions, length), ()
        mask = real_steps(states.shape[-2], length)
        values = self.inputs(states, actions, mask)
        statistics = []
        for layer, layer_key in zip(self.layers, jax.random.split(key, len(self.layers)), strict=True):
            values, running = layer.learn(values, mask)
            values = dropout(values, self.dropout, layer_key)
            statistics.append(running)
        logits = affine(values, self.head_weight, self.head_bias)
        return (logits, mask), tuple(statistics)

    def with_statistics(self, statistics):
        return eqx.tree_at(lambda model: [layer.statistics for layer in model.layers], self, list(statistics))

    def blame_weights(self, states, actions, length, severity):
        """The step's probability of `severity` or worse."""
        logits, mask = self.evidence(states, actions, length)
        return jnp.sum(jnp.exp(self.calibration(logits))[..., severity:], axis=-1) * mask.astype(logits.dtype)

    def start(self):
        return jnp.zeros((self.categories - 1,), self.head_bias.dtype)

    def advance(self, memory, state, action):
        return memory + step_hazards(self.step_log_probabilities(state, action)).worse

    def risk(self, memory):
        return -jnp.expm1(-memory)

    def features(self, memory):
        return self.risk(memory)

    def _logits(self, values):
        for layer in self.layers:
            values = layer(values)
        return affine(values, self.head_weight, self.head_bias)


def step_hazards(log_probabilities: Float[Array, "*batch categories"]) -> Hazards:
    """c^k = -log P(below k) = softplus(log P(k or worse) - log P(below k)), without loss of digits when it is small."""
    last = log_probabilities.ndim - 1
    below = jax.lax.cumlogsumexp(log_probabilities, axis=last)[..., :-1]
    worse = jax.lax.cumlogsumexp(log_probabilities, axis=last, reverse=True)[..., 1:]
    gaps = jax.nn.softplus(log_probabilities[..., 1:-1] - below[..., :-1])
    return Hazards(jax.nn.softplus(worse - below), gaps)
