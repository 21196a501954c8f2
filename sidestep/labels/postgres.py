"""A store on a PostgreSQL server, for a team: the same tables as in a file, in a schema of the database.

    postgresql://user@host:5432/database            the store in the schema `sidestep`
    postgresql://user@host:5432/database#kitchen    another store of the same database, in the schema `kitchen`

Writers come one after another: each locks the table of labels first, so that the numbers of rows are without gaps and
in the order in which they were written. Readers wait for nobody, and see one moment. A server that is restarted is
waited for. What a broken connection leaves undecided is looked up: every transaction that writes notes its number in
the table `writers`, in the row of its connection. (The number that PostgreSQL itself gives to a transaction would not
do: after a crash it may be given again.)

Passwords stay out of URLs, which are kept in run folders: libpq reads them from ~/.pgpass or PGPASSWORD.
"""

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from sidestep.core.constraints import Scale
from sidestep.core.errors import DiskFull, InputError
from sidestep.labels import schema
from sidestep.labels.schema import FORMAT, WAIT_SECONDS, Lost, Signature, check_about, read_about

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

    from sidestep.core.model import Spec

SCHEMES = ("postgresql://", "postgres://")
SCHEMA = "sidestep"  # of the database, where the URL names no other
PAUSE = 0.2  # seconds between two attempts to reach a server
SHUTDOWN = ("57P01", "57P02", "57P03")  # what a server says that is stopped or begins

# Format 1, and how each format became the next. A new store goes through all of them.
TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trajectories (
    id BIGINT PRIMARY KEY,
    length BIGINT NOT NULL CHECK (length > 0),
    steps BYTEA NOT NULL CHECK (length(steps) = length * {step_bytes}),
    content BYTEA NOT NULL UNIQUE,
    policy TEXT NOT NULL,
    round BIGINT,
    seed BIGINT,
    time TEXT NOT NULL
);
CREATE TABLE labels (
    id BIGINT PRIMARY KEY,
    trajectory BIGINT NOT NULL REFERENCES trajectories (id),
    category INTEGER NOT NULL CHECK (category BETWEEN 0 AND {worst}),
    annotator TEXT NOT NULL CHECK (annotator <> ''),
    time TEXT NOT NULL
);
CREATE INDEX labels_of_trajectory ON labels (trajectory);
CREATE TABLE writers (session TEXT PRIMARY KEY, number BIGINT NOT NULL);
CREATE FUNCTION number_label() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.id := (SELECT coalesce(max(id), 0) + 1 FROM {schema}.labels); RETURN NEW; END $$;
CREATE TRIGGER labels_numbered BEFORE INSERT ON labels FOR EACH ROW EXECUTE FUNCTION number_label();
CREATE FUNCTION only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '%: rows are never changed or deleted, only added', TG_TABLE_NAME; END $$;
"""
ADD_ONLY = """
CREATE TRIGGER {table}_add_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} EXECUTE FUNCTION only_added();
"""
MIGRATIONS = {
    1: """
