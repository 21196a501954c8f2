"""The files that trajectories travel in: CSV and Parquet with one row per step, NPZ with padded arrays.

In CSV a text that a spreadsheet would run as a formula gets an apostrophe in front, which reading takes off again.

An NPZ file holds `states`, `actions`, `rewards` and `length` as a `Trajectory` does, and may hold `state_names`,
`action_names` and, for each trajectory, `policy`, `round`, `seed`, `label`, `annotator`, `mark_<severity>` and
`comment`, as text ("" for nothing; for numbers also as whole numbers, with -1 for no mark).
"""

import csv
import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from sidestep.core.errors import InputError
from sidestep.labels.packing import trajectory
from sidestep.labels.tables import (
    KEYS,
    Batch,
    Problems,
    mark_columns,
    number_columns,
    read_remark,
    read_table,
    remark_columns,
)

if TYPE_CHECKING:
    from sidestep.core.model import Trajectory
    from sidestep.labels.store import Store

PARTS = ("states", "actions", "rewards", "length")  # of a trajectory, as arrays
FORMULA = tuple("=+-@\t\r'")  # a text that begins so is escaped; the apostrophe, so that it can be taken off again
NPZ_ERRORS = (  # what reading a damaged archive may raise
    *(OSError, ValueError, EOFError, KeyError, RuntimeError, SyntaxError, TypeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError),
)
MOST_BYTES = 2**30  # that an imported file may unpack to
EXACT = "%.9g"  # nine digits tell any two float32 numbers apart
CHUNK = 4096  # trajectories that are written at a time


class Export(NamedTuple):
    """What is written: the trajectories with these ids, and what is said of each, as text, "" for nothing."""

    ids: np.ndarray
    trajectories: "Trajectory"
    remarks: dict[str, list[str]]


def write_csv(store: "Store", export: Export, handle: IO[bytes]) -> None:
    names, numeric = number_columns(store), _numeric(store)
    handle.write(_csv_line([*KEYS, *map(escaped, names), *map(escaped, export.remarks)]).encode())
    row = ",".join([EXACT] * len(names)) + "\n"
    for start, steps, length in _chunks(export):
        lines: list[str] = []
        for i, n in enumerate(length.tolist()):
            texts = {name: said[start + i] for name, said in export.remarks.items()}
            remarks = _csv_line([text if name in numeric else escaped(text) for name, text in texts.items()])
            numbers = (row * n % tuple(steps[i, :n].ravel().tolist())).splitlines()
            lines.extend(f"{export.ids[start + i]},{step},{text},{remarks}" for step, text in enumerate(numbers))
        handle.write("".join(lines).encode())


def write_npz(store: "Store", export: Export, handle: IO[bytes]) -> None:
    parts = export.trajectories
    arrays = {name: np.asarray(getattr(parts, name)) for name in PARTS}
    arrays |= {"state_names": np.array(store.state_names, str), "action_names": np.array(store.action_names, str)}
    arrays |= {name: np.array(texts, str) for name, texts in export.remarks.items()}
    np.savez_compressed(handle, trajectory=export.ids, **arrays)  # type: ignore[arg-type]  # none is allow_pickle


def write_parquet(store: "Store", export: Export, handle: IO[bytes]) -> None:
    arrow, parquet = _pyarrow()
    names = number_columns(store)
    kinds = {"trajectory": arrow.int64(), "step": arrow.int32(), **dict.fromkeys(names, arrow.float32())}
    kinds |= {name: arrow.int64() if name in _numeric(store) else arrow.string() for name in export.remarks}
    schema = arrow.schema(list(kinds.items()))
    with parquet.ParquetWriter(handle, schema) as writer:
        for start, steps, length in _chunks(export):
            rows = slice(start, start + len(length))
            real = np.arange(steps.shape[1])[None, :] < length[:, None]
            columns = {"trajectory": np.repeat(export.ids[rows], length), "step": np.nonzero(real)[1]}
            columns |= dict(zip(names, steps[real].T, strict=True))
            for name, said in export.remarks.items():
                texts = [text or None for text in said[rows]]
                columns[name] = arrow.array(texts, arrow.string()).take(np.repeat(np.arange(len(length)), length))
            arrays = [arrow.array(columns[name]).cast(kind) for name, kind in kinds.items()]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _numeric(store: "Store") -> tuple[str, ...]:
    """The remarks that are numbers."""
    return ("round", "seed", *mark_columns(store.scale))


