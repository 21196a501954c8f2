"""Audits of a run's policies, one after the other, through its ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import jax

from sidestep.certification.bounds import CERTIFYING, judge, require_certifiable
from sidestep.certification.evaluation import certification_key, evaluate, fresh_return
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Figures, Method, Verdict
from sidestep.certification.sequential import WITHOUT_COST, people_audit
from sidestep.core.constraints import Constraint
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Forbidden, Model, Policy
from sidestep.labels.experts import Expert
from sidestep.labels.store import Store
from sidestep.models.check import what_is_not_kept


def policy_hash(file: Path) -> str:
    """What a ledger knows a policy by."""
    return sha256(file.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Auditor:
    """Audits on a fixed number of rollouts where labels cost nothing; else sequential ones, until it is decided."""

    ledger: Ledger
    model: Model
    constraints: tuple[Constraint, ...]
    expert: Expert
    store: Store | None = None  # of sequential audits

    @property
    def method(self) -> Method:
        return "sequential" if self.expert.label is None else "fixed"

    def require_certifiable(self, most: int, promised: float, first: int, last: int | None = None) -> None:
        share = CERTIFYING if self.method == "fixed" else WITHOUT_COST
        require_certifiable(self.constraints, most, promised, share, first, last)

    def require_own_ledger(self) -> None:
        """Refuse a ledger whose finished audits are of other constraints or categories than this run's."""
        texts = [constraint.text for constraint in self.constraints]
        names = set(self.expert.scale.categories)
        for audit in self.ledger.audits:
            finished = audit.status in ("certified", "refused")
            other = finished and [verdict.text for verdict in audit.constraints] != texts
            if other or (audit.figures and not names <= set(audit.figures.side_effects)):
                raise InputError(f"audit {audit.number} is not of this run's constraints", place=self.ledger.place)

    def begin(self, policy: str, *, seed: int, most: int, promised: float, candidate: int | None = None) -> Audit:
        """Enter the run's next audit into the ledger."""
        audit = Audit(
            number=self.ledger.next_number,
            method=self.method,
            labelled_by=self.expert.name,
            policy=policy,
            seed=seed,
            most=most,
            promised=promised,
            candidate=candidate,
        )
        self.ledger.begin(audit)
        return audit

    def finish(self, audit: Audit, policy: Policy) -> Audit:
        """Take an entered audit to its end; raises LabelsNeeded where people have to label first."""
        decided = self._decided(audit, policy)
        self.ledger.update(decided)
        return decided

    def _decided(self, audit: Audit, policy: Policy) -> Audit:
        reason = not_enforced(self.model)
        if reason and audit.method == "sequential":
            return replace(audit, status="refused", constraints=self._unknown(), reason=reason)
        try:
            self.require_certifiable(audit.most, audit.promised, audit.number)
        except InputError as error:
            return replace(audit, status="refused", constraints=self._unknown(), reason=str(error))
        try:
            decided = self._fixed(audit, policy) if audit.method == "fixed" else self._sequential(audit, policy)
        except Forbidden as error:
            return replace(audit, status="refused", constraints=self._unknown(), reason=str(error))
        return _refused(decided, reason) if reason else decided

    def _fixed(self, audit: Audit, policy: Policy) -> Audit:
        key = jax.random.fold_in(certification_key(audit.seed), audit.number)
        figures, counts, forbidden = evaluate(self.model, policy, self.expert, key, audit.most)
        verdicts = judge(self.constraints, counts, audit.confidence)
        decided = _closed(audit, verdicts, figures, audit.most, audit.most)
        return _refused(decided, forbidden) if forbidden else decided

    def _sequential(self, audit: Audit, policy: Policy) -> Audit:
        assert self.store is not None
        key, number = certification_key(audit.seed), audit.number
        state = people_audit(
            self.store,
            self.model,
            policy,
            self.constraints,
            key,
            number=number,
            confidence=audit.confidence,
            most=audit.most,
        )
        if state.asked:
            raise LabelsNeeded(list(state.asked), audit=replace(audit, rollouts=state.used), at_best=state.needed)
        categories = self.store.scale.categories
        shares = {name: n / state.used for name, n in zip(categories, state.counts, strict=True)}
        figures = Figures(fresh_return(self.model, policy, jax.random.fold_in(key, number)), shares)
        return _closed(audit, state.verdicts, figures, state.used, state.labels)

    def _unknown(self) -> tuple[Verdict, ...]:
        return tuple(Verdict(one.text, None, 0.0, 1.0, met=False, certified=False) for one in self.constraints)


def not_enforced(model: Model) -> str | None:
    """Why no policy of this model can be certified; None where there is no such reason."""
    not_kept = what_is_not_kept(model)
    if not not_kept:
        return None
    return f"rollouts of '{model.spec.name}' may do what the model forbids: {'; '.join(not_kept)}"


def _refused(decided: Audit, reason: str) -> Audit:
    """The audit with its figures, of which nothing is certified."""
    verdicts = tuple(replace(verdict, certified=False) for verdict in decided.constraints)
    return replace(decided, status="refused", constraints=verdicts, reason=reason)


def _closed(audit: Audit, verdicts: tuple[Verdict, ...], figures: Figures, rollouts: int, labels: int) -> Audit:
    certified = all(verdict.certified for verdict in verdicts)
    return replace(
        audit,
        status="certified" if certified else "refused",
        constraints=verdicts,
        figures=figures,
        rollouts=rollouts,
        labels=labels,
    )


def audit_until_certified(
    auditor: Auditor,
    audits: int,
    favourite: Callable[[], int | None],
    file_of: Callable[[int], Path],
    policy_of: Callable[[int], Policy],
    *,
    seed: int,
    most: int,
    promised: float,
    show: Callable[[Audit], None] = lambda audit: None,
) -> Audit:
    """Audit favourites until one is certified, at most `audits` of them; the least bad audit when none is.

    `favourite` names the next candidate by all evidence, the audits before it included; None when there is no other.
    """
    ledger = auditor.ledger
    auditor.require_own_ledger()
    if ledger.open is not None and ledger.open.candidate is None:  # of `sidestep certify`, which the run comes before
        ledger.update(replace(ledger.open, status="abandoned"))
    while True:
        audit = ledger.open
        if audit is None:
            made = [one for one in ledger.of_run if one.status != "abandoned"]
            over = len(made) >= audits or any(one.certified or one.reason for one in made)
            index = None if over else favourite()
            if index is None and made:
                return max(made, key=lambda one: (one.certified, _slack(one, auditor.constraints)))
            if index is None:
                raise InputError("no audit of this run was finished, and no candidate is left", place=ledger.place)
            audit = auditor.begin(policy_hash(file_of(index)), seed=seed, most=most, promised=promised, candidate=index)
        assert audit.candidate is not None
        show(auditor.finish(audit, policy_of(audit.candidate)))


def _slack(audit: Audit, constraints: Sequence[Constraint]) -> float:
    """How far the bound of the worst constraint is on its right side."""
    rooms = [
        verdict.lower - constraint.bound if constraint.sense == ">=" else constraint.bound - verdict.upper
        for verdict, constraint in zip(audit.constraints, constraints, strict=True)
    ]
    return min(rooms, default=0.0)
