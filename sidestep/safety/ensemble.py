"""Several models of one kind, each with its own start and its own draw of the data, as one model."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sidestep.core.errors import InputError
from sidestep.safety.base import Actions, Calibration, Evidence, Layers, Lengths, SafetyModel, Standardisation, States

M = TypeVar("M", bound=SafetyModel)


class Ensemble(SafetyModel):
    """P(category) = mean over members. The members are one model whose every array has a leading axis."""

    kind: ClassVar[str] = "ensemble"

    members: SafetyModel
    size: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    categories: int = eqx.field(static=True)

    def __init__(self, make: Callable[[PRNGKeyArray], SafetyModel], size: int, *, key: PRNGKeyArray):
        """`make(key)` builds one member."""
        if size < 1:
            raise InputError(f"an ensemble needs at least one member, not {size}")
        self.members = members = eqx.filter_vmap(make)(jax.random.split(key, size))
        self.size = size
        self.state_size, self.action_size = members.state_size, members.action_size
        self.categories = members.categories

    @property
    def standardisation(self) -> Standardisation:  # type: ignore[override]
        return self.member(0).standardisation

    @property
    def calibration(self) -> Calibration:  # type: ignore[override]
        """One for all: it is the mean that has to be calibrated."""
        return self.member(0).calibration

    @property
    def input_weight(self) -> Float[Array, "member input units"]:
        return self.members.input_weight

    @property
    def per_step(self) -> bool:
        return self.members.per_step

    def shape(self) -> Layers:
        return self.member(0).shape()

    def with_members(self, members: SafetyModel) -> Self:
        return eqx.tree_at(lambda model: model.members, self, members)

    def with_standardisation(self, standardisation):
        return self.with_members(self.each(lambda member: member.with_standardisation(standardisation)))

    def with_calibration(self, calibration):
        return self.with_members(self.each(lambda member: member.with_calibration(calibration)))

    def evidence(self, states, actions, length, key=None):
        """A tuple, one entry for each member."""
        keys = None if key is None else jax.random.split(key, self.size)
        stacked = self.each(lambda member, own: member.evidence(states, actions, length, own), keys)
        return tuple(jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(self.size))

    def conclude(self, evidence):
        return self._mean_log(self.conclude_each(evidence))

    def log_survival(self, states, actions, length):
        return self._mean_log(self.each(lambda member: member.log_survival(states, actions, length)))

    def expected_counts(self, states, actions, length):
        return jnp.mean(self.each(lambda member: member.expected_counts(states, actions, length)), axis=0)

    def disagreement(self, states: States, actions: Actions, length: Lengths) -> Float[Array, "*batch"]:
        """Mutual information of category and member, H(mean p) - mean H(p) in nats: what a label would settle."""
        each = self.conclude_each(self.evidence(states, actions, length))
        return jnp.maximum(entropy(self._mean_log(each)) - jnp.mean(entropy(each), axis=0), 0.0)

    def blame_weights(self, states, actions, length, severity):
        return jnp.mean(self.each(lambda member: member.blame_weights(states, actions, length, severity)), axis=0)

    def start(self):
        return self.each(lambda member: member.start())

    def advance(self, memory, state, action):
        return self.each(lambda member, own: member.advance(own, state, action), memory)

    def risk(self, memory):
        return jnp.mean(self.each(lambda member, own: member.risk(own), memory), axis=0)

    def features(self, memory):
        return self.each(lambda member, own: member.features(own), memory).reshape(-1)

    def member(self, index: int) -> SafetyModel:
        return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, self.members)

    def each(self, function: Callable[..., PyTree], *own: PyTree) -> PyTree:
        """`function` of every member and of what is its own, stacked."""
        return eqx.filter_vmap(function)(self.members, *own)

    def conclude_each(self, evidence: Sequence[Evidence]) -> Float[Array, "member *batch categories"]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *evidence)
        return self.each(lambda member, own: member.conclude(own), stacked)

    def _mean_log(self, logs: Float[Array, "member *shape"]) -> Float[Array, "*shape"]:
        return jax.nn.logsumexp(logs, axis=0) - jnp.log(jnp.asarray(self.size, logs.dtype))


def members_of(model: SafetyModel, kind: type[M]) -> list[M]:
    """The members of an ensemble, or the model alone; none where they are not of this kind."""
    members = [model.member(index) for index in range(model.size)] if isinstance(model, Ensemble) else [model]
    return [member for member in members if isinstance(member, kind)]


def entropy(log_probabilities: Float[Array, "*batch categories"]) -> Float[Array, "*batch"]:
    return -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=-1)