ALTER TABLE labels ALTER COLUMN category DROP NOT NULL;
ALTER TABLE labels ADD COLUMN marks TEXT;
ALTER TABLE labels ADD COLUMN comment TEXT CHECK (length(comment) BETWEEN 1 AND {longest});
"""
}
NOTE = "INSERT INTO writers VALUES (?, ?) ON CONFLICT (session) DO UPDATE SET number = excluded.number"
FORMATS = "format "  # one entry of `about` for each format that the store has gone through: nothing is changed
FORMAT_OF = f"SELECT count(*) FROM about WHERE starts_with(key, '{FORMATS}')"


def is_url(place: object) -> bool:
    return isinstance(place, str) and place.startswith(SCHEMES)


class Server:
    """A connection to one store, made anew when the server went away."""

    wanted = "unnest(?::bigint[]) WITH ORDINALITY wanted (value, key)"  # the rows of a list of ids, in its order

    def __init__(self, url: str) -> None:
        self.place = url
        self.address, self.schema = _parted(url)
        self._session, self._number = secrets.token_hex(16), 0  # its name and its writing transactions so far
        self._connection = self._connect(wait=False)

    def values(self, ids: Sequence[int]) -> object:
        return list(ids)

    def execute(self, query: str, values: Sequence[object] = ()) -> "Cursor[Any]":
        with self._noticing():
            return self._connection.execute(query.replace("?", "%s").encode(), values or None)

    def executemany(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        with self._noticing(), self._connection.cursor() as cursor:
            cursor.executemany(query.replace("?", "%s").encode(), list(rows))

    @property
    def in_transaction(self) -> bool:
        return not self._connection.closed and self._connection.info.transaction_status.name != "IDLE"

    def begin(self, *, write: bool) -> None:
        """A connection that broke while nobody used it is noticed here, and made anew."""
        self._number += write
        try:
            self._begin(write)
        except Lost:
            self.reconnect()
            self._begin(write)

    def _begin(self, write: bool) -> None:
        self.execute("BEGIN" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if write:
            self.execute("LOCK TABLE labels IN SHARE ROW EXCLUSIVE MODE")
            self.execute(NOTE, (self._session, self._number))

    def commit(self) -> None:
        """Where the connection broke while it was committed, the server says whether it was."""
        try:
            self.execute("COMMIT")
        except Lost:
            self.reconnect()
            row = self.execute("SELECT number FROM writers WHERE session = ?", (self._session,)).fetchone()
            if row != (self._number,):  # or a reader's, which is told
                raise

    def rollback(self) -> None:
        with suppress(Lost):  # the server rolled it back then
            if self.in_transaction:
                self.execute("ROLLBACK")

    def reconnect(self) -> None:
        """Wait for the server to come back."""
        self._connection.close()
        self._connection = self._connect(wait=True)

    def close(self) -> None:
        if self._number:
            with suppress(*self.errors, Lost):  # a row that stays harms nobody
                self.execute("DELETE FROM writers WHERE session = ?", (self._session,))
        self._connection.close()

    def faults(self) -> list[str]:
        """Pages are checked by the server itself, where it was made with checksums."""
        return []

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (_psycopg().Error, UnicodeError, OverflowError)

    def cannot_use(self, error: Exception, otherwise: str) -> InputError:
        return cannot_use(error, self.place, otherwise)

    def _connect(self, *, wait: bool) -> "Connection[Any]":
        psycopg, until = _psycopg(), time.monotonic() + WAIT_SECONDS
        while True:
            try:
                connection = psycopg.connect(self.address, autocommit=True, connect_timeout=10)
                connection.execute(f"SET search_path TO {self.schema}".encode())
                return connection
            except psycopg.OperationalError as error:
                if not wait or time.monotonic() > until:
                    raise cannot_use(error, self.place, "no PostgreSQL server can be reached here") from error
                time.sleep(PAUSE)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """An error after which the connection is gone is a `Lost`."""
        try:
            yield
        except self.errors as error:
            state = getattr(error, "sqlstate", None)
            gone = isinstance(error, _psycopg().OperationalError) and (state is None or state in SHUTDOWN)
            if gone or self._connection.closed:
                raise Lost(f"the connection was lost: {error}", place=self.place) from error
            raise


def make(url: str, model: Signature, scale: Scale, formats: int = FORMAT) -> None:
    """Make an empty store, in one transaction; `formats`: up to which format, for the tests of migrations."""
    server = Server(url)
    names = {"schema": server.schema, "step_bytes": model.step_bytes, "worst": len(scale) - 1}
    try:
        server.execute("BEGIN")
        server.execute("SELECT pg_advisory_xact_lock(hashtext(?))", (f"sidestep {server.schema}",))
        if _made(server):
            raise InputError("there is a label store here already; open it, or name another", place=url)
        server.execute(f"CREATE SCHEMA IF NOT EXISTS {server.schema}")
        server.execute(TABLES.format(**names))
        for table in ("about", "trajectories", "labels"):
            server.execute(ADD_ONLY.format(table=table))
        about = {**schema.about_of(model, scale), f"{FORMATS}1": ""}
        server.executemany("INSERT INTO about VALUES (?, ?)", list(about.items()))
        _migrate(server, formats)
        server.execute("COMMIT")
    except server.errors as error:
        raise cannot_use(error, url, "cannot make a store here") from error
    finally:
        server.close()


def is_made(url: str) -> bool:
    server = Server(url)
    try:
        return _made(server)
    finally:
        server.close()


def _made(server: Server) -> bool:
    row = server.execute("SELECT to_regclass(?) IS NOT NULL", (f"{server.schema}.about",)).fetchone()
    return row is not None and bool(row[0])


def connect(url: str, spec: "Spec | None", scale: Scale | None) -> tuple[Server, Signature, Scale]:
    """Open the store: its connection, its model and its scale. One of an older format is brought to the present one."""
    server = Server(url)
    try:
        if not _made(server):
            raise InputError("there is no label store here", place=url)
        model, own_scale = read_about(dict(server.execute("SELECT key, value FROM about").fetchall()), url)
        check_about(model, own_scale, spec, scale, url)
        server.execute("BEGIN")
        server.execute("LOCK TABLE labels IN SHARE ROW EXCLUSIVE MODE")
        _migrate(server, FORMAT)
        server.execute("COMMIT")
        return server, model, own_scale
    except BaseException as error:
        server.close()
        if isinstance(error, server.errors):
            raise cannot_use(error, url, "this is not a label store that can be read") from error
        raise


def _migrate(server: Server, formats: int) -> None:
    """From the store's format to the present one, inside the transaction that goes on."""
    row = server.execute(FORMAT_OF).fetchone()
    found = row[0] if row else 0
    if not 1 <= found <= FORMAT:
        raise InputError(
            f"this label store has format {found}, and this version of sidestep reads formats 1 to {FORMAT}; "
            "upgrade sidestep",
            place=server.place,
        )
    for version in range(found, formats):
        server.execute(MIGRATIONS[version].format(longest=schema.LONGEST_COMMENT))
        server.execute("INSERT INTO about VALUES (?, '')", (f"{FORMATS}{version + 1}",))


def cannot_use(error: Exception, url: str, otherwise: str) -> InputError:
    if isinstance(error, InputError):
        return error
    if isinstance(error, _psycopg().errors.DiskFull):
        return DiskFull(url)
    return InputError(f"{otherwise}: {error}", place=url)


def _parted(url: str) -> tuple[str, str]:
    """The address for libpq, and the schema, which the URL has behind a #."""
    parts = urlsplit(url)
    if parts.password is not None:
        raise InputError(
            "keep the password out of the URL, which is written into run folders: put it into ~/.pgpass or PGPASSWORD",
            place=urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":...@"))),
        )
    name = parts.fragment or SCHEMA
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise InputError(f"a store's name behind the # is made of small letters, digits and _, not '{name}'", place=url)
    return urlunsplit(parts._replace(fragment="")), name


def _psycopg() -> Any:
    try:
        import psycopg  # the extra is optional
    except ImportError:
        raise InputError(
            "a store on a PostgreSQL server needs psycopg, which is not installed; install it with: "
            "pip install 'sidestep[postgres]'"
        ) from None
    return psycopg
