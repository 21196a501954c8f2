"""What the labels say: of the policies whose rollouts they are, and of the predictions made for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from sidestep.campaign.choice import optimism
from sidestep.campaign.records import Candidate, Group, State
from sidestep.campaign.schedule import SLOTS
from sidestep.certification.records import Audit
from sidestep.core.constraints import Constraint, cost_matrix
from sidestep.core.model import Trajectory
from sidestep.labels.store import Store
from sidestep.runs.records import Round

RECENT = 3 * SLOTS  # groups of labels from which the gap between predicted and true costs is read
SHOWN = SLOTS // 2  # the slot whose figures stand for a round
FEW = 10  # labels of either side of a constraint with which a fit can begin


@dataclass(frozen=True)
class Evidence:
    """All labels and audits so far; everything else follows from them."""

    state: State
    constraints: tuple[Constraint, ...]
    store: Store
    category_of: dict[int, int]
    audits: tuple[Audit, ...] = ()

    @cached_property
    def labelled(self) -> tuple[Trajectory, np.ndarray]:
        """Every trajectory that was asked about, in that order, and its category."""
        ids = self.state.asked_ids
        return self.store.get(ids), np.array([self.category_of[i] for i in ids], np.int32)

    def costs(self, groups: Sequence[Group]) -> Float[np.ndarray, "label constraint"]:
        """Which labels of these groups count for which constraint."""
        ids = [i for group in groups for i in group.ids]
        return cost_matrix(self.constraints).T[[self.category_of[i] for i in ids]]

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates with the labels of their own rollouts."""
        return [self._with_labels(index, candidate) for index, candidate in enumerate(self.state.candidates)]

    def _with_labels(self, index: int, candidate: Candidate) -> Candidate:
        groups = [
            group
            for group in self.state.asked
            if group.candidate == index or (group.slot is not None and _same(group, candidate))
        ]
        if not groups:
            return replace(candidate, costly=(0.0,) * len(self.constraints))
        costs = self.costs(groups)
        return replace(candidate, labels=len(costs), costly=tuple(costs.sum(axis=0).tolist()))

    @property
    def optimism(self) -> float:
        """By how much true costs exceed predicted ones, from the latest labels and audits."""
        gaps = [self._gap(group) for group in self.state.asked if (group.slot, group.candidate) != (None, None)]
        return optimism([*gaps, *map(self._audited_gap, self.audits)][-RECENT:])

    def _gap(self, group: Group) -> tuple[float, float]:
        """(costly, predicted) of the labels of a policy's plain rollouts."""
        if group.candidate is not None:
            predicted = self.state.candidates[group.candidate].predicted_costs
        else:
            assert group.slot is not None
            predicted = self.state.rounds[group.round].slots[group.slot].costs
        return float(self.costs([group]).sum()), float(len(group.ids) * np.sum(predicted))

    def _audited_gap(self, audit: Audit) -> tuple[float, float]:
        if audit.figures is None or audit.candidate is None:
            return 0.0, 0.0
        shares = np.array([audit.figures.side_effects[name] for name in self.store.scale.categories])
        costly = float(cost_matrix(self.constraints).dot(shares).sum()) * audit.rollouts
        return costly, float(audit.rollouts * np.sum(self.state.candidates[audit.candidate].predicted_costs))

    @property
    def rounds(self) -> list[Round]:
        """The rounds with the labels of the policy that stands for each."""
        return [self._with_shares(one) for one in self.state.rounds]

    def _with_shares(self, one: Round) -> Round:
        groups = [group for group in self.state.asked if (group.round, group.slot) == (one.round, SHOWN)]
        categories = [self.category_of[i] for group in groups for i in group.ids if i in self.category_of]
        if not categories:
            return one
        shares = np.bincount(categories, minlength=len(self.store.scale)) / len(categories)
        return replace(one, labelled=tuple(shares.tolist()))


def _same(group: Group, candidate: Candidate) -> bool:
    return (group.round, group.slot) == (candidate.round, candidate.slot)


def best_harmless(constraints: Sequence[Constraint], known: Trajectory, categories: np.ndarray) -> float | None:
    """What the best labelled trajectories that cost nothing earned, in the mean: what a policy may hope for."""
    free = cost_matrix(constraints)[:, categories].sum(axis=0) == 0
    earned = np.where(np.asarray(known.mask), np.asarray(known.rewards), 0.0).sum(axis=1)[free]
    return float(np.sort(earned)[-FEW:].mean()) if len(earned) >= FEW else None


def varied(constraints: Sequence[Constraint], categories: np.ndarray) -> Bool[np.ndarray, " constraint"]:
    """Of which constraints labels show both sides. From one side alone nothing can be learned, so policies are planned
    without the constraint; and a model that learned from one side only is too sure, so the next fit begins anew."""
    costly = cost_matrix(constraints)[:, categories].sum(axis=1)
    return np.minimum(costly, len(categories) - costly) >= FEW
