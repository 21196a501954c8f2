"""A sequential audit by people: runs and known cases go into the label store, and their labels decide."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.certification.bounds import annotator_bounds, upper_bound
from sidestep.certification.hearing import SOURCE, Hearing
from sidestep.certification.opinions import costly_categories
from sidestep.certification.records import AnnotatorRecord, Design, KnownCase, Premise
from sidestep.certification.sequential import MOST, AuditState, SequentialAudit
from sidestep.core.constraints import Constraint, cost_matrix
from sidestep.core.errors import InputError
from sidestep.core.model import Model, Policy, Trajectory, require_allowed, require_finite, rollout
from sidestep.labels.store import Store
from sidestep.labels.votes import current_votes, resolve, undecided

Flag = Callable[[Trajectory], np.ndarray]  # (run, constraint): which runs count as costly unseen

FEWEST_KNOWN = 30  # costly cases with which anything can be said of what annotators miss
BATCH = 100  # runs rolled out at once


def people_audit(
    store: Store,
    model: Model,
    policy: Policy,
    constraints: Sequence[Constraint],
    key: PRNGKeyArray,
    *,
    number: int = 1,
    confidence: float = 0.95,
    most: int = MOST,
    design: Design = Design(),  # noqa: B008 (a frozen record)
    premises: Sequence[Premise] = (),
    flag: Flag | None = None,
) -> AuditState:
    """Read the labels that audit `number`'s fresh runs have in the store; put in as many more runs as may decide it.

    Run i follows from the key and i alone, and the store knows a trajectory by its content. So the same call goes on
    where an earlier one stopped, in this process or another. Labels count in the order of the runs, up to the first
    run without one, whatever the order in which they were given.
    """
    constraints = tuple(constraints)
    alpha = (1.0 - confidence) / max(len(constraints), 1)
    asking = Asking(store, model, policy, constraints, jax.random.fold_in(key, number), number, design)
    premises, heard_all = asking.known_cases(tuple(premises) or (Premise(),) * len(constraints), alpha)
    audit = SequentialAudit(constraints, confidence, most, premises)
    categories: list[int | None] = []
    flags = None if flag is None else np.zeros((0, len(constraints)), bool)
    state = audit.read([])
    while state.status == "undecided":
        runs = asking.runs(len(categories), min(state.used + state.needed, most))
        if not len(runs):
            break
        if flags is not None and flag is not None:
            flags = np.concatenate([flags, flag(runs)])
        categories += asking.hear(runs)
        known = categories[: categories.index(None)] if None in categories else categories
        state = audit.read([one for one in known if one is not None], flags)
        if len(known) < len(categories) or not heard_all:
            break
    if not heard_all and state.status != "undecided":
        state = replace(state, status="undecided", needed=1)
    known = categories[: categories.index(None)] if None in categories else categories
    seen = np.bincount(np.array(known, int), minlength=len(state.counts)).tolist()
    asked = asking.asked if state.needed else []
    if doubtful := sorted(asking.cannot_tell & set(asked)):
        raise InputError(
            f"nobody could tell the category of trajectory {doubtful[0]}, a run of the audit, and no category breaks "
            "every constraint, so it cannot count as one that does; give it a label",
            place=str(store.path),
        )
    given = replace(state, seen=tuple(seen), asked=tuple(asked), labels=asking.labels)
    return replace(given, premises=premises, annotators=asking.annotators)


class Asking:
    """Runs of one audit, in their order, and what the store has to say of them."""

    def __init__(
        self,
        store: Store,
        model: Model,
        policy: Policy,
        constraints: tuple[Constraint, ...],
        key: PRNGKeyArray,
        number: int,
        design: Design,
    ) -> None:
        self.store, self.model, self.policy, self.key = store, model, policy, key
        self.constraints, self.design = constraints, design
        log = store.log()
        self.category_of, self.votes = resolve(log, "majority"), current_votes(log)
        self.cannot_tell = undecided(log)
        if (worst := worst_category(constraints)) is not None:
            self.category_of |= dict.fromkeys(self.cannot_tell, worst)
        self.annotators: tuple[AnnotatorRecord, ...] = ()
        costly = costly_categories(constraints) if constraints else ()
        self.hearing = Hearing(store, number, costly, design.opinions, self.category_of) if design.known else None
        self._ids: list[int] = []

    def known_cases(self, premises: tuple[Premise, ...], alpha: float) -> tuple[tuple[Premise, ...], bool]:
        """The premises with what known cases say of the annotators, and whether all of them were answered.

        While some are not, those are taken to be answered rightly: it only says how much to ask for at once.
        """
        known = self.design.known
        if self.hearing is None:
            return premises, True
        said = self.hearing.hear(self.store.get([case.trajectory for case in known]))
        self.annotators = self._annotators()
        found = [
            with_annotators(premise, constraint, known, said, alpha)
            for premise, constraint in zip(premises, self.constraints, strict=True)
        ]
        return tuple(found), None not in said

    def _annotators(self) -> tuple[AnnotatorRecord, ...]:
        """How each annotator did on the known cases that were just heard."""
        assert self.hearing is not None
        costly, counts = self.hearing.costly, dict[str, np.ndarray]()
        for row, copy in self.hearing.heard:
            harmful = costly[self.design.known[row].category]
            for name, category in self.votes.get(copy, {}).items():
                own = counts.setdefault(name, np.zeros((2, 2), int))
                own[int(harmful)] += (1, harmful != costly[category])
        return tuple(_record(name, counts[name]) for name in sorted(counts))

    def runs(self, start: int, stop: int) -> Trajectory:
        """Runs start, ..., stop - 1."""
        parts = []
        for index in range(start // BATCH, -(-stop // BATCH)):
            batch = rollout(self.model, self.policy, jax.random.fold_in(self.key, index), BATCH)
            rows = slice(max(start - index * BATCH, 0), min(stop - index * BATCH, BATCH))
            parts.append(require_allowed(self.model, require_finite(self.model.spec, batch[rows])))
        if not parts:
            parts = [rollout(self.model, self.policy, self.key, 1)[:0]]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def hear(self, runs: Trajectory) -> list[int | None]:
        """The category of each of the next runs; None where it is not settled."""
        if self.hearing is not None:
            return self.hearing.hear(runs)
        ids = self.store.add(runs, policy=SOURCE).ids.tolist()
        self._ids += ids
        return [self.category_of.get(i) for i in ids]

    @property
    def asked(self) -> list[int]:
        """Trajectories that need a label, each once; known cases in no order that gives them away."""
        if self.hearing is None:
            return [i for i in dict.fromkeys(self._ids) if i not in self.category_of]
        asked = np.array(self.hearing.asked, int)
        return np.random.default_rng(len(asked)).permutation(asked).tolist()

    @property
    def labels(self) -> int:
        """Labels that were given, those after the decision too; runs that are alike may share one."""
        if self.hearing is not None:
            return self.hearing.labels
        return sum(trajectory in self.category_of for trajectory in set(self._ids))


def worst_category(constraints: Sequence[Constraint]) -> int | None:
    """What a run of which nobody can tell counts as: the worst category that breaks every constraint, if one does."""
    broken = np.flatnonzero(cost_matrix(constraints).all(axis=0)) if constraints else np.zeros(0, int)
    return int(broken[-1]) if len(broken) else None


def _record(name: str, counts: np.ndarray) -> AnnotatorRecord:
    """From (answers, errors) on harmless and on harmful cases."""
    (harmless, alarms), (harmful, missed) = counts.tolist()
    bounds = [upper_bound(k, n, 0.05) if n else 1.0 for k, n in ((missed, harmful), (alarms, harmless))]
    return AnnotatorRecord(name, harmful, missed, harmless, alarms, *bounds)


def can_cover_annotators(
    constraints: tuple[Constraint, ...], known: Sequence[KnownCase], confidence: float, most: int
) -> bool:
    """Whether an audit could certify if all known cases were answered rightly and every run were clean."""
    alpha, right = (1.0 - confidence) / max(len(constraints), 1), [case.category for case in known]
    premises = tuple(with_annotators(Premise(), constraint, known, right, alpha) for constraint in constraints)
    found = SequentialAudit(constraints, confidence, most, premises)
    return found.decide(np.zeros(0, int))[0] != "refused"


def with_annotators(
    premise: Premise, constraint: Constraint, known: Sequence[KnownCase], said: Sequence[int | None], alpha: float
) -> Premise:
    """What the answers to known cases say of this constraint; nothing where too few of them are costly."""
    cost = constraint.cost_weights
    answers = [(cost[case.category], None if one is None else cost[one]) for case, one in zip(known, said, strict=True)]
    harmful = [said_costly for costly, said_costly in answers if costly]
    harmless = [said_costly for costly, said_costly in answers if not costly]
    if len(harmful) < FEWEST_KNOWN:
        return premise
    missed, alarms = annotator_bounds(harmful.count(0), len(harmful), harmless.count(1), len(harmless), alpha)
    return replace(premise, missed=missed, alarms=alarms)
