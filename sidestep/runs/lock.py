"""One process per run: a lock file in the run's folder that says who holds it.

The system's own lock (`flock`) on the file counts: it ends with the process that holds it, so that the lock of a dead
holder is free. The file says in JSON who the holder is: process, machine, when it began, its command. Where a file
system has no locks, what the file says is all there is: a holder that no longer runs on this machine is dead, and one
on another machine cannot be asked.
"""

import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from sidestep.core.errors import InputError
from sidestep.core.records import JsonObject
from sidestep.runtime.files import writing

try:
    import fcntl
except ImportError:  # not POSIX: what the file says has to do
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
LOOKS, PAUSE = 20, 0.05  # at the name of a holder, and seconds between them


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of this folder; refused, by the holder's name, when another process has it."""
    file = folder / LOCK
    descriptor = _open(file)
    try:
        _take(descriptor, file)
        _write(descriptor, file, json.dumps(_myself()))
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether another process works on this run now."""
    file = folder / LOCK
    if not file.exists():
        return False
    descriptor = _open(file)
    try:
        _take(descriptor, file)
    except InputError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open(file: Path) -> int:
    """No link is followed, and nothing but a plain file is opened for long."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with writing(file):
        descriptor = os.open(file, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError("expected a plain file, the lock of the run; remove what is there", place=str(file))
    return descriptor


def _take(descriptor: int, file: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
    except BlockingIOError:
        raise _held(_holder(descriptor), file) from None
    except OSError:
        pass  # this file system has no locks
    holder = _read(descriptor)
    if holder and _alive(holder):
        raise _held(holder, file)


def _holder(descriptor: int) -> JsonObject:
    """Who has the lock. It may be about to write its name over that of a dead one, which is waited for."""
    for _ in range(LOOKS):
        if _alive(_read(descriptor)):
            break
        time.sleep(PAUSE)
    return _read(descriptor)


def _held(holder: JsonObject, file: Path) -> InputError:
    if not holder:
        return InputError("another process is at work on this run; wait for it or stop it", place=str(file.parent))
    who = f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}: {holder.get('command')}"
    elsewhere = holder.get("host") != socket.gethostname()
    advice = f"; if that machine is gone, delete {file}" if elsewhere else ""
    said = f"another process is at work on this run ({who}); wait for it or stop it{advice}"
    return InputError(said, place=str(file.parent))


def _alive(holder: JsonObject) -> bool:
    """Whether the holder may still run; of another machine nobody here knows."""
    if holder.get("host") != socket.gethostname():
        return True
    pid = holder.get("pid")
    return isinstance(pid, int) and pid > 0 and _running(pid) and _began(pid) == holder.get("began")


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _began(pid: int) -> int | None:
    """When a process began, in ticks of the system's clock, so that a number used again is not taken for the first."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _myself() -> JsonObject:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "began": _began(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:1000],
    }


def _read(descriptor: int) -> JsonObject:
    """What the file says, nothing when it says nothing sensible."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = json.loads(os.read(descriptor, 10_000))
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _write(descriptor: int, file: Path, text: str) -> None:
    with writing(file):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text.encode())
