"""`sidestep certify`: audit a run's policy on fresh rollouts, labelled by the rule or by people."""

import contextlib
from dataclasses import replace
from pathlib import Path

from sidestep.campaign.job import CONFIDENCE
from sidestep.certification.auditor import Auditor, not_enforced, policy_hash
from sidestep.certification.evaluation import ROLLOUTS
from sidestep.certification.known import known_in_store, make_design
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Design, Result, result_from_json, result_to_json
from sidestep.certification.signed import ROLLOUTS as SIGNED_ROLLOUTS
from sidestep.certification.signed import SignedPattern
from sidestep.certification.words import certificate_lines, percent
from sidestep.cli.commands import Certify
from sidestep.cli.console import say, say_json
from sidestep.cli.work import CERTIFIED, LABELS_NEEDED, NOT_CERTIFIED, tell_people
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.records import to_json
from sidestep.finite.tabular import HorizonPolicy
from sidestep.labels.experts import Expert, expert_of
from sidestep.labels.store import Store
from sidestep.runs.folder import AGAIN, Run
from sidestep.runs.loaded import LoadedRun
from sidestep.safety.pattern import learned_pattern

KNOWN = 40  # cases of harm among the questions to people
COLOURS = {"certified": "green", "met, not certified": "yellow", "not met": "red"}


def certify(asked: Certify) -> int:
    """Make the run's next audit, or go on with the one that was begun, and print the certificate.

    Its bounds share the error with all earlier audits of the run. What is left out is as in the audit that was begun.
    """
    with Run.open(asked.folder).held(AGAIN):
        loaded = LoadedRun(asked.folder, asked.trust)
        if not loaded.constraints:
            raise InputError("this run has no constraint to certify", place=str(asked.folder))
        ledger = Ledger(loaded.run)
        try:
            audit = _audited(asked, loaded, ledger)
        except LabelsNeeded as needed:
            _ask(loaded.store_path, needed, asked.json)
            return LABELS_NEEDED
        result = _written(loaded, audit, ledger.audits)
    of_audit = replace(result, constraints=None, diagnosis=None, harmless_return=None, sampled=None, candidate=None)
    printed = of_audit.with_audit(audit, ledger.audits)
    if asked.json:
        say_json({"status": audit.status, **result_to_json(printed)})
    else:
        print_certificate(printed)
        tell_audits(ledger.audits)
    return CERTIFIED if audit.certified else NOT_CERTIFIED


def _audited(asked: Certify, loaded: LoadedRun, ledger: Ledger) -> Audit:
    """The audit that is asked for, at its end; raises LabelsNeeded where people have to label first."""
    model, expert = loaded.model, _expert(asked, loaded)
    policy, file = loaded.policy_of(model), policy_hash(loaded.run.path / "policy.safetensors")
    free = expert.label is not None  # labels cost nothing, so that none is kept
    with contextlib.nullcontext() if free else loaded.open_store() as store:
        auditor = _auditor(asked, loaded, ledger, expert, store, isinstance(policy, HorizonPolicy))
        audit = _begun(auditor, file, asked)
        if audit is None:
            usual = SIGNED_ROLLOUTS if asked.signed_by else ROLLOUTS
            most, promised = asked.rollouts or usual, asked.confidence or CONFIDENCE
            reason = not_enforced(model)
            if reason and not free:
                raise InputError(f"nothing can be certified here: {reason}", place=str(asked.folder))
            auditor.require_certifiable(most, promised, ledger.next_number)
            seed = loaded.config.seed if asked.seed is None else asked.seed
            audit = auditor.begin(file, seed=seed, most=most, promised=promised)
        return auditor.finish(audit, policy)


def _expert(asked: Certify, loaded: LoadedRun) -> Expert:
    """Who labels the rollouts: the run's rule, people, or a pattern that somebody has signed."""
    if asked.signed_by is None:
        people = asked.people or loaded.config.people
        rule = None if people else loaded.config.rule
        return expert_of(rule, people, loaded.model, loaded.scale, loaded.files)
    if asked.people or asked.known or asked.audit != "auto":
        raise InputError(
            "a signed pattern needs no labels; leave out --people, --known and --audit", place="--signed-by"
        )
    safety = loaded.safety
    with loaded.open_store() as store:
        known = store.labelled()[1]
    pattern = None if safety is None or not len(known) else learned_pattern(safety, known)
    if pattern is None:
        raise InputError(
            f"{asked.folder} has learned no pattern that can be said in words, so that nothing can be signed; leave it "
            "out",
            place="--signed-by",
        )
    spec = loaded.model.spec
    words = pattern.words([*spec.state.names, *spec.action.names], spec.state.size, loaded.scale.categories)
    return SignedPattern(pattern.categories, loaded.scale, asked.signed_by, words)


