"""Jobs: independent pieces of an experiment, each with a file of its own, so that a stopped run goes on where it was.

A job is data (a kind and settings), so that it can be done in another process and so that its file says how its numbers
came about. Jobs of one group run after one another in one process, since they share compiled programs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sidestep import __version__
from sidestep.core.errors import InputError
from sidestep.runtime.files import atomic_write

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # workers share the cores by jobs, not by threads
PAUSE = 0.2  # seconds between two looks at the workers


@dataclass(frozen=True)
class Job:
    """`kind` names the function that does it (see `work.KINDS`), `needs` the jobs whose results it reads."""

    name: str
    kind: str
    settings: dict[str, Any] = field(hash=False)
    group: str
    needs: tuple[str, ...] = ()


class Jobs:
    """The files of the jobs of one folder."""

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out / "jobs"

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def record(self, job: Job) -> dict[str, Any] | None:
        """What the job's file says; None when it was not done yet, or with other settings."""
        try:
            record = json.loads(self.file(job.name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read ({error}); remove it", place=str(self.file(job.name))) from None
        files = record.get("result", {}).get("files", [])
        same = record.get("kind") == job.kind and record.get("settings") == job.settings
        return record if same and all((self.out / name).is_file() for name in files) else None

    def result(self, job: Job) -> dict[str, Any]:
        record = self.record(job)
        assert record is not None, f"the job {job.name} was not done"
        return record["result"]

    def do(self, job: Job) -> None:
        """Do the job in this process and write its file."""
        from sidestep.reproduce.work import KINDS

        begun = time.perf_counter()
        result = KINDS[job.kind](job.settings, self)
        record = {
            **{name: value for name, value in asdict(job).items() if name not in ("group", "needs")},
            "version": __version__,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": time.perf_counter() - begun,
            "result": result,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self.file(job.name), json.dumps(record, indent=1, allow_nan=False))

    def run(self, jobs: Sequence[Job], workers: int, say: Callable[[str], None]) -> None:
        """Do what is not done yet, so many groups at a time."""
        waiting = _groups([job for job in jobs if self.record(job) is None])
        left = sum(len(group) for group in waiting)
        say(f"{left} jobs to do, {len(jobs) - left} found done")
        self.folder.mkdir(parents=True, exist_ok=True)
        if workers == 1:
            for group in _in_order(waiting):
                for job in group:
                    self.do(job)
                    say(f"done: {job.name}")
            return
        self._in_processes(waiting, workers, say)

    def _in_processes(self, waiting: list[list[Job]], workers: int, say: Callable[[str], None]) -> None:
        running: dict[subprocess.Popen[str], list[Job]] = {}
        try:
            while waiting or running:
                unfinished = {job.name for group in (*waiting, *running.values()) for job in group}
                for group in list(waiting):
                    own = {job.name for job in group}
                    if len(running) < workers and not _needs(group) & (unfinished - own):
                        waiting.remove(group)
                        running[self._start(group)] = group
                time.sleep(PAUSE)
                for worker in [worker for worker in running if worker.poll() is not None]:
                    group = running.pop(worker)
                    _check(worker, group)
                    say(f"done: {', '.join(job.name for job in group)}")
        finally:
            for worker in running:
                worker.terminate()

    def _start(self, group: list[Job]) -> "subprocess.Popen[str]":
        flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
        log = (self.folder / f"{group[0].name}.log").open("w+", encoding="utf-8")
        worker = subprocess.Popen(
            [sys.executable, "-m", "sidestep.reproduce.work", str(self.out)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env={**os.environ, "XLA_FLAGS": flags},
        )
        log.close()
        assert worker.stdin is not None
        worker.stdin.write(json.dumps([asdict(job) for job in group]))
        worker.stdin.close()
        worker.log = Path(log.name)  # type: ignore[attr-defined]
        return worker


def _check(worker: Any, group: list[Job]) -> None:
    """A worker's failure is ours: bad input in one sentence, anything else with what it said."""
    said = worker.log.read_text(encoding="utf-8").strip()
    if worker.returncode == 2 and said:
        raise InputError(said.splitlines()[-1].removeprefix("sidestep: "))
    if worker.returncode != 0:
        raise RuntimeError(f"the worker of {group[0].name} ended with {worker.returncode}:\n{said[-4000:]}")
    worker.log.unlink()


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group, []).append(job)
    return list(groups.values())


def _needs(group: Sequence[Job]) -> set[str]:
    return {name for job in group for name in job.needs}


def _in_order(groups: list[list[Job]]) -> list[list[Job]]:
    """Those that need nothing first, then those that need them, and so on."""
    waiting, ordered = list(groups), []
    while waiting:
        unfinished = {job.name for group in waiting for job in group}
        ready = [group for group in waiting if not _needs(group) & (unfinished - {job.name for job in group})]
        assert ready, "jobs need one another in a circle"
        ordered += ready
        waiting = [group for group in waiting if group not in ready]
    return ordered
