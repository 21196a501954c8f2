"""The main job from Python: `sidestep.solve(model, expert=rule, constraints=["none>=0.95"], labels=300)`.

The command line goes through the same functions: `campaign.job.begin` checks and opens a run, `work_on` takes it to its
end.
"""

import difflib
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx

from sidestep.campaign.campaign import continue_campaign
from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.job import Job, begin
from sidestep.campaign.once import continue_once
from sidestep.campaign.setting import Wait
from sidestep.campaign.words import ROUND_HEADS, round_cells
from sidestep.certification.records import Audit, Result
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.options import options_of
from sidestep.deploy.answers import Answer, load
from sidestep.planning.options import plan_options
from sidestep.planning.rows import PlanRow
from sidestep.policies.networks import register_network
from sidestep.report.html import write_report
from sidestep.report.scenes import keep_scenes
from sidestep.runs.loaded import LoadedRun
from sidestep.runs.records import Round
from sidestep.runtime.compilation_cache import keep_compiled_programs
from sidestep.safety.base import SafetyModel
from sidestep.safety.io import register_safety


@dataclass(frozen=True)
class Event:
    """What a callback is told: what is going on, in a word, and its record where there is one.

    - exploring, fitting, planning, polishing, verifying, second opinions, auditing: no record, such work begins
    - tested: a `PlanRow`, a test of a policy, as in metrics.jsonl
    - round: a `Round`, which has ended
    - audited: an `Audit`
    - finished: the `Result`
    """

    stage: str
    record: Round | Audit | PlanRow | Result | None = None


Callback = Callable[[Event], object]


def solve(
    model: object,
    expert: object = None,
    constraints: str | Sequence[str] = (),
    labels: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    *,
    callback: Callback | Sequence[Callback] = (),
    safety: object = None,
    policy: type[eqx.Module] | None = None,
    categories: str | None = None,
    method: str = "default",
    verbose: bool = True,
    **options: Any,
) -> Answer:
    """From no label to a certified policy: rounds of asking, fitting and planning, then an audit on fresh rollouts.

    Args:
        model: What MODEL is on the command line, or an object with `spec`, `reset` and `step`, or a class of such.
        expert: A function of trajectories, a rule's name or `file.py:function`, a label store (people label in it), or
            an `Expert`; without it the model's own rule, or people.
        constraints: "none>=0.95", "severe<=0.01", "mild+<=0.05" (mild or worse); several hold together.
        labels: How many labels may influence the answer; those of the audit come on top.
        seed: Every random number follows from it.
        out: The run's folder; without it a temporary one.
        callback: One function or several, called with an `Event` whenever something was done.
        safety: A fitted safety model or its file: plan once against it; or a class of safety models, which the campaign
            fits in place of its own.
        policy: A class of networks for the policies: `policy(inputs, outputs, *, key)`.
        categories: The scale on which people label, best first: "none < mild < severe" without it.
        method: What `--method` is on the command line.
        verbose: Print a row per round, and where the run is, on standard error.
        options: Every other option of `sidestep plan`, by its name: rounds=3, round_epochs=50, learning_rate=1e-3.

    Where people have to label first, `LabelsNeeded` says which trajectories of which store; `resume` goes on then.
    """
    folder = _folder(out, verbose)
    campaign, planning = sorted_options(options, labels)
    own_safety = register_safety(safety) if isinstance(safety, type) else None
    job = Job(
        model=model,
        expert=expert,
        constraints=(constraints,) if isinstance(constraints, str) else tuple(constraints),
        categories=categories,
        safety=None if own_safety else _fitted(safety),
        safety_kind=own_safety.kind if own_safety else "",
        network=register_network(policy).__name__ if policy is not None else "",
        method=method,
        seed=seed,
        out=folder,
        campaign=campaign,
        planning=planning,
    )
    return _finished(begin(job), callback, verbose)


def resume(
    path: str | Path,
    *,
    model: object = None,
    expert: object = None,
    callback: Callback | Sequence[Callback] = (),
    trust: bool = False,
    verbose: bool = True,
) -> Answer:
    """Go on with a run where it stopped, bit for bit; a finished one is given as it is.

    A run whose model or expert was a Python object needs that object again.
    """
    return _finished(load(path, trust, model=model, expert=expert), callback, verbose)


def work_on(loaded: LoadedRun, show: Callable[[str, Any], None], wait: Wait | None = None) -> list[Result]:
    """Take a run to its end and write its report; one result, or one per seed of a planning.

    Raises LabelsNeeded where people have to label first, and nobody waits for them.
    """
    run = loaded.run
    with run.held():
        if loaded.config.kind == "campaign":
            finished = [(run, continue_campaign(loaded, show, wait))]
        else:
            finished = continue_once(loaded, show)
        for folder, _ in finished:
            keep_scenes(folder.path, loaded.model, loaded.expert)
        if loaded.config.kind == "campaign":
            write_report(run.path)
    for _, result in finished:
        show("finished", result)
    return [result for _, result in finished]


def _finished(loaded: LoadedRun, callback: Callback | Sequence[Callback], verbose: bool) -> Answer:
    callbacks = [callback] if callable(callback) else list(callback)
    watchers = [*callbacks, _printed] if verbose else callbacks

    def show(stage: str, record: Any) -> None:
        event = Event(stage, record)
        for watcher in watchers:
            watcher(event)

    keep_compiled_programs()
    try:
        work_on(loaded, show)
    except LabelsNeeded as needed:
        raise needed.with_place(loaded.store_path, loaded.run.path) from None
    return Answer(loaded.run.path, True, model=loaded.model, expert=loaded.expert)


def _folder(out: str | Path | None, verbose: bool) -> Path:
    if out is not None:
        return Path(out)
    folder = Path(tempfile.mkdtemp(prefix="sidestep-")) / "run"
    if verbose:
        print(f"the run is in the temporary folder {folder}; give out=... to choose one", file=sys.stderr)
    return folder


def _fitted(safety: object) -> Path | SafetyModel | None:
    if safety is None or isinstance(safety, SafetyModel):
        return safety
    if isinstance(safety, str | Path):
        return Path(safety)
    what = type(safety).__name__
    raise InputError(f"expected a fitted safety model, its file, or a class, not a {what}", place="safety")


def sorted_options(options: dict[str, Any], labels: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the campaign and of the planner, by their names on the command line."""
    of_campaign, of_planner = options_of(CampaignConfig), plan_options()
    for name in options:
        if name not in of_campaign and name not in of_planner:
            close = difflib.get_close_matches(name, [*of_campaign, *of_planner], 1)
            hint = f"did you mean '{close[0]}'?" if close else "see `sidestep plan --help-all` for all of them"
            raise InputError(f"solve has no option '{name}'; {hint}")
    given = options if labels is None else {"labels": labels, **options}
    return (
        {name: value for name, value in given.items() if name in of_campaign},
        {name: value for name, value in given.items() if name in of_planner},
    )


def _printed(event: Event) -> None:
    """Progress as plain lines on standard error, which a notebook shows too."""
    if not isinstance(event.record, Round):
        return
    cells = round_cells(event.record)
    if event.record.round == 0:
        print("  ".join(ROUND_HEADS), file=sys.stderr)
    print("  ".join(cell.rjust(len(head)) for cell, head in zip(cells, ROUND_HEADS, strict=True)), file=sys.stderr)
