"""`sidestep.sweep`: the price of safety. Campaigns at several tolerances, which pay for each label once.

Where whole trajectories are labelled, the rounds of one campaign serve all tolerances of a seed: its bank of policies
spans them. Each tolerance then has a last planning, checks and an audit of its own, and these runs are independent.
Where single steps are labelled, each tolerance goes on from the labels of the one before it. Either way a run follows
from its seed and the tolerances alone, so it does not matter who carries it out, or when.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from sidestep import __version__
from sidestep.campaign import job as campaign_job
from sidestep.certification.records import result_from_json
from sidestep.cluster.engine import open_cluster
from sidestep.cluster.jobs import Figures, Job, Jobs, Say, command
from sidestep.core.errors import InputError
from sidestep.core.model import is_finite
from sidestep.core.records import checked, to_json
from sidestep.deploy.solve import sorted_options
from sidestep.frontier.page import write_page
from sidestep.frontier.records import Frontier, Optimum, Point, Request, ordered_tolerances
from sidestep.frontier.work import ExactOptimum, PointRun, SharedRounds
from sidestep.runs.loaded import LoadedRun
from sidestep.runs.records import read_json
from sidestep.runtime.files import atomic_write, read_bytes

ASKED, FOUND = "sweep.json", "frontier.json"
EXACT = "exact"


@overload
def sweep(model: str | Path, tolerances: str | Sequence[str], **options: Any) -> Frontier: ...


@overload
def sweep(model: Sequence[str | Path], tolerances: str | Sequence[str], **options: Any) -> tuple[Frontier, ...]: ...


def sweep(
    model: str | Path | Sequence[str | Path],
    tolerances: str | Sequence[str],
    *,
    out: str | Path,
    expert: str | None = None,
    constraints: str | Sequence[str] = (),
    methods: Sequence[str] = ("default",),
    labels: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    cluster: str | None = None,
    workers: int | None = None,
    say: Say = print,
    **options: Any,
) -> Frontier | tuple[Frontier, ...]:
    """The return that is possible at each tolerance, certified, with labels shared between the tolerances.

    model        what MODEL is on the command line; or several, each of which has a frontier of its own
    tolerances   "none>=0.9,0.95,0.99": one constraint with several bounds
    out          the folder for the frontier and all runs; the same call goes on where it was stopped
    expert       a rule's name or `file.py:function`; without it the model's own
    constraints  further constraints, which hold at every point
    labels       that may influence each policy; most of them are the same ones
    seeds        so many seeds, counted up from `seed`
    cluster      "local", or the address of a Dask scheduler; `workers`: processes of a local one
    options      every other option of `sidestep plan`, by its name
    """
    alone = isinstance(model, str | Path)
    models = (model,) if isinstance(model, str | Path) else tuple(model)
    if not all(isinstance(one, str | Path) for one in models) or not (expert is None or isinstance(expert, str)):
        raise InputError("the jobs of a sweep are data: give model and expert by name, such as file.py:object")
    held = (constraints,) if isinstance(constraints, str) else tuple(constraints)
    campaign, planning = sorted_options(options, labels)
    bounds = ordered_tolerances(tolerances)
    requests = [
        Request(str(one), bounds, held, expert, tuple(methods), seed, seeds, campaign, planning) for one in models
    ]
    if alone:
        return Sweep(requests[0], Path(out)).run(cluster, workers, say)
    return sweep_all(requests, Path(out), cluster, workers, say)


def sweep_all(
    requests: Sequence[Request], out: Path, cluster: str | None, workers: int | None, say: Say
) -> tuple[Frontier, ...]:
    """Sweeps of several models, each in a folder of its own. The jobs of all wait in one line for the workers."""
    parts = [part_of(request.model) for request in requests]
    if not parts or len(set(parts)) < len(parts):
        raise InputError(
            f"expected models whose names differ, since each has a folder, not {', '.join(parts) or 'none'}",
            place="--models",
        )
    sweeps = [Sweep(request, out, part) for request, part in zip(requests, parts, strict=True)]
    every = [one.begin() for one in sweeps]
    with open_cluster(cluster, workers) as engine:
        Jobs(out, command()).run([job for jobs in every for job in jobs], say, engine)
    return tuple(one.finish(jobs) for one, jobs in zip(sweeps, every, strict=True))


class Sweep:
    """The sweep of one model, in its folder; or in a `part` of that of several."""

    def __init__(self, request: Request, out: Path, part: str = "") -> None:
        self.request, self.out, self.jobs = request, out / part, Jobs(out, command())
        self.part = f"{part}/" if part else ""  # where this sweep's folder is, from that of the jobs

    def run(self, cluster: str | None, workers: int | None, say: Say) -> Frontier:
        every = self.begin()
        with open_cluster(cluster, workers) as engine:
            self.jobs.run(every, say, engine)
        return self.finish(every)

    def finish(self, every: Sequence[Job]) -> Frontier:
        """Frontier, figure and page, once all jobs are done."""
        frontier = self._frontier(every)
        atomic_write(self.out / FOUND, json.dumps(to_json(frontier), indent=1) + "\n")
        write_page(self.out, frontier)
        return frontier

    def begin(self) -> list[Job]:
        """Check everything, make the folders that the first jobs read, and list all jobs."""
        self._require_same()
        new = not (self.out / ASKED).exists()
        self.out.mkdir(parents=True, exist_ok=True)
        atomic_write(self.out / ASKED, json.dumps(to_json(self.request), indent=1) + "\n")
        try:
            return self._begin()
        except InputError:
            if new:  # nothing is left of what was refused
                (self.out / ASKED).unlink()
                shutil.rmtree(self.out / "runs", ignore_errors=True)
            raise

    def _begin(self) -> list[Job]:
        jobs: list[Job] = []
        for method in self.request.methods:
            begun = self._begun(method)
            of_steps = begun.expert.labels_steps and is_finite(begun.model)
            for seed in range(self.request.seed, self.request.seed + self.request.seeds):
                jobs += self._chain(method, seed, begun) if of_steps else self._star(method, seed, begun)
        if of_steps:
            jobs += self._exact(begun)
        return jobs

    def _require_same(self) -> None:
        """A folder holds one sweep; more seeds may be added to it."""
        if not (self.out / ASKED).exists():
            return
        before = checked(Request, read_json(self.out / ASKED), str(self.out / ASKED))
        if to_json(replace(before, seeds=1)) != to_json(replace(self.request, seeds=1)):
            raise InputError("this folder holds another sweep; choose another --out", place=str(self.out))

    def _begun(self, method: str) -> LoadedRun:
        """A run at the strictest tolerance, with everything checked. Nobody works on it; others are made like it."""
        folder = self.out / "runs" / method / "begun"
        if (folder / "config.json").exists():
            return LoadedRun(folder, trust=True)
        asked = campaign_job.Job(
            model=self.request.model,
            expert=self.request.rule,
            constraints=self._constraints(self.request.tolerances[-1]),
            method=method,
            out=folder,
            campaign=self.request.campaign,
            planning=self.request.planning,
        )
        if not asked.is_campaign:
            raise InputError(f"the method {method} knows no constraints; leave it out", place="--methods")
        begun = campaign_job.begin(asked)
        if begun.expert.label is None:
            shutil.rmtree(folder)
            raise InputError(
                "a sweep needs a rule to label by; where people label, plan one tolerance at a time with "
                f"`sidestep plan {self.request.model} --people`",
                place="--rule",
            )
        return begun

    def _like(self, begun: LoadedRun, folder: str, **changes: Any) -> tuple[str, ...]:
        """Make a run like the one that was begun, with these changes in its config; the names of its files."""
        inputs = sorted({copy.file for copy in (begun.config.inputs or {}).values()})
        files = {name: read_bytes(begun.run.path / name) for name in inputs}
        files["config.json"] = (json.dumps(to_json(replace(begun.config, **changes)), indent=1) + "\n").encode()
        for name, content in files.items():
            target = self.jobs.out / folder / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(target, content)
        return tuple(f"{folder}/{name}" for name in files)

    def _star(self, method: str, seed: int, begun: LoadedRun) -> list[Job]:
        """Rounds that all tolerances share, and one run for each that goes on from there."""
        home, rounds = self._home(method, seed), f"{self._job(method)}-seed{seed}-rounds"
        shared = f"{home}/rounds"
        reads = self._like(begun, shared, seed=seed, loosest=self._constraints(self.request.tolerances[0]))
        jobs = [Job(rounds, SharedRounds(shared), reads=reads)]
        for tolerance in self.request.tolerances:
            task = PointRun(f"{home}/{slug(tolerance)}", self._constraints(tolerance), source=shared)
            jobs.append(Job(self._name(method, seed, tolerance), task, needs=(rounds,)))
        return jobs

    def _chain(self, method: str, seed: int, begun: LoadedRun) -> list[Job]:
        """The strictest tolerance first; each of the others has the labels of all before it."""
        home, jobs, source = self._home(method, seed), list[Job](), ""
        for tolerance in reversed(self.request.tolerances):
            folder, constraints = f"{home}/{slug(tolerance)}", self._constraints(tolerance)
            reads = () if source else self._like(begun, folder, seed=seed)
            needs = (jobs[-1].name,) if source else ()
            task = PointRun(folder, constraints, source)
            jobs.append(Job(self._name(method, seed, tolerance), task, home, needs, reads))
            source = folder
        return jobs

    def _exact(self, begun: LoadedRun) -> list[Job]:
        folder, name = str(begun.run.path.relative_to(self.jobs.out)), self._job(EXACT)
        reads = self._like(begun, folder)
        return [
            Job(f"{name}-{slug(tolerance)}", ExactOptimum(folder, self._constraints(tolerance)), name, reads=reads)
            for tolerance in self.request.tolerances
        ]

    def _constraints(self, tolerance: str) -> tuple[str, ...]:
        return (*self.request.constraints, tolerance)

    def _home(self, method: str, seed: int) -> str:
        return f"{self.part}runs/{method}/seed-{seed}"

    def _job(self, name: str) -> str:
        """A job's name, which tells it from those of other models."""
        return self.part.replace("/", "-") + name

    def _name(self, method: str, seed: int, tolerance: str) -> str:
        return f"{self._job(method)}-seed{seed}-{slug(tolerance)}"

    def _frontier(self, jobs: Sequence[Job]) -> Frontier:
        found = {job.name: self.jobs.result(job) for job in jobs}
        points = [
            self._point(method, seed, tolerance, found[self._name(method, seed, tolerance)])
            for method in self.request.methods
            for tolerance in self.request.tolerances
            for seed in range(self.request.seed, self.request.seed + self.request.seeds)
        ]
        exact = [
            Optimum(tolerance, found[name]["value"])
            for tolerance in self.request.tolerances
            if (name := f"{self._job(EXACT)}-{slug(tolerance)}") in found
        ]
        shared = sum(result["labels"] for result in found.values() if "labels" in result)
        return Frontier(
            self.request,
            tuple(points),
            tuple(exact),
            labels=shared + sum(point.new_labels for point in points),
            audit_labels=sum(point.audit_labels for point in points),
            version=__version__,
            command=self.jobs.command,
        )

    def _point(self, method: str, seed: int, tolerance: str, found: Figures) -> Point:
        folder = f"{self._home(method, seed)}/{slug(tolerance)}".removeprefix(self.part)
        result = result_from_json(found["result"], f"{folder}/result.json")
        assert result.constraints is not None
        verdict, earned = result.constraints[-1], result.returns
        return Point(
            tolerance=tolerance,
            method=method,
            seed=seed,
            certified=result.certified,
            estimate=verdict.estimate,
            lower=verdict.lower,
            upper=verdict.upper,
            mean=None if earned is None else earned.mean,
            interval=None if earned is None else earned.interval,
            labels=result.labels_used or 0,
            new_labels=found["new_labels"],
            audit_labels=result.audit_labels,
            seconds=result.seconds,
            run=folder,
            expected=None if result.steps is None else result.steps.planned_return,
        )


def part_of(model: str) -> str:
    """The folder of one model of several: hvac?rooms=24 is hvac-rooms-24, maps/yard.nav is yard.nav."""
    return slug(Path(model).name)


def slug(tolerance: str) -> str:
    """A tolerance as a file's name: none>=0.95 is none-ge-0.95."""
    words = tolerance.replace(">=", "-ge-").replace("<=", "-le-").replace("+", "-or-worse").replace("%", "pc")
    return re.sub(r"[^\w.-]+", "-", words)
