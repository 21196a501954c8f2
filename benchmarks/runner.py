"""What all benchmarks share: options, and the runner of `sidestep.cluster.jobs`.

Jobs that were done are not done again, unless the option --again says so.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sidestep.cluster.engine import open_cluster
from sidestep.cluster.jobs import Figures, Job, Jobs, command

RESULTS = Path(__file__).parent / "results"


def parser(doc: str | None, name: str, first_seed: int | None = None, seeds: int = 5) -> argparse.ArgumentParser:
    """Options of a benchmark; those of seeds only where it has a first one."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--runs", type=Path, default=Path("runs") / name, help="folder of the jobs")
    made.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    made.add_argument("--again", action="store_true", help="do also the jobs that were done")
    made.add_argument("--cluster", help="local, or the address of a Dask scheduler; without it this process")
    made.add_argument("--workers", type=int, help="processes of a local cluster")
    if first_seed is not None:
        made.add_argument("--seeds", type=int, default=seeds)
        made.add_argument("--first-seed", type=int, default=first_seed)
    return made


def seeds_of(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + options.seeds)


def results(jobs: Sequence[Job], options: argparse.Namespace) -> list[Figures]:
    """What the jobs found, in their order; those that are not done are done now."""
    runner = Jobs(options.runs, command())
    for job in jobs if options.again else ():
        runner.file(job.name).unlink(missing_ok=True)
    with open_cluster(options.cluster, options.workers) as cluster:
        runner.run(jobs, lambda text: print(text, flush=True), cluster)
    return [runner.result(job) for job in jobs]


def commits(jobs: Sequence[Job], options: argparse.Namespace) -> list[str]:
    """The commit of the code that did each of these jobs."""
    records = [Jobs(options.runs).record(job) for job in jobs]
    return [record.commit if record else "" for record in records]


def merged(rows: Sequence[Figures], new: Sequence[Figures], by: Sequence[str]) -> list[Figures]:
    """The rows, where a new one takes the place of the one with the same values of `by`, or comes last."""
    place = {tuple(row[name] for name in by): row for row in (*rows, *new)}
    return list(place.values())
