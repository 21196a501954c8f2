"""Using what a run found: `sidestep.load("runs/x")` gives the policy, the safety model and a monitor."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.errors import InputError
from sidestep.finite.tabular import TabularPolicy
from sidestep.model import Model, require_finite_weights, within_rules
from sidestep.models import load_model
from sidestep.policies import NetworkPolicy, make_policy
from sidestep.run_records import checked
from sidestep.runs import Run
from sidestep.trees import load_tree, read_header, require_room, save_tree

TABLE_ERROR = 1e-3  # by which chances may miss a sum of 1


@dataclass(frozen=True)
class PolicyHeader:
    """What a policy's file says about itself: enough to build it again. A table needs no more than its kind."""

    kind: Literal["network-policy", "tabular-policy"]
    model: str = ""
    widths: tuple[int, ...] = ()
    squash: Literal["tanh", "clip"] = "tanh"
    clock: bool = True
    memory: bool = False


def save_policy(path: Path, policy: NetworkPolicy | TabularPolicy, model_reference: str) -> None:
    """The policy's weights with a header that is enough to build it again."""
    require_finite_weights(policy, f"the policy of '{model_reference}'", str(path))
    if isinstance(policy, TabularPolicy):
        save_tree(path, policy, {"kind": "tabular-policy", "model": model_reference})
        return
    header = {
        "kind": "network-policy",
        "model": model_reference,
        "widths": [linear.out_features for linear in policy.net.hidden],
        "squash": next((head.squash for head in policy.heads if hasattr(head, "squash")), "tanh"),
        "clock": policy.observer.clock,
        "memory": policy.observer.safety is not None,
    }
    save_tree(path, policy, header)


def load_policy(path: Path, model: Model, safety: Any = None) -> NetworkPolicy | TabularPolicy:
    """The policy in this file, for `model`; `safety` is the model whose memory it may look at."""
    header = checked(PolicyHeader, read_header(path), str(path))
    if header.kind == "tabular-policy":
        return _load_table(path, model)
    require_room(path, header.widths, len(header.widths))
    if not header.widths or min(header.widths) < 1 or (header.memory and safety is None):
        reason = "the safety model that it looks at is missing" if header.memory else "it has no layers"
        raise InputError(f"this policy cannot be used: {reason}", place=str(path))

    def fresh() -> NetworkPolicy:
        return make_policy(
            model,
            jax.random.key(0),
            widths=header.widths,
            squash=header.squash,
            clock=header.clock,
            safety=safety if header.memory else None,
        )

    return _finite(load_tree(path, eqx.filter_eval_shape(fresh)), path)


def _load_table(path: Path, model: Model) -> TabularPolicy:
    finite = getattr(model, "finite", None)
    if finite is None:
        raise InputError(f"this policy is a table, and '{model.spec.name}' is not a finite model", place=str(path))
    policy = _finite(load_tree(path, TabularPolicy(jnp.zeros(finite.reward.shape), model)), path)
    chances = np.asarray(policy.table)
    if chances.min() < -TABLE_ERROR or np.abs(chances.sum(axis=1) - 1.0).max() > TABLE_ERROR:
        raise InputError("this policy is a table, and a state's chances do not sum to 1", place=str(path))
    return policy


def _finite(policy: Any, path: Path) -> Any:
    require_finite_weights(policy, "the policy", str(path))
    return policy


class Actor:
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
    def policy(self) -> Actor:
        """The same one every time, since it keeps its clock and memory."""
        return Actor(self.policy_of(self.model))

    def monitor(self, threshold: float = 0.05) -> Monitor:
        return Monitor(self.safety, self.categories, threshold)

    def export(self, path: str | Path) -> Path:
        """Write the policy as a Python file that needs only NumPy."""
        from sidestep.export import export_numpy

        return export_numpy(self, path)


def load(path: str | Path, trust: bool = False) -> Answer:
    """The run in this folder, in a fresh process, by its path alone.

    What needs the model (policy, export) runs its code, where it has any. Your own runs do so without more; for code
    that came with somebody else's folder say `trust=True` once you have read it.
    """
    return Answer(path, trust)
