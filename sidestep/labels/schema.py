"""The file behind a store: what is in it, how it is made, and what is refused when it is opened.

It is an SQLite database (write-ahead log; `user_version` is the version of the format) with three tables:

    about         what the store is about, one value for each key: the scale, the model, the model's hash
    trajectories  one row each: `steps` holds length x (state, action, reward) as little-endian float32, step by
                  step, and `content` its hash; then where it came from: policy, round, seed, time
    labels        the log: who called which trajectory what, and when. A category that is NULL: the annotator cannot
                  tell. `marks`: the step at which each severity was reached, as JSON. `comment`: the annotator's words

Rows are only ever added: triggers refuse every change and deletion, whoever asks. A store of format 1, whose labels
have neither marks nor comments, is brought to format 2 when it is opened, in one transaction.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sidestep.core.constraints import Scale
from sidestep.core.errors import DiskFull, InputError
from sidestep.core.records import from_json, to_json
from sidestep.labels.marks import marks_fault, marks_from_text
from sidestep.labels.votes import Label
from sidestep.runtime.files import disk_is_full

if TYPE_CHECKING:
    from sidestep.core.model import Space, Spec

STORE_ERRORS = (sqlite3.Error, UnicodeError, OverflowError)  # all that reading a damaged file may raise
APPLICATION_ID = 0x53696465  # "Side" in the file's header: this SQLite file is a label store
FORMAT = 2
WAIT_SECONDS = 120.0  # for other writers, before giving up
PAGE_BYTES = 8192  # fits several trajectories of some hundred numbers
LONGEST_COMMENT = 2000  # characters

TABLES = """
CREATE TABLE about (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY,
    length INTEGER NOT NULL CHECK (length > 0),
    steps BLOB NOT NULL CHECK (length(steps) = length * {step_bytes}),
    content BLOB NOT NULL UNIQUE,
    policy TEXT NOT NULL,
    round INTEGER,
    seed INTEGER,
    time TEXT NOT NULL
);

"""
LABELS = """
CREATE TABLE labels (
    id INTEGER PRIMARY KEY,
    trajectory INTEGER NOT NULL REFERENCES trajectories (id),
    category INTEGER CHECK (category BETWEEN 0 AND {worst}),
    annotator TEXT NOT NULL CHECK (annotator <> ''),
    time TEXT NOT NULL,
    marks TEXT,
    comment TEXT CHECK (length(comment) BETWEEN 1 AND {longest})
);

CREATE INDEX labels_of_trajectory ON labels (trajectory);
"""

# INSERT OR REPLACE deletes without firing delete triggers, so inserting over a row is refused as well.
ADD_ONLY = """
CREATE TRIGGER {table}_not_changed BEFORE UPDATE ON {table}
BEGIN SELECT RAISE(ABORT, '{table}: rows are never changed, only added'); END;

CREATE TRIGGER {table}_not_deleted BEFORE DELETE ON {table}
BEGIN SELECT RAISE(ABORT, '{table}: rows are never deleted, only added'); END;

CREATE TRIGGER {table}_not_replaced BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})
BEGIN SELECT RAISE(ABORT, '{table}: rows are never replaced, only added'); END;
"""
SAME_ROW = {"about": "key = NEW.key", "trajectories": "id = NEW.id OR content = NEW.content", "labels": "id = NEW.id"}


@dataclass(frozen=True)
class Variable:
    """One variable of a state or an action; bounds are texts, so that they are the same everywhere."""

    name: str
    kind: str
    low: tuple[str, ...]
    high: tuple[str, ...]
    names: tuple[str, ...]  # of its entries, as the model names them

    def __str__(self) -> str:
        low, high = ("/".join(dict.fromkeys(side)) for side in (self.low, self.high))
        return f"{' '.join(self.names)} ({self.kind} in [{low}, {high}])"


@dataclass(frozen=True)
class Signature:
    """What two models must share for their trajectories to mean the same."""

    name: str
    horizon: int
    state: tuple[Variable, ...]
    action: tuple[Variable, ...]

    @classmethod
    def of(cls, spec: "Spec") -> "Signature":
        return cls(spec.name, int(spec.horizon), _variables(spec.state), _variables(spec.action))

    @property
    def hash(self) -> str:
        """A name that is the same in every process."""
        return hashlib.sha256(json.dumps(to_json(self), sort_keys=True).encode()).hexdigest()

    @property
    def step_bytes(self) -> int:
        """Of state, action and reward."""
        return 4 * (len(self.state_names) + len(self.action_names) + 1)

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(name for variable in self.state for name in variable.names)

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(name for variable in self.action for name in variable.names)


def _variables(space: "Space") -> tuple[Variable, ...]:
    def bounds(bound: float | np.ndarray, size: int) -> tuple[str, ...]:
        return tuple(repr(float(number)) for number in np.broadcast_to(np.asarray(bound, float), (size,)))

    return tuple(
        Variable(
            variable.name,
            variable.kind,
            bounds(variable.low, variable.size),
            bounds(variable.high, variable.size),
            tuple(space.names[space.slices[variable.name]]),
        )
        for variable in space.variables
    )


def spec_hash(spec: "Spec") -> str:
    """A name for a model's interface that is the same in every process: its names, kinds, bounds and horizon."""
    return Signature.of(spec).hash


