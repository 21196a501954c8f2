"""Audits of a run's policies, one after the other, through its ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sidestep.certification.bounds import CERTIFYING, judge, require_certifiable
from sidestep.certification.design import flags, stratified
from sidestep.certification.evaluation import certification_key, count_runs, evaluate, evaluate_table, fresh_return
from sidestep.certification.ledger import Ledger
from sidestep.certification.people import Flag, can_cover_annotators, people_audit
from sidestep.certification.proof import contradicted, label_pairs, prove
from sidestep.certification.records import Audit, Design, Figures, Method, Verdict
from sidestep.certification.sequential import WITHOUT_COST
from sidestep.core.constraints import Constraint
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Forbidden, Model, Policy, is_finite
from sidestep.finite.tabular import HorizonPolicy, draws
from sidestep.labels.experts import Expert
from sidestep.labels.store import Store
from sidestep.models.check import what_is_not_kept
from sidestep.safety.base import SafetyModel

WHOLES = 500  # rollouts of a table that are labelled as wholes, and are held against labels of its steps


def policy_hash(file: Path) -> str:
    """What a ledger knows a policy by."""
    return sha256(file.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Auditor:
    """Audits on a fixed number of rollouts where labels cost nothing; else sequential ones, until it is decided.

    An exact audit computes the chances of a table on labelled steps, and rolls it out for the figures.
    """

    ledger: Ledger
    model: Model
    constraints: tuple[Constraint, ...]
    expert: Expert
    store: Store | None = None  # of sequential audits
    safety: SafetyModel | None = None  # of audits by strata
    design: Callable[[int | None], Design] = lambda candidate: Design()  # of the next audit, which is of this candidate
    exact: bool = False

    @property
    def method(self) -> Method:
        if self.exact:
            return "exact"
        return "sequential" if self.expert.label is None else "fixed"

    def require_certifiable(self, most: int, promised: float, first: int, last: int | None = None) -> None:
        if self.exact:
            return
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
            design=self.design(candidate),
        )
        known = audit.design.known
        if known and not can_cover_annotators(self.constraints, known, audit.confidence, most):
            audit = replace(audit, design=replace(audit.design, known=(), opinions=1))
        self.ledger.begin(audit)
        return audit

    def finish(self, audit: Audit, policy: Policy) -> Audit:
        """Take an entered audit to its end; raises LabelsNeeded where people have to label first."""
        decided = self._decided(audit, policy)
        self.ledger.update(decided)
        return decided

    def _decided(self, audit: Audit, policy: Policy) -> Audit:
        audit = replace(audit, acts="sampled" if draws(policy) else "mean")
        reason = not_enforced(self.model)
        if reason and audit.method == "sequential":
            return replace(audit, status="refused", constraints=self._unknown(), reason=reason)
        try:
            self.require_certifiable(audit.most, audit.promised, audit.number)
        except InputError as error:
            return replace(audit, status="refused", constraints=self._unknown(), reason=str(error))
        try:
            audit = self._with_strata(audit, policy)
            decided = self._sequential(audit, policy) if audit.method == "sequential" else self._fixed(audit, policy)
        except Forbidden as error:
            return replace(audit, status="refused", constraints=self._unknown(), reason=str(error))
        return _refused(decided, reason) if reason else decided

    def _with_strata(self, audit: Audit, policy: Policy) -> Audit:
        """The audit with thresholds and bounds on flagged runs, which are kept before the first label is asked for."""
        if audit.design.kind != "stratified" or audit.premises:
            return audit
        if self.safety is None:
            raise InputError("an audit by strata needs the run's safety model", place=self.ledger.place)
        key = jax.random.fold_in(certification_key(audit.seed), audit.number)
        alpha = (1.0 - audit.confidence) / max(len(self.constraints), 1)
        premises = stratified(self.model, policy, self.safety, self.constraints, alpha, key, audit.design.predicted)
        audit = replace(audit, premises=premises)
        self.ledger.update(audit)
        return audit

    def _flag(self, audit: Audit) -> Flag | None:
        safety = self.safety
        if safety is None or not any(premise.threshold is not None for premise in audit.premises):
            return None
        return lambda runs: flags(safety, self.constraints, audit.premises, runs)

    def _fixed(self, audit: Audit, policy: Policy) -> Audit:
        key = jax.random.fold_in(certification_key(audit.seed), audit.number)
        if isinstance(policy, HorizonPolicy):
            return self._of_table(audit, policy, key)
        flag = self._flag(audit)
        figures, counts, forbidden, rest = evaluate(self.model, policy, self.expert, key, audit.most, flag)
        unflagged = [
            (int(np.dot(constraint.cost_weights, of_rest)), int(of_rest.sum()))
            for constraint, of_rest in zip(self.constraints, rest, strict=bool(rest))
        ]
        verdicts = judge(self.constraints, counts, audit.confidence, audit.premises, unflagged)
        labels = 0 if audit.design.kind == "signed" else audit.most
        decided = _closed(audit, verdicts, figures, audit.most, labels)
        return _refused(decided, forbidden) if forbidden else decided

    def _of_table(self, audit: Audit, policy: HorizonPolicy, key: PRNGKeyArray) -> Audit:
        """By labels of the pairs that the table can visit: rollouts of the table, or computation.

        Some rollouts of the policy as it is deployed are labelled as wholes, and must not contradict it.
        """
        assert is_finite(self.model)
        labels = label_pairs(self.model, policy, self.expert, self.store)
        figures, counts, *_ = evaluate_table(self.model, policy, labels, self.expert, key, audit.most)
        if audit.method == "exact":
            verdicts = prove(self.model, policy, self.constraints, labels.category)
        else:
            verdicts = judge(self.constraints, counts, audit.confidence)
        if self.expert.label is None:
            return _closed(audit, verdicts, figures, audit.most, labels.asked)
        wholes = count_runs(self.model, policy, self.expert, jax.random.fold_in(key, WHOLES), WHOLES)
        decided = _closed(audit, verdicts, figures, audit.most, labels.asked + WHOLES)
        reason = contradicted(verdicts, self.constraints, wholes)
        return _refused(decided, reason) if reason else decided

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
            design=audit.design,
            premises=audit.premises,
            flag=self._flag(audit),
        )
        if audit.design.known:
            audit = replace(audit, premises=state.premises, annotators=state.annotators)
        if state.asked:
            raise LabelsNeeded(list(state.asked), audit=replace(audit, rollouts=state.used), at_best=state.needed)
        categories = self.store.scale.categories
        shares = {name: n / max(state.used, 1) for name, n in zip(categories, state.counts, strict=True)}
        figures = Figures(fresh_return(self.model, policy, jax.random.fold_in(key, number)), shares)
        return _closed(replace(audit, seen=state.seen), state.verdicts, figures, state.used, state.labels)

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
    best: Callable[[Sequence[Audit]], Audit] | None = None,
) -> Audit:
    """Audit favourites until one is certified, at most `audits` of them; the best of them when none is.

    `favourite` names the next candidate by all evidence, the audits before it included; None when there is no other.
    `best` says which audit is the answer where none certified: without it the one whose bounds are the closest.
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
                certified = [one for one in made if one.certified]
                if certified or best is None:
                    return max(certified or made, key=lambda one: _slack(one, auditor.constraints))
                return best(made)
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
