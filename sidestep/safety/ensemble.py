"""Several models of one kind, each with its own start and its own draw of the data, as one model."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sidestep.core.errors import InputError
from sidestep.safety.base import SafetyModel, Standardisation


class Ensemble(SafetyModel):
    """P(category) = mean over members. The members are one model whose every array has a leading axis."""

    kind: ClassVar[str] = "ensemble"

    members: Any
    size: int = eqx.field(static=True)

    def __init__(self, make: Callable[[PRNGKeyArray], SafetyModel], size: int, *, key: PRNGKeyArray):
        """`make(key)` builds one member."""
        if size < 1:
            raise InputError(f"an ensemble needs at least one member, not {size}")
        self.members = eqx.filter_vmap(make)(jax.random.split(key, size))
        self.size = size

    @property
    def state_size(self) -> int:  # type: ignore[override]
        return self.members.state_size

    @property
    def action_size(self) -> int:  # type: ignore[override]
        return self.members.action_size

    @property
    def categories(self) -> int:  # type: ignore[override]
        return self.members.categories

    @property
    def standardisation(self) -> Standardisation:  # type: ignore[override]
        return _part(self.members.standardisation, 0)

    @property
    def calibration(self) -> Any:
        """One for all: it is the mean that has to be calibrated."""
        return _part(self.members.calibration, 0)

    @property
    def input_weight(self) -> Float[Array, "member input units"]:
        return self.members.input_weight

    @property
    def per_step(self) -> bool:
        return self.members.per_step

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "member": self.members.kind, **self._first.config()}

    def with_standardisation(self, standardisation):
        members = eqx.filter_vmap(lambda member: member.with_standardisation(standardisation))(self.members)
        return eqx.tree_at(lambda model: model.members, self, members)

    def with_calibration(self, calibration):
        members = eqx.filter_vmap(lambda member: member.with_calibration(calibration))(self.members)
        return eqx.tree_at(lambda model: model.members, self, members)

    def evidence(self, states, actions, length, key=None):
        """A tuple, one entry a member."""
        keys = None if key is None else jax.random.split(key, self.size)
        stacked = eqx.filter_vmap(lambda member, k: member.evidence(states, actions, length, k))(self.members, keys)
        return tuple(jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(self.size))

    def conclude(self, evidence):
        return self._mean_log(self._conclude_each(evidence))

    def log_survival(self, states, actions, length):
        return self._mean_log(self._each(lambda member: member.log_survival(states, actions, length)))

    def expected_counts(
        self,
        states: Float[Array, "*batch time state"],
        actions: Float[Array, "*batch time action"],
        length: Int[Array, "*batch"],
    ) -> Float[Array, "*batch categories"]:
        return jnp.mean(self._each(lambda member: member.expected_counts(states, actions, length)), axis=0)

    def disagreement(
        self,
        states: Float[Array, "*batch time state"],
        actions: Float[Array, "*batch time action"],
        length: Int[Array, "*batch"],
    ) -> Float[Array, "*batch"]:
        """Mutual information of category and member, H(mean p) - mean H(p) in nats: what a label would settle."""
        each = self._conclude_each(self.evidence(states, actions, length))
        return jnp.maximum(entropy(self._mean_log(each)) - jnp.mean(entropy(each), axis=0), 0.0)

    def blame_weights(self, states, actions, length, severity):
        return jnp.mean(self._each(lambda member: member.blame_weights(states, actions, length, severity)), axis=0)

    def start(self):
        return self._each(lambda member: member.start())

    def advance(self, memory, state, action):
        return eqx.filter_vmap(lambda member, own: member.advance(own, state, action))(self.members, memory)

    def risk(self, memory):
        return jnp.mean(eqx.filter_vmap(lambda member, own: member.risk(own))(self.members, memory), axis=0)

    def features(self, memory):
        return eqx.filter_vmap(lambda member, own: member.features(own))(self.members, memory).reshape(-1)

    def member(self, index: int) -> Any:
        return _part(self.members, index)

    @property
    def _first(self) -> Any:
        return self.member(0)

    def _each(self, function: Callable[[Any], Any]) -> Any:
        return eqx.filter_vmap(function)(self.members)

    def _conclude_each(self, evidence: tuple) -> Float[Array, "member *batch categories"]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *evidence)
        return eqx.filter_vmap(lambda member, own: member.conclude(own))(self.members, stacked)

    def _mean_log(self, logs: Float[Array, "member *shape"]) -> Float[Array, "*shape"]:
        return jax.nn.logsumexp(logs, axis=0) - jnp.log(jnp.asarray(self.size, logs.dtype))


def _part(stack: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, stack)


def members_of(model: SafetyModel) -> list[Any]:
    """The members of an ensemble; of any other model, it alone."""
    return [model.member(index) for index in range(model.size)] if isinstance(model, Ensemble) else [model]


def entropy(log_probabilities: Float[Array, "*batch categories"]) -> Float[Array, "*batch"]:
    return -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=-1)
