"""`sidestep plan MODEL` without a safety model: the whole campaign, from no label to a certificate."""

import contextlib
from collections.abc import Iterator

from sidestep.campaign.campaign import Campaign
from sidestep.campaign.config import CampaignConfig, Kind, refuse_idle
from sidestep.campaign.setting import Setting, Show
from sidestep.certification.auditor import Auditor
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import Result, result_to_json
from sidestep.cli.certify import print_certificate
from sidestep.cli.commands import Plan
from sidestep.cli.console import progress_bar, say, say_json
from sidestep.cli.work import (
    CERTIFIED,
    LABELS_NEEDED,
    NOT_CERTIFIED,
    planner_settings,
    run_store,
    stoppable,
    tell_notes,
    tell_people,
)
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Model, finite_part
from sidestep.core.records import to_json
from sidestep.deploy.answers import Answer
from sidestep.labels.experts import Expert, expert_of
from sidestep.models import checked_model
from sidestep.planning.options import with_options
from sidestep.planning.presets import preset_for
from sidestep.report.html import write_report
from sidestep.report.scenes import keep_scenes
from sidestep.runs.folder import LABELS, Run
from sidestep.runs.records import Round, RunConfig

DEFAULT_BOUND = 0.95  # of the best category, where the user asks for nothing else
LUCK = 4.0  # deviations by which the best of many labelled trajectories may exceed a good policy's mean


def begin(asked: Plan) -> Run:
    """Check everything, then open the run's folder."""
    model = checked_model(asked.model)
    expert = expert_of(asked.rule, asked.people, model, Scale.parse(asked.categories) if asked.categories else None)
    scale = expert.scale
    if asked.categories and expert.label is not None:
        raise InputError(f"the rule '{expert.name}' has a scale of its own, {scale}", place="--categories")
    constraint = asked.constraint or (expert.default_constraint or f"{scale.categories[0]}>={DEFAULT_BOUND}",)
    refuse_idle(_kind(model, expert, asked.method), asked.campaign, asked.planning)
    config = CampaignConfig(**asked.campaign)
    auditor = Auditor(Ledger(Run(asked.out)), model, parse_constraints(constraint, scale), expert)
    audits = 1 if expert.labels_steps else config.audits
    auditor.require_certifiable(config.rollouts, config.confidence, first=1, last=audits)
    tell_notes(model.spec, asked.quiet or asked.json)
    run_config = RunConfig(
        kind="campaign",
        model=asked.model,
        rule=asked.rule,
        people=asked.people,
        constraints=constraint,
        categories=scale.categories,
        method=asked.method,
        seed=asked.seed,
        labels=config.labels,
        settings=to_json(config),
        planning=to_json(with_options(preset_for(model, asked.method), asked.planning)),
    )
    return Run.create(asked.out, run_config)


def _kind(model: Model, expert: Expert, method: str) -> Kind:
    """What is planned: networks or exact tables, by labels of trajectories or of single steps."""
    if finite_part(model) is None:
        return "networks"
    if not expert.labels_steps:
        return "tables" if method in ("default", "gradient") else "networks"
    return "network of pairs" if method == "gradient" else "pairs"


def continue_run(loaded: Answer, quiet: bool, as_json: bool) -> int:
    """From the last saved stage to the end, or to where people have to label."""
    run, asked, model, expert = loaded.run, loaded.config, loaded.model, loaded.expert
    config, planning = run.settings(CampaignConfig), planner_settings(loaded, asked.planning, "planning")
    go_on = f"go on with: sidestep resume {run.path}"
    with run_store(loaded) as store, stoppable(go_on), _bar(config, quiet or as_json) as show:
        about = (asked.method, asked.seed, asked.model, show)
        setting = Setting(run, model, expert, loaded.constraints, store, config, planning, *about)
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
    report = write_report(run.path)
    if as_json:
        say_json(result_to_json(result))
        return
    print_certificate(result)
    audits = f"{result.audits} audit{'s' if result.audits > 1 else ''}"
    say(f"  {result.labels_used} labels used, {result.audit_labels} for {audits}, {result.seconds:.0f} s")
    hoped, earned = result.harmless_return, result.returns
    if hoped is not None and earned is not None and earned.mean + LUCK * earned.std < hoped:
        say(
            f"  but harmless trajectories among the labels earned {hoped:.6g}, so there is a better policy than this: "
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
def _bar(config: CampaignConfig, quiet: bool) -> Iterator[Show]:
    """A progress bar over the rounds, and a line for every finished round."""
    with progress_bar("round", config.rounds + 1, quiet) as bar:

        def show(stage: str, record: object) -> None:
            bar.update(words=stage)
            if isinstance(record, Round):
                bar.update(completed=record.round + 1)
                bar.say(_line(record))

        yield show


def _line(done: Round) -> str:
    if not done.slots:
        return f"{done.labels} labels, {done.asked} of them new: return {done.mean_return:.5g}"
    policies = "  ".join(f"{slot.mean_return:.6g} at cost {max(slot.costs):.3f}" for slot in done.slots)
    return f"round {done.round}: {done.labels} labels, safety model {done.accuracy:.1%} right; {policies}"
