"""Sweeps: the frontier against the linear program, a worker killed under way, and how far more workers help.

    python benchmarks/sweep.py frontier [--tolerances none>=0.5,0.8,0.9,0.95,0.99]     Boxpushing and Driving
    python benchmarks/sweep.py points --tolerances none>=0.8,0.9,0.95,0.99 --seeds 5   Navigation, two workers
    python benchmarks/sweep.py kill --tolerances none>=0.8,0.9,0.95,0.99 --seeds 5     the same, one of them killed
    python benchmarks/sweep.py scaling --seeds 4                                       one worker and two
    python benchmarks/sweep.py schedule --folders RUNS/whole                           1 to 100 workers, on paper

writes sweep-frontier, sweep-points, sweep-kill and scaling (.json, .md). The campaigns of `points` are short ones: 300
labels with marks, few rounds and epochs. `kill` makes the same sweep twice, the second time with a worker killed in
its first round, and compares the answers bit by bit; its campaigns are shorter still, with one hazard model as safety
model, since it asks whether the answers are the same and not how good they are. Both go on where they were stopped.
`scaling` makes a small sweep of Driving with one worker and with two. `schedule` computes from the measured seconds of
a sweep's jobs how long 1 to 100 workers would take, also with more seeds: jobs begin in their order as soon as what
they need is done, and each takes some time of the one process that gives jobs out and takes their files. Both write
their part of `scaling`.
"""

import heapq
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner import parser, seeds_of

from sidestep.cluster.engine import open_cluster
from sidestep.cluster.jobs import Figures, Job, Jobs
from sidestep.frontier.records import Frontier, Request, levels, ordered_tolerances
from sidestep.frontier.sweep import Sweep
from sidestep.reproduce.tables import heading, markdown, write_table
from sidestep.runtime.files import atomic_write

GRIDS = ("boxpushing", "driving")
WORKERS = (1, 2, 5, 10, 20, 100)
SHORT = {  # campaigns of a minute or two, whose audits can prove 0.99
    "marks": True,
    "rounds": 3,
    "searching_rounds": 1,
    "first_fit": 500,
    "later_fit": 200,
    "round_epochs": 50,
    "polish_epochs": 50,
    "rollouts": 5000,
}
QUICK = SHORT | {"learner": "hazard", "members": 1, "first_fit": 200, "later_fit": 100}
CARRIED = 40  # jobs, for what giving out one of them costs
TWO = "none>=0.5,0.9"  # the small sweep of `scaling`
Needs = Mapping[str, Sequence[str]]  # by name: the jobs that come before
Seconds = Mapping[str, float]


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
    write_table(options.out, "sweep-frontier", rows, heading(title, seeds_of(options)))


def points(options) -> None:
    """The frontier of short campaigns, and what their labels cost."""
    whole_folder = options.runs / "whole"
    whole = Sweep(_short(options), whole_folder).run("local", 2, say)
    rows = [
        {
            "tolerance": level.tolerance,
            "certified": f"{level.certified} of {level.seeds}",
            "proven, mean": level.proven,
            "observed, mean": level.estimate,
            "return, mean": level.mean,
        }
        for level in levels(whole)
    ]
    about = heading("Short campaigns on Navigation, which share their labels", seeds_of(options))
    write_table(
        options.out,
        "sweep-points",
        rows,
        about | _labels(whole, options) | {"code of the jobs": _commits(whole_folder)},
    )


def _short(options, campaign: Mapping[str, object] = SHORT) -> Request:
    return Request(
        options.model,
        ordered_tolerances(options.tolerances),
        seed=options.first_seed,
        seeds=options.seeds,
        campaign={"labels": options.labels, **campaign},
    )


def _labels(found: Frontier, options) -> Figures:
    """Against the labels that separate campaigns may use, which are not run here, and that these policies have used."""
    allowed = options.labels * len(found.points)
    return {
        "labels": found.labels,
        "allowed to as many separate campaigns": allowed,
        "share": found.labels / allowed,
        "used by these policies, added up": found.used_labels,
        "share of these": found.labels / found.used_labels,
    }


