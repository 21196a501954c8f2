"""Files that are either there whole or not there at all, and one sentence when they cannot be written."""

import errno
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from sidestep.core.errors import DiskFull, InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:  # a checker at run time cannot follow a type that refers to itself
    Json = object

JsonObject: TypeAlias = dict[str, Json]

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's share of it, the largest file


def read_bytes(path: Path) -> bytes:
    """All of a plain file."""
    try:
        if not path.is_file():
            found = "a folder" if path.is_dir() else "something else" if path.exists() else ""
            raise InputError(
                f"expected a file and found {found}" if found else "there is no such file", place=str(path)
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=str(path)) from error


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system says against writing to `path`, as one sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error, path) from error


def cannot_write(error: OSError, path: str | os.PathLike[str]) -> InputError:
    if error.errno in NO_SPACE:
        return DiskFull(str(path))
    return InputError(f"cannot write here: {error.strerror or error}", place=str(path))


def disk_is_full(folder: Path) -> bool:
    """Whether there is hardly room for one more page or file here."""
    if not hasattr(os, "statvfs"):
        return False
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize < 2**16 or (room.f_files > 0 and room.f_favail == 0)


def atomic_write(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Put `data` (text as UTF-8) into `path`; a reader sees the old file or the new one, never a part."""
    with atomic_file(path) as handle:
        handle.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_file(
    path: str | os.PathLike[str],
    mode: Literal["wb", "w"] = "wb",
    encoding: str | None = None,
    newline: str | None = None,
) -> Iterator[IO[Any]]:
    """Open a file to write to; it appears at `path` when the block ends well, and leaves nothing behind otherwise."""
    target = Path(os.path.realpath(path))  # through a symbolic link, its target is replaced and not the link
    partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    with writing(path):
        handle = partial.open(mode.replace("w", "x"), encoding=encoding, newline=newline)
        try:
            with handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left of files that they were writing into this folder."""
    for file in folder.glob(".*.part"):
        if re.fullmatch(r"\..+\.[0-9a-f]{12}\.part", file.name):
            file.unlink(missing_ok=True)


def append(path: Path, text: str) -> None:
    """Add `text` at the end of a file, which is made if need be; on disk when this returns. Follows no link."""
    with writing(path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8", newline="\n") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())


def save_picture(figure: "Figure", path: str | os.PathLike[str], dpi: int) -> None:
    """A matplotlib figure in the format of the path's ending, PNG without one."""
    kind = Path(path).suffix.removeprefix(".").lower() or "png"
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        raise InputError(f"a picture's name ends in one of {', '.join(known)}, not '{kind}'", place=str(path))
    with atomic_file(path) as handle:
        figure.savefig(handle, dpi=dpi, format=kind)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut; only POSIX lets a folder be opened for that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
