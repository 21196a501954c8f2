"""Policies in files: weights in safetensors, and in the header all that is needed to build the policy again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sidestep.core.errors import InputError
from sidestep.core.model import FiniteModel, Model, is_finite, require_finite_weights
from sidestep.core.records import checked, to_json
from sidestep.finite.tabular import HorizonPolicy, TabularPolicy
from sidestep.policies.networks import GaussianHead, Network, NetworkPolicy, Widened, make_policy, name_of, with_memory
from sidestep.runtime.serialisation import load_tree, read_header, require_room, save_tree
from sidestep.safety.base import SafetyModel

TABLE_ERROR = 1e-3  # by which chances may miss a sum of 1


@dataclass(frozen=True)
class PolicyHeader:
    """What a policy's file says about itself: enough to build it again. A table needs no more than its kind, the
    tables of a horizon how many there are."""

    kind: Literal["network-policy", "tabular-policy", "horizon-policy"]
    model: str = ""
    widths: tuple[int, ...] = ()
    squash: Literal["tanh", "clip"] = "tanh"
    clock: bool = True
    memory: bool = False
    network: str = ""  # a registered one, which `widths` say nothing of
    widened: bool = False  # it was given the memory after it had been trained without
    present: bool = False  # whether the memory that it sees has the present state in it
    members: int = 0
    tables: int = 0
    memories: int = 0
    lefts: int = 0  # numbers of steps left that are told apart


AnyPolicy = NetworkPolicy | TabularPolicy | HorizonPolicy


def save_policy(path: Path, policy: AnyPolicy, model_reference: str) -> None:
    """The policy's weights with a header that is enough to build it again."""
    require_finite_weights(policy, f"the policy of '{model_reference}'", str(path))
    header = PolicyHeader("tabular-policy", model_reference)
    if isinstance(policy, HorizonPolicy):
        (members, lefts), (tables, memories, _) = policy.which.shape, policy.tables.shape
        header = PolicyHeader(
            "horizon-policy", model_reference, members=members, tables=tables, memories=memories, lefts=lefts
        )
    if isinstance(policy, NetworkPolicy):
        net = policy.net
        header = PolicyHeader(
            "network-policy",
            model_reference,
            widths=tuple(linear.out_features for linear in net.hidden) if isinstance(net, Network) else (),
            network=name_of(net),
            widened=isinstance(net, Widened),
            squash=next((head.squash for head in policy.heads if isinstance(head, GaussianHead)), "tanh"),
            clock=policy.observer.clock,
            memory=policy.observer.safety is not None,
            present=policy.observer.idle is not None,
        )
    save_tree(path, policy, to_json(header))


def load_policy(path: Path, model: Model, safety: SafetyModel | None = None) -> AnyPolicy:
    """The policy in this file, for `model`; `safety` is the model whose memory it may look at."""
    header = checked(PolicyHeader, read_header(path), str(path))
    policy: AnyPolicy
    if header.kind == "network-policy":
        policy = _load_network(path, header, model, safety)
    elif is_finite(model):
        policy = _load_table(path, model) if header.kind == "tabular-policy" else _load_horizon(path, header, model)
    else:
        raise InputError(f"this policy is a table, and '{model.spec.name}' is not a finite model", place=str(path))
    require_finite_weights(policy, "the policy", str(path))
    return policy


def _load_network(path: Path, header: PolicyHeader, model: Model, safety: SafetyModel | None) -> NetworkPolicy:
    require_room(path, header.widths, len(header.widths))
    layered = header.network or (header.widths and min(header.widths) >= 1)
    if not layered or (header.memory and safety is None):
        reason = "the safety model that it looks at is missing" if header.memory else "it has no layers"
        raise InputError(f"this policy cannot be used: {reason}", place=str(path))

    def fresh() -> NetworkPolicy:
        policy = make_policy(
            model,
            jax.random.key(0),
            widths=header.widths,
            squash=header.squash,
            clock=header.clock,
            safety=safety if header.memory and not header.widened else None,
            network=header.network,
            present=header.present,
        )
        if not header.widened or safety is None:
            return policy
        return with_memory(policy, safety, present=header.present)

    return load_tree(path, eqx.filter_eval_shape(fresh))


def _load_table(path: Path, model: FiniteModel) -> TabularPolicy:
    policy = load_tree(path, TabularPolicy(jnp.zeros(model.finite.reward.shape), model))
    chances = np.asarray(policy.table)
    if chances.min() < -TABLE_ERROR or np.abs(chances.sum(axis=1) - 1.0).max() > TABLE_ERROR:
        raise InputError("this policy is a table, and a state's chances do not sum to 1", place=str(path))
    return policy


def _load_horizon(path: Path, header: PolicyHeader, model: FiniteModel) -> HorizonPolicy:
    sizes = (header.members, header.tables, header.memories, header.lefts)
    require_room(path, sizes, 0)
    if min(sizes) < 1:
        raise InputError("this policy has no tables", place=str(path))
    states, actions = model.finite.reward.shape

    def fresh() -> HorizonPolicy:
        tables = jnp.zeros((header.tables, header.memories, states), jnp.int32)
        which = jnp.zeros((header.members, header.lefts), jnp.int32)
        letters = jnp.zeros((states, actions), jnp.int32)
        return HorizonPolicy(jnp.zeros(header.members, jnp.float32), tables, which, letters, model)

    policy = load_tree(path, eqx.filter_eval_shape(fresh))
    weights, tables, which, letters = policy.schedule
    inside = all(
        part.min() >= 0 and part.max() < count
        for part, count in ((tables, actions), (which, header.tables), (letters, header.memories))
    )
    if not inside or weights.min() < 0.0 or abs(weights.sum() - 1.0) > TABLE_ERROR:
        raise InputError("this policy's tables hold what no run writes", place=str(path))
    return policy