@contextmanager
def csv_rows(path: Path) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header of a CSV file, and its other rows with their line numbers."""
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.reader(handle, strict=True)
        try:
            header = next(reader, None)
            if header is None:
                raise InputError("the file is empty; the first line must name the columns", place=f"{path}:1")
            yield (
                [name.strip() for name in _unescaped(header)],
                ((reader.line_num, _unescaped(cells)) for cells in reader if cells),
            )
        except csv.Error as error:
            raise InputError(f"this is not CSV: {error}", place=f"{path}:{reader.line_num}") from error
        except UnicodeDecodeError as error:
            raise InputError("this is not text in UTF-8", place=f"{path}:{reader.line_num + 1}") from error


def escaped(text: str) -> str:
    """`text` as a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _unescaped(cells: list[str]) -> list[str]:
    if "'" not in "".join(cells):
        return cells
    return [cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell for cell in cells]


def read_parquet(store: "Store", path: Path) -> Batch:
    arrow, parquet = _pyarrow()
    try:
        about = parquet.read_metadata(path)
        size = 8 * about.num_rows * about.num_columns
        size = max(size, sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups)))
        if size > MOST_BYTES:
            raise _too_large("this Parquet file", size, path)
        table = parquet.read_table(path)
        names = number_columns(store)
        for column, name in enumerate(table.column_names):
            kind = arrow.float64() if name in names else arrow.int64() if name == "step" else arrow.string()
            table = table.set_column(column, name, table.column(column).cast(kind))
    except (arrow.ArrowException, OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"this Parquet file cannot be read: {error}", place=str(path)) from error
    batches = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in table.to_batches())
    rows = enumerate((cells for batch in batches for cells in batch), start=1)
    return read_table(store, table.column_names, rows, Problems(str(path), "row"))


def read_npz(store: "Store", path: Path) -> Batch:
    said = remark_columns(store.scale)
    arrays = _load_npz(path, (*PARTS, "state_names", "action_names", "trajectory", *said))
    problems = Problems(str(path), "trajectory")
    length = arrays["length"]
    shapes = {"states": (len(store.state_names),), "actions": (len(store.action_names),), "rewards": (), "length": None}
    for name, size in shapes.items():
        expected = length.shape if size is None else (*length.shape, *arrays["rewards"].shape[1:2], *size)
        numeric = np.issubdtype(arrays[name].dtype, np.integer if size is None else np.number)
        if length.ndim != 1 or arrays[name].shape != expected or not numeric or np.iscomplexobj(arrays[name]):
            raise InputError(
                f"array '{name}' has shape {arrays[name].shape} and type {arrays[name].dtype}; expected are numbers of "
                f"shape {expected if length.ndim == 1 else '(trajectories)'}",
                place=str(path),
            )
    for part, names in (("state", store.state_names), ("action", store.action_names)):
        found = arrays.get(f"{part}_names", np.array(names, str)).ravel().tolist()
        if found != list(names):
            raise InputError(
                f"the {part} names are {', '.join(map(str, found))}, and the store's are {', '.join(names)}",
                place=str(path),
            )
    _check_steps(arrays, number_columns(store), problems)
    texts = {name: arrays[name] for name in said if name in arrays}
    for name, column in texts.items():
        if column.shape != length.shape:
            raise InputError(f"array '{name}' must hold one text for each trajectory", place=str(path))
    remarks = []
    for row, steps in enumerate(length.tolist()):
        of_row = {name: str(column[row]).strip() for name, column in texts.items()}
        remarks.append(read_remark(row, of_row, steps, store.scale, problems))
    problems.raise_if_any()
    states, actions, rewards = (np.asarray(arrays[name], np.float32) for name in ("states", "actions", "rewards"))
    return Batch(trajectory(states, actions, rewards, length.astype(np.int32)), remarks)


