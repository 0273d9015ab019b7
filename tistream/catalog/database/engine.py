"""The catalog connection: transactions, database time, migrations and error mapping.

A write is `with catalog.transaction() as conn:` and commits when the block ends. A read is `with catalog.reading() as
conn:` and holds one statement: at READ COMMITTED one statement is a consistent view, two are not.

- SQLite: WAL, `BEGIN IMMEDIATE` for writes (a writer waits at the beginning and never fails in the middle),
  synchronous=FULL (commits survive a power failure), waits up to 30 s for another writer.
- MariaDB and MySQL by PyMySQL: READ COMMITTED, UTC sessions (local time is ambiguous once a year), connections checked
  before use, short waits: see `tistream.catalog.database.mysql`.

Nothing is retried here. A driver error becomes CatalogUnavailable or, where a retry cannot help (a missing column, a
value out of range), a plain TiStreamError. Tables do not go away: where one is missing that a process has begun with,
the database is another one, and the error CatalogReplaced. An error before COMMIT is determinate: the transaction did
not happen. An error while committing is not: the caller must read back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url, select
from sqlalchemy.engine import URL

from tistream.catalog.database.clock_sql import now_ms as _now_ms
from tistream.catalog.database.compatibility import refuse_older
from tistream.catalog.database.generation import admit_writer, another_database, enter
from tistream.catalog.database.metered import watch
from tistream.catalog.database.mysql import exporting_engine, migrating_engine, mysql_engine
from tistream.catalog.database.revisions import MIGRATIONS, Migration, Migrations, revision_of
from tistream.catalog.database.server_settings import refuse_galera, server_settings
from tistream.catalog.rows.journal import JournalEntry
from tistream.errors import CatalogUnavailable, ConfigError, TiStreamError
from tistream.release import THIS_RELEASE, Release

BUSY_WAIT_S = 30
MIGRATION_WAIT_S = 120

_alembic = threading.Lock()  # Alembic keeps its context in module globals

_KNOWN = "sqlite:////absolute/path.db or mysql+pymysql://user:password@host:port/database"
_DUPLICATE_MYSQL = 1062
_NO_TABLE_SQLITE = "no such table: "
_NO_TABLE_MYSQL = {1046, 1049, 1146}  # no database is selected, as it was dropped; unknown database; unknown table
_DUPLICATES_SQLITE = {"SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"}
# MySQL raises these as OperationalError although no retry can help: unknown column, no privilege, unknown database.
_PERMANENT_MYSQL = {1044, 1045, 1049, 1054, 1142, 1143, 4025}
# The disk, the table's file or a quota is full; 1030 wraps the system's error, of which 28 is "no space left".
_FULL_MYSQL = {1021, 1114}
_WRAPPED_MYSQL, _NO_SPACE = 1030, "error 28 "
_FULL_SQLITE = "SQLITE_FULL"
_PERMANENT_SQLITE = {"SQLITE_ERROR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_AUTH", "SQLITE_MISMATCH"}


@dataclass(slots=True)
class Refused:
    """Writes of this process that the catalog refused for lack of space."""

    times: int = 0
    cause: str = ""  #: of the last one


class Catalog:
    """The catalog at `url`. Thread-safe; a forked child needs its own."""

    release = THIS_RELEASE  #: of the process, as the catalog knows it
    generation: int | None = None  #: of the catalog that the process has opened; None before `migrate`
    journal: Callable[[JournalEntry], None] | None = None  #: takes what `journaled` has committed
    identity = 0  #: of its database

    def __init__(self, url: str, *, release: Release = THIS_RELEASE, migrations: Migrations = MIGRATIONS) -> None:
        """`release` and `migrations`: what a process of another release brings, for tests."""
        self.release, self._migrations = release, migrations
        self.full = Refused()
        self._engine = watch(_make_engine(url))
        self._reader = self._engine.execution_options(tistream_begin="BEGIN", tistream_reads=True)

    def migrate(self, to: str | None = None, note: Callable[[Migration], object] = lambda _: None) -> None:
        """Migrate the schema to this release, or up to an older revision; leave that of a later release, if it allows
        this one. Safe from any number of processes and threads at once. `note` each migration before it begins.

        ReleaseTooOld when a later release does not allow this one, MigrationFailed when a migration fails,
        GaleraRefused on a server that loses updates."""
        self.refuse_galera()
        wanted = to or self._migrations.newest
        present = self.revision()
        if present is not None:
            self.refuse_older()
        if present is None or (present != wanted and present in self._migrations.revisions):
            self._migrate(wanted, note)  # most starts do not need it: Alembic takes a while to import
        if to is None and self.generation is None:
            self._enter()

    def _migrate(self, wanted: str, note: Callable[[Migration], object]) -> None:
        with _alembic, self._migration_lock() as conn:
            if revision_of(conn) in (None, *self._migrations.revisions):  # a later release may have come first
                self._migrations.run(conn, wanted, self.release, note)
        self.refuse_older()

    def _enter(self) -> None:
        """Belong to the catalog's generation from now on. RestoreUnfinished while a restore fills it."""
        with self.reading() as conn:
            self.generation, self.identity = enter(conn)

    def missing_migrations(self) -> list[Migration]:
        """Those that `migrate` would run now."""
        return self._migrations.missing(self.revision())

    def refuse_older(self) -> None:
        """ReleaseTooOld when this release may not run on the catalog."""
        with self.reading() as conn:
            refuse_older(conn, self.release)

    def refuse_galera(self) -> None:
        """GaleraRefused when the server would lose updates."""
        refuse_galera(self.server_settings() or {})

    def server_settings(self) -> dict[str, str] | None:
        """The server's settings on which guarantees rest, as far as it shows them; None for SQLite."""
        if self._engine.dialect.name == "sqlite":
            return None
        with self.reading() as conn:
            return server_settings(conn)

    def revision(self) -> str | None:
        """The revision of the tables; None when there are none."""
        with self.reading() as conn:
            return revision_of(conn)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One write transaction: committed when the block ends, rolled back when it raises. CatalogReplaced when the
        catalog is of another generation than the process."""
        with self._mapped(), self._connect_writer() as conn:
            trans = conn.begin()
            try:
                if self.generation is not None:
                    admit_writer(conn, self.generation, self.identity)
                yield conn
            except BaseException as e:
                self._count_full(e)
                _roll_back(conn)
                raise
            try:
                trans.commit()
            except exc.SQLAlchemyError as e:
                self._count_full(e)
                conn.invalidate(e)
                raise CatalogUnavailable(
                    "the catalog failed while committing", determinate=False, cause=_cause(e)
                ) from e

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for one SELECT; several would not see the same state. CatalogReplaced when the database at the
        address has no such table."""
        with self._mapped(), self._connect_reader() as conn:
            yield conn

    @contextmanager
    def snapshot_connection(self) -> Iterator[Connection]:
        """A connection whose reads all see the state at its first one. For one reader at a time: it may take long."""
        if self._engine.dialect.name == "sqlite":
            with self._mapped(), self._reader.connect() as conn:
                yield conn
            return
        engine = exporting_engine(self._engine.url)
        try:
            with self._mapped(), engine.connect() as conn:
                conn.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                yield conn
        finally:
            engine.dispose()

    def ping(self) -> None:
        """Run a trivial query. CatalogUnavailable when the catalog does not answer."""
        with self.reading() as conn:
            now_ms(conn)

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as e:
            begun = self.generation is not None
            raise (another_database() if begun and _lacks_table(e) else map_error(e)) from e

    def _count_full(self, error: BaseException) -> None:
        if isinstance(error, exc.DBAPIError) and _is_full(error.orig):
            self.full.times, self.full.cause = self.full.times + 1, _cause(error)

    def _connect_writer(self) -> AbstractContextManager[Connection]:
        return self._engine.connect()

    def _connect_reader(self) -> AbstractContextManager[Connection]:
        return self._reader.connect()

    @contextmanager
    def _migration_lock(self) -> Iterator[Connection]:
        if self._engine.dialect.name == "sqlite":
            with self._mapped(), self._engine.execution_options(tistream_begin="").connect() as conn:
                conn.exec_driver_sql("PRAGMA journal_mode=WAL")  # kept in the file; not possible in a transaction
            with self.transaction() as conn:  # the write lock is the migration lock
                yield conn
            return
        # The lock belongs to the migrating session and outlives the implicit commits of DDL. When the process dies
        # while the server executes a statement, the server keeps the lock until that statement ends.
        engine = migrating_engine(self._engine.url)
        try:
            with self._mapped(), engine.connect() as conn:
                name = f"tistream-migrate-{engine.url.database}"[:64]
                if conn.exec_driver_sql("SELECT GET_LOCK(%s, %s)", (name, MIGRATION_WAIT_S)).scalar() != 1:
                    raise CatalogUnavailable("another process is still migrating the catalog", determinate=True)
                yield conn
                conn.commit()
        finally:
            engine.dispose()  # closing the connection releases the lock


