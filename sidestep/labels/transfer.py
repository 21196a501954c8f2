"""Trajectories and labels in and out of a store: CSV, NPZ, Parquet, or another store, in a file or on a server.

What was exported and is imported again is the same to the last bit; trajectories that are in the store already are
recognised. An import looks at the whole file before it writes anything, and then writes all of it or nothing.
"""

import csv
from collections.abc import Iterable, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sidestep.core.constraints import CANNOT_TELL, Scale
from sidestep.core.errors import InputError
from sidestep.labels import formats, votes
from sidestep.labels.formats import Export, csv_rows
from sidestep.labels.marks import median_marks
from sidestep.labels.store import Place, Store, store_place
from sidestep.labels.tables import (
    SOURCES,
    BadRows,
    Problems,
    Said,
    check_header,
    mark_columns,
    number_columns,
    read_said,
    read_table,
    read_whole,
    remark_columns,
)
from sidestep.labels.votes import Label, Resolve
from sidestep.runtime.files import atomic_file

__all__ = ["BadRows", "Imported", "copy_store", "export_labels", "export_store", "export_trajectories", "import_file"]

WRITERS = {".csv": formats.write_csv, ".npz": formats.write_npz, ".parquet": formats.write_parquet}
STORE = ".store"


class Imported(NamedTuple):
    """What an import did."""

    ids: np.ndarray  # of the file's trajectories or labels, in the file's order
    new_trajectories: int
    new_labels: int


def label_columns(scale: Scale) -> tuple[str, ...]:
    """Of a file of labels alone."""
    return ("trajectory", "label", "annotator", "time", *mark_columns(scale), "comment")


def export_trajectories(
    store: Store, path: str | PathLike[str], resolve: Resolve = "majority", *, every: bool = True
) -> int:
    """Write trajectories, with the label that counts, in the format of `path`'s ending; returns how many.

    `every`: all of them; otherwise those that need a label, without where they came from, which annotators are not to
    know.
    """
    write = WRITERS[_format(path)]
    with store.transaction(write=False):
        ids, trajectories = store.everything() if every else store.unlabelled()
        export = Export(ids, trajectories, _remarks(store, ids.tolist(), resolve, blind=not every))
    with atomic_file(path) as handle:
        write(store, export, handle)
    return len(ids)


