"""The runner of experiments: jobs as data, each with a file of its own, so that a stopped run continues where it was.

A task is a frozen dataclass: its fields are all that its result depends on, so that it can be done in another process
and its file says how its numbers came about. A job that was done with the same fields is not done again. Jobs of one
group run one after another in one process, since they share compiled programs. `sidestep reproduce` and the
benchmarks use the same runner: `python -m sidestep.reproduce.jobs OUT` is its worker, with jobs on standard input.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

import jax

from sidestep import __version__
from sidestep.core.errors import InputError
from sidestep.core.records import checked, from_json, to_json
from sidestep.runtime.files import atomic_write

Figures = dict[str, Any]  # what a job found, as JSON; "files" are those that it wrote, in the jobs' folder
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # workers share the cores by jobs, not by threads
WHERE = ("--out", "--runs", "--picture", "--workers")  # options that no result depends on
PAUSE = 0.2  # seconds between two looks at the workers


class Task(Protocol):
    """What a job does; a frozen dataclass."""

    def run(self, out: Path) -> Figures:
        """Do it; files go into `out`."""


@dataclass(frozen=True)
class Job:
    """`needs` names the jobs whose files this one reads; jobs of one `group` share a process."""

    name: str
    task: Task
    group: str = ""
    needs: tuple[str, ...] = ()

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
    """What was typed, without where files go and how many processes work."""
    program, given = Path(sys.argv[0]), iter(sys.argv[1:])
    name = f"python benchmarks/{program.name}" if program.suffix == ".py" else program.name
    return " ".join([name, *(word for word in given if not (word in WHERE and next(given)))])


class Jobs:
    """The jobs of one folder."""

    def __init__(self, out: Path, command: str = "") -> None:
        self.out, self.folder, self.command = out, out / "jobs", command

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def record(self, job: Job) -> Record | None:
        """What the job's file says; None when it was not done yet, or with other settings."""
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
        return record if same and all((self.out / name).is_file() for name in record.result.get("files", [])) else None

    def result(self, job: Job) -> Figures:
        record = self.record(job)
        assert record is not None, f"the job {job.name} was not done"
        return record.result

    def do(self, job: Job) -> None:
        """Do the job in this process and write its file."""
        begun = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)
        result = job.task.run(self.out)
        settings = to_json(job.task)
        assert isinstance(settings, dict)
        now, seconds = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter() - begun
        record = Record(job.name, job.kind, settings, self.command, __version__, commit(), now, seconds, result)
        atomic_write(self.file(job.name), json.dumps(to_json(record), indent=1, allow_nan=False) + "\n")

    def run(self, jobs: Sequence[Job], workers: int, say: Callable[[str], None]) -> None:
        """Do what is not done yet, so many groups at a time."""
        waiting = _groups([job for job in jobs if self.record(job) is None])
        left = sum(len(group) for group in waiting)
        say(f"{left} jobs to do, {len(jobs) - left} found done")
        self.folder.mkdir(parents=True, exist_ok=True)
        if workers > 1:
            self._in_processes(waiting, workers, say)
        while waiting:
            group = next(iter(_ready(waiting, waiting)), None)
            assert group is not None, "jobs need one another in a circle"
            for job in group:
                self.do(job)
                say(f"done: {job.name}")
            waiting.remove(group)
            jax.clear_caches()  # compiled programs of one group serve no other, and together take gigabytes

    def _in_processes(self, waiting: list[list[Job]], workers: int, say: Callable[[str], None]) -> None:
        running: list[_Worker] = []
        try:
            while waiting or running:
                unfinished = [*waiting, *(worker.group for worker in running)]
                for group in _ready(waiting, unfinished)[: workers - len(running)]:
                    waiting.remove(group)
                    running.append(_Worker(self, group))
                time.sleep(PAUSE)
                for worker in [worker for worker in running if worker.process.poll() is not None]:
                    running.remove(worker)
                    worker.check()
                    say(f"done: {', '.join(job.name for job in worker.group)}")
        finally:
            for worker in running:
                worker.process.terminate()


class _Worker:
    """A process that does the jobs of a group."""

    def __init__(self, jobs: Jobs, group: list[Job]) -> None:
        self.group, self.log = group, jobs.folder / f"{group[0].name}.log"
        flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sidestep.reproduce.jobs", str(jobs.out), jobs.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert self.process.stdin is not None
        with self.process.stdin as given:
            json.dump([{"name": job.name, "kind": job.kind, "settings": to_json(job.task)} for job in group], given)

    def check(self) -> None:
        """A worker's failure is ours: bad input in one sentence, anything else with what it said."""
        said = self.log.read_text(encoding="utf-8").strip()
        status = self.process.returncode
        if status == 2 and said:
            raise InputError(said.splitlines()[-1].removeprefix("sidestep: "))
        if status != 0:
            raise RuntimeError(f"the worker of {self.group[0].name} ended with {status}:\n{said[-4000:]}")
        self.log.unlink()


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group or job.name, []).append(job)
    return list(groups.values())


def _ready(waiting: list[list[Job]], unfinished: list[list[Job]]) -> list[list[Job]]:
    """The groups that need nothing of those that are not finished, but of themselves."""
    names = {job.name for group in unfinished for job in group}
    return [g for g in waiting if not {n for job in g for n in job.needs} & (names - {job.name for job in g})]


def _do_all(given: IO[str], jobs: Jobs) -> None:
    for job in json.load(given):
        module, _, name = job["kind"].partition(":")
        jobs.do(Job(job["name"], from_json(getattr(import_module(module), name), job["settings"], job["name"])))


def main() -> int:
    try:
        _do_all(sys.stdin, Jobs(Path(sys.argv[1]), sys.argv[2]))
    except InputError as error:
        print(f"sidestep: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
