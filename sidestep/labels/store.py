"""The store of labelled trajectories: one file for one model and one scale.

    with Store.create("labels.store", model.spec, Scale()) as store:
        ids, new = store.add(trajectories, policy="uniform", seed=0)
        store.label(ids, rule(trajectories), annotator="alice")
        ids, trajectories, categories = store.labelled()

Trajectories are known by their content, so that adding one again finds the first. Labels are a log: a relabel
supersedes the earlier label and leaves it in place, and annotators may disagree. When `add` or `label` returns, what it
wrote is on disk; several processes may write at once. This module does not import JAX until it hands out trajectories.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.labels import schema, votes
from sidestep.labels.packing import pack, single_steps, unpack
from sidestep.labels.schema import spec_hash
from sidestep.labels.votes import Agreement, Label, Resolve

if TYPE_CHECKING:
    from sidestep.core.model import Spec, Trajectory

__all__ = ["Added", "Label", "Source", "Store", "Verification", "single_steps", "spec_hash"]

ROWS = "SELECT id, length, steps, content FROM trajectories"
LOG = "SELECT trajectory, category, annotator, time FROM labels"
SOURCE_TYPES = ([str, str], [str, int, str], [str, int, int, str])  # of a row's entries but those that are empty


class Added(NamedTuple):
    """What `add` did: the id of each trajectory given (old or new), and how many were not in the store before."""

    ids: np.ndarray
    new: int


class Verification(NamedTuple):
    """What a look at a whole file found."""

    trajectories: int
    labels: int
    faults: tuple[str, ...]  # one sentence each


class Source(NamedTuple):
    """Where a trajectory came from."""

    policy: str
    round: int | None
    seed: int | None
    time: str


class Store:
    """An open store; `model` and `scale` say what it is about."""

    def __init__(self, path: str | PathLike[str], spec: "Spec | None" = None, scale: Scale | None = None) -> None:
        """The store at `path`; refused when it is not of this model or scale, if given."""
        self.path = Path(path)
        self._connection, self.model, self.scale = schema.connect(self.path, spec, scale)
        self.model_name, self.model_hash = self.model.name, self.model.hash
        self.state_names, self.action_names = self.model.state_names, self.model.action_names

    @classmethod
    def create(cls, path: str | PathLike[str], spec: "Spec", scale: Scale | None = None) -> Self:
        """A new, empty store at `path`, which must not exist."""
        schema.create(Path(path), spec, scale or Scale())
        return cls(path)

    @classmethod
    def open(cls, path: str | PathLike[str], spec: "Spec | None" = None, scale: Scale | None = None) -> Self:
        return cls(path, spec, scale)

    @classmethod
    def open_or_create(cls, path: str | PathLike[str], spec: "Spec", scale: Scale) -> Self:
        """The store at `path`, made if it is not there or if making it was cut short."""
        make = cls.open if schema.is_made(Path(path)) else cls.create
        return make(path, spec, scale)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of trajectories; their ids are 1 to this."""
        last = self._rows("SELECT coalesce(max(id), 0) FROM trajectories")[0][0]
        if type(last) is not int:
            raise self._damaged(f"a trajectory has the number {last!r}")
        return last

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """What is written inside is written together or not at all; an inner transaction joins the outer one."""
        if self._connection.in_transaction:
            yield
            return
        try:
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except schema.STORE_ERRORS as error:
            raise schema.cannot_use(error, self.path, "the store cannot be read or written") from error

    def add(
        self,
        trajectories: "Trajectory",
        *,
        policy: str | Sequence[str],
        round: int | Sequence[int | None] | None = None,
        seed: int | Sequence[int | None] | None = None,
    ) -> Added:
        """Put trajectories in; where they came from is said once for all, or once for each."""
        blobs = pack(trajectories, self.state_names, self.action_names)
        lengths = np.asarray(trajectories.length).tolist()
        policies = [_name(name, "policy") for name in _for_each(policy, len(blobs))]
        sources = zip(policies, *(_for_each(number, len(blobs)) for number in (round, seed)), strict=True)
        digests = [schema.content_hash(blob) for blob in blobs]
        now = _now()
        with self.transaction():
            id_of: dict[bytes, int] = {}
            for digest in digests:
                row = self._connection.execute("SELECT id FROM trajectories WHERE content = ?", (digest,)).fetchone()
                if row:
                    id_of[digest] = row[0]
            known, last = len(id_of), len(self)
            rows: list[tuple[object, ...]] = []
            for blob, length, digest, source in zip(blobs, lengths, digests, sources, strict=True):
                if digest not in id_of:
                    id_of[digest] = last + len(rows) + 1
                    rows.append((id_of[digest], length, blob, digest, *source, now))
            self._connection.executemany("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return Added(np.array([id_of[digest] for digest in digests], np.int64), len(id_of) - known)

    def label(
        self,
        ids: ArrayLike,
        categories: ArrayLike,
        annotator: str | Sequence[str],
        *,
        time: str | Sequence[str] | None = None,
    ) -> None:
        """Append a label for each id, by name or by place on the scale; they are on disk when this returns.

        `time` (now, unless given) is kept for the reader: which label is newest is decided by the order of the log.
        """
        numbers = [self._category(category) for category in np.asarray(categories).tolist()]
        trajectories = [int(trajectory) for trajectory in np.asarray(ids).tolist()]
        if len(trajectories) != len(numbers):
            raise InputError(f"{len(trajectories)} trajectories were given {len(numbers)} labels; give one for each")
        annotators = [_name(name, "annotator") for name in _for_each(annotator, len(numbers))]
        now = _now()
        times = [time or now for time in _for_each(time, len(numbers))]
        with self.transaction():
            self._check_ids(trajectories)
            self._connection.executemany(
                "INSERT INTO labels (trajectory, category, annotator, time) VALUES (?, ?, ?, ?)",
                zip(trajectories, numbers, annotators, times, strict=True),
            )

    def labelled(self, resolve: Resolve = "newest") -> tuple[np.ndarray, "Trajectory", np.ndarray]:
        """Ids, trajectories and categories of all that have a label."""
        with self.transaction("DEFERRED"):
            category_of = self.categories(resolve)
            ids, trajectories = self._trajectories(f"{ROWS} WHERE id IN (SELECT trajectory FROM labels) ORDER BY id")
        return ids, trajectories, np.array([category_of[i] for i in ids.tolist()], np.int32)

    def unlabelled(self, limit: int | None = None) -> tuple[np.ndarray, "Trajectory"]:
        """Ids and trajectories without a label, the oldest first, at most `limit`."""
        query = f"{ROWS} WHERE id NOT IN (SELECT trajectory FROM labels) ORDER BY id LIMIT ?"
        return self._trajectories(query, (-1 if limit is None else limit,))

    def get(self, ids: int | Sequence[int]) -> "Trajectory":
        """The trajectories with these ids, in this order; a batch of one for a single id."""
        wanted = [int(trajectory) for trajectory in np.atleast_1d(np.asarray(ids)).tolist()]
        with self.transaction("DEFERRED"):
            self._check_ids(wanted)
            found, trajectories = self._trajectories(
                "SELECT t.id, length, steps, content FROM json_each(?) wanted "
                "CROSS JOIN trajectories t ON t.id = wanted.value ORDER BY wanted.key",
                (json.dumps(wanted),),
            )
        if found.tolist() != wanted:
            raise self._damaged(f"trajectory {next(i for i in wanted if i not in found)} is missing")
        return trajectories

    def everything(self) -> tuple[np.ndarray, "Trajectory"]:
        """Ids and trajectories, labelled or not."""
        return self._trajectories(f"{ROWS} ORDER BY id")

    def sources(self, ids: Sequence[int]) -> list[Source]:
        """Where the trajectories with these ids came from."""
        with self.transaction("DEFERRED"):
            self._check_ids(ids)
            query = "SELECT policy, round, seed, time FROM trajectories WHERE id = ?"
            rows = [self._connection.execute(query, (int(i),)).fetchone() for i in ids]
        for trajectory, row in zip(ids, rows, strict=True):
            if row is None or [type(value) for value in row if value is not None] not in SOURCE_TYPES:
                raise self._damaged(f"trajectory {trajectory} does not say where it came from")
        return [Source(*row) for row in rows]

    def log(self) -> list[Label]:
        """Every label ever given, in the order in which they were given."""
        return self._labels(f"{LOG} ORDER BY id")

    def history(self, trajectory: int) -> list[Label]:
        """Every label that one trajectory was ever given, the newest last."""
        self._check_ids([trajectory])
        return self._labels(f"{LOG} WHERE trajectory = ? ORDER BY id", (int(trajectory),))

    def categories(self, resolve: Resolve = "newest") -> dict[int, int]:
        """The category of every labelled trajectory, by id; `resolve` settles disagreement (see `votes`)."""
        return votes.resolve(self.log(), resolve)

    def counts(self, resolve: Resolve = "newest") -> dict[str, int]:
        """The number of labelled trajectories in each category."""
        categories = np.fromiter(self.categories(resolve).values(), np.int64)
        counts = np.bincount(categories, minlength=len(self.scale))
        return dict(zip(self.scale.categories, counts.tolist(), strict=True))

    def agreement(self) -> Agreement:
        """How far the annotators agree (see `votes`)."""
        return votes.agreement(self.log(), len(self.scale))

    def verify(self) -> Verification:
        """Look at every trajectory and every label of the file."""
        faults: list[str] = []
        trajectories = labels = 0
        try:
            with self.transaction("DEFERRED"):
                read = self._connection.execute
                ids: set[object] = set()
                for row in read(f"{ROWS} ORDER BY id"):
                    trajectories += 1
                    ids.add(row[0])
                    if fault := schema.trajectory_fault(row, self._numbers):
                        faults.append(f"trajectory {row[0]!r}: {fault}")
                last = len(self)
                if len(ids) != last:
                    missing = next((i for i in range(1, last + 1) if i not in ids), last)
                    faults.append(f"trajectory {missing} is missing")
                for number, *row in read("SELECT id, trajectory, category, annotator, time FROM labels ORDER BY id"):
                    labels += 1
                    if fault := schema.label_fault(row, last, len(self.scale)):
                        faults.append(f"label {number!r}: {fault}")
                faults += [f"SQLite: {row[0]}" for row in read("PRAGMA integrity_check(20)") if row[0] != "ok"]
        except InputError as error:
            faults.append(f"it cannot be read on: {error}")
        return Verification(trajectories, labels, tuple(faults))

    def _rows(self, query: str, values: Sequence[int | str] = ()) -> list[tuple]:
        with self.transaction("DEFERRED"):
            return self._connection.execute(query, values).fetchall()

    @property
    def _numbers(self) -> int:
        """Of a step: state, action, reward."""
        return len(self.state_names) + len(self.action_names) + 1

    def _labels(self, query: str, values: Sequence[int | str] = ()) -> list[Label]:
        with self.transaction("DEFERRED"):
            rows, last = self._rows(query, values), len(self)
        for row in rows:
            if fault := schema.label_fault(row, last, len(self.scale)):
                raise self._damaged(f"a label: {fault}")
        return [Label(*row) for row in rows]

    def _damaged(self, fault: str) -> InputError:
        advice = "`sidestep label STORE --verify` checks all of it"
        return InputError(f"this label store is damaged: {fault}; {advice}", place=str(self.path))

    def _check_ids(self, ids: Sequence[int]) -> None:
        last = len(self)
        for trajectory in ids:
            if not 1 <= trajectory <= last:
                raise InputError(
                    f"there is no trajectory {trajectory}; the store holds {last}, counted from 1", place=str(self.path)
                )

    def _category(self, category: object) -> int:
        if isinstance(category, str):
            return self.scale.index(category)
        if not isinstance(category, int) or not 0 <= category < len(self.scale):
            raise InputError(f"a category is a name of {self.scale} or 0 to {len(self.scale) - 1}, not {category!r}")
        return category

    def _trajectories(self, query: str, values: Sequence[int | str] = ()) -> tuple[np.ndarray, "Trajectory"]:
        """Ids and trajectories from rows of (id, length, steps, content), each known to be what was put in."""
        rows = self._rows(query, values)
        for row in rows:
            if fault := schema.trajectory_fault(row, self._numbers):
                raise self._damaged(f"trajectory {row[0]!r}: {fault}")
        ids, lengths, blobs, _ = zip(*rows, strict=True) if rows else ((), (), (), ())
        return np.array(ids, np.int64), unpack(blobs, lengths, len(self.state_names), len(self.action_names))


def _for_each(value: object, count: int) -> list:
    """One value for each of `count` rows, from one for all or one for each."""
    values = list(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else [value] * count
    if len(values) != count:
        raise InputError(f"{count} trajectories were given {len(values)} values; give one for all or one for each")
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _name(name: str, what: str) -> str:
    if not name.strip() or not name.isprintable():
        raise InputError(f"the {what} of a trajectory needs a printable name, not {name!r}")
    return name.strip()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