class GuardFailed(Exception):
    """Rolls a transaction back: a row is not as the caller knows it. Never leaves the catalog."""


def now_ms(conn: Connection) -> int:
    """Unix milliseconds by the database's clock."""
    return int(conn.execute(select(_now_ms())).scalar_one())


def is_duplicate(error: exc.IntegrityError) -> bool:
    """Whether a primary or unique key exists already, rather than another violated constraint."""
    original = error.orig
    name = getattr(original, "sqlite_errorname", None)
    if name is not None:
        return name in _DUPLICATES_SQLITE
    return bool(original is not None and original.args and original.args[0] == _DUPLICATE_MYSQL)


def map_error(error: exc.SQLAlchemyError) -> TiStreamError:
    """The error to raise for a driver error before COMMIT."""
    match error:
        case exc.StatementError(orig=TiStreamError() as refused):  # a value that a column type refused
            return refused
        case exc.IntegrityError() | exc.ProgrammingError() | exc.DataError() | exc.NotSupportedError():
            permanent = True
        case exc.DBAPIError():  # OperationalError, InterfaceError, InternalError, DatabaseError
            permanent = _is_permanent(error.orig)
        case exc.TimeoutError():  # no free connection in the pool
            permanent = False
        case _:
            permanent = True
    if permanent:
        return TiStreamError("the catalog refused a statement", cause=_cause(error))
    return CatalogUnavailable(determinate=True, cause=_cause(error))


