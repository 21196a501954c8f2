"""The store of labelled trajectories: one file for one model and one scale.

    with Store.create("labels.store", model.spec, Scale()) as store:
        ids, new = store.add(trajectories, policy="uniform", seed=0)
        store.label(ids, rule(trajectories), annotator="alice")
        store.label([1], ["severe"], annotator="bob", marks=[{"mild": 3, "severe": 9}], comment="too close")
        ids, trajectories, categories = store.labelled()

Trajectories are known by their content, so that adding one again finds the first. Labels are a log: a relabel
supersedes the earlier label and leaves it in place, and annotators may disagree. An annotator who cannot tell gives the
category None, which counts as no label. Marks (see `marks`) and comments are optional. When `add` or `label` returns,
what it wrote is on disk; several processes may write at once. This module does not import JAX until it hands out
trajectories.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.labels import postgres, schema, votes
from sidestep.labels.marks import Marks, MarksArray, marks_array, marks_fault, marks_of, marks_text, median_marks
from sidestep.labels.packing import pack, single_steps, unpack
from sidestep.labels.schema import spec_hash
from sidestep.labels.votes import Agreement, Label, Resolve

if TYPE_CHECKING:
    from sidestep.core.model import Spec, Trajectory

__all__ = ["Added", "Label", "Source", "Store", "Verification", "single_steps", "spec_hash"]

Place = str | PathLike[str]  # of a store: a file, or the URL of one on a server
T = TypeVar("T")

ALL = 2**62  # rows: no limit
ROWS = "SELECT id, length, steps, content FROM trajectories"
LENGTH = "CASE WHEN marks IS NULL THEN NULL ELSE (SELECT length FROM trajectories t WHERE t.id = trajectory) END"
LABEL = f"trajectory, category, annotator, time, marks, comment, {LENGTH}"
LOG = f"SELECT {LABEL} FROM labels"
VOTED = """SELECT trajectory FROM labels vote WHERE category IS NOT NULL AND NOT EXISTS (SELECT 1 FROM labels later
    WHERE later.trajectory = vote.trajectory AND later.annotator = vote.annotator AND later.id > vote.id)"""
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

    def __init__(self, path: Place, spec: "Spec | None" = None, scale: Scale | None = None) -> None:
        """The store at `path`, a file or a server's URL; refused when it is not of this model or scale, if given."""
        self.path = store_place(path)
        self._database: schema.Database
        if isinstance(self.path, str):
            self._database, self.model, self.scale = postgres.connect(self.path, spec, scale)
        else:
            self._database, self.model, self.scale = schema.connect(self.path, spec, scale)
        self.model_name, self.model_hash = self.model.name, self.model.hash
        self.state_names, self.action_names = self.model.state_names, self.model.action_names

    @classmethod
    def create(cls, path: Place, spec: "Spec", scale: Scale | None = None) -> Self:
        """A new, empty store at `path`, which must not exist."""
        place = store_place(path)
        if isinstance(place, str):
            postgres.make(place, schema.Signature.of(spec), scale or Scale())
        else:
            schema.make(place, schema.Signature.of(spec), scale or Scale())
        return cls(path)

    @classmethod
    def create_like(cls, other: "Store", path: Place) -> Self:
        """A new, empty store for the model and the scale of another one."""
        place = store_place(path)
        if isinstance(place, str):
            postgres.make(place, other.model, other.scale)
        else:
            schema.make(place, other.model, other.scale)
        return cls(path)

    @classmethod
    def open(cls, path: Place, spec: "Spec | None" = None, scale: Scale | None = None) -> Self:
        return cls(path, spec, scale)

    @classmethod
    def open_or_create(cls, path: Place, spec: "Spec", scale: Scale) -> Self:
        """The store at `path`, made if it is not there or if making it was cut short."""
        make = cls.open if cls.is_made(path) else cls.create
        return make(path, spec, scale)

    @staticmethod
    def is_made(path: Place) -> bool:
        """Whether anything was made here."""
        place = store_place(path)
        return postgres.is_made(place) if isinstance(place, str) else schema.is_made(place)

    def close(self) -> None:
        self._database.close()

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
    def transaction(self, *, write: bool = True) -> Iterator[None]:
        """What is written inside is written together or not at all; an inner transaction joins the outer one."""
        database = self._database
        if database.in_transaction:
            yield
            return
        try:
            database.begin(write=write)
            try:
                yield
                database.commit()
            except BaseException:
                database.rollback()
                raise
        except database.errors as error:
            raise database.cannot_use(error, "the store cannot be read or written") from error

    def _together(self, act: Callable[[], T], *, write: bool = False) -> T:
        """`act` in a transaction; once more where a server went away before it was done."""
        inside = self._database.in_transaction
        while True:
            try:
                with self.transaction(write=write):
                    return act()
            except schema.Lost:
                if inside:
                    raise
                self._database.reconnect()

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
        given = list(zip(blobs, lengths, digests, sources, strict=True))

        def write() -> Added:
            id_of: dict[bytes, int] = {}
            for digest in digests:
                row = self._database.execute("SELECT id FROM trajectories WHERE content = ?", (digest,)).fetchone()
                if row:
                    id_of[digest] = row[0]
            known, last = len(id_of), len(self)
            rows: list[tuple[object, ...]] = []
            for blob, length, digest, source in given:
                if digest not in id_of:
                    id_of[digest] = last + len(rows) + 1
                    rows.append((id_of[digest], length, blob, digest, *source, now))
            self._database.executemany("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            return Added(np.array([id_of[digest] for digest in digests], np.int64), len(id_of) - known)

        return self._together(write, write=True)

    def label(
        self,
        ids: ArrayLike,
        categories: ArrayLike | Sequence[int | str | None],
        annotator: str | Sequence[str],
        *,
        time: str | Sequence[str] | None = None,
        marks: Sequence[Mapping[str, int] | None] | Int[np.ndarray, "trajectories severities"] | None = None,
        comment: str | Sequence[str | None] | None = None,
    ) -> None:
        """Append a label for each id, by name or by place on the scale; they are on disk when this returns.

        The category None says that the annotator cannot tell. `marks`: for each label the steps at which severities
        were first reached, by their names (or as `marks` gives them: a row of steps, -1 for none). `time` (now, unless
        given) is kept for the reader: which label is newest is decided by the order of the log.
        """
        numbers = [self._category(category) for category in np.asarray(categories).tolist()]
        trajectories = [int(trajectory) for trajectory in np.asarray(ids).tolist()]
        if len(trajectories) != len(numbers):
            raise InputError(f"{len(trajectories)} trajectories were given {len(numbers)} labels; give one for each")
        annotators = [_name(name, "annotator") for name in _for_each(annotator, len(numbers))]
        now = _now()
        times = [time or now for time in _for_each(time, len(numbers))]
        all_marks = [marks_of(one, self.scale) for one in _for_each(marks, len(numbers))]
        comments = [schema.checked_comment(text) for text in _for_each(comment, len(numbers))]
        texts = map(marks_text, all_marks)
        rows = list(zip(trajectories, numbers, annotators, times, texts, comments, strict=True))

        def write() -> None:
            self._check_ids(trajectories)
            self._check_marks(trajectories, numbers, all_marks)
            self._database.executemany(
                "INSERT INTO labels (trajectory, category, annotator, time, marks, comment) VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )

        self._together(write, write=True)

    def labelled(self, resolve: Resolve = "majority") -> tuple[np.ndarray, "Trajectory", np.ndarray]:
        """Ids, trajectories and categories of all that have a label."""
        query = f"{ROWS} WHERE id IN ({VOTED}) ORDER BY id"
        category_of, (ids, trajectories) = self._together(lambda: (self.categories(resolve), self._trajectories(query)))
        if category_of.keys() != set(ids.tolist()):
            raise self._damaged("its labels are not of the trajectories that have one")
        return ids, trajectories, np.array([category_of[i] for i in ids.tolist()], np.int32)

    def unlabelled(self, limit: int | None = None) -> tuple[np.ndarray, "Trajectory"]:
        """Ids and trajectories without a label, the oldest first, at most `limit`."""
        query = f"{ROWS} WHERE id NOT IN ({VOTED}) ORDER BY id LIMIT ?"
        return self._trajectories(query, (ALL if limit is None else limit,))

    def get(self, ids: int | Sequence[int]) -> "Trajectory":
        """The trajectories with these ids, in this order; a batch of one for a single id."""
        wanted = [int(trajectory) for trajectory in np.atleast_1d(np.asarray(ids)).tolist()]
        query = f"""SELECT t.id, length, steps, content FROM {self._database.wanted}
            JOIN trajectories t ON t.id = wanted.value ORDER BY wanted.key"""

        def read() -> tuple[np.ndarray, "Trajectory"]:
            self._check_ids(wanted)
            return self._trajectories(query, (self._database.values(wanted),))

        found, trajectories = self._together(read)
        if found.tolist() != wanted:
            raise self._damaged(f"trajectory {next(i for i in wanted if i not in found)} is missing")
        return trajectories

    def everything(self) -> tuple[np.ndarray, "Trajectory"]:
        """Ids and trajectories, labelled or not."""
        return self._trajectories(f"{ROWS} ORDER BY id")

    def lengths(self) -> list[int]:
        """The number of steps of every trajectory, in the order of their ids."""
        rows = self._rows("SELECT id, length FROM trajectories ORDER BY id")
        for place, (trajectory, length) in enumerate(rows, start=1):
            if trajectory != place or type(length) is not int or length < 1:
                raise self._damaged(f"trajectory {place} is missing or has no length")
        return [length for _, length in rows]

    def sources(self, ids: Sequence[int]) -> list[Source]:
        """Where the trajectories with these ids came from."""
        query = "SELECT policy, round, seed, time FROM trajectories WHERE id = ?"

        def read() -> list[tuple | None]:
            self._check_ids(ids)
            return [self._database.execute(query, (int(i),)).fetchone() for i in ids]

        rows = self._together(read)
        for trajectory, row in zip(ids, rows, strict=True):
            if row is None or [type(value) for value in row if value is not None] not in SOURCE_TYPES:
                raise self._damaged(f"trajectory {trajectory} does not say where it came from")
        return [Source(*row) for row in rows]

    def log(self, after: int = 0) -> list[Label]:
        """Every label ever given but the first `after` of them, in the order in which they were given."""
        return self._labels(f"{LOG} WHERE id > ? ORDER BY id", (after,))

    def history(self, trajectory: int) -> list[Label]:
        """Every label that one trajectory was ever given, the newest last."""
        self._check_ids([trajectory])
        return self._labels(f"{LOG} WHERE trajectory = ? ORDER BY id", (int(trajectory),))

    def categories(self, resolve: Resolve = "majority") -> dict[int, int]:
        """The category of every labelled trajectory, by id; `resolve` settles disagreement (see `votes`)."""
        return votes.resolve(self.log(), resolve)

    def marks(self, ids: Sequence[int] | np.ndarray, resolve: Resolve = "majority") -> MarksArray:
        """The steps at which each severity was first reached, a row for each id; -1 where nobody marked it."""
        labels = votes.deciding(self.log(), resolve)
        marks = [[label.marks for label in labels.get(int(trajectory), ())] for trajectory in ids]
        return marks_array([median_marks(of_one, self.scale) for of_one in marks], self.scale)

    def counts(self, resolve: Resolve = "majority") -> dict[str, int]:
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
            with self.transaction(write=False):
                read = self._database.execute
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
                for number, *row in read(f"SELECT id, {LABEL} FROM labels ORDER BY id"):
                    labels += 1
                    try:
                        schema.label_of(row, last, self.scale)
                    except InputError as fault:
                        faults.append(f"label {number!r}: {fault}")
                faults += self._database.faults()
        except InputError as error:
            faults.append(f"it cannot be read on: {error}")
        return Verification(trajectories, labels, tuple(faults))

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        return self._together(lambda: self._database.execute(query, values).fetchall())

    @property
    def _numbers(self) -> int:
        """Of a step: state, action, reward."""
        return len(self.state_names) + len(self.action_names) + 1

    def _labels(self, query: str, values: Sequence[object] = ()) -> list[Label]:
        rows, last = self._together(lambda: (self._rows(query, values), len(self)))
        try:
            return [schema.label_of(row, last, self.scale) for row in rows]
        except InputError as fault:
            raise self._damaged(f"a label: {fault}") from fault

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

    def _check_marks(self, ids: Sequence[int], categories: Sequence[int | None], all_marks: Sequence[Marks]) -> None:
        length_of = "SELECT length FROM trajectories WHERE id = ?"
        for trajectory, category, marks in zip(ids, categories, all_marks, strict=True):
            if not marks:
                continue
            length = self._database.execute(length_of, (trajectory,)).fetchone()[0]
            if fault := marks_fault(marks, category, length, self.scale):
                raise InputError(f"trajectory {trajectory}: {fault}", place=str(self.path))

    def _category(self, category: object) -> int | None:
        if category is None:
            return None
        if isinstance(category, str):
            return self.scale.index(category)
        if not isinstance(category, int) or not 0 <= category < len(self.scale):
            raise InputError(f"a category is a name of {self.scale} or 0 to {len(self.scale) - 1}, not {category!r}")
        return category

    def _trajectories(self, query: str, values: Sequence[object] = ()) -> tuple[np.ndarray, "Trajectory"]:
        """Ids and trajectories from rows of (id, length, steps, content), each known to be what was put in."""
        rows = self._rows(query, values)
        for row in rows:
            if fault := schema.trajectory_fault(row, self._numbers):
                raise self._damaged(f"trajectory {row[0]!r}: {fault}")
        ids, lengths, blobs, _ = zip(*rows, strict=True) if rows else ((), (), (), ())
        return np.array(ids, np.int64), unpack(blobs, lengths, len(self.state_names), len(self.action_names))


def store_place(path: Place) -> Path | str:
    """A URL as text, anything else as a path."""
    return str(path) if postgres.is_url(path) else Path(path)


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