def export_labels(store: Store, path: str | PathLike[str]) -> int:
    """Write the whole log of labels as CSV: trajectory (the store's id), label, annotator, time, marks and comment."""
    log, scale = store.log(), store.scale
    with atomic_file(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(map(formats.escaped, label_columns(scale)))
        for label in log:
            category = CANNOT_TELL if label.category is None else scale.categories[label.category]
            marks = [dict(label.marks).get(name, "") for name in scale.categories[1:]]
            first, last = (category, label.annotator, label.time), label.comment or ""
            writer.writerow([label.trajectory, *map(formats.escaped, first), *marks, formats.escaped(last)])
    return len(log)


def import_file(store: Store, path: str | PathLike[str], annotator: str = "import") -> Imported:
    """Read trajectories with or without labels, or (CSV: trajectory, label and more, see `label_columns`) labels alone.

    `annotator` gave the labels for which the file names nobody; a blank label is no label yet. In a file of
    trajectories, `trajectory` is any name; in a file of labels, it is the store's id.
    """
    if is_store(path):
        with Store.open(path) as other:
            return copy_store(other, store)
    path = Path(path)
    form = _format(path)
    if not path.is_file():
        raise InputError("there is no such file", place=str(path))
    if form == ".csv":
        with csv_rows(path) as (header, rows):
            problems = Problems(str(path), "line")
            if not set(header) & set(number_columns(store)):
                labels = _read_labels(store, header, rows, problems, annotator)
                return Imported(np.array([label.trajectory for label in labels], np.int64), 0, _append(store, labels))
            batch = read_table(store, header, rows, problems)
    else:
        batch = formats.read_npz(store, path) if form == ".npz" else formats.read_parquet(store, path)
    with store.transaction():
        said = batch.remarks
        ids, new = store.add(
            batch.trajectories,
            policy=[one.policy or f"import of {path.name}" for one in said],
            round=[one.round for one in said],
            seed=[one.seed for one in said],
        )
        labels = [
            _label(trajectory, one.said, annotator)
            for trajectory, one in zip(ids.tolist(), said, strict=True)
            if one.said is not None
        ]
        return Imported(ids, new, _append(store, labels))


def is_store(path: Place) -> bool:
    """Whether this names a store, by its ending or as a URL."""
    place = store_place(path)
    return isinstance(place, str) or place.suffix == STORE


def export_store(store: Store, path: Place) -> Imported:
    """Everything into another store, which is made if it is not there."""
    made = Store.is_made(path)
    if not made:
        Store.create_like(store, path).close()
    with Store.open(path) as other:
        return copy_store(store, other)


def copy_store(source: Store, target: Store) -> Imported:
    """All trajectories and the whole log of labels; what the target has already is not added again."""
    if source.model != target.model or source.scale != target.scale:
        raise InputError(
            f"the store is of the model '{source.model_name}' on the scale {source.scale}, and {target.path} of "
            f"'{target.model_name}' on {target.scale}; keep one store for each",
            place=str(source.path),
        )
    with source.transaction(write=False):
        ids, trajectories = source.everything()
        sources, log = source.sources(ids.tolist()), source.log()
    if not len(ids):
        return Imported(ids, 0, 0)
    with target.transaction():
        placed, new = target.add(
            trajectories,
            policy=[one.policy for one in sources],
            round=[one.round for one in sources],
            seed=[one.seed for one in sources],
        )
        place = dict(zip(ids.tolist(), placed.tolist(), strict=True))
        labels = [label._replace(trajectory=place[label.trajectory]) for label in log]
        return Imported(placed, new, _append(target, labels))


def _append(store: Store, labels: Sequence[Label]) -> int:
    """Add labels to the log, so that importing a file again adds nothing.

    With a time: unless that very entry is in the log. Without: unless it is what its annotator says already.
    """
    with store.transaction():
        log = store.log()
        entries, said = set(log), {(one.trajectory, one.annotator): one._replace(time="") for one in log}
        fresh: list[Label] = []
        for label in labels:
            who, words = (label.trajectory, label.annotator), label._replace(time="")
            known = label in entries if label.time else said.get(who) == words
            if not known:
                said[who] = words
                fresh.append(label)
        store.label(
            [label.trajectory for label in fresh],
            [label.category for label in fresh],
            [label.annotator for label in fresh],
            time=[label.time for label in fresh],
            marks=[dict(label.marks) for label in fresh],
            comment=[label.comment for label in fresh],
        )
    return len(fresh)


def _label(trajectory: int, said: Said, annotator: str, time: str = "") -> Label:
    return Label(trajectory, said.category, said.annotator or annotator, time, said.marks, said.comment)


def _read_labels(
    store: Store, header: Sequence[str], rows: Iterable[tuple[int, list[str]]], problems: Problems, annotator: str
) -> list[Label]:
    check_header(header, label_columns(store.scale), ("trajectory", "label"), problems.place(1))
    labels, lengths = [], store.lengths()
    for line, row in rows:
        if len(row) != len(header):
            problems.add(line, f"there are {len(row)} cells where the header has {len(header)}")
            continue
        cells = {name: cell.strip() for name, cell in zip(header, row, strict=True)}
        trajectory = read_whole(cells["trajectory"], "trajectory", line, problems)
        length = lengths[trajectory - 1] if trajectory and 1 <= trajectory <= len(lengths) else 0
        if trajectory is None and not cells["trajectory"]:
            problems.add(line, "trajectory is empty")
        elif trajectory is not None and not length:
            problems.add(line, f"there is no trajectory {trajectory}; the store holds {len(lengths)}, counted from 1")
        said = read_said(line, cells, length or 2**31, store.scale, problems)
        time = cells.get("time", "")
        try:
            datetime.fromisoformat(time or "2000-01-01")
        except ValueError:
            problems.add(line, f"time is '{time}', not one such as 2000-01-31T23:59:00+00:00")
        if said is not None:
            labels.append(_label(trajectory or 0, said, annotator, time))
    problems.raise_if_any()
    return labels


def _remarks(store: Store, ids: Sequence[int], resolve: Resolve, *, blind: bool) -> dict[str, list[str]]:
    """What the table says of each trajectory as a whole, as text; `blind`: not where it came from."""
    deciding = votes.deciding(store.log(), resolve)
    columns = remark_columns(store.scale)
    remarks: dict[str, list[str]] = {name: [] for name in columns}
    for trajectory, source in zip(ids, store.sources(ids), strict=True):
        said = _in_words(deciding[trajectory], resolve, store.scale) if trajectory in deciding else {}
        about = {} if blind else dict(zip(SOURCES, source, strict=False))
        for name, value in (dict.fromkeys(columns) | about | said).items():
            remarks[name].append("" if value is None else str(value))
    return remarks


def _in_words(labels: Sequence[Label], resolve: Resolve, scale: Scale) -> dict[str, object]:
    """The label that these amount to, by the names of its columns."""
    newest, marks = labels[-1], median_marks([label.marks for label in labels], scale)
    assert newest.category is not None  # labels that cannot tell decide nothing
    one = resolve == "newest" or len(labels) == 1
    return {
        "label": scale.categories[newest.category],
        "annotator": newest.annotator if one else resolve,
        **{f"mark_{name}": step for name, step in marks},
        "comment": newest.comment if one else None,
    }


def _format(path: str | PathLike[str]) -> str:
    ending = Path(path).suffix.lower()
    if ending not in WRITERS:
        known = ", ".join([*WRITERS, STORE])
        raise InputError(f"the ending says the format: one of {known}, not '{ending}'", place=str(path))
    return ending