def _is_permanent(original: BaseException | None) -> bool:
    name = getattr(original, "sqlite_errorname", None)
    if name is not None:
        return any(name == code or name.startswith(f"{code}_") for code in _PERMANENT_SQLITE)
    return bool(original is not None and original.args and original.args[0] in _PERMANENT_MYSQL)


def _lacks_table(error: exc.SQLAlchemyError) -> bool:
    first = next(iter(error.orig.args), None) if isinstance(error, exc.DBAPIError) and error.orig is not None else None
    return first in _NO_TABLE_MYSQL or (isinstance(first, str) and first.startswith(_NO_TABLE_SQLITE))


def _is_full(original: BaseException | None) -> bool:
    if original is None or not original.args:
        return False
    code, words = original.args[0], " ".join(map(str, original.args))
    return (
        getattr(original, "sqlite_errorname", None) == _FULL_SQLITE
        or code in _FULL_MYSQL
        or (code == _WRAPPED_MYSQL and _NO_SPACE in words)
    )


def _cause(error: BaseException) -> str:
    # Without the statement's parameters, which contain tenants' keys.
    return str(error.orig) if isinstance(error, exc.DBAPIError) else str(error)


def _roll_back(conn: Connection) -> None:
    # When the connection itself failed, the server rolls back.
    try:
        conn.rollback()
    except exc.SQLAlchemyError as e:
        conn.invalidate(e)


def _make_engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except exc.ArgumentError as e:
        raise ConfigError(f"not a catalog address; use {_KNOWN}", url=url) from e
    shown = parsed.render_as_string(hide_password=True)
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            return _sqlite_engine(parsed, shown)
        case "mysql+pymysql" | "mariadb+pymysql":
            return mysql_engine(parsed)
    raise ConfigError(f"unknown catalog type; use {_KNOWN}", url=shown)


def _sqlite_engine(url: URL, shown: str) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigError("a SQLite catalog must be a file, shared by threads and processes", url=shown)
    engine = create_engine(url, connect_args={"timeout": BUSY_WAIT_S}, pool_timeout=BUSY_WAIT_S)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions
        connection.execute("PRAGMA synchronous=FULL").close()

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        if begin := conn.get_execution_options().get("tistream_begin", "BEGIN IMMEDIATE"):
            conn.exec_driver_sql(begin)

    return engine
