"""`sidestep demo`, `plan` and `resume`: a campaign, or with --safety one planning."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.job import Job, begin
from sidestep.campaign.setting import Show
from sidestep.campaign.wanted import Wanted, wanted
from sidestep.campaign.words import ROUND_HEADS, round_cells
from sidestep.certification.records import Audit, Result, result_to_json
from sidestep.certification.words import neighbours_in_words
from sidestep.cli.certify import print_certificate
from sidestep.cli.commands import Demo, Plan, Resume, Serve
from sidestep.cli.console import Bar, progress_bar, say, say_json
from sidestep.cli.options_file import is_config
from sidestep.cli.serve import serve
from sidestep.cli.work import CERTIFIED, LABELS_NEEDED, NOT_CERTIFIED, stoppable, tell_notes, tell_people
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.records import JsonObject, to_json
from sidestep.deploy.answers import labels_in_words
from sidestep.deploy.solve import work_on
from sidestep.labels.store import store_place
from sidestep.planning.rows import PlanRow
from sidestep.runs.folder import Run
from sidestep.runs.loaded import LoadedRun
from sidestep.runs.records import Round, read_config

STORY = (
    "A robot crosses a plane to its goal. The model says where it moves and what it earns, not that it dirties the "
    "area in its way. An expert (here a rule) labels 300 trajectories none, mild or severe; Sidestep learns the "
    "pattern, plans a policy with no side effect in 95 of 100 runs, and proves it on fresh ones.\n"
)
SHORTER: dict[str, int | bool] = {"labels": 300, "marks": True, "polish_epochs": 150}  # what a person could label
TINY = {"labels": 60, "rounds": 1, "members": 1, "units": 4, "first_fit": 50, "later_fit": 20, "round_epochs": 10}
TINY |= {"searching_rounds": 1, "polish_epochs": 50, "rollouts": 200, "audits": 1}
LUCK = 4.0  # deviations by which the best of many labelled trajectories may exceed a good policy's mean
WORTH = 0.01  # of the return: what is less than this is not worth another run


def demo(asked: Demo) -> int:
    """The campaign on Navigation, with the rule as the expert; a demo that was stopped goes on."""
    say(STORY, quiet=asked.quiet, wrap=True)
    out, number = asked.out, 1
    if (out / "config.json").exists() and not (out / "result.json").exists():
        begun = Run.open(out).config.seed
        if asked.seed not in (0, begun):
            raise InputError(f"the demo in {out} was begun with seed {begun}; choose another --out", place="--seed")
        return resume(Resume(folder=out, quiet=asked.quiet))
    while out.exists() and any(out.iterdir()):
        number += 1
        out = asked.out.with_name(f"{asked.out.name}-{number}")
    job = Plan(
        model="navigation",
        constraint=("none>=0.95",),
        out=out,
        seed=asked.seed,
        quiet=asked.quiet,
        campaign=TINY if asked.quick else SHORTER,
        planning={"search_rounds": 2, "batch": 20, "test_batch": 20} if asked.quick else {},
    )
    return plan(job)


def plan(asked: Plan) -> int:
    job = Job(
        model=asked.model,
        expert=asked.rule,
        people=asked.people,
        constraints=asked.constraint,
        categories=asked.categories,
        safety=asked.safety,
        method=asked.method,
        seed=asked.seed,
        seeds=asked.seeds,
        store=None if asked.store is None else store_place(asked.store),
        out=asked.out,
        campaign=asked.campaign,
        planning=asked.planning,
        settings=_settings_of(asked),
    )
    loaded = begin(job, lambda spec: tell_notes(spec, asked.quiet or asked.json))
    if asked.serve:
        return serve(
            Serve(place=str(loaded.run.path), trust=True, quiet=asked.quiet)
        )  # the user has just given the code
    return _work_on(loaded, asked.quiet, asked.json)


def _settings_of(asked: Plan) -> JsonObject | None:
    """The planner's settings of the run whose config.json was given."""
    if asked.config is None or not is_config(asked.config):
        return None
    of_run = read_config(asked.config)
    if of_run.method != asked.method:
        raise InputError(
            f"the settings in --config belong to the method {of_run.method}; leave out --method or --config",
            place=f"--method {asked.method}",
        )
    return of_run.planning if of_run.kind == "campaign" else of_run.settings


def resume(asked: Resume) -> int:
    loaded = LoadedRun(asked.folder, asked.trust)
    _ = loaded.model, loaded.expert  # refused here if they cannot be loaded
    if asked.wait and loaded.config.kind != "campaign":
        raise InputError("has no effect on a run that plans once; leave it out", place="option --wait")
    return _work_on(loaded, asked.quiet, asked.json, asked.wait)


