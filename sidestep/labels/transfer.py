"""Trajectories and labels in and out of a store: CSV, NPZ, Parquet.

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

from sidestep.core.errors import InputError
from sidestep.labels import formats, votes
from sidestep.labels.formats import Export, csv_rows
from sidestep.labels.store import Store
from sidestep.labels.tables import (
    REMARKS,
    BadRows,
    Problems,
    check_header,
    number_columns,
    read_category,
    read_table,
    read_whole,
)
from sidestep.labels.votes import Label, Resolve
from sidestep.runtime.files import atomic_file

__all__ = ["BadRows", "Imported", "export_labels", "export_trajectories", "import_file"]

WRITERS = {".csv": formats.write_csv, ".npz": formats.write_npz, ".parquet": formats.write_parquet}
LABEL_COLUMNS = ("trajectory", "label", "annotator", "time")


class Imported(NamedTuple):
    """What an import did."""

    ids: np.ndarray  # of the file's trajectories or labels, in the file's order
    new_trajectories: int
    new_labels: int


def export_trajectories(store: Store, path: str | PathLike[str], resolve: Resolve = "newest") -> int:
    """Write every trajectory, with the label that counts, in the format of `path`'s ending; returns how many."""
    write = WRITERS[_format(path)]
    with store.transaction("DEFERRED"):
        ids, trajectories = store.everything()
        export = Export(ids, trajectories, _remarks(store, ids.tolist(), resolve))
    with atomic_file(path) as handle:
        write(store, export, handle)
    return len(ids)


def export_labels(store: Store, path: str | PathLike[str]) -> int:
    """Write the whole log of labels as CSV: trajectory (the store's id), label, annotator, time; returns how many."""
    log = store.log()
    with atomic_file(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(LABEL_COLUMNS)
        for label in log:
            texts = (store.scale.categories[label.category], label.annotator, label.time)
            writer.writerow([label.trajectory, *map(formats.escaped, texts)])
    return len(log)


def import_file(store: Store, path: str | PathLike[str], annotator: str = "import") -> Imported:
    """Read trajectories with or without labels, or (CSV: trajectory, label [, annotator, time]) labels alone.

    `annotator` gave the labels for which the file names nobody. In a file of trajectories, `trajectory` is any name; in
    a file of labels, it is the store's id.
    """
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
            Label(trajectory, one.category, one.annotator or annotator, "")
            for trajectory, one in zip(ids.tolist(), said, strict=True)
            if one.category is not None
        ]
        return Imported(ids, new, _append(store, labels))


def _append(store: Store, labels: Sequence[Label]) -> int:
    """Add labels to the log, so that importing a file again adds nothing.

    With a time: unless that very entry is in the log. Without: unless it is what its annotator says already.
    """
    with store.transaction():
        log = store.log()
        entries, said = set(log), votes.current_votes(log)
        fresh: list[Label] = []
        for label in labels:
            of_trajectory = said.setdefault(label.trajectory, {})
            known = label in entries if label.time else of_trajectory.get(label.annotator) == label.category
            if not known:
                of_trajectory[label.annotator] = label.category
                fresh.append(label)
        store.label(
            [label.trajectory for label in fresh],
            [label.category for label in fresh],
            [label.annotator for label in fresh],
            time=[label.time for label in fresh],
        )
    return len(fresh)


def _read_labels(
    store: Store, header: Sequence[str], rows: Iterable[tuple[int, list[str]]], problems: Problems, annotator: str
) -> list[Label]:
    check_header(header, LABEL_COLUMNS, ("trajectory", "label"), problems.place(1))
    labels, last = [], len(store)
    for line, row in rows:
        if len(row) != len(header):
            problems.add(line, f"there are {len(row)} cells where the header has {len(header)}")
            continue
        cells = {name: cell.strip() for name, cell in zip(header, row, strict=True)}
        trajectory = read_whole(cells["trajectory"], "trajectory", line, problems)
        if trajectory is None and not cells["trajectory"]:
            problems.add(line, "trajectory is empty")
        elif trajectory is not None and not 1 <= trajectory <= last:
            problems.add(line, f"there is no trajectory {trajectory}; the store holds {last}, counted from 1")
        category = read_category(cells["label"], store.scale, line, problems)
        time = cells.get("time", "")
        try:
            datetime.fromisoformat(time or "2000-01-01")
        except ValueError:
            problems.add(line, f"time is '{time}', not one such as 2000-01-31T23:59:00+00:00")
        labels.append(Label(trajectory or 0, category or 0, cells.get("annotator") or annotator, time))
    problems.raise_if_any()
    return labels


def _remarks(store: Store, ids: Sequence[int], resolve: Resolve) -> dict[str, list[str]]:
    """What the table says of each trajectory as a whole, as text."""
    log = store.log()
    category_of = votes.resolve(log, resolve)
    newest = {label.trajectory: label.annotator for label in log}
    remarks: dict[str, list[str]] = {name: [] for name in REMARKS}
    for trajectory, source in zip(ids, store.sources(ids), strict=True):
        label = annotator = None
        if trajectory in category_of:
            label = store.scale.categories[category_of[trajectory]]
            annotator = newest[trajectory] if resolve == "newest" else resolve
        for name, value in zip(REMARKS, (*source[:3], label, annotator), strict=True):
            remarks[name].append("" if value is None else str(value))
    return remarks


def _format(path: str | PathLike[str]) -> str:
    ending = Path(path).suffix.lower()
    if ending not in WRITERS:
        raise InputError(f"the ending says the format: one of {', '.join(WRITERS)}, not '{ending}'", place=str(path))
    return ending
