"""`sidestep reproduce`: run an experiment's jobs, then make its tables and figures from their files."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sidestep.cli.commands import Reproduce
from sidestep.cli.console import say, say_json
from sidestep.cli.work import stoppable
from sidestep.cluster.engine import open_cluster
from sidestep.cluster.jobs import Job, Jobs
from sidestep.core.errors import InputError
from sidestep.reproduce import experiments as plans
from sidestep.reproduce.experiments import FULL, QUICK, GridMap, Size
from sidestep.reproduce.figures import box_plots, continuous_curve, grid_curve, save_figure
from sidestep.reproduce.tables import (
    continuous_rows,
    markdown,
    non_markov_rows,
    table1_by_map,
    table1_rows,
    write_table,
)
from sidestep.runtime.files import atomic_write

Document = dict[str, Any]  # a table or figures, as they are written
EXPERIMENTS = ("table1", "continuous", "curves", "nonmarkov-grid")
QUICK_NOTE = "quick version: fewer maps, runs, labels and epochs than the experiment; not to be compared with the paper"


@dataclass(frozen=True)
class Request:
    """What was asked for, and where it goes."""

    command: str
    size: Size
    seeds: tuple[int, ...]
    maps: tuple[GridMap, ...]
    non_markov_maps: tuple[GridMap, ...]

    def about(self, title: str, jobs: Jobs, of: Sequence[Job]) -> Document:
        """How a table came about, for its head."""
        records = [jobs.record(job) for job in of]
        seconds = sum(record.seconds for record in records if record)
        note = {"note": QUICK_NOTE} if self.size.quick else {}
        return {
            "title": title + (" (quick version)" if self.size.quick else ""),
            **note,
            "command": self.command,
            "seeds": ", ".join(map(str, self.seeds)),
            "epochs": self._epochs(),
            "date": datetime.now(UTC).date().isoformat(),
            "seconds of all jobs, added up": round(seconds),
        }

    def _epochs(self) -> str:
        size = self.size
        shown = {
            "MBGE and MF-Lagrange on grids": size.grid_epochs,
            "continuous": size.continuous_epochs,
            "non-Markovian grids": size.non_markov_epochs,
        }
        return "; ".join(f"{name} {epochs or 'as the preset'}" for name, epochs in shown.items())


def reproduce(asked: Reproduce) -> int:
    """Do the jobs that are not done, write tables and figures, print the tables."""
    request = request_of(asked)
    chosen = EXPERIMENTS if asked.what == "all" else (asked.what,)
    jobs_of = {name: JOBS[name](request) for name in chosen}
    every = list({job.name: job for jobs in jobs_of.values() for job in jobs}.values())
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", place=f"--out {asked.out}") from error
    jobs, quiet = Jobs(asked.out, request.command), asked.quiet or asked.json
    if asked.quick:
        say(QUICK_NOTE, stderr=True, quiet=quiet)
    begun = time.perf_counter()

    def tell(text: str) -> None:
        say(f"[{time.perf_counter() - begun:7.0f} s] {text}", stderr=True, quiet=quiet)

    advice = "give the same command to go on"
    with stoppable(advice, quiet), open_cluster(asked.cluster, asked.workers) as cluster:
        jobs.run(every, tell, cluster)
    _show({name: _WRITERS[name](request, jobs, jobs_of[name]) for name in chosen}, asked.out, asked.json)
    return 0


def request_of(asked: Reproduce) -> Request:
    size = _size(asked.quick, asked.epochs)
    seeds = asked.seeds or (1 if asked.what == "curves" else size.seeds)
    found = tuple(plans.find_maps(asked.maps, size))
    return Request(
        command=_command(asked),
        size=size,
        seeds=tuple(range(asked.seed, asked.seed + seeds)),
        maps=found,
        non_markov_maps=tuple(plans.non_markov_maps(asked.maps, found)),
    )


def _size(quick: bool, epochs: int | None) -> Size:
    size = QUICK if quick else FULL
    if epochs is None:
        return size
    return replace(size, grid_epochs=epochs, continuous_epochs=epochs, non_markov_epochs=epochs)


def _command(asked: Reproduce) -> str:
    options = {"--maps": asked.maps, "--seed": asked.seed or None, "--seeds": asked.seeds, "--epochs": asked.epochs}
    given = [f"{name} {value}" for name, value in options.items() if value is not None]
    return " ".join(["sidestep reproduce", asked.what, *(["--quick"] if asked.quick else []), *given])


def _write_table1(request: Request, jobs: Jobs, of: list[Job]) -> Document:
    arguments = (jobs, request.maps, request.seeds, request.size)
    about = request.about("Table 1: Markovian side effects on grid maps", jobs, of)
    by_map = about | {"title": f"{about['title']}, map by map"}
    write_table(jobs.out, "table1-by-map", table1_by_map(*arguments), by_map)
    return write_table(jobs.out, "table1", table1_rows(*arguments), about)


def _write_continuous(request: Request, jobs: Jobs, of: list[Job]) -> Document:
    about = request.about("Continuous models: tests of the last 200 epochs, sampled actions", jobs, of)
    files = save_figure(jobs.out, "continuous", box_plots(jobs, request.seeds, request.size))
    rows = continuous_rows(jobs, request.seeds, request.size)
    return write_table(jobs.out, "continuous", rows, about) | {"figures": files}


def _write_curves(request: Request, jobs: Jobs, of: list[Job]) -> Document:
    files = []
    first = next((grid for grid in request.maps if grid.domain == "boxpushing"), None)
    if first is not None:
        figure = grid_curve(jobs, first, request.seeds[0], request.size)
        files += save_figure(jobs.out, "curve-boxpushing", figure)
    for domain in plans.CONTINUOUS_METHODS:
        figure = continuous_curve(jobs, domain, request.seeds, request.size)
        files += save_figure(jobs.out, f"curve-{domain}", figure)
    document = request.about("One MBGE run each", jobs, of) | {"figures": files}
    atomic_write(jobs.out / "curves.json", json.dumps(document, indent=1))
    return document


def _write_non_markov(request: Request, jobs: Jobs, of: list[Job]) -> Document:
    about = request.about("Side effects of whole trajectories on grid maps", jobs, of)
    rows = non_markov_rows(jobs, request.non_markov_maps, request.seeds, request.size)
    return write_table(jobs.out, "nonmarkov-grid", rows, about)


JOBS: dict[str, Callable[[Request], list[Job]]] = {
    "table1": lambda request: plans.table1_jobs(request.maps, request.seeds, request.size),
    "continuous": lambda request: plans.continuous_jobs(request.seeds, request.size),
    "curves": lambda request: plans.curve_jobs(request.maps, request.seeds, request.size),
    "nonmarkov-grid": lambda request: plans.non_markov_jobs(request.non_markov_maps, request.seeds, request.size),
}
_WRITERS: dict[str, Callable[[Request, Jobs, list[Job]], Document]] = {
    "table1": _write_table1,
    "continuous": _write_continuous,
    "curves": _write_curves,
    "nonmarkov-grid": _write_non_markov,
}


def _show(written: dict[str, Document], out: Path, as_json: bool) -> None:
    if as_json:
        say_json(written)
        return
    for document in written.values():
        about = {key: value for key, value in document.items() if key not in ("rows", "figures")}
        say(markdown(document["rows"], about) if "rows" in document else f"# {about['title']}\n")
        for file in document.get("figures", []):
            say(str(out / file))
    say(f"tables, figures and the jobs behind them are in {out}")
