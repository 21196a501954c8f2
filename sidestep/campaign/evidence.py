"""What the labels say: of the policies whose rollouts they are, and of the predictions made for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

from sidestep.campaign.choice import optimism
from sidestep.campaign.records import Candidate, Group, State
from sidestep.campaign.schedule import SLOTS
from sidestep.certification.bounds import lower_bound
from sidestep.certification.records import Agreement, Audit
from sidestep.core.constraints import Constraint, cost_matrix
from sidestep.core.model import Trajectory
from sidestep.labels.annotators import Annotators, estimate_annotators, repeated_error
from sidestep.labels.marks import MarksArray
from sidestep.labels.store import Store
from sidestep.labels.votes import current_votes
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
    predict: Callable[[Trajectory], np.ndarray] | None = None  # where people label and a safety model is fitted
    foresee: Callable[[Trajectory], np.ndarray] | None = None  # by the safety model that candidates are judged by

    @cached_property
    def labelled(self) -> tuple[Trajectory, np.ndarray]:
        """Every trajectory that was asked about, in that order, and its category: the likeliest, if annotators err."""
        return self.trajectories, self.truth.argmax(axis=1).astype(np.int32)

    @cached_property
    def trajectories(self) -> Trajectory:
        return self.store.get(self.state.asked_ids)

    @cached_property
    def categories(self) -> Int[np.ndarray, " label"]:
        """What most annotators say."""
        return np.array([self.category_of[i] for i in self.state.asked_ids], np.int32)

    @cached_property
    def marks(self) -> MarksArray:
        """At which step each severity was reached, of the same trajectories; -1 where nobody said."""
        return self.store.marks(self.state.asked_ids, "majority")

    @cached_property
    def annotators(self) -> Annotators | None:
        """How often each annotator errs, by votes and predictions; None where nothing says that anybody does."""
        error = repeated_error(self._answered_twice)
        if error is None:
            return None
        votes = current_votes(self.store.log())
        said = [votes[i] for i in self.state.asked_ids]
        prior = None if self.predict is None else self.predict(self.trajectories)
        copied = self.state.copied
        about = [copied.get(i, i) for i in self.state.asked_ids]
        return estimate_annotators(said, len(self.store.scale), prior, error, about)

    @property
    def _answered_twice(self) -> list[tuple[int, int]]:
        """Both answers to each question that was asked twice. Those asked again because they were in doubt are left
        out: they were not chosen at random, and more of them are wrong."""
        groups = [group for group in self.state.asked if group.repeats and not group.deciding]
        pairs = [pair for group in groups for pair in zip(group.repeats, group.ids, strict=True)]
        return [(self.category_of[first], self.category_of[second]) for first, second in pairs]

    @property
    def agreement(self) -> Agreement | None:
        """Of questions asked twice, and of trajectories with votes of several; None where there are none."""
        votes = current_votes(self.store.log())
        pairs = self._answered_twice
        pairs += [pair for i in self.state.asked_ids for pair in combinations(votes[i].values(), 2)]
        same = sum(first == second for first, second in pairs)
        return Agreement(len(pairs), same, lower_bound(same, len(pairs), 0.05)) if pairs else None

    @property
    def likelihood(self) -> Float[np.ndarray, "label category"] | None:
        """How likely what was said is for each true category; None where labels are the truth."""
        return None if self.annotators is None else self.annotators.likelihood

    @cached_property
    def truth(self) -> Float[np.ndarray, "label category"]:
        """How likely each category is of every trajectory that was asked about: its label, where nobody errs."""
        if self.annotators is None:
            return np.eye(len(self.store.scale))[self.categories]
        return self.annotators.truth

    @property
    def originals(self) -> tuple[list[int], Float[np.ndarray, "trajectory category"]]:
        """The trajectories that are no copies of others, and how likely each category is of them."""
        copied = self.state.copied
        rows = [row for row, i in enumerate(self.state.asked_ids) if i not in copied]
        return [self.state.asked_ids[row] for row in rows], self.truth[rows]

    def costs(self, groups: Sequence[Group]) -> Float[np.ndarray, "label constraint"]:
        """How far labels of these groups count for which constraint: 0 or 1, or how likely, where annotators err."""
        rows = [self._rows[i] for group in groups for i in group.ids]
        return self.truth[rows] @ cost_matrix(self.constraints).T.astype(float)

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {trajectory: row for row, trajectory in enumerate(self.state.asked_ids)}

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates with the labels of their own rollouts."""
        return [self._with_labels(index, candidate) for index, candidate in enumerate(self.state.candidates)]

    def groups_of(self, index: int) -> list[Group]:
        """The questions about plain rollouts of a candidate."""
        candidate = self.state.candidates[index]
        return [
            group
            for group in self.state.asked
            if group.candidate == index or (group.slot is not None and _same(group, candidate))
        ]

    def _with_labels(self, index: int, candidate: Candidate) -> Candidate:
        """With the labels of its own plain rollouts, those of its audits included."""
        groups = self.groups_of(index)
        costs = self.costs(groups) if groups else np.zeros((0, len(self.constraints)))
        audits = [audit for audit in self.audits if audit.candidate == index and audit.figures is not None]
        seen = [self.seen_in(audit) for audit in audits]
        costly = costs.sum(axis=0) + sum(map(self._costly, seen), np.zeros(costs.shape[1]))
        audited = round(sum(float(one.sum()) for one in seen))
        predicted = np.array(candidate.predicted_costs)
        expected = sum((self._expected(group, predicted) for group in groups), audited * predicted)
        labels = len(costs) + audited
        return replace(candidate, labels=labels, costly=tuple(costly.tolist()), expected=tuple(expected.tolist()))

    def _expected(self, group: Group, predicted: np.ndarray) -> Float[np.ndarray, " constraint"]:
        """How many labels of a policy's plain rollouts should be costly: by what is foreseen of these trajectories, or
        by what is predicted of the policy, where a fit has learned from these labels."""
        return self._foreseen[group] if group in self._foreseen else len(group.ids) * predicted

    @cached_property
    def _foreseen(self) -> dict[Group, Float[np.ndarray, " constraint"]]:
        """How many labels of candidates' own rollouts should be costly; no fit has learned from them."""
        checks = [group for group in self.state.asked if group.candidate is not None]
        if self.foresee is None or not checks:
            return {}
        ids = [i for group in checks for i in group.ids]
        costs = self.foresee(self.store.get(ids)) @ cost_matrix(self.constraints).T.astype(float)
        cost_of = dict(zip(ids, costs, strict=True))
        return {group: np.sum([cost_of[i] for i in group.ids], axis=0) for group in checks}

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
        return float(self.costs([group]).sum()), float(self._expected(group, np.array(predicted)).sum())

    def seen_in(self, audit: Audit) -> Float[np.ndarray, " category"]:
        """How many runs of an audit are of each category, those that were labelled after its decision too."""
        assert audit.figures is not None
        shares = np.array([audit.figures.side_effects[name] for name in self.store.scale.categories])
        return np.array(audit.seen, float) if audit.seen else shares * audit.rollouts

    def _costly(self, counts: Float[np.ndarray, " category"]) -> Float[np.ndarray, " constraint"]:
        """How many of these runs count for each constraint."""
        return cost_matrix(self.constraints).astype(float) @ counts

    def _audited_gap(self, audit: Audit) -> tuple[float, float]:
        if audit.figures is None or audit.candidate is None:
            return 0.0, 0.0
        predicted = np.sum(self.state.candidates[audit.candidate].predicted_costs)
        seen = self.seen_in(audit)
        return float(self._costly(seen).sum()), float(seen.sum() * predicted)

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
