"""A model from the exact table of a finite decision process, with straight-through gradients.

The state vector is a row of one-hot factors x_1 .. x_F (a grid: row, column, status), the action vector one
one-hot a. A step samples a successor from the table, so its values are those of the true process. Its gradient
is that of the *multilinear extension* of the expected step, which agrees with it wherever all factors are
one-hot and is defined between them too:

    f(x, a) = sum_{i_1 .. i_F, b}  x_1[i_1] ... x_F[i_F] a[b]  ( sum_k p_k e(n_k) ,  R )(i_1 .. i_F, b)

with p_k, n_k the probability and the successor of outcome k, e(n) the state vector of n and R the reward.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sidestep.errors import InputError
from sidestep.model import FinitePart, Spec


class FiniteModel:
    """The contract of a model over a `FinitePart`.

    `index_of` gives the table index of every combination of factor values, shape (size_1, .., size_F). It may be
    left out when every combination is a state; combinations that are not (the end, at another cell) need it.
    """

    spec: Spec
    finite: FinitePart
    index_of: Int[np.ndarray, "..."]

    def __init__(self, finite: FinitePart, spec: Spec, index_of: np.ndarray | None = None) -> None:
        _check_one_hot(spec)
        _check_table(finite, spec)
        sizes = [variable.size for variable in spec.state.variables]
        starts = np.cumsum([0, *sizes[:-1]])
        values = np.stack([finite.encoding[:, s : s + n].argmax(1) for s, n in zip(starts, sizes, strict=True)], axis=1)

        self.spec, self.finite = spec, finite
        self.index_of = _index_of(values, sizes, spec.name) if index_of is None else np.asarray(index_of)
        if self.index_of.shape != tuple(sizes) or not np.array_equal(
            self.index_of[tuple(values.T)], np.arange(len(values))
        ):
            raise InputError(f"model '{spec.name}': index_of must send the factors of every state to its own index")

        # The position, in the state vector, of the single 1 of each factor of each outcome's successor.
        self._entries = (values + starts)[finite.successor].astype(np.int32)
        self._thresholds = _thresholds(finite.probability)
        # Of each entry of the state vector: its factor, its value there, and that factor's stride in index_of.
        self._factor = np.repeat(np.arange(len(sizes)), sizes)
        self._value = np.arange(sum(sizes)) - starts[self._factor]
        strides = np.cumprod([1, *sizes[:0:-1]])[::-1]
        self._strides, self._stride = strides, strides[self._factor]

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

    def indices(self, states: Float[Array, "*batch state"]) -> Int[Array, "*batch"]:
        """The table index of each state vector."""
        return jnp.asarray(self.index_of.ravel())[jnp.sum(self._factor_values(states) * self._strides_like(states), -1)]

    def action_indices(self, actions: Float[Array, "*batch action"]) -> Int[Array, "*batch"]:
        """The index of each action vector."""
        return jnp.argmax(actions, axis=-1)

    def _factor_values(self, states: Any) -> Int[Array, "*batch factor"]:
        slices = self.spec.state.slices.values()
        return jnp.stack([jnp.argmax(states[..., where], axis=-1) for where in slices], axis=-1)

    def _strides_like(self, states: Any) -> Int[np.ndarray, "*ones factor"]:
        return self._strides.reshape((1,) * (states.ndim - 1) + (-1,))


def _step(model: FiniteModel, state: Array, action: Array, uniform: Array) -> tuple[Array, Array, Array]:
    """Outcome k with probability p_k(s, a): the number of thresholds that the uniform number reaches."""
    here = (model.indices(state), model.action_indices(action))
    outcome = jnp.sum(uniform >= jnp.asarray(model._thresholds, state.dtype)[here])
    entries = jnp.asarray(model._entries)[(*here, outcome)]
    next_state = jnp.any(jnp.arange(state.shape[0])[:, None] == entries[None, :], axis=1).astype(state.dtype)
    done = jnp.asarray(model.finite.absorbing[model.finite.successor])[(*here, outcome)]
    return next_state, jnp.asarray(model.finite.reward, state.dtype)[here], done


_straight_through_step = jax.custom_vjp(_step, nondiff_argnums=(0,))


def _step_forward(model: FiniteModel, state: Array, action: Array, uniform: Array) -> tuple[Any, Any]:
    return _step(model, state, action, uniform), (model._factor_values(state), model.action_indices(action))


def _step_backward(model: FiniteModel, here: tuple[Array, Array], cotangents: Any) -> tuple[Array, Array, Array]:
    """With g, g_R the gradients that arrive at the next state and at the reward, and s[f := i] the state s with
    factor f changed to i:

        dL/dx_f[i] = sum_k p_k(s[f := i], a) g . e(n_k(s[f := i], a))  +  g_R R(s[f := i], a)
        dL/da[b]   = sum_k p_k(s, b) g . e(n_k(s, b))  +  g_R R(s, b)

    e(n) has a single 1 in each factor, so g . e(n) is a sum of F entries of g: no pass over the whole table.
    """
    values, action = here
    state_gradient, reward_gradient, _ = cotangents
    cell = jnp.sum(values * model._strides)
    changed = cell + (model._value - values[model._factor]) * model._stride  # s[f := i], one for each entry
    index_of = jnp.asarray(model.index_of.ravel())
    actions = np.arange(model.spec.action.size)
    states = jnp.concatenate([index_of[changed], jnp.broadcast_to(index_of[cell], actions.shape)])
    actions = jnp.concatenate([jnp.broadcast_to(action, changed.shape), actions])

    dtype = state_gradient.dtype
    along = jnp.sum(state_gradient[jnp.asarray(model._entries)[states, actions]], axis=-1)  # g . e(n_k)
    expected = jnp.sum(jnp.asarray(model.finite.probability, dtype)[states, actions] * along, axis=-1)
    gradient = expected + reward_gradient * jnp.asarray(model.finite.reward, dtype)[states, actions]
    return gradient[: changed.shape[0]], gradient[changed.shape[0] :], jnp.zeros((), dtype)


_straight_through_step.defvjp(_step_forward, _step_backward)


def _thresholds(probability: np.ndarray) -> np.ndarray:
    """t_k with p_0 + .. + p_k = t_k for k < K - 1, exact at 0 and 1 so that no outcome of probability 0 is drawn."""
    below = np.cumsum(probability, axis=-1)
    above = np.cumsum(probability[..., :0:-1], axis=-1)[..., ::-1]
    return np.where(below[..., :-1] == 0.0, 0.0, 1.0 - above)


def _index_of(values: np.ndarray, sizes: Sequence[int], name: str) -> np.ndarray:
    index_of = np.full(sizes, -1)
    index_of[tuple(values.T)] = np.arange(len(values))
    if (index_of < 0).any():
        raise InputError(
            f"model '{name}': {int((index_of < 0).sum())} combinations of its factors are no state; "
            "give index_of, which says what state each of them counts as"
        )
    return index_of


def _check_one_hot(spec: Spec) -> None:
    if spec.state.kinds != {"one-hot"} or spec.action.kinds != {"one-hot"} or len(spec.action.variables) != 1:
        raise InputError(
            f"model '{spec.name}': a finite model needs one-hot state variables and a single one-hot action variable"
        )
    if spec.gradient == "exact":
        raise InputError(f"model '{spec.name}': the gradient of a finite model is 'straight-through' or 'none'")


def _check_table(finite: FinitePart, spec: Spec) -> None:
    states, actions = finite.reward.shape
    shape = finite.successor.shape
    if shape[:2] != (states, actions) or finite.probability.shape != shape or actions != spec.action.size:
        raise InputError(
            f"model '{spec.name}': successor and probability must have the shape (states, actions, outcomes) "
            f"with {states} states and {spec.action.size} actions, not {shape} and {finite.probability.shape}"
        )
    if finite.encoding.shape != (states, spec.state.size):
        raise InputError(
            f"model '{spec.name}': the encoding must have the shape {(states, spec.state.size)}, "
            f"not {finite.encoding.shape}"
        )
    if finite.successor.min() < 0 or finite.successor.max() >= states:
        raise InputError(f"model '{spec.name}': a successor lies outside 0 .. {states - 1}")
    for what, rows in (("probabilities of a pair", finite.probability), ("start probabilities", finite.start)):
        if (rows < 0).any() or not np.allclose(rows.sum(-1), 1.0, rtol=0, atol=1e-9):
            raise InputError(f"model '{spec.name}': the {what} must be at least 0 and sum to 1")
    if finite.reward[finite.absorbing].any():
        raise InputError(f"model '{spec.name}': an absorbing state must have reward 0")
