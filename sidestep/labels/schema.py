"""The file behind a store: what is in it, how it is made, and what is refused when it is opened.

It is an SQLite database (write-ahead log; `user_version` is the version of the format) with three tables:

    about         what the store is about, one value for each key: the scale, the model, the model's hash
    trajectories  one row each: `steps` holds length x (state, action, reward) as little-endian float32, step by
                  step, and `content` its hash; then where it came from: policy, round, seed, time
    labels        the log: who called which trajectory what, and when

Rows are only ever added: triggers refuse every change and deletion, whoever asks.
"""

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sidestep.core.constraints import Scale
from sidestep.core.errors import DiskFull, InputError
from sidestep.core.records import from_json, to_json
from sidestep.runtime.files import disk_is_full

if TYPE_CHECKING:
    from sidestep.core.model import Space, Spec

STORE_ERRORS = (sqlite3.Error, UnicodeError, OverflowError)  # all that reading a damaged file may raise
APPLICATION_ID = 0x53696465  # "Side" in the file's header: this SQLite file is a label store
FORMAT = 1
WAIT_SECONDS = 120.0  # for other writers, before giving up
PAGE_BYTES = 8192  # fits several trajectories of some hundred numbers

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

CREATE TABLE labels (
    id INTEGER PRIMARY KEY,
    trajectory INTEGER NOT NULL REFERENCES trajectories (id),
    category INTEGER NOT NULL CHECK (category BETWEEN 0 AND {worst}),
    annotator TEXT NOT NULL CHECK (annotator <> ''),
    time TEXT NOT NULL
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


def create(path: Path, spec: "Spec", scale: Scale) -> None:
    """Make an empty store at `path`, in one transaction: whoever is killed here leaves no half-made store."""
    if not path.parent.is_dir():
        raise InputError(f"there is no folder '{path.parent}' to make a store in", place=str(path))
    model = Signature.of(spec)
    about = {"scale": json.dumps(scale.categories), "model": json.dumps(to_json(model)), "hash": model.hash}
    step_bytes = 4 * (spec.state.size + spec.action.size + 1)
    try:
        with closing(_connect(path, mode="rwc")) as connection:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise InputError("there is a file already; open it, or name another", place=str(path))
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            script = TABLES.format(step_bytes=step_bytes, worst=len(scale) - 1)
            script += "".join(ADD_ONLY.format(table=table, same=same) for table, same in SAME_ROW.items())
            # Another process may have come first while this one waited: its tables make the script fail.
            connection.executescript(
                f"BEGIN IMMEDIATE; {script} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
            )
            connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise cannot_use(error, path, "cannot make a store here") from error


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


def connect(path: Path, spec: "Spec | None", scale: Scale | None) -> tuple[sqlite3.Connection, Signature, Scale]:
    """Open the store at `path`: its connection, its model and its scale. Refuses any other file, and changes none."""
    place = str(path)
    if not path.is_file():
        raise InputError("there is no label store here", place=place)
    try:
        with ExitStack() as if_refused:
            connection = if_refused.enter_context(closing(_connect(path, mode="rw")))
            _check_format(connection, place)
            connection.execute("PRAGMA foreign_keys = ON")
            # FULL: when a commit returns, its labels survive the end of the process and of the power.
            connection.execute("PRAGMA synchronous = FULL")
            model, own_scale = read_about(dict(connection.execute("SELECT key, value FROM about")), place)
            if spec is not None:
                check_model(model, spec, place)
            if scale is not None and scale != own_scale:
                raise InputError(
                    f"the store's labels are on the scale {own_scale}, not {scale}; keep one store for each scale",
                    place=place,
                )
            if_refused.pop_all()
            return connection, model, own_scale
    except STORE_ERRORS as error:
        raise cannot_use(error, path, "this is not a label store that can be read") from error


def _check_format(connection: sqlite3.Connection, place: str) -> None:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application != APPLICATION_ID:
        raise InputError("this is a file, but not a label store", place=place)
    if version != FORMAT:
        raise InputError(
            f"this label store has format {version}, and this version of sidestep reads format {FORMAT}; "
            f"{'upgrade sidestep' if version > FORMAT else 'export it with the sidestep that wrote it'}",
            place=place,
        )


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


def label_fault(row: Sequence[object], last: int, categories: int) -> str | None:
    """What is wrong with a row (trajectory, category, annotator, time) of the log; None if nothing."""
    trajectory, category, annotator, time = row
    if type(trajectory) is not int or not 1 <= trajectory <= last:
        return f"it is of trajectory {trajectory!r}, and the store holds {last}"
    if type(category) is not int or not 0 <= category < categories:
        return f"its category is {category!r}, and the scale has {categories} of them"
    if not isinstance(annotator, str) or not isinstance(time, str) or not annotator:
        return "it does not say in text who gave it and when"
    return None


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
        return sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=WAIT_SECONDS, isolation_level=None
        )
    except sqlite3.Error as error:
        raise cannot_use(error, path, "cannot open") from error


def _first_difference(before: object, now: object) -> tuple[str, str]:
    """Both sides in words, for a space at the first variable in which they differ."""
    if not isinstance(before, tuple) or not isinstance(now, tuple):
        return repr(before), repr(now)
    pairs = zip_longest(before, now, fillvalue="no further variable")
    return next(((str(old), str(new)) for old, new in pairs if old != new), ("", ""))
