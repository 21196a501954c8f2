"""`sidestep certify`: audit a run's policy on fresh rollouts, labelled by the rule or by people."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from sidestep.campaign.config import MOST_ROLLOUTS
from sidestep.certification.auditor import Auditor, not_enforced, policy_hash
from sidestep.certification.evaluation import ROLLOUTS
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Audit, Result, result_from_json, result_to_json
from sidestep.certification.words import bound_in_words, percent, verdict_in_words
from sidestep.cli.console import say, say_json
from sidestep.cli.people import run_store, tell_people
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.records import to_json
from sidestep.deploy.answers import Answer
from sidestep.labels.experts import Expert, expert_of
from sidestep.labels.store import Store
from sidestep.runs.folder import LABELS, Run

CERTIFIED, NOT_CERTIFIED, LABELS_NEEDED = 0, 1, 3  # exit statuses; 2 is bad input
CONFIDENCE = 0.95
COLOURS = {"certified": "green", "met, not certified": "yellow", "not met": "red"}


def certify(
    folder: Path,
    rollouts: int | None,
    confidence: float | None,
    people: bool,
    seed: int | None,
    quiet: bool,
    as_json: bool,
    trust: bool,
) -> int:
    """Make the run's next audit, or go on with the one that was begun, and print the certificate.

    Its bounds share the error with all earlier audits of the run. What is left out is as in the audit that was begun.
    """
    if rollouts is not None and not 1 <= rollouts <= MOST_ROLLOUTS:
        raise InputError(f"must lie between 1 and {MOST_ROLLOUTS:,}, not {rollouts}", place="--rollouts")
    if confidence is not None and not 0.5 <= confidence < 1:
        raise InputError(f"must lie in [0.5, 1), not {confidence}", place="--confidence")
    answer = Answer(folder, trust)
    config, scale = answer.config, Scale(answer.categories)
    by_people = people or config["people"]
    expert = expert_of(None if by_people else config["rule"], by_people, answer.model, scale, answer.files)
    constraints = parse_constraints(config["constraints"], scale)
    if not constraints:
        raise InputError("this run has no constraint to certify", place=str(folder))
    policy = answer.policy_of(answer.model)
    file = policy_hash(answer.run.path / "policy.safetensors")
    ledger = Ledger(answer.run)
    with _store_for(expert, answer) as store:
        auditor = Auditor(ledger, answer.model, constraints, expert, store)
        audit = _begun(auditor, file, rollouts, confidence, seed)
        if audit is None:
            most, promised = rollouts or ROLLOUTS, confidence or CONFIDENCE
            reason = not_enforced(answer.model)
            if reason and expert.label is None:
                raise InputError(f"nothing can be certified here: {reason}", place=str(folder))
            auditor.require_certifiable(most, promised, ledger.next_number)
            seed = answer.config["seed"] if seed is None else seed
            audit = auditor.begin(file, seed=seed, most=most, promised=promised)
        try:
            audit = auditor.finish(audit, policy)
        except LabelsNeeded as needed:
            _ask(answer.run, needed, as_json)
            return LABELS_NEEDED
    result = _written(answer, audit, ledger.audits)
    printed = Result(**_about(result)).with_audit(audit, ledger.audits)
    if as_json:
        say_json({"status": audit.status, **result_to_json(printed)})
    else:
        print_certificate(printed)
        tell_audits(ledger.audits)
    return CERTIFIED if audit.certified else NOT_CERTIFIED


def _store_for(expert: Expert, answer: Answer) -> contextlib.AbstractContextManager[Store | None]:
    """The run's label store where labels are dear."""
    if expert.label is not None:
        return contextlib.nullcontext()
    return run_store(answer.run, answer.model.spec, Scale(answer.categories))


def _begun(
    auditor: Auditor, policy: str, rollouts: int | None, confidence: float | None, seed: int | None
) -> Audit | None:
    """The audit that was begun, if it is the one that is asked for; any other is given up, and stays in the ledger."""
    audit = auditor.ledger.open
    if audit is None:
        return None
    asked = ((rollouts, audit.most), (confidence, audit.promised), (seed, audit.seed))
    same = audit.labelled_by == auditor.expert.name and audit.policy == policy and audit.candidate is None
    if same and all(given is None or given == begun for given, begun in asked):
        return audit
    auditor.ledger.update(replace(audit, status="abandoned"))
    return None


def _written(answer: Answer, audit: Audit, audits: tuple[Audit, ...]) -> Result:
    """The run's result, which counts the audit, and takes its certificate where it had none."""
    place = str(answer.run.path / "result.json")
    before = result_from_json(answer.result, place)
    after = before.with_audit(audit, audits)
    answer.run.write_json("result.json", result_to_json(after))
    return after


def _about(result: Result) -> dict[str, Any]:
    """What the run's result says of the run itself."""
    names = ("model", "labels_used", "seconds", "seed", "method", "marks_used", "pattern")
    return {name: getattr(result, name) for name in names}


def _ask(run: Run, needed: LabelsNeeded, as_json: bool) -> None:
    store = run.path / LABELS
    if as_json:
        waiting = {"status": "waiting", "store": str(store), "trajectories": needed.ids, "needed": needed.at_best}
        say_json(waiting | {"audit": to_json(needed.audit)})
        return
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
        say(f"  penalty {result.penalty.mean:.4g} +- {result.penalty.std:.3g}")
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
            f"  this was audit {len(audits)} of this run; all of them share the error, so that its own bounds are "
            f"computed at {percent(audits[-1].confidence)}"
        )


def _interval(ends: tuple[float, ...]) -> str:
    return f"{ends[0]:.6g} to {ends[1]:.6g}"
