"""The page's own notes, in one SQLite file beside the label store: who may come in, which questions are handed out,
pinned examples and blind checks. Labels are not here: they go into the store, through its own interface.

    people     who there is, and what they may do
    tokens     the hash of every personal link; a link ends when it expires or is revoked
    handed     which trajectory was handed to whom, and until when it is kept for them
    questions  the trajectories that the campaign asks about now
    pins       examples with a known answer, for guidelines, practice and blind checks
    checks     answers to questions whose answer was known, or that were asked a second time
"""

import hmac
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from sidestep.core.errors import InputError
from sidestep.labels.schema import STORE_ERRORS, cannot_use

Role = Literal["owner", "annotator"]
CheckKind = Literal["practice", "planted", "repeat"]

ENDING = ".page"  # behind the name of the store's file
FORMAT = 1
APPLICATION_ID = 0x53695067  # "SiPg" in the file's header
LINK_DAYS = 30.0  # for which a personal link is good
NAME = re.compile(r"[\w][\w .@-]{0,39}")
MOST_PEOPLE = 500
OWNER = "owner"

TABLES = """
CREATE TABLE people (name TEXT PRIMARY KEY, role TEXT NOT NULL CHECK (role IN ('owner', 'annotator')));
CREATE TABLE tokens (
    hash TEXT PRIMARY KEY,
    person TEXT NOT NULL REFERENCES people (name),
    expires REAL NOT NULL,
    revoked INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE handed (
    trajectory INTEGER NOT NULL,
    person TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (trajectory, person)
);
CREATE TABLE questions (place INTEGER PRIMARY KEY, trajectory INTEGER NOT NULL UNIQUE);
CREATE TABLE purpose (what TEXT NOT NULL);
CREATE TABLE pins (trajectory INTEGER PRIMARY KEY, category INTEGER NOT NULL, note TEXT NOT NULL);
CREATE TABLE checks (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    trajectory INTEGER NOT NULL,
    person TEXT NOT NULL,
    expected INTEGER NOT NULL,
    given INTEGER,
    time REAL NOT NULL
);
"""


class Person(NamedTuple):
    name: str
    role: Role


class Invited(NamedTuple):
    """A person and the state of their links."""

    name: str
    role: Role
    links: int  # that are good
    expires: float | None  # the last of them


class Pin(NamedTuple):
    trajectory: int
    category: int
    note: str


class Check(NamedTuple):
    id: int
    kind: CheckKind
    trajectory: int
    person: str
    expected: int
    given: int | None