def _work_on(loaded: LoadedRun, quiet: bool, as_json: bool, wait: bool = False) -> int:
    """To the end, or to where people have to label; with `wait` it goes on from there when a line comes in."""
    run, campaign = loaded.run, loaded.config.kind == "campaign"
    bar = _campaign_bar if campaign else _planning_bar

    def ask(needed: LabelsNeeded | None) -> None:
        _ask(wanted(needed, run), loaded.store_path, run.path, as_json, wait)

    with stoppable(f"go on with: sidestep resume {run.path}"), bar(loaded, quiet or as_json) as show:

        def stay(needed: LabelsNeeded) -> bool:
            show("waiting", None)
            ask(needed)
            return bool(sys.stdin.readline())

        def tell(stage: str, record: Round | Audit | PlanRow | None) -> None:
            if stage == "offered" and wait and as_json:
                ask(None)
            show(stage, record)

        try:
            results = work_on(loaded, tell, stay if wait else None)
        except LabelsNeeded as needed:
            if not wait:
                show("waiting", None)
                ask(needed)
            return LABELS_NEEDED
    if as_json:
        rows = [result_to_json(result) for result in results]
        say_json(rows[0] if len(rows) == 1 else rows)
    elif campaign:
        _tell_campaign(run, results[0])
    else:
        _tell_planning(run, results)
    return CERTIFIED if all(result.certified for result in results) else NOT_CERTIFIED


def _tell_campaign(run: Run, result: Result) -> None:
    print_certificate(result)
    say(f"  {labels_in_words(result)}")
    if words := neighbours_in_words(result):
        say(f"  {words}")
    hoped, earned = result.harmless_return, result.returns
    if hoped is not None and earned is not None:
        missed = hoped - earned.mean
        if missed > LUCK * earned.std and missed > WORTH * abs(earned.mean):
            say(
                f"  but harmless trajectories among the labels earned {hoped:.5g}, so there is a better policy than "
                "this: try another --seed, more --labels or more --rounds"
            )
    say(f"open {(run.path / 'report.html').resolve()}")


def _tell_planning(run: Run, results: list[Result]) -> None:
    for result in results:
        say((f"seed {result.seed}", "bold"), f": {result.diagnosis}")
        print_certificate(result)
    say(f"the run is in {run.path}")


def _ask(needs: Wanted, store: Path | str, run: Path, as_json: bool, wait: bool) -> None:
    if as_json:
        status = "waiting" if needs.trajectories else "offered"
        say_json({"status": status, "store": str(store), **to_json(needs), "words": needs.words})
    else:
        go_on = "then press Enter" if wait else f"then go on with: sidestep resume {run}"
        tell_people(store, [needs.words, f"  sidestep serve {run}     to label them on a page"], go_on)


@contextlib.contextmanager
def _campaign_bar(loaded: LoadedRun, quiet: bool) -> Iterator[Show]:
    """A progress bar over the rounds, and above it a table with a row for every finished round."""
    rounds = loaded.run.settings(CampaignConfig).rounds
    with progress_bar("round", rounds + 1, quiet) as bar:
        table = _Rows(bar)
        bar.update(completed=len(loaded.run.rounds()))  # of a run that goes on

        def show(stage: str, record: object) -> None:
            bar.hide(stage == "waiting")
            if stage not in ("tested", "offered"):
                bar.update(words=stage)
            if isinstance(record, Round):
                bar.update(completed=record.round + 1)
                table.add(record)

        yield show


class _Rows:
    """Rounds as the rows of a table, whose head comes before the first."""

    def __init__(self, bar: Bar) -> None:
        self.bar, self.begun = bar, False

    def add(self, done: Round) -> None:
        if not self.begun:
            self.bar.say(("  ".join(ROUND_HEADS), "bold"))
            self.begun = True
        cells = zip(round_cells(done), ROUND_HEADS, strict=True)
        self.bar.say("  ".join(cell.rjust(len(head)) for cell, head in cells))


@contextlib.contextmanager
def _planning_bar(loaded: LoadedRun, quiet: bool) -> Iterator[Show]:
    """A progress bar over the epochs, with the figures that matter, from the rows of each test."""
    epochs = loaded.planner_settings(loaded.config.settings, "settings").epochs
    with progress_bar("epoch", epochs, quiet) as bar:
        rows: dict[int, PlanRow] = {}  # the newest of every seed

        def show(stage: str, record: object) -> None:
            if isinstance(record, PlanRow):
                rows[record.seed_index] = record
                mean = np.mean([row.mean_return for row in rows.values()])
                feasible = sum(bool(row.feasible) for row in rows.values())
                costs = np.mean([row.mean_costs for row in rows.values()], axis=0)
                words = f"return {mean:.5g}, cost {np.round(costs, 3)}, {feasible} of {len(rows)} feasible"
                bar.update(record.epoch, words)

        yield show