def _auditor(
    asked: Certify, loaded: LoadedRun, ledger: Ledger, expert: Expert, store: Store | None, is_table: bool
) -> Auditor:
    people, safety = expert.label is None, loaded.safety
    if asked.audit == "stratified" and safety is None:
        raise InputError("this run has no safety model to predict with; leave it out", place="--audit stratified")
    if asked.known and (not people or safety is None):
        why = "a rule labels" if not people else "the run has no safety model"
        raise InputError(f"has no effect where {why}; leave it out", place=f"--known {asked.known}")
    stratified = asked.audit == "stratified" or (asked.audit == "auto" and people and safety is not None)
    most = asked.rollouts or ROLLOUTS

    def design(candidate: int | None) -> Design:
        if isinstance(expert, SignedPattern):
            return Design(kind="signed", signed_by=expert.signed_by, pattern=expert.words)
        if not people or safety is None or store is None:
            return make_design(stratified=stratified, known=(), erring=False, most=most)
        wanted = KNOWN if asked.known is None else asked.known
        known, erring = known_in_store(store, safety, loaded.constraints, wanted)
        return make_design(stratified=stratified, known=known, erring=erring, most=most)

    zero = not all(constraint.tolerance for constraint in loaded.constraints)
    signed = isinstance(expert, SignedPattern)
    proven = (
        not people and not signed and is_table and (zero or any(audit.method == "exact" for audit in ledger.audits))
    )
    return Auditor(ledger, loaded.model, loaded.constraints, expert, store, safety, design, proven)


def _begun(auditor: Auditor, policy: str, asked: Certify) -> Audit | None:
    """The audit that was begun, if it is the one that is asked for; any other is given up, and stays in the ledger."""
    audit = auditor.ledger.open
    if audit is None:
        return None
    options = ((asked.rollouts, audit.most), (asked.confidence, audit.promised), (asked.seed, audit.seed))
    same = audit.labelled_by == auditor.expert.name and audit.policy == policy and audit.candidate is None
    same = same and (asked.audit == "auto" or asked.audit == audit.design.kind)
    same = same and asked.signed_by == audit.design.signed_by
    if same and all(given is None or given == begun for given, begun in options):
        return audit
    auditor.ledger.update(replace(audit, status="abandoned"))
    return None


def _written(loaded: LoadedRun, audit: Audit, audits: tuple[Audit, ...]) -> Result:
    """The run's result, which counts the audit, and takes its certificate where it had none."""
    before = result_from_json(loaded.result, str(loaded.run.path / "result.json"))
    after = before.with_audit(audit, audits)
    loaded.run.write_json("result.json", result_to_json(after))
    return after


def _ask(store: Path | str, needed: LabelsNeeded, as_json: bool) -> None:
    if as_json:
        what = {"status": "waiting", "store": str(store)}
        say_json(what | {"trajectories": needed.ids, "needed": needed.at_best, "audit": to_json(needed.audit)})
        return
    assert isinstance(needed.audit, Audit)
    ids = " ".join(map(str, needed.ids))
    wanted = [
        f"undecided after {needed.audit.rollouts} labels; {needed.at_best} more certify it if all of them are clean",
        f"label these {len(needed.ids)} trajectories of {store}: {ids}",
    ]
    tell_people(store, wanted, "and give this command again")


def print_certificate(result: Result) -> None:
    """Return, penalty and constraints, with the confidence that holds for all bounds of all audits of the run."""
    for line in certificate_lines(result):
        start, _, word = line.rpartition(": ")
        if word in COLOURS:
            say(f"{start}: ", (word, COLOURS[word]))
        else:
            say(line)


def tell_audits(audits: tuple[Audit, ...]) -> None:
    """How many audits share the error, when there was more than one."""
    if len(audits) > 1:
        say(
            f"  this was audit {len(audits)} of this run; all of them share the error, so its own bounds are computed "
            f"at {percent(audits[-1].confidence)}"
        )
