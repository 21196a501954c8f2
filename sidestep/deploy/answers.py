"""Using what a run found: `sidestep.load("runs/x")` gives the policy, the safety model and a monitor."""

from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.core.model import Model, within_rules
from sidestep.finite.tabular import TabularPolicy
from sidestep.models import load_model
from sidestep.policies.files import load_policy
from sidestep.policies.networks import NetworkPolicy
from sidestep.runs.folder import Run


class PolicyRunner:
    """A policy in use: give it the state of each step, it gives the action and keeps clock and memory itself."""

    def __init__(self, policy: NetworkPolicy | TabularPolicy) -> None:
        self.policy = policy

        def act(state, clock, memory, key):
            action, memory = policy.act(state, clock, memory, key)
            return within_rules(policy.model, state, action), memory

        self._act = jax.jit(act)
        self._act_batch = jax.jit(jax.vmap(act, in_axes=(0, None, 0, 0)))
        self.restart()

    def restart(self) -> None:
        """Begin a new trajectory."""
        self._clock, self._memory = 0, None

    def act(self, state: Any, key: PRNGKeyArray | None = None) -> np.ndarray:
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

    def __init__(self, safety: Any, categories: tuple[str, ...], threshold: float = 0.05) -> None:
        self.safety, self.categories, self.threshold = safety, categories, threshold
        self._advance = jax.jit(lambda memory, state, action: safety.advance(memory, state, action))
        self._risk = jax.jit(lambda memory: safety.risk(memory))
        self.restart()

    def restart(self) -> None:
        self._memory = self.safety.start()

    def step(self, state: Any, action: Any) -> dict[str, float]:
        """Risk of "this category or worse" if the trajectory were to end after this step."""
        self._memory = self._advance(self._memory, jnp.asarray(state, float), jnp.asarray(action, float))
        risks = np.asarray(self._risk(self._memory))
        return {name: float(risk) for name, risk in zip(self.categories[1:], risks, strict=True)}

    @property
    def alarm(self) -> bool:
        """Is the risk of anything but the best category above the threshold, or unknown (not a number)?"""
        return not bool(np.asarray(self._risk(self._memory))[0] <= self.threshold)


class Answer:
    """A finished run."""

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        self.run = Run.open(Path(path))
        self.config = self.run.config
        self.files = self.run.files(trust)
        self.categories = tuple(self.config["categories"])

    @cached_property
    def model(self) -> Model:
        """Loaded when it is first needed: most of what a run found can be read without."""
        return load_model(self.config["model"], files=self.files)

    @property
    def result(self) -> dict[str, Any]:
        return self.run.read_json("result.json")

    @property
    def safety(self) -> Any:
        from sidestep.safety.io import load_safety

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
        return Monitor(self.safety, self.categories, threshold)

    def export(self, path: str | Path) -> Path:
        """Write the policy as a Python file that needs only NumPy."""
        from sidestep.deploy.export import export_numpy

        return export_numpy(self, path)


def load(path: str | Path, trust: bool = False) -> Answer:
    """The run in this folder, in a fresh process, by its path alone.

    What needs the model (policy, export) runs its code, where it has any. Your own runs do so without more; for code
    that came with somebody else's folder say `trust=True` once you have read it.
    """
    return Answer(path, trust)