def kill(options) -> None:
    whole = Sweep(_short(options, QUICK), options.runs / "whole").run("local", 2, say)
    killed = options.runs / "killed.txt"  # once, also where this program is begun again

    def kill_one(text: str) -> None:
        say(text)
        if "round 0" in text and not killed.exists():
            victim = multiprocessing.active_children()[0]
            killed.write_text(f"process {victim.pid} at: {text}\n")
            victim.kill()

    cut = Sweep(_short(options, QUICK), options.runs / "cut").run("local", 2, kill_one)
    row = {
        "model": options.model,
        "points": len(cut.points),
        "workers killed": int(killed.exists()),
        "identical": _bare(whole, options.runs / "whole") == _bare(cut, options.runs / "cut"),
        "certified": sum(point.certified for point in cut.points),
        **_labels(cut, options),
    }
    write_table(
        options.out,
        "sweep-kill",
        [row],
        heading("A sweep whose worker is killed", seeds_of(options)) | {"campaigns": QUICK},
    )


def _bare(found: Frontier, folder: Path) -> list:
    """Everything but the time that it took."""
    policies = [(folder / point.run / "policy.safetensors").read_bytes() for point in found.points]
    return [[replace(point, seconds=0.0) for point in found.points], policies]


def scaling(options) -> None:
    load = os.getloadavg()[0]
    _sweep_of(1, "warm", options, seeds=1)  # so that all programs are compiled
    rows = [_sweep_of(workers, f"workers-{workers}", options, options.seeds) for workers in (1, 2)]
    for row in rows:
        row["efficiency"] = rows[0]["seconds"] / (row["workers"] * row["seconds"])
    about = heading("Measured: one worker and two", seeds_of(options)) | {
        "sweep": f"driving over {TWO}; the start of the workers is included",
        "load of the machine before it": f"{load:.2f}",
    }
    _write_part(options.out, "measured", rows, about)


def schedule(options) -> None:
    serial = _giving(options.folders[0], options.runs / "carry")
    rows = [row for folder in options.folders for row in _on_paper(folder, options.paper_seeds, serial)]
    about = heading("On paper: 1 to 100 workers", seeds_of(options)) | {
        "from": "the seconds of the jobs of finished sweeps; more seeds than were measured repeat those that were",
        "CPU seconds of the giver per job": f"{serial:.3f}, measured with jobs that carry the files of a point",
    }
    for folder in options.folders:
        record = next(iter(_records(folder).values()))
        about[folder.name] = f"{record['command']} ({record['finished'][:10]}, {record['commit']})"
    _write_part(options.out, "on paper", rows, about)


@dataclass(frozen=True)
class Carry:
    """A job without work: it gives back the files that it was sent."""

    number: int
    files: tuple[str, ...]

    def run(self, out: Path) -> Figures:
        return {"files": list(self.files)}


def _giving(folder: Path, copy: Path) -> float:
    """CPU seconds of the process that gives jobs out, for one job with the files of a point of this sweep."""
    point = next(one for one in _records(folder).values() if "result" in one["result"])
    files = tuple(point["result"]["files"])
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / point["settings"]["folder"], copy / point["settings"]["folder"])
    jobs = [Job(f"carry-{number}", Carry(number, files), reads=files) for number in range(-1, CARRIED)]
    with open_cluster("local", 1) as cluster:
        Jobs(copy).run(jobs[:1], say, cluster)
        begun = time.process_time()
        Jobs(copy).run(jobs[1:], say, cluster)
        return (time.process_time() - begun) / CARRIED


