"""`sidestep certify`: audit a run's policy on fresh rollouts, labelled by the rule or by people."""

import json
from pathlib import Path
from typing import Any

from jaxtyping import PRNGKeyArray

from sidestep.answers import Answer
from sidestep.certification.evaluation import audit, certification_key, fresh_return
from sidestep.certification.sequential import AuditState, people_audit
from sidestep.commands.console import say
from sidestep.commands.people import run_store, tell_people
from sidestep.constraints import Constraint, Scale, parse_constraints
from sidestep.errors import InputError
from sidestep.labels.rules import Rule, load_rule
from sidestep.model import Model, Policy
from sidestep.runs import LABELS, Run


def certify(
    folder: Path, rollouts: int, confidence: float, people: bool, seed: int | None, quiet: bool, as_json: bool
) -> int:
    """Audit a run's policy on fresh rollouts, labelled by the rule or by people, and print the certificate."""
    if rollouts < 1:
        raise InputError(f"must be at least 1, not {rollouts}", place="--rollouts")
    if not 0.5 <= confidence < 1:
        raise InputError(f"must lie in [0.5, 1), not {confidence}", place="--confidence")
    answer = Answer(folder)
    expert = None if people else expert_of(answer.config["rule"], answer.model)
    constraints = parse_constraints(answer.config["constraints"], Scale(answer.categories))
    key = certification_key(answer.config["seed"] if seed is None else seed)
    policy = answer.policy_of(answer.model)
    if expert is None:
        return _certify_by_people(answer, policy, constraints, key, rollouts, confidence, quiet, as_json)
    result = audit(answer.model, policy, expert, constraints, key, rollouts=rollouts, confidence=confidence)
    if as_json:
        print(json.dumps(result))
    else:
        print_certificate(result)
    return 0


def _certify_by_people(
    answer: Answer,
    policy: Policy,
    constraints: tuple[Constraint, ...],
    key: PRNGKeyArray,
    rollouts: int,
    confidence: float,
    quiet: bool,
    as_json: bool,
) -> int:
    """Go on with the audit as far as the labels in the run's store reach; write the result when it is decided."""
    with run_store(answer.run, answer.model.spec, Scale(answer.categories)) as store:
        state = people_audit(store, answer.model, policy, constraints, key, confidence=confidence, most=rollouts)
    result: dict[str, Any] = {
        "status": state.status,
        "constraints": [vars(verdict) for verdict in state.verdicts],
        "audit_labels": state.labels,
        "rollouts": state.used,
        "needed": state.needed,
    }
    if state.status != "undecided":
        shares = {name: n / state.used for name, n in zip(answer.categories, state.counts, strict=True)}
        result |= {
            "model": answer.model.spec.name,
            "return": fresh_return(answer.model, policy, key),
            "side_effects": shares,
            "evaluation": {"trajectories": state.used, "policy": "mean", "confidence": confidence},
        }
        answer.run.write_json("result.json", {**answer.result, **result})
    if as_json:
        print(json.dumps(result))
    elif state.status == "undecided":
        _ask(answer.run, state)
    else:
        say(f"{state.status} after {state.used} fresh runs, labelled by people")
        print_certificate(result)
    return 0


def _ask(run: Run, state: AuditState) -> None:
    ids = " ".join(map(str, state.asked))
    wanted = [
        f"undecided after {state.used} labels; {state.needed} more certify it if all of them are good",
        f"label these {len(state.asked)} trajectories of {run.path / LABELS}: {ids}",
    ]
    tell_people(run, wanted, "and give this command again")


def print_certificate(result: dict[str, Any]) -> None:
    mean, (low, high) = result["return"]["mean"], result["return"]["interval"]
    say(f"  return {mean:.6g} (95 % interval {low:.6g} to {high:.6g}), mean action")
    if "penalty" in result:
        say(f"  penalty {result['penalty']['mean']:.4g} +- {result['penalty']['std']:.3g}")
    for verdict in result["constraints"]:
        word = ("certified", "green") if verdict["certified"] else ("met, not certified", "yellow")
        word = word if verdict["met"] else ("not met", "red")
        bound = f"at least {verdict['lower']:.4f}" if ">=" in verdict["text"] else f"at most {verdict['upper']:.4f}"
        confidence, rollouts = result["evaluation"]["confidence"], result["rollouts"]
        say(
            f"  {verdict['text']}: {verdict['estimate']:.4f} in {rollouts} fresh rollouts, {bound} "
            f"with {confidence:.0%} confidence: ",
            word,
        )


def expert_of(rule: str | None, model: Model) -> Rule | None:
    """The rule that plays the expert; a user's model without one is planned for, and not certified."""
    return load_rule(rule, model) if rule or model.spec.family else None
