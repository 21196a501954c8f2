"""A model from the exact table of a finite decision process, with straight-through gradients.

The state vector is a row of one-hot factors x_1 .. x_F (on a grid: row, column, status), the action vector one
one-hot a. A step samples a successor from the table, so its values are those of the true process. Its gradient
is that of the *multilinear extension* of the expected step, which agrees with it wherever all factors are
one-hot and is defined between them too:

    f(x, a) = sum_{i_1 .. i_F, b}  x_1[i_1] ... x_F[i_F] a[b]  ( sum_k p_k e(n_k) ,  R )(i_1 .. i_F, b)

with p_k, n_k the probability and the successor of outcome k, e(n) the state vector of n and R the reward.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.core.model import AnyArray, FinitePart, Spec


class FiniteModel:
    """The contract of a model over a `FinitePart` with a state for every combination of factor values, the last
    factor counting fastest (`product_encoding`); a process without factors has one factor, its state.

    `possible` (N,) is False for combinations that stand for nothing, as a wall's cell does: nothing may reach them, and
    gradients do not ask what would happen there.
    """

    spec: Spec
    finite: FinitePart

    def __init__(self, finite: FinitePart, spec: Spec, possible: np.ndarray | None = None) -> None:
        _check_one_hot(spec)
        sizes = tuple(variable.size for variable in spec.state.variables)
        _check_table(finite, spec, product_encoding(sizes))
        self.spec, self.finite = spec, finite
        self._possible = np.ones(len(finite.start), bool) if possible is None else possible

        starts = np.array([where.start for where in spec.state.slices.values()])
        values = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=-1)
        # Columns over the pairs s * A + a, because reading single numbers is what XLA does fastest on a CPU. Entries
        # are the positions, in the state vector, of the 1 of each factor of an outcome's successor: (K, F, N * A).
        entries = (values + starts)[finite.successor].reshape(finite.reward.size, -1, len(sizes))
        self._entries = np.ascontiguousarray(entries.transpose(1, 2, 0), dtype=np.int32)
        self._probability = np.ascontiguousarray(finite.probability.reshape(finite.reward.size, -1).T)
        # p_0 + .. + p_k for k < K - 1, rounded so that sums of 1 are 1 and no outcome of probability 0 is ever drawn.
        self._thresholds = np.round(np.cumsum(self._probability, axis=0)[:-1], 12)
        self._ends = finite.absorbing[finite.successor].reshape(finite.reward.size, -1).T.copy()
        self._reward = finite.reward.ravel()
        # How far apart two states are whose factor f differs by 1; and of each entry of the state vector: its factor,
        # and its value there.
        self._strides = np.cumprod([1, *sizes[:0:-1]], dtype=np.int32)[::-1].copy()
        self._factor = np.repeat(np.arange(len(sizes)), sizes)
        self._value = (np.arange(sum(sizes)) - starts[self._factor]).astype(np.int32)

    def reset(self, key: PRNGKeyArray) -> Float[Array, " state"]:
        possible = np.flatnonzero(self.finite.start)
        which = jax.random.choice(key, len(possible), p=jnp.asarray(self.finite.start[possible]))
        return jnp.asarray(self.finite.encoding[possible], dtype=float)[which]

    def step(
        self, state: Float[Array, " state"], action: Float[Array, " action"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " state"], Float[Array, ""], Bool[Array, ""]]:
        uniform = jax.random.uniform(key, dtype=state.dtype)
        if self.spec.gradient == "none":
            return _step(self, jax.lax.stop_gradient(state), jax.lax.stop_gradient(action), uniform)
        return _straight_through_step(self, state, action, uniform)

    def action_bounds(self, state: Float[Array, " state"]) -> tuple[Float[Array, " action"], Float[Array, " action"]]:
        size = self.spec.action.size
        return jnp.zeros(size, state.dtype), jnp.ones(size, state.dtype)

    def indices(self, states: Float[AnyArray, "*batch state"]) -> Int[AnyArray, "*batch"]:
        """The table index of each state vector."""
        return jnp.tensordot(self.factor_values(states), self._strides, axes=1)

    def action_indices(self, actions: Float[AnyArray, "*batch action"]) -> Int[AnyArray, "*batch"]:
        """The index of each action vector."""
        return jnp.argmax(actions, axis=-1).astype(np.int32)

    def factor_values(self, states: Float[AnyArray, "*batch state"]) -> Int[AnyArray, "*batch factor"]:
        """The value of each factor: where its 1 stands."""
        slices = self.spec.state.slices.values()
        return jnp.stack([jnp.argmax(states[..., where], axis=-1).astype(np.int32) for where in slices], axis=-1)


def product_encoding(sizes: tuple[int, ...]) -> np.ndarray:
    """The state vectors of all combinations of one-hot factors of these sizes, the last factor counting fastest."""
    values = np.unravel_index(np.arange(math.prod(sizes)), sizes)
    blocks = [value[:, None] == np.arange(size) for value, size in zip(values, sizes, strict=True)]
    return np.concatenate(blocks, axis=1).astype(np.float32)


def _step(model: FiniteModel, state: Array, action: Array, uniform: Array) -> tuple[Array, Array, Array]:
    """Outcome k with probability p_k(s, a): the number of thresholds that the uniform number reaches."""
    pair = model.indices(state) * model.spec.action.size + model.action_indices(action)
    outcome = jnp.sum(uniform >= jnp.asarray(model._thresholds, state.dtype)[:, pair])
    entries = jnp.asarray(model._entries)[outcome, :, pair]
    next_state = jnp.any(jnp.arange(state.shape[0], dtype=np.int32)[:, None] == entries[None, :], axis=1).astype(
        state.dtype
    )
    return next_state, jnp.asarray(model._reward, state.dtype)[pair], jnp.asarray(model._ends)[outcome, pair]


_straight_through_step = jax.custom_vjp(_step, nondiff_argnums=(0,))


Step = tuple[Array, Array, Array]  # next state, reward, done; or the gradients that arrive at them


def _step_forward(model: FiniteModel, state: Array, action: Array, uniform: Array) -> tuple[Step, tuple[Array, Array]]:
    return _step(model, state, action, uniform), (model.factor_values(state), model.action_indices(action))


def _step_backward(model: FiniteModel, here: tuple[Array, Array], cotangents: Step) -> tuple[Array, Array, Array]:
    """With g, g_R the gradients that arrive at the next state and at the reward, and s[f := i] the state s with
    factor f changed to i:

        h(s, a)    = sum_k p_k(s, a) g . e(n_k(s, a))  +  g_R R(s, a)
        dL/dx_f[i] = h(s[f := i], a) - h(s, a)
        dL/da[b]   = h(s, b) - h(s, a)

    and dL/dx_f[i] = 0 where s[f := i] stands for nothing: what the table says there is arbitrary, and where there are
    many walls it would make gradients grow from step to step.

    e(n) has a single 1 in each factor, so g . e(n) is a sum of F entries of g: no pass over the whole table. The
    entries of a factor always sum to 1, so a constant added to its gradient changes nothing; h(s, a) is taken off
    because f would otherwise multiply such constants by F at every step, 3^500 over a long trajectory.
    """
    values, action = here
    state_gradient, reward_gradient, _ = cotangents
    state, choices = jnp.sum(values * model._strides, dtype=np.int32), model.spec.action.size
    changed = state + (model._value - values[model._factor]) * model._strides[model._factor]  # s[f := i], an entry each
    changed = jnp.where(_read(jnp.asarray(model._possible), changed), changed, state)
    pairs = jnp.concatenate([changed * choices + action, state * choices + jnp.arange(choices, dtype=np.int32)])

    def at_pairs(column: np.ndarray) -> Array:
        return _read(jnp.asarray(column, state_gradient.dtype), pairs)

    h = reward_gradient * at_pairs(model._reward)
    for probability, entries in zip(model._probability, model._entries, strict=True):
        along = sum(_read(state_gradient, _read(jnp.asarray(column), pairs)) for column in entries)  # g . e(n_k)
        h += at_pairs(probability) * along
    h -= h[len(model._value) + action]
    return h[: len(model._value)], h[len(model._value) :], jnp.zeros_like(reward_gradient)


def _read(column: Array, where: Array) -> Array:
    return column.at[where].get(mode="promise_in_bounds", wrap_negative_indices=False)


_straight_through_step.defvjp(_step_forward, _step_backward)


def _check_one_hot(spec: Spec) -> None:
    if spec.state.kinds != {"one-hot"} or spec.action.kinds != {"one-hot"} or len(spec.action.variables) != 1:
        raise InputError(
            f"model '{spec.name}': a finite model needs one-hot state variables and a single one-hot action variable"
        )
    if spec.gradient == "exact":
        raise InputError(f"model '{spec.name}': the gradient of a finite model is 'straight-through' or 'none'")


def _check_table(finite: FinitePart, spec: Spec, encoding: np.ndarray) -> None:
    pairs = (len(encoding), spec.action.size)
    shape = finite.successor.shape
    if finite.reward.shape != pairs or shape[:2] != pairs or finite.probability.shape != shape:
        raise InputError(
            f"model '{spec.name}': reward must have the shape {pairs} (combinations of factors, actions), successor "
            f"and probability a third axis of outcomes, but they are {finite.reward.shape}, {shape} and "
            f"{finite.probability.shape}"
        )
    if not np.array_equal(finite.encoding, encoding):
        raise InputError(
            f"model '{spec.name}': the encoding must be that of product_encoding, one state per combination"
        )
    if finite.successor.min() < 0 or finite.successor.max() >= len(encoding):
        raise InputError(f"model '{spec.name}': a successor lies outside 0 .. {len(encoding) - 1}")
    for what, rows in (("probabilities of a pair", finite.probability), ("start probabilities", finite.start)):
        if (rows < 0).any() or not np.allclose(rows.sum(-1), 1.0, rtol=0, atol=1e-9):
            raise InputError(f"model '{spec.name}': the {what} must be at least 0 and sum to 1")
    if not np.isfinite(finite.reward).all():
        raise InputError(f"model '{spec.name}': every reward must be a finite number")
    if finite.reward[finite.absorbing].any():
        raise InputError(f"model '{spec.name}': an absorbing state must have reward 0")