def _load_npz(path: Path, known: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of a file, none of which is unpacked before all of them are known to be of a sensible size."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_arrays(path, known, {entry.filename: _array_bytes(archive, entry) for entry in archive.infolist()})
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except InputError:
        raise
    except NPZ_ERRORS as error:
        raise InputError(f"this is not an NPZ file of plain arrays: {error}", place=str(path)) from error


def _array_bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """How much memory an array takes, by its first bytes."""
    if not entry.filename.endswith(".npy"):
        raise ValueError(f"it holds '{entry.filename}'")
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        before = stream.tell()
    size = dtype.itemsize * math.prod(shape)
    if dtype.hasobject or any(extent < 0 for extent in shape):
        raise ValueError(f"'{entry.filename}' does not hold plain numbers or text")
    if size > MOST_BYTES:
        raise _too_large(f"array '{entry.filename.removesuffix('.npy')}' of shape {shape}", size, archive.filename)
    if before + size != entry.file_size:
        raise ValueError(f"'{entry.filename}' has {entry.file_size} bytes where its header asks for {before + size}")
    return size


def _check_arrays(path: Path, known: Sequence[str], sizes: dict[str, int]) -> None:
    """Refuse arrays that are missing, that nobody knows, or that together would fill the memory."""
    names = [name.removesuffix(".npy") for name in sizes]
    for name in PARTS:
        if name not in names:
            raise InputError(f"there is no array '{name}' among {', '.join(names)}", place=str(path))
    for name in names:
        if name not in known:
            raise InputError(f"array '{name}' is not one of {', '.join(known)}", place=str(path))
    if sum(sizes.values()) > MOST_BYTES:
        raise _too_large("this NPZ file", sum(sizes.values()), path)


def _too_large(what: str, size: int, path: object) -> InputError:
    return InputError(
        f"{what} takes {size / 1e9:,.1f} GB, and an import at most {MOST_BYTES / 1e9:,.1f}; split the file",
        place=str(path),
    )


def _check_steps(arrays: dict[str, np.ndarray], names: Sequence[str], problems: Problems) -> None:
    """Lengths within the arrays, and finite float32 numbers in every real step."""
    length, time = arrays["length"], arrays["rewards"].shape[1]
    for row in np.flatnonzero((length < 1) | (length > time)).tolist():
        problems.add(row, f"length is {length[row]}, and the arrays have {time} steps")
    with np.errstate(over="ignore"):
        parts = [np.asarray(arrays["states"], np.float32), np.asarray(arrays["actions"], np.float32)]
        steps = np.concatenate([*parts, np.asarray(arrays["rewards"], np.float32)[..., None]], axis=2)
    real = np.arange(time)[None, :] < length[:, None]
    for row, step, column in np.argwhere(~np.isfinite(steps) & real[..., None]).tolist():
        problems.add(row, f"{names[column]} is not a finite float32 number in step {step}")


def _chunks(export: Export) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Some trajectories at a time: index of the first, steps (trajectory, time, numbers), lengths."""
    for start in range(0, len(export.ids), CHUNK):
        some = export.trajectories[start : start + CHUNK]
        parts = [some.states, some.actions, some.rewards[..., None]]
        yield start, np.concatenate([np.asarray(part) for part in parts], axis=2), np.asarray(some.length)


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:  # optional, and heavy
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError("Parquet files need pyarrow; run: pip install 'sidestep[parquet]'") from error
    return pyarrow, pyarrow.parquet
