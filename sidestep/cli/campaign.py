"""`sidestep plan MODEL` without a safety model: the whole campaign, from no label to a certificate."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidestep.campaign.campaign import Campaign
from sidestep.campaign.config import CampaignConfig, Kind, refuse_idle
from sidestep.campaign.records import Round
from sidestep.campaign.setting import Setting
from sidestep.certification.auditor import Auditor
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result, result_to_json
from sidestep.cli.certify import CERTIFIED, LABELS_NEEDED, NOT_CERTIFIED, print_certificate
from sidestep.cli.console import progress_bar, say, say_json
from sidestep.cli.people import run_store, tell_notes, tell_people
from sidestep.cli.plan import planner_settings, stoppable
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Model, finite_part
from sidestep.core.records import to_json
from sidestep.labels.experts import Expert, expert_of
from sidestep.models import checked_model, load_model
from sidestep.planning.options import with_options
from sidestep.planning.presets import preset_for
from sidestep.runs.folder import LABELS, Run

DEFAULT_BOUND = 0.95  # of the best category, where the user asks for nothing else
LUCK = 4.0  # deviations by which the best of many labelled trajectories may exceed a good policy's mean


def begin(
    model: str,
    constraint: tuple[str, ...],
    rule: str | None,
    people: bool,
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
    expert = expert_of(rule, people, mdp, Scale.parse(categories) if categories else None)
    scale = expert.scale
    if categories and expert.label is not None:
        raise InputError(f"the rule '{expert.name}' has a scale of its own, {scale}", place="--categories")
    constraint = constraint or (expert.default_constraint or f"{scale.categories[0]}>={DEFAULT_BOUND}",)
    refuse_idle(_kind(mdp, expert, method), changes, planning)
    config = CampaignConfig(**changes)
    auditor = Auditor(Ledger(Run(out)), mdp, parse_constraints(constraint, scale), expert)
    audits = 1 if expert.labels_steps else config.audits
    auditor.require_certifiable(config.rollouts, config.confidence, first=1, last=audits)
    tell_notes(mdp.spec, quiet or as_json)
    plan_config = with_options(preset_for(mdp, method), planning)
    run = Run.create(
        out,
        {
            "kind": "campaign",
            "model": model,
            "rule": rule,
            "people": people,
            "constraints": list(constraint),
            "categories": list(scale.categories),
            "method": method,
            "seed": seed,
            "labels": config.labels,
            "settings": to_json(config),
            "planning": to_json(plan_config),
        },
    )
    with run.held():
        return continue_run(run, quiet, as_json, trust=True)  # the user has just given the code


def _kind(model: Model, expert: Expert, method: str) -> Kind:
    """What is planned: networks or exact tables, by labels of trajectories or of single steps."""
    if finite_part(model) is None:
        return "networks"
    if not expert.labels_steps:
        return "tables" if method in ("default", "gradient") else "networks"
    return "network of pairs" if method == "gradient" else "pairs"


def continue_run(run: Run, quiet: bool, as_json: bool, trust: bool = False) -> int:
    """From the last saved stage to the end, or to where people have to label."""
    from sidestep.report.scenes import keep_scenes

    asked = run.config
    files = run.files(trust)
    model = load_model(asked["model"], files=files)
    scale = Scale(tuple(asked["categories"]))
    expert = expert_of(asked["rule"], asked["people"], model, scale, files)
    constraints = parse_constraints(asked["constraints"], scale)
    config, planning = run.settings(CampaignConfig, "settings"), planner_settings(run, "planning", model)
    with run_store(run, model.spec, scale) as store, stoppable(run), _bar(config, quiet or as_json) as show:
        about = (asked["method"], asked["seed"], asked["model"], show)
        setting = Setting(run, model, expert, constraints, store, config, planning, *about)
        try:
            result = Campaign(setting).run()
        except LabelsNeeded as needed:
            _ask(needed.ids, run, as_json)
            return LABELS_NEEDED
    run.write_json("result.json", result_to_json(result))
    keep_scenes(run.path, model, expert)
    _tell(run, result, as_json)
    return CERTIFIED if result.certified else NOT_CERTIFIED


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

        def show(stage: str, record: Any) -> None:
            bar.update(words=stage)
            if isinstance(record, Round):
                bar.update(completed=record.round + 1)
                bar.say(_line(record))

        yield show


def _line(done: Round) -> str:
    if not done.slots:
        return f"{done.labels} labels: return {done.mean_return:.5g}, {done.asked} of them new"
    policies = "  ".join(f"{slot.mean_return:.6g} at cost {max(slot.costs):.3f}" for slot in done.slots)
    return f"round {done.round}: {done.labels} labels, safety model {done.accuracy:.1%} right; {policies}"