def make(path: Path, model: Signature, scale: Scale) -> None:
    """Make an empty store at `path`, in one transaction: whoever is killed here leaves no half-made store."""
    if not path.parent.is_dir():
        raise InputError(f"there is no folder '{path.parent}' to make a store in", place=str(path))
    about = about_of(model, scale)
    try:
        with closing(_connect(path, mode="rwc")) as connection:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise InputError("there is a file already; open it, or name another", place=str(path))
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            script = TABLES.format(step_bytes=model.step_bytes) + _labels_table(scale)
            script += "".join(_add_only(table) for table in SAME_ROW)
            # Another process may have come first while this one waited: its tables make the script fail.
            connection.executescript(
                f"BEGIN IMMEDIATE; {script} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
            )
            connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise cannot_use(error, path, "cannot make a store here") from error


def about_of(model: Signature, scale: Scale) -> dict[str, str]:
    """What a store says of itself."""
    return {"scale": json.dumps(scale.categories), "model": json.dumps(to_json(model)), "hash": model.hash}


def _labels_table(scale: Scale) -> str:
    return LABELS.format(worst=len(scale) - 1, longest=LONGEST_COMMENT)


def _add_only(table: str) -> str:
    return ADD_ONLY.format(table=table, same=SAME_ROW[table])


def is_made(path: Path) -> bool:
    """Whether anything was made here; an empty database is what a kill or a full disk leaves of `create`."""
    if not path.exists():
        return False
    if not path.is_file():
        return True
    try:
        with closing(_connect(path, mode="rw")) as connection:
            return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
    except STORE_ERRORS as error:
        if isinstance(full := cannot_use(error, path, ""), DiskFull):
            raise full from error
        return True


class Lost(InputError):
    """The connection to a server broke, and what was being written was not committed."""


