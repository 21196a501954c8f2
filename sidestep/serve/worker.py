"""The campaign, in a process of its own: `sidestep resume DIR --wait`, which says in JSON what it needs labels for, or
what people may label while it works, and goes on when a line comes in. So the page stays quick, and a kill of either
leaves a run that can be taken up."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from sidestep.runs.lock import is_locked

State = Literal["idle", "working", "waiting", "finished", "elsewhere", "failed"]
LINES = 300  # of the log that are kept
NICE = 5  # the page comes first
LATER = 5.0  # seconds until a run that another process holds is tried again
WORDS = {0: "the run is finished: certified", 1: "the run is finished: not certified", 3: "labels are needed"}


class Worker:
    """One campaign. `asked` is called, from another thread, with what the campaign says that it needs."""

    def __init__(
        self, folder: Path, *, campaign: bool, trust: bool, asked: Callable[[Mapping[str, object]], None]
    ) -> None:
        self.folder, self.asked = folder, asked
        self.options = ["--json", *(["--wait"] if campaign else []), *(["--trust"] if trust else [])]
        self.state: State = "idle"
        self.since = time.time()
        self.lines: deque[str] = deque(maxlen=LINES)
        self.problem = ""
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._tried = 0.0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Take the run up, unless it is at work, finished, or held by another process."""
        if self.alive or self._stopped or self.state in ("finished", "failed"):
            return
        if (self.folder / "result.json").is_file():
            self._become("finished")
            return
        if time.monotonic() - self._tried < LATER and self._tried:
            return
        self._tried = time.monotonic()
        if is_locked(self.folder):
            self._become("elsewhere")
            return
        command = [sys.executable, "-m", "sidestep", "resume", str(self.folder), *self.options]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        with contextlib.suppress(OSError, AttributeError):  # not POSIX, or gone already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
        self._become("working")
        self.note("the campaign goes on")
        for read, stream in ((self._read, self._process.stdout), (self._read_errors, self._process.stderr)):
            threading.Thread(target=read, args=(self._process, stream), daemon=True).start()

    def go_on(self) -> None:
        """All labels that it asked for are there."""
        if self.state == "waiting" and self._process is not None and self._process.stdin is not None:
            self._become("working")
            self.note("all labels are there; the campaign goes on")
            with contextlib.suppress(OSError):
                self._process.stdin.write("\n")
                self._process.stdin.flush()

    def stop(self) -> None:
        """End the process; what it had finished is on disk."""
        self._stopped = True
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def note(self, line: str) -> None:
        self.lines.append(f"{datetime.now(UTC):%H:%M:%S} {line}")

    def _become(self, state: State) -> None:
        if state != self.state:
            self.state, self.since = state, time.time()

    def _read(self, process: subprocess.Popen[str], stream: IO[str]) -> None:
        for line in stream:
            said = _parsed(line)
            if said.get("status") in ("waiting", "offered"):
                self.note(str(said.get("words") or "labels are needed"))
                self.asked(said)
            if said.get("status") == "waiting":
                self._become("waiting")
        status = process.wait()
        if self._stopped:
            return
        if status in (0, 1) and (self.folder / "result.json").is_file():
            self.note(WORDS[status])
            self._become("finished")
        elif status == 3:
            self._become("idle")
        else:
            self.problem = self.problem or f"the campaign ended with status {status}"
            self.note(self.problem)
            self._become("elsewhere" if "another process is at work" in self.problem else "failed")

    def _read_errors(self, process: subprocess.Popen[str], stream: IO[str]) -> None:
        for line in stream:
            if line.strip():
                self.note(line.rstrip())
                if line.startswith("sidestep: "):
                    self.problem = line.removeprefix("sidestep: ").strip()


def _parsed(line: str) -> dict[str, object]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
