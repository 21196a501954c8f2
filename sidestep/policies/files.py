"""Policies in files: weights in safetensors, and in the header all that is needed to build the policy again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sidestep.core.errors import InputError
from sidestep.core.model import Model, is_finite, require_finite_weights
from sidestep.core.records import checked, to_json
from sidestep.finite.tabular import TabularPolicy
from sidestep.policies.networks import GaussianHead, NetworkPolicy, make_policy
from sidestep.runtime.serialisation import load_tree, read_header, require_room, save_tree
from sidestep.safety.base import SafetyModel

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
    header = PolicyHeader("tabular-policy", model_reference)
    if isinstance(policy, NetworkPolicy):
        header = PolicyHeader(
            "network-policy",
            model_reference,
            widths=tuple(linear.out_features for linear in policy.net.hidden),
            squash=next((head.squash for head in policy.heads if isinstance(head, GaussianHead)), "tanh"),
            clock=policy.observer.clock,
            memory=policy.observer.safety is not None,
        )
    save_tree(path, policy, to_json(header))


def load_policy(path: Path, model: Model, safety: SafetyModel | None = None) -> NetworkPolicy | TabularPolicy:
    """The policy in this file, for `model`; `safety` is the model whose memory it may look at."""
    header = checked(PolicyHeader, read_header(path), str(path))
    policy = (_load_table if header.kind == "tabular-policy" else _load_network)(path, header, model, safety)
    require_finite_weights(policy, "the policy", str(path))
    return policy


def _load_network(path: Path, header: PolicyHeader, model: Model, safety: SafetyModel | None) -> NetworkPolicy:
    require_room(path, header.widths, len(header.widths))
    if not header.widths or min(header.widths) < 1 or (header.memory and safety is None):
        reason = "the safety model that it looks at is missing" if header.memory else "it has no layers"
        raise InputError(f"this policy cannot be used: {reason}", place=str(path))

    def fresh() -> NetworkPolicy:
        seen = safety if header.memory else None
        return make_policy(
            model, jax.random.key(0), widths=header.widths, squash=header.squash, clock=header.clock, safety=seen
        )

    return load_tree(path, eqx.filter_eval_shape(fresh))


def _load_table(path: Path, header: PolicyHeader, model: Model, safety: SafetyModel | None) -> TabularPolicy:
    if not is_finite(model):
        raise InputError(f"this policy is a table, and '{model.spec.name}' is not a finite model", place=str(path))
    policy = load_tree(path, TabularPolicy(jnp.zeros(model.finite.reward.shape), model))
    chances = np.asarray(policy.table)
    if chances.min() < -TABLE_ERROR or np.abs(chances.sum(axis=1) - 1.0).max() > TABLE_ERROR:
        raise InputError("this policy is a table, and a state's chances do not sum to 1", place=str(path))
    return policy
