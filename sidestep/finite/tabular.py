"""The policies that exact methods find: tables."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sidestep.core.model import FiniteModel, Policy
from sidestep.finite.horizon import HorizonOptimum


class TabularPolicy(Policy):
    """pi(a | s) = table[s, a]; `model` tells which row a state vector belongs to."""

    table: Float[Array, "*run state action"]
    model: FiniteModel = eqx.field(static=True)

    def act(self, state, clock, memory, key):
        chances = self.table[self.model.indices(state)]
        choice = jax.random.categorical(key, jnp.log(chances))
        return jax.nn.one_hot(choice, chances.shape[-1], dtype=state.dtype), memory

    def mean(self) -> "TabularPolicy":
        """Itself: where the optimum mixes actions, the mixture is the optimum."""
        return self


class Schedule(NamedTuple):
    """The arrays of a `HorizonPolicy`, as NumPy's."""

    weights: np.ndarray
    tables: np.ndarray
    which: np.ndarray
    letters: np.ndarray

    def actions(self, member: int, left: int) -> np.ndarray:
        """With so many steps left: (M, N)."""
        return self.tables[self.which[member, min(left, self.which.shape[1]) - 1]]


class HorizonPolicy(Policy):
    """The optimum over runs of `horizon` steps: a run draws one of J members, a table for each number of steps left:

        a_t = tables[which[member, min(T - t, L) - 1]][m_t, s_t],      m_{t+1} = max(m_t, letters[s_t, a_t])

    m_t is the worst that the run has done so far, by the letter of each step.
    """

    weights: Float[Array, " member"]
    tables: Int[Array, "table memory state"]
    which: Int[Array, "member left"]
    letters: Int[Array, "state action"]
    model: FiniteModel = eqx.field(static=True)

    def start(self):
        return jnp.zeros((), int), jnp.zeros((), int)  # the member, the worst so far

    def act(self, state, clock, memory, key):
        member, worst = memory
        drawn = jax.random.categorical(key, jnp.log(self.weights)).astype(member.dtype)
        member = jnp.where(clock == 0, drawn, member)
        left = jnp.clip(self.model.spec.horizon - clock, 1, self.which.shape[1])
        place = self.model.indices(state)
        action = self.tables[self.which[member, left - 1], worst, place]
        worst = jnp.maximum(worst, self.letters[place, action].astype(worst.dtype))
        return jax.nn.one_hot(action, self.letters.shape[1], dtype=state.dtype), (member, worst)

    def mean(self) -> "HorizonPolicy":
        """Itself: it draws once in a run, and the mixture is the optimum."""
        return self

    @property
    def schedule(self) -> Schedule:
        return Schedule(*(np.asarray(part) for part in (self.weights, self.tables, self.which, self.letters)))


def horizon_policy(optimum: HorizonOptimum, model: FiniteModel) -> HorizonPolicy:
    """The optimum as a policy; tables that are alike are kept once."""
    members, letters = [member.actions for member in optimum.members], optimum.letters
    longest = max(len(actions) for actions in members)
    padded = [np.concatenate([actions, np.repeat(actions[-1:], longest - len(actions), axis=0)]) for actions in members]
    tables, which = np.unique(np.concatenate(padded), axis=0, return_inverse=True)
    return HorizonPolicy(
        jnp.asarray([member.weight for member in optimum.members], jnp.float32),
        jnp.asarray(tables, jnp.int32),
        jnp.asarray(which.reshape(len(members), longest), jnp.int32),
        jnp.asarray(letters, jnp.int32),
        model,
    )


def draws(policy: Policy) -> bool:
    """Whether a policy without its noise still draws: a table that mixes actions, or several members."""
    if isinstance(policy, HorizonPolicy):
        return len(policy.weights) > 1
    return isinstance(policy, TabularPolicy) and bool((np.sum(np.asarray(policy.table) > 0.0, axis=-1) > 1).any())
