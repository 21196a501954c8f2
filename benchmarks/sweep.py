"""Sweeps: the frontier against the linear program, a worker killed under way, and how far more workers help.

    python benchmarks/sweep.py frontier [--tolerances none>=0.5,0.8,0.9,0.95,0.99]     Boxpushing and Driving
    python benchmarks/sweep.py kill [--seeds 5] [--labels 2000]                        Navigation, two workers
    python benchmarks/sweep.py scaling [--folders RUNS/driving]                        two workers, and 100 on paper

writes sweep-frontier, sweep-kill, sweep-scaling and sweep-schedule (.json, .md). `kill` makes the same sweep twice, the
second time with a worker killed in its first round, and compares the answers bit by bit. `scaling` measures the same
jobs with one worker and with two, and computes from the measured seconds of a sweep's jobs how long 1 to 100 workers
would take: jobs are given out in their order as soon as what they need is done.
"""

import heapq
import json
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner import parser

from sidestep.cluster.engine import open_cluster
from sidestep.cluster.jobs import Figures, Job, Jobs
from sidestep.frontier.records import Frontier, Request, levels, ordered_tolerances
from sidestep.frontier.sweep import Sweep
from sidestep.reproduce.tables import heading, write_table

GRIDS = ("boxpushing", "driving")
WORKERS = (1, 2, 5, 10, 20, 100)
OVERHEAD = 1.0  # seconds to send a job and to take its files, at most what was measured


def say(text: str) -> None:
    print(text, flush=True)


def frontier(options) -> None:
    """Every point against the optimum of the linear program at the same tolerance."""
    rows = []
    for model in options.models:
        campaign = {"step_tolerance": "chance", "rollouts": options.rollouts}
        request = Request(model, ordered_tolerances(options.tolerances), seeds=options.seeds, campaign=campaign)
        found = Sweep(request, options.runs / model).run(options.cluster, options.workers, say)
        rows += [
            {
                "model": model,
                "tolerance": level.tolerance,
                "certified": f"{level.certified} of {level.seeds}",
                "exact optimum": level.exact,
                "mean return, exact": None if level.gap is None else (level.exact or 0.0) - level.gap,
                "below the optimum": level.gap,
                "observed return": level.mean,
                "labels": sum(point.new_labels for point in found.at(level.tolerance, level.method)),
            }
            for level in levels(found)
        ]
    title = "The frontier of labelled steps against the linear program"
    write_table(options.out, "sweep-frontier", rows, heading(title, range(options.seeds)))


def kill(options) -> None:
    request = Request(
        options.model,
        ordered_tolerances(options.tolerances),
        seed=options.first_seed,
        seeds=options.seeds,
        campaign={"labels": options.labels},
    )
    killed: list[int] = []

    def kill_one(text: str) -> None:
        say(text)
        if "round 0" in text and not killed:
            victim = multiprocessing.active_children()[0]
            killed.append(victim.pid or 0)
            victim.kill()

    whole = Sweep(request, options.runs / "whole").run("local", 2, say)
    cut = Sweep(request, options.runs / "cut").run("local", 2, kill_one)
    same = _bare(whole, options.runs / "whole") == _bare(cut, options.runs / "cut")
    row = {
        "model": options.model,
        "points": len(cut.points),
        "workers killed": len(killed),
        "identical": same,
        "certified": sum(point.certified for point in cut.points),
        "labels": cut.labels,
        "labels of as many separate campaigns": cut.used_labels,
        "share": cut.labels / cut.used_labels,
    }
    write_table(options.out, "sweep-kill", [row], heading("A sweep whose worker is killed", range(options.seeds)))


def _bare(found: Frontier, folder: Path) -> list:
    """Everything but the time that it took."""
    policies = [(folder / point.run / "policy.safetensors").read_bytes() for point in found.points]
    return [[replace(point, seconds=0.0) for point in found.points], policies]


@dataclass(frozen=True)
class Busy:
    """A job of a fixed amount of work."""

    number: int
    steps: int

    def run(self, out: Path) -> Figures:
        value = 1.0
        begun = time.process_time()
        for step in range(self.steps):
            value = (value * 1.000001 + step) % 1.7
        return {"value": value, "cpu": time.process_time() - begun}


