"""A policy and a safety model in use, one step at a time."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree
from numpy.typing import ArrayLike

from sidestep.core.errors import InputError
from sidestep.core.model import within_rules
from sidestep.finite.tabular import draws
from sidestep.policies.files import AnyPolicy
from sidestep.safety.base import SafetyModel


class PolicyRunner:
    """A policy in use: give it the state of each step, it gives the action and keeps clock and memory itself."""

    def __init__(self, policy: AnyPolicy) -> None:
        self.policy, self._draws = policy, draws(policy)

        def act(state: Array, clock: int, memory: PyTree, key: PRNGKeyArray) -> tuple[Array, PyTree]:
            action, memory = policy.act(state, clock, memory, key)
            return within_rules(policy.model, state, action), memory

        self._act = jax.jit(act)
        self._act_batch = jax.jit(jax.vmap(act, in_axes=(0, None, 0, 0)))
        self.restart()

    def restart(self) -> None:
        """Begin a new trajectory."""
        self._clock, self._memory = 0, None

    def act(self, state: ArrayLike, key: PRNGKeyArray | None = None) -> np.ndarray:
        """The action in `state`, one vector or a batch of them; a key is needed by policies that sample."""
        if key is None and self._draws:
            raise InputError("this policy draws at random, as the best one does; give `act` a key for each step")
        state = jnp.asarray(state, float)
        size = self.policy.model.spec.state.size
        if state.ndim not in (1, 2) or state.shape[-1] != size:
            raise InputError(f"a state has shape ({size},) or (batch, {size}), not {state.shape}")
        if not np.isfinite(state).all():
            raise InputError(f"a state must hold finite numbers, not {np.asarray(state).tolist()}")
        key = jax.random.key(self._clock) if key is None else key
        if self._memory is None:
            first = self.policy.start()
            batch = state.shape[:-1]
            self._memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*batch, *leaf.shape)), first)
        if state.ndim == 1:
            action, self._memory = self._act(state, self._clock, self._memory, key)
        else:
            keys = jax.random.split(key, state.shape[0])
            action, self._memory = self._act_batch(state, self._clock, self._memory, keys)
        self._clock += 1
        return np.asarray(action)


class Monitor:
    """Follows a live trajectory step by step: the risk so far of each category or worse, and an alarm."""

    def __init__(self, safety: SafetyModel, categories: tuple[str, ...], threshold: float = 0.05) -> None:
        self.safety, self.categories, self.threshold = safety, categories, threshold
        self._advance = jax.jit(lambda memory, state, action: safety.advance(memory, state, action))
        self._risk = jax.jit(lambda memory: safety.risk(memory))
        self.restart()

    def restart(self) -> None:
        self._memory = self.safety.start()

    def step(self, state: ArrayLike, action: ArrayLike) -> dict[str, float]:
        """Risk of "this category or worse" if the trajectory were to end after this step."""
        self._memory = self._advance(self._memory, jnp.asarray(state, float), jnp.asarray(action, float))
        risks = np.asarray(self._risk(self._memory))
        return {name: float(risk) for name, risk in zip(self.categories[1:], risks, strict=True)}

    @property
    def alarm(self) -> bool:
        """Is the risk of anything but the best category above the threshold, or unknown (not a number)?"""
        return not bool(np.asarray(self._risk(self._memory))[0] <= self.threshold)