class Rows(Protocol):
    """What a query found."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """What a store needs of what is behind it: a file (below), or a server (`postgres.py`)."""

    wanted: str  # the rows of a list of ids, in its order, for a query

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """All that reading and writing may raise."""
        ...

    def values(self, ids: Sequence[int]) -> object:
        """A list of ids as a value for `wanted`."""
        ...

    def execute(self, query: str, values: Sequence[object] = ()) -> Rows: ...

    def executemany(self, query: str, rows: Iterable[Sequence[object]]) -> object: ...

    @property
    def in_transaction(self) -> bool: ...

    def begin(self, *, write: bool) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def reconnect(self) -> None:
        """After `Lost`."""
        ...

    def close(self) -> None: ...

    def faults(self) -> list[str]:
        """What it finds wrong with itself."""
        ...

    def cannot_use(self, error: Exception, otherwise: str) -> InputError:
        """One of its errors in a sentence."""
        ...


class File:
    """An open SQLite file."""

    wanted, errors = "json_each(?) wanted", STORE_ERRORS

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection
        self.execute, self.executemany = connection.execute, connection.executemany
        self.close = connection.close

    def values(self, ids: Sequence[int]) -> str:
        return json.dumps(list(ids))

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def begin(self, *, write: bool) -> None:
        self.execute("BEGIN IMMEDIATE" if write else "BEGIN DEFERRED")

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        if self.in_transaction:
            self.execute("ROLLBACK")

    def reconnect(self) -> None:
        raise AssertionError("a file is not lost")

    def faults(self) -> list[str]:
        return [f"SQLite: {row[0]}" for row in self.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]

    def cannot_use(self, error: Exception, otherwise: str) -> InputError:
        return cannot_use(error, self.path, otherwise)


def connect(path: Path, spec: "Spec | None", scale: Scale | None) -> tuple[File, Signature, Scale]:
    """Open the store at `path`: its connection, its model and its scale. Refuses any other file, and changes none.

    A store of an older format is brought to the present one.
    """
    place = str(path)
    if not path.is_file():
        raise InputError("there is no label store here", place=place)
    try:
        with ExitStack() as if_refused:
            connection = if_refused.enter_context(closing(_connect(path, mode="rw")))
            version = _format_of(connection, place)
            # FULL: when a commit returns, its labels survive the end of the process and of the power.
            connection.execute("PRAGMA synchronous = FULL")
            model, own_scale = read_about(dict(connection.execute("SELECT key, value FROM about")), place)
            check_about(model, own_scale, spec, scale, place)
            if version < FORMAT:
                _migrate(connection, own_scale, path)
            connection.execute("PRAGMA foreign_keys = ON")
            if_refused.pop_all()
            return File(path, connection), model, own_scale
    except STORE_ERRORS as error:
        raise cannot_use(error, path, "this is not a label store that can be read") from error


def _format_of(connection: sqlite3.Connection, place: str) -> int:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application != APPLICATION_ID:
        raise InputError("this is a file, but not a label store", place=place)
    if version not in (1, FORMAT):
        raise InputError(
            f"this label store has format {version}, and this version of sidestep reads formats 1 to {FORMAT}; "
            f"{'upgrade sidestep' if version > FORMAT else 'export it with the sidestep that wrote it'}",
            place=place,
        )
    return version


def _migrate(connection: sqlite3.Connection, scale: Scale, path: Path) -> None:
    """From format 1 to 2: the same log in the new table, compared with the old one before that one goes.

    One transaction: whoever is killed here leaves the old store as it was. Of several that open the store at once, one
    does it and the others find it done.
    """
    old = "id, trajectory, category, annotator, time"
    script = f"DROP INDEX labels_of_trajectory;\nALTER TABLE labels RENAME TO labels_1;\n{_labels_table(scale)}"
    script += f"INSERT INTO labels ({old}) SELECT {old} FROM labels_1;\n"
    try:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
            connection.execute("COMMIT")
            return
        _execute(connection, script)
        before, after = (connection.execute(f"SELECT {old} FROM {t} ORDER BY id") for t in ("labels_1", "labels"))
        if any(row != copy for row, copy in zip_longest(before, after)):
            raise sqlite3.DatabaseError("the copied labels differ from the old ones")
        connection.execute("DROP TABLE labels_1")  # and its triggers
        _execute(connection, f"{_add_only('labels')}\nPRAGMA user_version = {FORMAT};\nCOMMIT;\n")
    except STORE_ERRORS as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise cannot_use(error, path, f"this label store has format 1 and cannot be brought to {FORMAT}") from error


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Statements that end at the end of a line, inside the transaction (`executescript` would commit it first)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def cannot_use(error: Exception, path: Path, otherwise: str) -> InputError:
    """The error of SQLite in a sentence; a full disk is not the store's fault."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    suspect = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and disk_is_full(path.parent)
    if code == sqlite3.SQLITE_FULL or suspect:
        return DiskFull(str(path))
    return InputError(f"{otherwise}: {error}", place=str(path))


def read_about(about: Mapping[str, str], place: str) -> tuple[Signature, Scale]:
    """The entries of the table `about`: the model and the scale, each known to be what it must be."""
    try:
        model = from_json(Signature, json.loads(about["model"]), "its model")
        categories = json.loads(about["scale"])
        _require(isinstance(categories, list), "its scale is not a list")
        _require(model.horizon >= 1, "its horizon is not a whole number from 1 on")
        _require(model.hash == about["hash"], "its model is not the one that its hash was made of")
        return model, Scale(tuple(categories))
    except (KeyError, TypeError, ValueError, RecursionError) as error:  # an InputError is a ValueError
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"this label store is damaged, in what it says of itself: {reason}", place=place) from error


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def content_hash(steps: bytes) -> bytes:
    """By which a trajectory is known."""
    return hashlib.blake2b(steps, digest_size=16).digest()


