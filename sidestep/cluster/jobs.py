"""The runner of experiments: jobs as data, each with a file of its own, so that a stopped run continues where it was.

A task is a frozen dataclass: its fields are all that its result depends on, so that it can be done in another process
and its file says how its numbers came about. A job has an address: the hash of its task and of all that it reads. What
was done under the same address is not done again. `sidestep reproduce` and the benchmarks use the same runner. Without
a cluster the jobs are done here, one after another; with one, see `engine.py`.
"""

import hashlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax

from sidestep import __version__
from sidestep.core.errors import InputError
from sidestep.core.records import checked, to_json
from sidestep.runtime.files import append, atomic_write, read_bytes

if TYPE_CHECKING:
    from sidestep.cluster.engine import Cluster

Figures = dict[str, Any]  # what a job found, as JSON; "files" are those that it wrote, in the jobs' folder
Say = Callable[[str], None]
WHERE = ("--out", "--runs", "--picture", "--workers", "--cluster")  # options that no result depends on
LOG = logging.getLogger("sidestep.jobs")  # what tasks tell of their progress
LOG.setLevel(logging.INFO)


class Task(Protocol):
    """What a job does; a frozen dataclass."""

    def run(self, out: Path) -> Figures:
        """Do it; files go into `out`."""


@dataclass(frozen=True)
class Job:
    """A task with its name, and what it reads.

    Jobs of one `group` are done one after another, by one process if possible, since they share compiled programs.
    """

    name: str
    task: Task
    group: str = ""
    needs: tuple[str, ...] = ()  # names of the jobs whose files it reads
    reads: tuple[str, ...] = ()  # files of the jobs' folder that were there before all jobs

    @property
    def kind(self) -> str:
        """Where the task's class is found, also when its file is the program that runs."""
        module = type(self.task).__module__
        return f"{Path(sys.argv[0]).stem if module == '__main__' else module}:{type(self.task).__qualname__}"


@dataclass(frozen=True)
class Record:
    """A job's file."""

    name: str
    kind: str
    settings: Figures
    command: str
    version: str
    commit: str
    finished: str
    seconds: float
    result: Figures
    address: str = ""


@cache
def commit() -> str:
    """The commit of the code that runs, with "+" where files were changed since; empty where git cannot tell."""
    here = Path(__file__).parent
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return shown.stdout.strip()


def command() -> str:
    """What was typed, without where files go and who does the work."""
    program, given = Path(sys.argv[0]), iter(sys.argv[1:])
    name = f"python benchmarks/{program.name}" if program.suffix == ".py" else program.name
    name = "sidestep" if program.name == "__main__.py" else name  # python -m sidestep
    return " ".join([name, *(word for word in given if not (word in WHERE and next(given)))])


class Jobs:
    """The jobs of one folder."""

    def __init__(self, out: Path, command: str = "") -> None:
        self.out, self.folder, self.command = out, out / "jobs", command

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    @property
    def log(self) -> Path:
        """What all jobs told, wherever they were done."""
        return self.folder / "log.txt"

    def record(self, job: Job, address: str = "") -> Record | None:
        """What the job's file says; None when it was not done yet, or with other settings, or from other files."""
        file = self.file(job.name)
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read ({error}); remove it", place=str(file)) from None
        if not isinstance(found, dict) or "commit" not in found:
            return None  # of an earlier version
        record = checked(Record, found, str(file))
        same = record.kind == job.kind and record.settings == to_json(job.task)
        if not same or (address and record.address and record.address != address):
            return None
        return record if all((self.out / name).is_file() for name in record.result.get("files", [])) else None

    def result(self, job: Job) -> Figures:
        record = self.record(job)
        assert record is not None, f"the job {job.name} was not done"
        return record.result

    def addresses(self, jobs: Sequence[Job]) -> dict[str, str]:
        """For each job the hash of its task, of the files that it reads, and of the jobs that it needs."""
        by_name, found = {job.name: job for job in jobs}, dict[str, str]()

        def address(job: Job) -> str:
            if job.name not in found:
                needs = [address(by_name[name]) for name in job.needs if name in by_name]
                reads = [hashlib.sha256(read_bytes(self.out / file)).hexdigest() for file in job.reads]
                about = json.dumps([job.kind, to_json(job.task), needs, reads], sort_keys=True)
                found[job.name] = hashlib.sha256(about.encode()).hexdigest()
            return found[job.name]

        return {job.name: address(job) for job in jobs}

    def do(self, job: Job, address: str = "") -> None:
        """Do the job in this process and write its file."""
        begun = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)
        result = job.task.run(self.out)
        settings = to_json(job.task)
        assert isinstance(settings, dict)
        now, seconds = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter() - begun
        record = Record(
            job.name, job.kind, settings, self.command, __version__, commit(), now, seconds, result, address
        )
        atomic_write(self.file(job.name), json.dumps(to_json(record), indent=1, allow_nan=False) + "\n")

    def run(self, jobs: Sequence[Job], say: Say, cluster: "Cluster | None" = None) -> None:
        """Do what is not done yet: here, or on a cluster, which finds the same to the last bit."""
        addresses = self.addresses(jobs)
        waiting = _groups([job for job in jobs if self.record(job, addresses[job.name]) is None])
        left = sum(len(group) for group in waiting)
        say(f"{left} jobs to do, {len(jobs) - left} found done")
        self.folder.mkdir(parents=True, exist_ok=True)
        if cluster is not None:
            cluster.run(self, jobs, waiting, addresses, say)
            return
        while waiting:
            group = next(iter(ready(waiting, waiting)), None)
            assert group is not None, "jobs need one another in a circle"
            for job in group:
                with telling(lambda text, name=job.name: self.tell(name, text, say)):
                    self.do(job, addresses[job.name])
                say(f"done: {job.name}")
            waiting.remove(group)
            jax.clear_caches()  # compiled programs of one group serve no other, and together take gigabytes

    def tell(self, job: str, text: str, say: Say) -> None:
        """A job's progress: shown, and kept with the time in one file for all jobs."""
        append(self.log, f"{datetime.now(UTC).isoformat(timespec='seconds')} {job}: {text}\n")
        say(f"{job}: {text}")

    def inputs(self, job: Job, jobs: Mapping[str, Job]) -> dict[str, bytes]:
        """All files that the job reads, by their names in this folder."""
        names = list(job.reads)
        for need in job.needs:
            if need in jobs:
                names += [f"jobs/{need}.json", *self.result(jobs[need]).get("files", [])]
        return {name: read_bytes(self.out / name) for name in dict.fromkeys(names)}

    def outputs(self, job: Job) -> dict[str, bytes]:
        """The job's own files, its record last."""
        names = [*self.result(job).get("files", []), f"jobs/{job.name}.json"]
        return {name: read_bytes(self.out / name) for name in names}

    def take(self, files: Mapping[str, bytes]) -> None:
        """Put files here, in their order: a record comes after what it tells of."""
        for name, content in files.items():
            target = self.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(target, content)


@contextmanager
def telling(tell: Say) -> Iterator[None]:
    """What tasks of this process log goes to `tell`."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(record.getMessage())

    handler = Handler()
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group or job.name, []).append(job)
    return list(groups.values())


def ready(waiting: list[list[Job]], unfinished: list[list[Job]]) -> list[list[Job]]:
    """The groups that need nothing of those that are not finished, but of themselves."""
    names = {job.name for group in unfinished for job in group}
    return [g for g in waiting if not {n for job in g for n in job.needs} & (names - {job.name for job in g})]