class Book:
    """An open book. Its file is made when it is not there."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self.clock = path, clock
        try:
            self._connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
            self._prepare()
        except STORE_ERRORS as error:
            raise cannot_use(error, path, "these are not notes of the labelling page that can be read") from error

    def _prepare(self) -> None:
        read = self._connection.execute
        read("PRAGMA journal_mode = WAL")
        # Survives the end of the process. What the end of the power may take away is a lease, or a link just made.
        read("PRAGMA synchronous = NORMAL")
        read("PRAGMA foreign_keys = ON")
        with self.writing():
            application, version = (read(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
            if not version and not read("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in filter(str.strip, TABLES.split(";")):
                    read(statement)
                read(f"PRAGMA application_id = {APPLICATION_ID}")
                read(f"PRAGMA user_version = {FORMAT}")
            elif (application, version) != (APPLICATION_ID, FORMAT):
                raise InputError("expected the notes of the labelling page; move this file away", place=str(self.path))

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What is written inside is written together or not at all."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    # People and their links.

    def add_person(self, name: str, role: Role = "annotator") -> Person:
        """A person of this name, new or known."""
        if not NAME.fullmatch(name) or name != name.strip():
            raise InputError(
                f"a name has 1 to 40 letters, digits, blanks and .@-_ and begins with a letter, not {name!r}"
            )
        known = self.people()
        if known.get(name, role) != role:
            raise InputError(f"'{name}' is the {known[name]} already; choose another name")
        if name not in known and len(known) >= MOST_PEOPLE:
            raise InputError(f"there are {MOST_PEOPLE} people already; remove links nobody uses, or use another store")
        self._connection.execute("INSERT OR IGNORE INTO people VALUES (?, ?)", (name, role))
        return Person(name, role)

    def people(self) -> dict[str, Role]:
        return dict(self._connection.execute("SELECT name, role FROM people ORDER BY rowid"))

    def invited(self) -> list[Invited]:
        query = """SELECT name, role, count(hash), max(expires) FROM people LEFT JOIN tokens
            ON person = name AND NOT revoked AND expires > ? GROUP BY name ORDER BY people.rowid"""
        return [Invited(*row) for row in self._connection.execute(query, (self.clock(),))]

    def invite(self, name: str, days: float = LINK_DAYS) -> str:
        """A new secret for this person's link. Only its hash is kept, so this is the one time that it can be read."""
        token = secrets.token_urlsafe(24)
        row = (_hash(token), name, self.clock() + days * 86400.0)
        self._connection.execute("INSERT INTO tokens (hash, person, expires) VALUES (?, ?, ?)", row)
        return token

    def revoke(self, name: str) -> int:
        """End all links of this person; the number of those that were good until now."""
        query = "UPDATE tokens SET revoked = 1 WHERE person = ? AND NOT revoked"
        return self._connection.execute(query, (name,)).rowcount

    def who(self, token: str) -> Person | None:
        """Whose link this is, if it is good. Every hash is compared, each in constant time."""
        given, found = _hash(token), None
        query = "SELECT hash, name, role FROM tokens JOIN people ON name = person WHERE NOT revoked AND expires > ?"
        for known, name, role in self._connection.execute(query, (self.clock(),)).fetchall():
            if hmac.compare_digest(known, given):
                found = Person(name, role)
        return found

    # Questions and to whom they are handed.

    def ask(self, trajectories: Sequence[int], purpose: str) -> None:
        """These are the questions now, in this order."""
        with self.writing():
            self._connection.execute("DELETE FROM questions")
            self._connection.executemany("INSERT INTO questions VALUES (?, ?)", enumerate(dict.fromkeys(trajectories)))
            self._connection.execute("DELETE FROM purpose")
            self._connection.execute("INSERT INTO purpose VALUES (?)", (purpose,))

    def asked(self) -> tuple[list[int], str]:
        """The questions now, and what they are for, as the campaign put it."""
        ids = [row[0] for row in self._connection.execute("SELECT trajectory FROM questions ORDER BY place")]
        purpose = self._connection.execute("SELECT what FROM purpose").fetchone()
        return ids, purpose[0] if purpose else ""

    def hand(self, trajectories: Sequence[int], person: str, seconds: float) -> None:
        """Keep these questions for a person for so long."""
        until = self.clock() + seconds
        with self.writing():
            self._connection.executemany(
                "INSERT INTO handed VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET until = excluded.until",
                [(trajectory, person, until) for trajectory in trajectories],
            )

    def handed(self) -> Iterator[tuple[int, str, float]]:
        yield from self._connection.execute("SELECT trajectory, person, until FROM handed ORDER BY until, trajectory")

    # Examples and checks.

    def pin(self, pin: Pin) -> None:
        self._connection.execute("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", pin)

    def unpin(self, trajectory: int) -> None:
        self._connection.execute("DELETE FROM pins WHERE trajectory = ?", (trajectory,))

    def pins(self) -> list[Pin]:
        query = "SELECT trajectory, category, note FROM pins ORDER BY category, trajectory"
        return [Pin(*row) for row in self._connection.execute(query)]

    def begin_check(self, kind: CheckKind, trajectory: int, person: str, expected: int) -> int:
        query = "INSERT INTO checks (kind, trajectory, person, expected, time) VALUES (?, ?, ?, ?, ?)"
        made = self._connection.execute(query, (kind, trajectory, person, expected, self.clock())).lastrowid
        assert made is not None
        return made

    def answer_check(self, check: int, given: int | None) -> None:
        self._connection.execute("UPDATE checks SET given = ? WHERE id = ?", (given, check))

    def checks(self) -> list[Check]:
        query = "SELECT id, kind, trajectory, person, expected, given FROM checks ORDER BY id"
        return [Check(*row) for row in self._connection.execute(query)]


def open_book(store: Path | str) -> Book:
    """The book beside this store; of one on a server, in the folder that the page is served from."""
    if isinstance(store, str):
        store = Path(f"labels-{sha256(store.encode()).hexdigest()[:12]}")
    path = store.with_name(store.name + ENDING)
    if path.is_symlink():
        raise InputError("is a link, and the page's notes are written beside the store; remove it", place=str(path))
    return Book(path)


def _hash(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()