def trajectory_fault(row: Sequence[object], numbers: int) -> str | None:
    """What is wrong with a row (id, length, steps, content) with so many numbers per step; None if nothing."""
    trajectory, length, steps, content = row
    if type(trajectory) is not int or type(length) is not int or not isinstance(steps, bytes):
        return "its row does not hold what it must"
    if length < 1 or len(steps) != 4 * numbers * length:
        return f"it has {len(steps)} bytes, and {length} steps take {4 * numbers * length}"
    if content_hash(steps) != content:
        return "its numbers are not those that were put in (their hash differs)"
    if not np.isfinite(np.frombuffer(steps, "<f4")).all():
        return "it holds a number that is not finite"
    return None


def label_of(row: Sequence[object], last: int, scale: Scale) -> Label:
    """The label in a row (trajectory, category, annotator, time, marks, comment, length) of the log.

    `length` is that of the trajectory, and asked for only where there are marks. Raises InputError where the row is not
    one that was put in, in words that name what is wrong with it.
    """
    trajectory, category, annotator, time, text, comment, length = row
    if type(trajectory) is not int or not 1 <= trajectory <= last:
        raise InputError(f"it is of trajectory {trajectory!r}, and the store holds {last}")
    if category is not None and (type(category) is not int or not 0 <= category < len(scale)):
        raise InputError(f"its category is {category!r}, and the scale has {len(scale)} of them")
    if not isinstance(annotator, str) or not isinstance(time, str) or not annotator:
        raise InputError("it does not say in text who gave it and when")
    if comment is not None and (not isinstance(comment, str) or comment != checked_comment(comment)):
        raise InputError("its comment is not one that was put in")
    marks = marks_from_text(text, scale)
    if marks and (fault := marks_fault(marks, category, length if isinstance(length, int) else 0, scale)):
        raise InputError(fault)
    return Label(trajectory, category, annotator, time, marks, comment)


def checked_comment(comment: str | None) -> str | None:
    """An annotator's words without blanks around them, None for none; lines may be broken, nothing else may hide."""
    text = "" if comment is None else comment.strip()
    if len(text) > LONGEST_COMMENT:
        raise InputError(f"a comment has at most {LONGEST_COMMENT} characters, not {len(text)}; shorten it")
    hidden = [character for character in text if not character.isprintable() and character not in "\n\t"]
    if hidden:
        raise InputError(f"a comment is plain text, and this one holds {hidden[0]!r}; take it out")
    return text or None


def check_about(model: Signature, own: Scale, spec: "Spec | None", scale: Scale | None, place: str) -> None:
    """Refuse a store that is not of this model or scale, if given."""
    if spec is not None:
        check_model(model, spec, place)
    if scale is not None and scale != own:
        raise InputError(
            f"the store's labels are on the scale {own}, not {scale}; keep one store for each scale", place=place
        )


def check_model(stored: Signature, spec: "Spec", place: str) -> None:
    """Refuse a model other than the store's, and say where they differ."""
    given = Signature.of(spec)
    for part in fields(Signature):
        before, now = _first_difference(getattr(stored, part.name), getattr(given, part.name))
        if before != now:
            raise InputError(
                f"the store holds trajectories of model '{stored.name}', and this is another one: its {part.name} is "
                f"{now} where the store has {before}; keep one store for each model",
                place=place,
            )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        # Threads that share a store see to it that they take turns.
        return sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}",
            uri=True,
            timeout=WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise cannot_use(error, path, "cannot open") from error


def _first_difference(before: object, now: object) -> tuple[str, str]:
    """Both sides in words, for a space at the first variable in which they differ."""
    if not isinstance(before, tuple) or not isinstance(now, tuple):
        return repr(before), repr(now)
    pairs = zip_longest(before, now, fillvalue="no further variable")
    return next(((str(old), str(new)) for old, new in pairs if old != new), ("", ""))
