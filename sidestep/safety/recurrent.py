"""Recurrent layers that read many trajectories at once, fast on a CPU, and one step at a time when streaming.

A sequence is time-major here, (T, B, features). The input's share of the gates is one matrix product over all
steps, outside the loop; only the product with the hidden state is sequential. The GRU's backward pass is written
out: it defers the weights' gradient to one product over all steps, which halves the time of a fit. Its price is
that the GRU has reverse-mode derivatives only (`jax.grad`, not `jax.jvp`).
"""

import math
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Cell = Literal["gru", "lstm"]
PRECISION = jnp.float32  # of parameters, even where another library has turned on 64 bits


class Shape(NamedTuple):
    """Of recurrent layers and the encoder before them."""

    layers: int
    units: int
    dropout: float
    encoder: tuple[int, ...] = ()


class GRU(eqx.Module):
    """One layer of gated recurrent units (Cho et al. 2014), with PyTorch's equations:

    r = sigmoid(x W_r + b_r + h U_r),  z = sigmoid(x W_z + b_z + h U_z),
    n = tanh(x W_n + b_n + r * (h U_n + c)),  h' = (1 - z) * n + z * h.
    """

    input_weight: Float[Array, "input 3*units"]
    recurrent_weight: Float[Array, "units 3*units"]
    bias: Float[Array, " 3*units"]
    candidate_bias: Float[Array, " units"]

    def __init__(self, input_size: int, units: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        self.input_weight = uniform(keys[0], (input_size, 3 * units), units)
        self.recurrent_weight = uniform(keys[1], (units, 3 * units), units)
        self.bias = uniform(keys[2], (3 * units,), units)
        self.candidate_bias = uniform(keys[3], (units,), units)

    def start(self) -> Array:
        return jnp.zeros_like(self.candidate_bias)

    def step(self, hidden: Array, inputs: Float[Array, " input"]) -> tuple[Array, Array]:
        """The hidden state after one more step, and the layer's output at it (the same array)."""
        hidden, _ = _gru_step(hidden, self._gates(inputs), _thirds(self.recurrent_weight), self.candidate_bias)
        return hidden, hidden

    def __call__(self, inputs: Float[Array, "time batch input"]) -> Float[Array, "time batch units"]:
        return _gru_scan(self._gates(inputs), _thirds(self.recurrent_weight), self.candidate_bias)

    def _gates(self, inputs: Float[Array, "*batch input"]) -> tuple[Array, ...]:
        """The input's share of r, z and n."""
        thirds = zip(_thirds(self.input_weight), _thirds(self.bias), strict=True)
        return tuple(affine(inputs, weight, bias) for weight, bias in thirds)


class LSTM(eqx.Module):
    """One layer of long short-term memory:

    i, f, o = sigmoid(x W + b + h U),  g = tanh(x W_g + b_g + h U_g),  c' = f * c + i * g,  h' = o * tanh(c').
    """

    input_weight: Float[Array, "input 4*units"]
    recurrent_weight: Float[Array, "units 4*units"]
    bias: Float[Array, " 4*units"]

    def __init__(self, input_size: int, units: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.input_weight = uniform(keys[0], (input_size, 4 * units), units)
        self.recurrent_weight = uniform(keys[1], (units, 4 * units), units)
        self.bias = uniform(keys[2], (4 * units,), units)

    def start(self) -> tuple[Array, Array]:
        nothing = jnp.zeros_like(self.bias[: self.recurrent_weight.shape[0]])
        return nothing, nothing

    def step(self, memory: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Array]:
        return self._advance(memory, affine(inputs, self.input_weight, self.bias))

    def __call__(self, inputs: Float[Array, "time batch input"]) -> Float[Array, "time batch units"]:
        memory = jax.tree.map(lambda leaf: jnp.tile(leaf[None], (inputs.shape[1], 1)), self.start())
        gates = affine(inputs, self.input_weight, self.bias)
        return jax.lax.scan(lambda memory, step: self._advance(memory, step), memory, gates)[1]

    def _advance(self, memory, gates):
        hidden, cell = memory
        i, f, o, g = jnp.split(gates + hidden @ self.recurrent_weight, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden


class Dense(eqx.Module):
    """tanh(x W + b), or sigmoid for the last one: what a single step shows, before anything counts steps."""

    input_weight: Float[Array, "input units"]
    bias: Float[Array, " units"]
    last: bool = eqx.field(static=True)

    def __init__(self, input_size: int, units: int, last: bool, *, key: PRNGKeyArray):
        weight_key, bias_key = jax.random.split(key)
        self.input_weight = math.sqrt(3.0) * uniform(weight_key, (input_size, units), input_size)
        self.bias = uniform(bias_key, (units,), input_size if last else 1)
        self.last = last

    def __call__(self, inputs: Float[Array, "*batch input"]) -> Float[Array, "*batch units"]:
        linear = affine(inputs, self.input_weight, self.bias)
        return jax.nn.sigmoid(linear) if self.last else jnp.tanh(linear)


class Recurrent(eqx.Module):
    """A stack of recurrent layers with dropout between them (never after the last), by choice behind an encoder.

    An encoder turns each step into a few signs between 0 and 1. A narrow one says that the temporal pattern is one of a
    few things that a step shows, which takes far fewer labels to learn than any pattern of anything.
    """

    encoder: tuple[Dense, ...]
    layers: tuple[GRU | LSTM, ...]
    dropout: float = eqx.field(static=True)

    def __init__(self, cell: Cell, input_size: int, shape: Shape, *, key: PRNGKeyArray):
        layers, units, dropout, encoder = shape
        widths = (input_size, *encoder)
        keys = jax.random.split(jax.random.fold_in(key, layers), max(len(encoder), 1))
        self.encoder = tuple(
            Dense(widths[i], widths[i + 1], i + 1 == len(encoder), key=keys[i]) for i in range(len(encoder))
        )
        sizes = [widths[-1]] + [units] * (layers - 1)
        self.layers = tuple(
            {"gru": GRU, "lstm": LSTM}[cell](size, units, key=k)
            for size, k in zip(sizes, jax.random.split(key, layers), strict=True)
        )
        self.dropout = dropout

    @property
    def input_weight(self) -> Float[Array, "input units"]:
        """What the first layer reads from each entry."""
        return (*self.encoder, *self.layers)[0].input_weight

    def __call__(
        self, inputs: Float[Array, "*batch time input"], key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch time units"]:
        """The last layer's outputs at every step; `key` switches dropout on."""
        for dense in self.encoder:
            inputs = dense(inputs)
        *batch, time, features = inputs.shape
        sequence = jnp.swapaxes(inputs.reshape(-1, time, features), 0, 1)
        keys = [None] * len(self.layers) if key is None else jax.random.split(key, len(self.layers))
        for number, (layer, layer_key) in enumerate(zip(self.layers, keys, strict=True)):
            if number > 0:
                sequence = dropout(sequence, self.dropout, layer_key)
            sequence = layer(sequence)
        return jnp.swapaxes(sequence, 0, 1).reshape(*batch, time, -1)

    def start(self) -> tuple:
        return tuple(layer.start() for layer in self.layers)

    def step(self, memory: tuple, inputs: Array) -> tuple[tuple, Array]:
        for dense in self.encoder:
            inputs = dense(inputs)
        memories = []
        for layer, layer_memory in zip(self.layers, memory, strict=True):
            layer_memory, inputs = layer.step(layer_memory, inputs)
            memories.append(layer_memory)
        return tuple(memories), inputs


def affine(inputs: Array, weight: Array, bias: Array) -> Array:
    product = inputs @ weight
    return product + jnp.broadcast_to(bias, product.shape)


def dropout(values: Array, rate: float, key: PRNGKeyArray | None) -> Array:
    """Each value kept with probability 1 - rate and scaled to keep its expectation; untouched without a key."""
    if key is None or rate == 0.0:
        return values
    kept = jax.random.bernoulli(key, 1.0 - rate, values.shape)
    return jnp.where(kept, values / (1.0 - rate), 0.0)


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], units: int) -> Array:
    """Fresh parameters, within 1 / sqrt(units) of zero."""
    bound = 1.0 / math.sqrt(units)
    return jax.random.uniform(key, shape, PRECISION, -bound, bound)


def _thirds(leaf: Array) -> tuple[Array, Array, Array]:
    """Of the gates r, z and n. Kept apart, since a compiled loop reads whole arrays three times as fast as slices."""
    reset, update, candidate = jnp.split(leaf, 3, axis=-1)
    return reset, update, candidate


def _gru_step(hidden, gates, weights, candidate_bias):
    """One step, and what its derivative needs: (r, z, n, h U_n + c); `gates` and `weights` are thirds."""
    reset = jax.nn.sigmoid(gates[0] + hidden @ weights[0])
    update = jax.nn.sigmoid(gates[1] + hidden @ weights[1])
    inner = affine(hidden, weights[2], candidate_bias)
    candidate = jnp.tanh(gates[2] + reset * inner)
    return candidate + update * (hidden - candidate), (reset, update, candidate, inner)


@jax.custom_vjp
def _gru_scan(gates, weights, candidate_bias):
    return _gru_forward(gates, weights, candidate_bias)[0]


def _gru_forward(gates, weights, candidate_bias):
    def step(hidden, gates_now):
        hidden, saved = _gru_step(hidden, gates_now, weights, candidate_bias)
        return hidden, (hidden, *saved)

    start = jnp.zeros(gates[0].shape[1:], gates[0].dtype)
    _, (outputs, *saved) = jax.lax.scan(step, start, gates)
    return outputs, (outputs, *saved, weights)


def _gru_backward(residuals, outputs_bar):
    outputs, reset, update, candidate, inner, weights = residuals
    before = jnp.concatenate([jnp.zeros_like(outputs[:1]), outputs[:-1]])
    transposed = tuple(weight.T for weight in weights)

    def step(hidden_bar, inputs):
        output_bar, h, r, z, n, a = inputs
        bar = hidden_bar + output_bar
        n_bar = bar * (1 - z) * (1 - n * n)  # of the arguments of tanh and sigmoid
        z_bar = bar * (h - n) * z * (1 - z)
        r_bar = n_bar * a * r * (1 - r)
        a_bar = n_bar * r
        hidden_bar = bar * z + r_bar @ transposed[0] + z_bar @ transposed[1] + a_bar @ transposed[2]
        return hidden_bar, (r_bar, z_bar, n_bar, a_bar)

    xs = (outputs_bar, before, reset, update, candidate, inner)
    _, (r_bar, z_bar, n_bar, a_bar) = jax.lax.scan(step, jnp.zeros_like(outputs[0]), xs, reverse=True)
    flat = before.reshape(-1, before.shape[-1]).T
    weights_bar = tuple(flat @ bar.reshape(-1, bar.shape[-1]) for bar in (r_bar, z_bar, a_bar))
    return (r_bar, z_bar, n_bar), weights_bar, jnp.sum(a_bar, axis=(0, 1))


_gru_scan.defvjp(_gru_forward, _gru_backward)
