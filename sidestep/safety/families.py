"""Families of safety models side by side: what the labels refute has no say, and what they leave open disagrees.

    P(category) = sum_m w_m P_m(category),    w_m proportional to exp(log-likelihood of held-out labels under m)

The hazard model can learn any temporal pattern, from many labels. Counted events learn a pattern of their kind from
few. Which of them the labels show, the held-out ones tell at every fit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.safety.base import (
    Actions,
    Calibration,
    Evidence,
    Frozen,
    Layers,
    Lengths,
    SafetyModel,
    Standardisation,
    States,
)
from sidestep.safety.counted import LIMIT, CountedEvents
from sidestep.safety.ensemble import Ensemble, entropy
from sidestep.safety.hazard import HazardModel
from sidestep.safety.recurrent import PRECISION, Cell

STATISTICS = ("count", "run")
KEPT = 2  # models of counted events of each statistic: a box, and one whose sides may be oblique
NO_TRUST = -1e4  # log-weight of a member that has no say, which is finite
UNTRUSTED = -5e3  # up to which a log-weight says so
SPEAKS = 0.95  # weight from which one member of counted events is planned against alone
DOUBT = 0.25  # power of the weights by which members disagree: what is nearly refuted still asks a little


class Weights(Frozen):
    """How far each member is trusted."""

    logs: Float[Array, " member"]  # the exponentials sum to 1


class Families(SafetyModel):
    """Hazard models and counted events, each member with its weight."""

    kind: ClassVar[str] = "families"

    hazards: Ensemble
    counted: tuple[Ensemble, ...]  # one for each statistic
    weights: Weights
    state_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    categories: int = eqx.field(static=True)

    def __init__(
        self,
        state_size: int,
        action_size: int,
        categories: int,
        *,
        key: PRNGKeyArray,
        cell: Cell = "gru",
        layers: int | None = None,
        units: int | None = None,
        dropout: float | None = None,
        encoder: tuple[int, ...] | None = None,
        hazards: int = 2,
        limit: int = LIMIT,
        alike: tuple[int, ...] = (),
    ):
        """`hazards` hazard models of this shape, and counted events of both statistics."""
        sizes = (state_size, action_size, categories)

        make: Callable[..., HazardModel] = HazardModel

        def hazard(own: PRNGKeyArray) -> HazardModel:
            return make(*sizes, key=own, cell=cell, layers=layers, units=units, dropout=dropout, encoder=encoder)

        hazard_key, *keys = jax.random.split(key, 1 + len(STATISTICS))
        self.hazards = Ensemble(hazard, hazards, key=hazard_key)
        self.counted = tuple(
            Ensemble(_maker(sizes, statistic, limit, alike), KEPT, key=own)
            for statistic, own in zip(STATISTICS, keys, strict=True)
        )
        count = hazards + KEPT * len(STATISTICS)
        logs = np.where(np.arange(count) < hazards, -np.log(hazards), NO_TRUST)  # no event is known before a fit
        self.weights = Weights(jnp.asarray(logs, PRECISION))
        self.state_size, self.action_size, self.categories = sizes

    @property
    def standardisation(self) -> Standardisation:  # type: ignore[override]
        return self.hazards.standardisation

    @property
    def calibration(self) -> Calibration:  # type: ignore[override]
        return self.hazards.calibration

    @property
    def input_weight(self) -> Float[Array, "member input units"]:
        return self.hazards.input_weight

    @property
    def groups(self) -> tuple[Ensemble, ...]:
        return (self.hazards, *self.counted)

    def shape(self) -> Layers:
        counted = self.counted[0].shape()
        return replace(self.hazards.shape(), hazards=self.hazards.size, limit=counted.limit, alike=counted.alike)

    def with_standardisation(self, standardisation: Standardisation) -> Self:
        return eqx.tree_at(
            lambda model: model.groups, self, tuple(g.with_standardisation(standardisation) for g in self.groups)
        )

    def with_calibration(self, calibration: Calibration) -> Self:
        return eqx.tree_at(lambda model: model.hazards, self, self.hazards.with_calibration(calibration))

    def with_groups(self, groups: tuple[Ensemble, ...], logs: Float[np.ndarray, " member"]) -> Self:
        fresh = (groups[0], groups[1:], Weights(jnp.asarray(logs, PRECISION)))
        return eqx.tree_at(lambda model: (model.hazards, model.counted, model.weights), self, fresh)

    def evidence(self, states, actions, length, key=None):
        """One entry for each group of members."""
        return tuple(group.evidence(states, actions, length, key) for group in self.groups)

    def conclude(self, evidence):
        return self._mixed(self.conclude_each(evidence))

    def conclude_each(self, evidence: tuple[Evidence, ...]) -> Float[Array, "member *batch categories"]:
        """Log-probabilities by each member."""
        pairs = zip(self.groups, evidence, strict=True)
        return jnp.concatenate([group.conclude_each(own) for group, own in pairs])

    def log_survival(self, states, actions, length):
        return self._mixed(
            jnp.concatenate([g.each(lambda member: member.log_survival(states, actions, length)) for g in self.groups])
        )

    def disagreement(self, states: States, actions: Actions, length: Lengths) -> Float[Array, "*batch"]:
        """Mutual information of category and member, the members being weighed by a power of what they are trusted."""
        each = self.conclude_each(self.evidence(states, actions, length))
        weights = jax.nn.softmax(DOUBT * self.weights.logs).reshape(-1, *[1] * (each.ndim - 2))
        mean = jax.nn.logsumexp(each + jnp.log(weights)[..., None], axis=0)
        return jnp.maximum(entropy(mean) - jnp.sum(weights * entropy(each), axis=0), 0.0)

    def blame_weights(self, states, actions, length, severity):
        """Of each member in shares, by its weight."""
        each = jnp.concatenate(
            [g.each(lambda member: member.blame_weights(states, actions, length, severity)) for g in self.groups]
        )
        shares = each / jnp.maximum(jnp.sum(each, axis=-1, keepdims=True), 1e-30)
        return jnp.tensordot(jnp.exp(self.weights.logs), shares, axes=1)

    def start(self):
        return tuple(group.start() for group in self.groups)

    def advance(self, memory, state, action):
        return tuple(group.advance(own, state, action) for group, own in zip(self.groups, memory, strict=True))

    def risk(self, memory):
        each = [g.each(lambda m, own: m.risk(own), mine) for g, mine in zip(self.groups, memory, strict=True)]
        return jnp.tensordot(jnp.exp(self.weights.logs), jnp.concatenate(each), axes=1)

    def features(self, memory):
        return jnp.concatenate([group.features(own) for group, own in zip(self.groups, memory, strict=True)])

    def members_by_weight(self) -> list[tuple[float, SafetyModel]]:
        """(weight, member), the most trusted first."""
        members = [group.member(index) for group in self.groups for index in range(group.size)]
        weights = np.exp(np.asarray(self.weights.logs, float))
        return sorted(zip(weights.tolist(), members, strict=True), key=lambda pair: -pair[0])

    def spoken(self) -> SafetyModel:
        """The counted events that have nearly all the trust, alone; or all members, where none has it."""
        weight, best = self.members_by_weight()[0]
        return best if weight >= SPEAKS and isinstance(best, CountedEvents) else self

    def _mixed(self, logs: Float[Array, " member *shape"]) -> Float[Array, "*shape"]:
        weights = self.weights.logs.reshape(-1, *[1] * (logs.ndim - 1))
        return jax.nn.logsumexp(logs + jnp.broadcast_to(weights, logs.shape), axis=0)


def _maker(
    sizes: tuple[int, int, int], statistic: str, limit: int, alike: tuple[int, ...]
) -> Callable[[PRNGKeyArray], CountedEvents]:
    return lambda key: CountedEvents(*sizes, key=key, statistic=statistic, limit=limit, alike=alike)


def normalised(log_likelihoods: Float[np.ndarray, " member"]) -> Float[np.ndarray, " member"]:
    """log w_m, w_m proportional to the likelihood under member m; members where that is not finite have none."""
    shifted = np.where(np.isfinite(log_likelihoods), log_likelihoods, -np.inf)
    shifted = np.maximum(shifted - shifted.max(), NO_TRUST)
    return shifted - np.log(np.exp(shifted).sum())