def scaling(options) -> None:
    rows = [_measured(workers, options) for workers in (1, 2)]
    rows[1]["efficiency"] = rows[0]["seconds"] / (2 * rows[1]["seconds"])
    about = heading("Workers: measured, and on paper", [0]) | {"load of the machine": f"{os.getloadavg()[0]:.1f}"}
    write_table(options.out, "sweep-scaling", rows, about)
    paper = [row for folder in options.folders for row in _on_paper(folder)]
    if paper:
        write_table(options.out, "sweep-schedule", paper, heading("A sweep on 1 to 100 workers, on paper", [0]))


def _measured(workers: int, options) -> Figures:
    jobs = [Job(f"busy-{n}", Busy(n, options.steps)) for n in range(options.jobs)]
    runner = Jobs(options.runs / f"busy-{workers}")
    with open_cluster("local", workers) as cluster:
        runner.run([Job("warm", Busy(99, 1))], say, cluster)
        for job in jobs:
            runner.file(job.name).unlink(missing_ok=True)
        begun = time.perf_counter()
        runner.run(jobs, say, cluster)
        seconds = time.perf_counter() - begun
    cpu = sum(runner.result(job)["cpu"] for job in jobs)
    return {"workers": workers, "jobs": len(jobs), "CPU seconds": cpu, "seconds": seconds, "efficiency": 1.0}


def _on_paper(folder: Path) -> list[Figures]:
    """From the seconds of the jobs of a finished sweep."""
    names = [file.stem for file in sorted((folder / "jobs").glob("*.json"))]
    records = {name: Jobs(folder).file(name).read_text() for name in names}
    found = {name: json.loads(text) for name, text in records.items()}
    needs = {name: _needs(name, found) for name in found}
    seconds = {name: one["seconds"] + OVERHEAD for name, one in found.items()}
    longest = max(_path(name, needs, seconds) for name in found)
    total = sum(seconds.values())
    rows = []
    for workers in WORKERS:
        length = makespan(needs, seconds, workers)
        rows.append(
            {
                "sweep": folder.name,
                "jobs": len(found),
                "workers": workers,
                "seconds": length,
                "speed-up": total / length,
                "efficiency": total / length / workers,
                "limited by": "the longest chain" if length <= 1.05 * longest else "the workers",
            }
        )
    return rows


def _needs(name: str, found: Mapping[str, Figures]) -> list[str]:
    """A point needs the job that made the folder that it goes on from."""
    source = found[name]["settings"].get("source")
    return [other for other in found if source and found[other]["settings"].get("folder") == source]


def _path(name: str, needs: Mapping[str, list[str]], seconds: Mapping[str, float]) -> float:
    return seconds[name] + max((_path(other, needs, seconds) for other in needs[name]), default=0.0)


def makespan(needs: Mapping[str, Sequence[str]], seconds: Mapping[str, float], workers: int) -> float:
    """How long so many workers take, each taking the first job that is ready."""
    waiting, done, now = list(seconds), set[str](), 0.0
    running: list[tuple[float, str]] = []
    while waiting or running:
        for name in [name for name in waiting if set(needs[name]) <= done][: workers - len(running)]:
            waiting.remove(name)
            heapq.heappush(running, (now + seconds[name], name))
        now, finished = heapq.heappop(running)
        done.add(finished)
    return now


def main() -> None:
    made = parser(__doc__, "sweep", first_seed=0, seeds=1)
    made.add_argument("what", choices=("frontier", "kill", "scaling"))
    made.add_argument("--tolerances", default="none>=0.5,0.8,0.9,0.95,0.99")
    made.add_argument("--rollouts", type=int, default=2000, help="of an audit")
    made.add_argument("--models", nargs="+", default=GRIDS, help="of the frontier")
    made.add_argument("--model", default="navigation")
    made.add_argument("--labels", type=int, default=2000)
    made.add_argument("--jobs", type=int, default=8)
    made.add_argument("--steps", type=int, default=10**7)
    made.add_argument("--folders", type=Path, nargs="*", default=[], help="of finished sweeps")
    options = made.parse_args()
    {"frontier": frontier, "kill": kill, "scaling": scaling}[options.what](options)


if __name__ == "__main__":
    main()