def _write_part(out: Path, part: str, rows: list[Figures], about: Figures) -> None:
    """The other part stays as it is."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "scaling.json"
    parts = {**(json.loads(file.read_text()) if file.exists() else {}), part: {**about, "rows": rows}}
    atomic_write(file, json.dumps(parts, indent=1) + "\n")
    tables = [markdown(one["rows"], {key: one[key] for key in one if key != "rows"}) for one in parts.values()]
    text = "\n".join(f"#{table}" for table in tables)
    atomic_write(out / "scaling.md", f"# More workers: measured, and on paper\n\n{text}")


def _sweep_of(workers: int, name: str, options, seeds: int) -> Figures:
    """A small sweep on so many workers: seconds by the clock, and of its jobs."""
    folder = options.runs / name
    shutil.rmtree(folder, ignore_errors=True)
    campaign = {"step_tolerance": "chance", "rollouts": options.rollouts}
    request = Request("driving", ordered_tolerances(TWO), seed=options.first_seed, seeds=seeds, campaign=campaign)
    begun = time.perf_counter()
    Sweep(request, folder).run("local", workers, say)
    seconds = time.perf_counter() - begun
    found = _records(folder)
    return {
        "workers": workers,
        "jobs": len(found),
        "seconds": seconds,
        "seconds of all jobs": sum(one["seconds"] for one in found.values()),
    }


def _commits(folder: Path) -> str:
    return ", ".join(sorted({one["commit"] for one in _records(folder).values()}))


def _records(folder: Path) -> dict[str, Figures]:
    return {file.stem: json.loads(file.read_text()) for file in sorted((folder / "jobs").glob("*.json"))}


def _on_paper(folder: Path, seeds: Sequence[int], serial: float) -> list[Figures]:
    """Schedules of a finished sweep, and of the same sweep with more seeds."""
    found = _records(folder)
    return [
        _schedule(folder.name, count, *_repeated(found, count), workers, serial)
        for count in (len(_seeds_in(found)), *seeds)
        for workers in WORKERS
    ]


def _schedule(name: str, seeds: int, needs: Needs, seconds: Seconds, workers: int, serial: float) -> Figures:
    """How long it takes, and the largest of what no schedule can be shorter than."""
    least = {
        "the longest chain of jobs": max(_path(one, needs, seconds) for one in seconds),
        "the number of workers": sum(seconds.values()) / workers,
        "the process that gives out jobs": serial * len(seconds),
    }
    length = makespan(needs, seconds, workers, serial)
    return {
        "sweep": name,
        "seeds": seeds,
        "jobs": len(seconds),
        "workers": workers,
        "seconds": length,
        "efficiency": sum(seconds.values()) / length / workers,
        "limited by": max(least, key=lambda one: least[one]),
        "which takes": max(least.values()),
    }


def _seeds_in(found: Mapping[str, Figures]) -> list[str]:
    return sorted({seed for name in found if (seed := _seed(name))})


def _seed(name: str) -> str:
    return next((word for word in name.split("-") if word.startswith("seed")), "")


def _repeated(found: Mapping[str, Figures], count: int) -> tuple[Needs, Seconds]:
    """What jobs need and how long they take, with so many seeds: those that were measured, again and again."""
    measured, needs, seconds = _seeds_in(found), dict[str, list[str]](), dict[str, float]()
    for place in range(count):
        for name in (one for one in found if _seed(one) == measured[place % len(measured)]):
            seconds[f"{place}/{name}"] = found[name]["seconds"]
            needs[f"{place}/{name}"] = [f"{place}/{other}" for other in _needs(name, found)]
    for name in (one for one in found if not _seed(one)):
        needs[name], seconds[name] = [], found[name]["seconds"]
    return needs, seconds


def _needs(name: str, found: Mapping[str, Figures]) -> list[str]:
    """A point needs the job that made the folder that it goes on from."""
    source = found[name]["settings"].get("source")
    return [other for other in found if source and found[other]["settings"].get("folder") == source]


def _path(name: str, needs: Needs, seconds: Seconds) -> float:
    return seconds[name] + max((_path(other, needs, seconds) for other in needs[name]), default=0.0)


def makespan(needs: Needs, seconds: Seconds, workers: int, serial: float = 0.0) -> float:
    """How long so many workers take, each taking the first job that is ready from the one who gives them out."""
    waiting, done, now, free = list(seconds), set[str](), 0.0, 0.0
    running: list[tuple[float, str]] = []
    while waiting or running:
        for name in [name for name in waiting if set(needs[name]) <= done][: workers - len(running)]:
            waiting.remove(name)
            free = max(now, free) + serial
            heapq.heappush(running, (free + seconds[name], name))
        now, finished = heapq.heappop(running)
        done.add(finished)
    return now


PARTS = {"frontier": frontier, "points": points, "kill": kill, "scaling": scaling, "schedule": schedule}


def main() -> None:
    made = parser(__doc__, "sweep", first_seed=0, seeds=1)
    made.add_argument("what", choices=list(PARTS))
    made.add_argument("--tolerances", default="none>=0.5,0.8,0.9,0.95,0.99")
    made.add_argument("--rollouts", type=int, default=2000, help="of an audit")
    made.add_argument("--models", nargs="+", default=GRIDS, help="of the frontier")
    made.add_argument("--model", default="navigation")
    made.add_argument("--labels", type=int, default=300, help="of each campaign of kill")
    made.add_argument("--paper-seeds", type=int, nargs="*", default=[100], help="of the sweeps on paper")
    made.add_argument("--folders", type=Path, nargs="*", default=[], help="of finished sweeps")
    options = made.parse_args()
    PARTS[options.what](options)


if __name__ == "__main__":
    main()
