"""Using what a run found: `sidestep.load("runs/x")` gives the policy, the safety model and a monitor."""

from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree
from numpy.typing import ArrayLike

from sidestep.core.constraints import Constraint, parse_constraints
from sidestep.core.errors import InputError
from sidestep.core.model import Model, within_rules
from sidestep.deploy.export import export_numpy
from sidestep.finite.tabular import TabularPolicy
from sidestep.labels.experts import Expert, expert_of
from sidestep.models import load_model
from sidestep.policies.files import load_policy
from sidestep.policies.networks import NetworkPolicy
from sidestep.runs.folder import Run
from sidestep.safety.base import SafetyModel
from sidestep.safety.io import load_safety


class PolicyRunner:
    """A policy in use: give it the state of each step, it gives the action and keeps clock and memory itself."""

    def __init__(self, policy: NetworkPolicy | TabularPolicy) -> None:
        self.policy = policy

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


class Answer:
    """A run, loaded from its folder. The model is loaded when it is first needed: much can be read without it."""

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        self.run = Run.open(Path(path))
        self.config, self.files = self.run.config, self.run.files(trust)
        self.categories, self.scale = self.config.categories, self.config.scale

    @cached_property
    def model(self) -> Model:
        return load_model(self.config.model, files=self.files)

    @cached_property
    def expert(self) -> Expert:
        """Who labels."""
        return expert_of(self.config.rule, self.config.people, self.model, self.scale, self.files)

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        return parse_constraints(self.config.constraints, self.scale)

    @property
    def result(self) -> object:
        """result.json."""
        return self.run.read_json("result.json")

    @cached_property
    def safety(self) -> SafetyModel | None:
        file = self.run.path / "safety.safetensors"
        return load_safety(file) if file.is_file() else None

    def policy_of(self, model: Model) -> NetworkPolicy | TabularPolicy:
        """The answer's policy by its mean action, for `model`."""
        file = self.run.path / "policy.safetensors"
        if not file.is_file():
            raise InputError("this run has no policy yet; go on with `sidestep resume`", place=str(self.run.path))
        return load_policy(file, model, self.safety).mean()

    @cached_property
    def policy(self) -> PolicyRunner:
        """The same one every time, since it keeps its clock and memory."""
        return PolicyRunner(self.policy_of(self.model))

    def monitor(self, threshold: float = 0.05) -> Monitor:
        if self.safety is None:
            raise InputError("this run has no safety model to monitor with", place=str(self.run.path))
        return Monitor(self.safety, self.categories, threshold)

    def export(self, path: str | Path) -> Path:
        """Write the policy as a Python file that needs only NumPy."""
        return export_numpy(self.policy_of(self.model), path)


def load(path: str | Path, trust: bool = False) -> Answer:
    """The run in this folder, in a fresh process, by its path alone.

    What needs the model (policy, export) runs its code, where it has any. Your own runs do so without more; for code
    that came with somebody else's folder say `trust=True` once you have read it.
    """
    return Answer(path, trust)
