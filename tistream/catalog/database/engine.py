"""The catalog connection: transactions, database time, migrations and error mapping.

A write is `with catalog.transaction() as conn:` and commits when the block ends. A read is `with catalog.reading() as
conn:` and holds one statement: at READ COMMITTED one statement is a consistent view, two are not.

- SQLite: WAL, `BEGIN IMMEDIATE` for writes (a writer waits at the beginning and never fails in the middle),
  synchronous=FULL (commits survive a power failure), waits up to 30 s for another writer.
- MariaDB and MySQL by PyMySQL: READ COMMITTED, UTC sessions (local time is ambiguous once a year), connections checked
  before use, short waits: see `tistream.catalog.database.mysql`.

Nothing is retried here. A driver error becomes CatalogUnavailable or, where a retry cannot help (a missing table, a
value out of range), a plain TiStreamError. An error before COMMIT is determinate: the transaction did not happen. An
error while committing is not: the caller must read back.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, column, create_engine, event, exc, inspect, make_url, select, table
from sqlalchemy.engine import URL

from tistream.catalog.database.clock_sql import now_ms as _now_ms
from tistream.catalog.database.metered import watch
from tistream.catalog.database.mysql import migrating_engine, mysql_engine
from tistream.errors import CatalogUnavailable, ConfigError, TiStreamError

if TYPE_CHECKING:
    from alembic.config import Config

BUSY_WAIT_S = 30
MIGRATION_WAIT_S = 120

_alembic = threading.Lock()  # Alembic keeps its context in module globals

_KNOWN = "sqlite:////absolute/path.db or mysql+pymysql://user:password@host:port/database"
_VERSIONS = table("alembic_version", column("version_num"))  # Alembic's own table
_REVISION = re.compile(r"v(\d{4})_\w+\.py")
_DUPLICATE_MYSQL = 1062
_DUPLICATES_SQLITE = {"SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"}
# MySQL raises these as OperationalError although no retry can help: unknown column, no privilege, unknown database.
_PERMANENT_MYSQL = {1044, 1045, 1049, 1054, 1142, 1143, 4025}
_PERMANENT_SQLITE = {"SQLITE_ERROR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_AUTH", "SQLITE_MISMATCH"}


class Catalog:
    """The catalog at `url`. Thread-safe; a forked child needs its own."""

    def __init__(self, url: str) -> None:
        self._engine = watch(_make_engine(url))
        self._reader = self._engine.execution_options(tistream_begin="BEGIN", tistream_reads=True)

    def migrate(self, to: str | None = None) -> None:
        """Migrate the schema to this version, or up to an older revision. Safe from any number of processes and threads
        at once. ConfigError when a newer version has migrated it."""
        wanted, found = to or newest_revision(), self.revision()
        if found == wanted:
            return  # most starts: Alembic, which takes a while to import, is not needed
        if found is not None and found not in revisions():
            raise ConfigError(
                f"The catalog's tables are of revision {found}, and this version knows them up to {wanted}: a newer "
                "version has migrated them. Start that version.",
                revision=found,
                newest=wanted,
            )
        with _alembic, self._migration_lock() as conn:
            _upgrade(conn, wanted)

    def revision(self) -> str | None:
        """The revision of the tables; None when there are none."""
        with self.reading() as conn:
            if not inspect(conn).has_table(_VERSIONS.name):
                return None
        with self.reading() as conn:
            return conn.execute(select(_VERSIONS.c.version_num)).scalar()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One write transaction: committed when the block ends, rolled back when it raises."""
        with _mapped(), self._connect_writer() as conn:
            trans = conn.begin()
            try:
                yield conn
            except BaseException:
                _roll_back(conn)
                raise
            try:
                trans.commit()
            except exc.SQLAlchemyError as e:
                conn.invalidate(e)
                raise CatalogUnavailable(
                    "the catalog failed while committing", determinate=False, cause=_cause(e)
                ) from e

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for one SELECT; several would not see the same state."""
        with _mapped(), self._connect_reader() as conn:
            yield conn

    def ping(self) -> None:
        """Run a trivial query. CatalogUnavailable when the catalog does not answer."""
        with self.reading() as conn:
            now_ms(conn)

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()

    def _connect_writer(self) -> AbstractContextManager[Connection]:
        return self._engine.connect()

    def _connect_reader(self) -> AbstractContextManager[Connection]:
        return self._reader.connect()

    @contextmanager
    def _migration_lock(self) -> Iterator[Connection]:
        if self._engine.dialect.name == "sqlite":
            with _mapped(), self._engine.execution_options(tistream_begin="").connect() as conn:
                conn.exec_driver_sql("PRAGMA journal_mode=WAL")  # kept in the file; not possible in a transaction
            with self.transaction() as conn:  # the write lock is the migration lock
                yield conn
            return
        # The lock belongs to the migrating session and outlives the implicit commits of DDL. When the process dies
        # while the server executes a statement, the server keeps the lock until that statement ends.
        engine = migrating_engine(self._engine.url)
        try:
            with _mapped(), engine.connect() as conn:
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


def _cause(error: BaseException) -> str:
    # Without the statement's parameters, which contain tenants' keys.
    return str(error.orig) if isinstance(error, exc.DBAPIError) else str(error)


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except exc.SQLAlchemyError as e:
        raise map_error(e) from e


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


def newest_revision() -> str:
    """The revision that `migrate` ends at."""
    return max(revisions())


@cache
def revisions() -> frozenset[str]:
    """All revisions known to this version; each is in the name of its file."""
    names = [file.name for file in files("tistream.catalog.database.migrations").joinpath("versions").iterdir()]
    return frozenset(found[1] for name in names if (found := _REVISION.fullmatch(name)))


def _upgrade(conn: Connection, revision: str) -> None:
    from alembic import command

    config = _migrations()
    config.attributes["connection"] = conn
    command.upgrade(config, revision)


def _migrations() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "tistream.catalog.database:migrations")
    config.set_main_option("path_separator", "os")
    return config
