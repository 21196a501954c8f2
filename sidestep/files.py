"""Files that are either there whole or not there at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sidestep.errors import InputError


def atomic_write(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Put `data` (text as UTF-8) into `path`; a reader sees the old file or the new one, never a part."""
    with atomic_file(path) as handle:
        handle.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_file(path: str | os.PathLike[str], mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Open a file to write to; it appears at `path` when the block ends well, and leaves nothing behind otherwise."""
    target = Path(os.path.realpath(path))  # through a symbolic link, its target is replaced and not the link
    partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        handle = partial.open(mode.replace("w", "x"), **options)
    except OSError as error:
        raise InputError(f"cannot write here: {error.strerror}", place=str(path)) from error
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        try:
            os.replace(partial, target)
        except OSError as error:
            raise InputError(f"cannot write here: {error.strerror}", place=str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut; only POSIX lets a folder be opened for that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
