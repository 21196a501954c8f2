"""`sidestep plan MODEL` without a safety model: the whole campaign, from no label to a certificate."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.pairs import PairsCampaign
from sidestep.campaign.trajectories import Campaign
from sidestep.certification.auditor import Auditor
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result, result_to_json
from sidestep.commands.certify import CERTIFIED, LABELS_NEEDED, NOT_CERTIFIED, expert_of, print_certificate
from sidestep.commands.console import progress_bar, say, say_json
from sidestep.commands.people import run_store, tell_notes, tell_people
from sidestep.commands.plan import stoppable
from sidestep.constraints import Scale, parse_constraints
from sidestep.errors import LabelsNeeded
from sidestep.labels.rules import Rule
from sidestep.model import Model
from sidestep.models import checked_model, load_model
from sidestep.planning.config import PlanConfig, preset_for
from sidestep.runs import LABELS, Run

DEFAULT_BOUND = 0.95  # of the best category, where the user asks for nothing else
LUCK = 4.0  # deviations by which the best of many labelled trajectories may exceed a good policy's mean


def begin(
    model: str,
    constraint: tuple[str, ...],
    rule: str | None,
    method: str,
    categories: str | None,
    changes: dict[str, Any],
    planning: dict[str, Any],
    seed: int,
    out: Path,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check everything, open the run's folder, go."""
    mdp = checked_model(model)
    expert = expert_of(rule, mdp)
    scale = expert.scale if expert else (Scale.parse(categories) if categories else Scale())
    constraint = constraint or (expert.usual if expert and expert.usual else f"{scale.categories[0]}>={DEFAULT_BOUND}",)
    config = CampaignConfig(**changes)
    auditor = Auditor(Ledger(Run(out)), mdp, parse_constraints(constraint, scale), expert)
    audits = 1 if _labels_pairs(mdp, expert) else config.audits
    auditor.require_certifiable(config.rollouts, config.confidence, first=1, last=audits)
    tell_notes(mdp.spec, quiet or as_json)
    plan_config = replace(preset_for(mdp, method), **planning)
    run = Run.create(
        out,
        {
            "kind": "campaign",
            "model": model,
            "rule": rule,
            "constraints": list(constraint),
            "categories": list(scale.categories),
            "method": method,
            "seed": seed,
            "labels": config.labels,
            "settings": asdict(config),
            "planning": asdict(plan_config),
        },
    )
    with run.held():
        return go_on(run, quiet, as_json, trust=True)  # the user has just given the code


def go_on(run: Run, quiet: bool, as_json: bool, trust: bool = False) -> int:
    """From the last saved stage to the end, or to where people have to label."""
    from sidestep.report.scenes import keep_scenes

    asked = run.config
    files = run.files(trust)
    model = load_model(asked["model"], files=files)
    rule = expert_of(asked["rule"], model, files)
    scale = Scale(tuple(asked["categories"]))
    constraints = parse_constraints(asked["constraints"], scale)
    config, planning = run.settings(CampaignConfig, "settings"), run.settings(PlanConfig, "planning")
    with run_store(run, model.spec, scale) as store, stoppable(run), _bar(config, quiet or as_json) as show:
        parts = (asked["seed"], asked["model"], show)
        campaign: Campaign | PairsCampaign
        if _labels_pairs(model, rule):
            network = planning if asked["method"] == "gradient" else None
            campaign = PairsCampaign(run, model, rule, constraints, store, config, network, *parts)
        else:
            campaign = Campaign(run, model, rule, constraints, store, config, planning, *parts)
        try:
            result = campaign.go_on()
        except LabelsNeeded as needed:
            _ask(needed.ids, run, as_json)
            return LABELS_NEEDED
    result = replace(result, method=asked["method"])
    run.write_json("result.json", result_to_json(result))
    keep_scenes(run.path, model, rule)
    _tell(run, result, as_json)
    return CERTIFIED if result.certified else NOT_CERTIFIED


def _labels_pairs(model: Model, rule: Rule | None) -> bool:
    """Whether single steps are labelled, and not trajectories."""
    return hasattr(model, "finite") and rule is not None and rule.markovian


def _tell(run: Run, result: Result, as_json: bool) -> None:
    from sidestep.report.html import write_report

    report = write_report(run.path)
    if as_json:
        say_json(result_to_json(result))
        return
    print_certificate(result)
    say(
        f"  {result.labels_used} labels used, {result.audit_labels} for {result.audits} audit(s), "
        f"{result.seconds:.0f} s"
    )
    hoped, earned = result.harmless_return, result.returns
    if hoped is not None and earned is not None and earned.mean + LUCK * earned.std < hoped:
        say(
            f"  but harmless trajectories among the labels earned {hoped:.6g}: this policy is not the best there is; "
            "try another --seed, more --labels or more --rounds"
        )
    say(f"open {report.resolve()}")


def _ask(ids: list[int], run: Run, as_json: bool) -> None:
    file = run.path / LABELS
    if as_json:
        say_json({"status": "waiting", "store": str(file), "trajectories": ids})
    else:
        wanted = f"{len(ids)} trajectories in {file} need labels"
        tell_people(run, [wanted], f"then go on with: sidestep resume {run.path}")


@contextlib.contextmanager
def _bar(config: CampaignConfig, quiet: bool) -> Iterator[Any]:
    """A progress bar over the rounds, and a line a finished round."""
    with progress_bar("round", config.rounds + 1, quiet) as bar:

        def show(stage: str, figures: dict[str, Any]) -> None:
            bar.update(words=stage)
            if stage == "pairs":
                bar.say(
                    f"{figures['labels']} labels: return {figures['return']:.5g}, {figures['asked']} new pairs on it"
                )
            if stage == "round":
                bar.update(completed=figures["round"] + 1)
                bar.say(_line(figures))

        yield show


def _line(note: dict[str, Any]) -> str:
    rungs = "  ".join(f"{rung['return']:.6g} at cost {max(rung['costs']):.3f}" for rung in note["rungs"])
    return f"round {note['round']}: {note['labels']} labels, safety model {note['accuracy']:.1%} right; {rungs}"
