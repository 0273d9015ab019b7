"""The connection to the catalog: transactions, time, migrations and what a driver's error means.

A write is `with catalog.transaction() as conn:` and commits when the block ends. A read is `with catalog.reading() as
conn:` and holds one statement: at READ COMMITTED a single statement is a consistent view, two are not.

- SQLite: WAL, `BEGIN IMMEDIATE` for writes (so a writer waits at the beginning and never fails in the middle),
  synchronous=FULL (what was reported as committed survives a power failure), waits up to 30 s for another writer.
- MariaDB and MySQL by PyMySQL: READ COMMITTED, UTC sessions (local time is ambiguous once a year), connections checked
  before use, short waits: see `tistream.catalog.database.mysql`.

Nothing is retried here. Every driver error becomes a CatalogUnavailable or, where trying again cannot help (a missing
table, a value out of range), a plain TiStreamError. An error before COMMIT was sent is determinate: the transaction did
not happen. An error while committing is not: the caller must read back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url, select
from sqlalchemy.engine import URL

from tistream.catalog.database.metered import watch
from tistream.catalog.database.mysql import migrating_engine, mysql_engine
from tistream.catalog.database.tables import now_ms as _now_ms
from tistream.errors import CatalogUnavailable, ConfigError, TiStreamError

if TYPE_CHECKING:
    from alembic.config import Config

BUSY_WAIT_S = 30
MIGRATION_WAIT_S = 120

_alembic = threading.Lock()  # Alembic keeps its context in module globals

_KNOWN = "sqlite:////absolute/path.db or mysql+pymysql://user:password@host:port/database"
_DUPLICATE_MYSQL = 1062
_DUPLICATES_SQLITE = {"SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"}
# MySQL answers these as OperationalError although no retry can help: unknown column, no right, unknown database.
_HOPELESS_MYSQL = {1044, 1045, 1049, 1054, 1142, 1143, 4025}
_HOPELESS_SQLITE = {"SQLITE_ERROR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_AUTH", "SQLITE_MISMATCH"}


class Catalog:
    """The catalog at `url`. Safe to use from several threads; a forked child makes its own."""

    def __init__(self, url: str) -> None:
        self._engine = watch(_make_engine(url))
        self._reader = self._engine.execution_options(tistream_begin="BEGIN", tistream_reads=True)

    def migrate(self) -> None:
        """Bring the schema to this version. Any number of processes and threads may do it at once."""
        with _alembic, self._migration_lock() as conn:
            _upgrade(conn)

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
        """A place for one SELECT. Several would not see the same state."""
        with _mapped(), self._connect_reader() as conn:
            yield conn

    def ping(self) -> None:
        """Ask for a trivial answer. CatalogUnavailable when there is none."""
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
        # The lock belongs to the session that migrates, and outlives the commits that DDL makes. When the process dies
        # while the server still works on a statement, the server keeps the lock until that statement has ended.
        engine = migrating_engine(self._engine.url)
        try:
            with _mapped(), engine.connect() as conn:
                name = f"tistream-migrate-{engine.url.database}"[:64]
                if conn.exec_driver_sql("SELECT GET_LOCK(%s, %s)", (name, MIGRATION_WAIT_S)).scalar() != 1:
                    raise CatalogUnavailable("another process is still migrating the catalog", determinate=True)
                yield conn
                conn.commit()
        finally:
            engine.dispose()  # with its connection goes the lock


def now_ms(conn: Connection) -> int:
    """Unix milliseconds by the database's clock."""
    return int(conn.execute(select(_now_ms())).scalar_one())


def is_duplicate(error: exc.IntegrityError) -> bool:
    """Whether the row's key was taken, and not some other constraint."""
    original = error.orig
    name = getattr(original, "sqlite_errorname", None)
    if name is not None:
        return name in _DUPLICATES_SQLITE
    return bool(original is not None and original.args and original.args[0] == _DUPLICATE_MYSQL)


def map_error(error: exc.SQLAlchemyError) -> TiStreamError:
    """What an error before COMMIT means to the caller."""
    match error:
        case exc.StatementError(orig=TiStreamError() as refused):  # a value that no column takes
            return refused
        case exc.IntegrityError() | exc.ProgrammingError() | exc.DataError() | exc.NotSupportedError():
            hopeless = True
        case exc.DBAPIError():  # OperationalError, InterfaceError, InternalError, DatabaseError
            hopeless = _is_hopeless(error.orig)
        case exc.TimeoutError():  # no free connection in the pool
            hopeless = False
        case _:
            hopeless = True
    if hopeless:
        return TiStreamError("the catalog refused a statement", cause=_cause(error))
    return CatalogUnavailable(determinate=True, cause=_cause(error))


def _is_hopeless(original: BaseException | None) -> bool:
    name = getattr(original, "sqlite_errorname", None)
    if name is not None:
        return any(name == code or name.startswith(f"{code}_") for code in _HOPELESS_SQLITE)
    return bool(original is not None and original.args and original.args[0] in _HOPELESS_MYSQL)


def _cause(error: BaseException) -> str:
    # Without the statement's parameters: they hold keys of tenants.
    return str(error.orig) if isinstance(error, exc.DBAPIError) else str(error)


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except exc.SQLAlchemyError as e:
        raise map_error(e) from e


def _roll_back(conn: Connection) -> None:
    # The connection may be what failed; then the server rolls back by itself.
    try:
        conn.rollback()
    except exc.SQLAlchemyError as e:
        conn.invalidate(e)


def _make_engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except exc.ArgumentError as e:
        raise ConfigError(f"not a catalog address; known are {_KNOWN}", url=url) from e
    shown = parsed.render_as_string(hide_password=True)
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            return _sqlite_engine(parsed, shown)
        case "mysql+pymysql" | "mariadb+pymysql":
            return mysql_engine(parsed)
    raise ConfigError(f"unknown catalog; known are {_KNOWN}", url=shown)


def _sqlite_engine(url: URL, shown: str) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigError("the SQLite catalog is a file: threads and processes share it", url=shown)
    engine = create_engine(url, connect_args={"timeout": BUSY_WAIT_S}, pool_timeout=BUSY_WAIT_S)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        connection.execute("PRAGMA synchronous=FULL").close()

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        if begin := conn.get_execution_options().get("tistream_begin", "BEGIN IMMEDIATE"):
            conn.exec_driver_sql(begin)

    return engine


def newest_revision() -> str:
    """The revision that `migrate` leads to."""
    from alembic.script import ScriptDirectory

    return str(ScriptDirectory.from_config(_migrations()).get_current_head())


def revisions() -> frozenset[str]:
    """All revisions that this version knows."""
    from alembic.script import ScriptDirectory

    return frozenset(script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions())


def _upgrade(conn: Connection) -> None:
    from alembic import command

    config = _migrations()
    config.attributes["connection"] = conn
    command.upgrade(config, "head")


def _migrations() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "tistream.catalog.database:migrations")
    config.set_main_option("path_separator", "os")
    return config
