"""Whose code is run.

Code that this user named, on the command line or in Python, is run, and its hash is remembered in a folder of the
user's own. Code that came with a run's folder is run when it is remembered, or when the user says so.
"""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sidestep.core.errors import InputError
from sidestep.runtime.files import atomic_write, read_bytes


class Files(Protocol):
    """Where the files come from that a model's or a rule's reference names."""

    def path(self, name: str) -> Path:
        """The file to read for this name."""
        ...

    def code(self, name: str, item: str) -> tuple[Path, bytes]:
        """The file of this name and what it holds, which may be run for the sake of its object `item`."""
        ...


class GivenFiles:
    """Files that the user named: read where they are, and their code is remembered as the user's choice."""

    def path(self, name: str) -> Path:
        return Path(name)

    def code(self, name: str, item: str) -> tuple[Path, bytes]:
        path = Path(name)
        code = read_bytes(path)
        remember(code, item, path)
        return path, code


GIVEN = GivenFiles()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def memory() -> Path | None:
    """The folder with a file for each piece of code, by its hash, that the user chose to run; None without a home."""
    state, home = os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", "")
    if os.path.isabs(state):
        return Path(state) / "sidestep" / "code"
    return Path(home) / ".local" / "state" / "sidestep" / "code" if os.path.isabs(home) else None


def remember(code: bytes, item: str, path: Path) -> None:
    """Where there is no place to write, nothing is remembered: then trust is asked for again."""
    folder = memory()
    if folder is None or remembered(code, item):
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / _key(code, item)
        atomic_write(file, f"{datetime.now(UTC).isoformat(timespec='seconds')} {path.resolve()}\n")
        file.chmod(0o600)
    except (OSError, InputError, UnicodeError):
        return


def remembered(code: bytes, item: str) -> bool:
    folder = memory()
    return folder is not None and os.path.isfile(folder / _key(code, item))


def _key(code: bytes, item: str) -> str:
    """The object is part of it: a stranger may not pick another one of a file that the user knows."""
    return sha256(code + b"\0" + item.encode(errors="surrogateescape"))


def untrusted(path: Path) -> InputError:
    """What is said in place of running code that came with a folder."""
    nothing_kept = "" if memory() else "; nothing is remembered here, since neither HOME nor XDG_STATE_HOME is set"
    return InputError(
        "this code came with the run's folder and would be run, and it is not among what you gave to a command before; "
        f"read it, and if you trust it give --trust, in Python trust=True{nothing_kept}",
        place=str(path),
    )
