"""`sidestep certify`: audit a run's policy on fresh rollouts, labelled by the rule or by people."""

import contextlib
from dataclasses import replace

from sidestep.certification.auditor import Auditor, not_enforced, policy_hash
from sidestep.certification.evaluation import ROLLOUTS
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Result, result_from_json, result_to_json
from sidestep.certification.words import bound_in_words, percent, verdict_in_words
from sidestep.cli.commands import Certify
from sidestep.cli.console import say, say_json
from sidestep.cli.work import CERTIFIED, LABELS_NEEDED, NOT_CERTIFIED, run_store, tell_people
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.records import to_json
from sidestep.deploy.answers import Answer
from sidestep.labels.experts import expert_of
from sidestep.runs.folder import AGAIN, LABELS, Run

CONFIDENCE = 0.95
COLOURS = {"certified": "green", "met, not certified": "yellow", "not met": "red"}


def certify(asked: Certify) -> int:
    """Make the run's next audit, or go on with the one that was begun, and print the certificate.

    Its bounds share the error with all earlier audits of the run. What is left out is as in the audit that was begun.
    """
    with Run.open(asked.folder).held(AGAIN):
        loaded = Answer(asked.folder, asked.trust)
        if not loaded.constraints:
            raise InputError("this run has no constraint to certify", place=str(asked.folder))
        ledger = Ledger(loaded.run)
        try:
            audit = _audited(asked, loaded, ledger)
        except LabelsNeeded as needed:
            _ask(loaded.run, needed, asked.json)
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


def _audited(asked: Certify, loaded: Answer, ledger: Ledger) -> Audit:
    """The audit that is asked for, at its end; raises LabelsNeeded where people have to label first."""
    model, people = loaded.model, asked.people or loaded.config.people
    rule = None if people else loaded.config.rule
    expert = expert_of(rule, people, model, loaded.scale, loaded.files)
    policy, file = loaded.policy_of(model), policy_hash(loaded.run.path / "policy.safetensors")
    free = expert.label is not None  # labels cost nothing, so that none is kept
    with contextlib.nullcontext() if free else run_store(loaded) as store:
        auditor = Auditor(ledger, model, loaded.constraints, expert, store)
        audit = _begun(auditor, file, asked)
        if audit is None:
            most, promised = asked.rollouts or ROLLOUTS, asked.confidence or CONFIDENCE
            reason = not_enforced(model)
            if reason and not free:
                raise InputError(f"nothing can be certified here: {reason}", place=str(asked.folder))
            auditor.require_certifiable(most, promised, ledger.next_number)
            seed = loaded.config.seed if asked.seed is None else asked.seed
            audit = auditor.begin(file, seed=seed, most=most, promised=promised)
        return auditor.finish(audit, policy)


def _begun(auditor: Auditor, policy: str, asked: Certify) -> Audit | None:
    """The audit that was begun, if it is the one that is asked for; any other is given up, and stays in the ledger."""
    audit = auditor.ledger.open
    if audit is None:
        return None
    options = ((asked.rollouts, audit.most), (asked.confidence, audit.promised), (asked.seed, audit.seed))
    same = audit.labelled_by == auditor.expert.name and audit.policy == policy and audit.candidate is None
    if same and all(given is None or given == begun for given, begun in options):
        return audit
    auditor.ledger.update(replace(audit, status="abandoned"))
    return None


def _written(loaded: Answer, audit: Audit, audits: tuple[Audit, ...]) -> Result:
    """The run's result, which counts the audit, and takes its certificate where it had none."""
    before = result_from_json(loaded.result, str(loaded.run.path / "result.json"))
    after = before.with_audit(audit, audits)
    loaded.run.write_json("result.json", result_to_json(after))
    return after


def _ask(run: Run, needed: LabelsNeeded, as_json: bool) -> None:
    store = run.path / LABELS
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
    tell_people(run, wanted, "and give this command again")


def print_certificate(result: Result) -> None:
    """Return, penalty and constraints, with the confidence that holds for all bounds of all audits of the run."""
    if result.returns is not None:
        spread = f" (about {_interval(result.returns.interval)})" if result.returns.interval else ""
        say(f"  return {result.returns.mean:.6g}{spread}, mean action")
    if result.penalty is not None:
        say(f"  penalty {result.penalty.mean:.4g} ± {result.penalty.std:.3g}")
    for verdict in result.constraints or ():
        word = verdict_in_words(verdict)
        observed = "unknown" if verdict.estimate is None else f"{verdict.estimate:.4f}"
        say(
            f"  {verdict.text}: {observed} in {result.rollouts} fresh rollouts, {bound_in_words(verdict)} "
            f"with {percent(result.confidence)} confidence: ",
            (word, COLOURS[word]),
        )
    if result.reason:
        say(f"  not certified: {result.reason}")


def tell_audits(audits: tuple[Audit, ...]) -> None:
    """How many audits share the error, when there was more than one."""
    if len(audits) > 1:
        say(
            f"  this was audit {len(audits)} of this run; all of them share the error, so its own bounds are computed "
            f"at {percent(audits[-1].confidence)}"
        )


def _interval(ends: tuple[float, ...]) -> str:
    return f"{ends[0]:.6g} to {ends[1]:.6g}"
