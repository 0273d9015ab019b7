"""The real catalog over one SQLite database in memory, with the faults of a remote MySQL server.

A transaction runs at once; scheduling points are before its BEGIN and after its COMMIT. Faults:

    db_away        nothing happened (no connection, deadlock, lock timeout): determinate
    db_undone      COMMIT was sent, no reply came, nothing happened: indeterminate
    db_lost        COMMIT was sent, no reply came, it happened: indeterminate
    db_late        as db_lost, but it happens later, and readers see the old state until then. It lands or dies before
                   another transaction writes to one of its tables, because of its locks
    read only      writes fail for a while; the database's clock may jump

Triggers report values that fall although they must not (`durable_ts` of a task, positions) when the transaction
commits.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event

from simulator.dst.boundaries import Boundaries, Killed, Point, Side
from simulator.dst.connection import QuickConnection
from simulator.dst.faults import Dice
from simulator.dst.scheduler import Scheduler
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.errors import CatalogUnavailable
from tistream.objectstore.generations import FIRST
from tistream.release import THIS_RELEASE, Release

_UNIX_EPOCH_DAYS = 2440587.5
_DAY_MS = 86_400_000.0
_GENERATION = "catalog_release"
_READ_LOCKED = ("consumers", "changefeeds", "lanes", _GENERATION)
_ALIVE = ("UPDATE leader SET heartbeat_ms", "UPDATE workers SET state=CASE")  # "I am still there"


class SimDatabase:
    """One run's database. There is one engine of each number in a process, so there is one run at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        dice: Dice,
        unix_ms: Callable[[], int],
        tell: Callable[[str], None],
        *,
        number: int = 0,
    ) -> None:
        """`number`: a run may have several databases."""
        self.scheduler, self.dice, self.tell = scheduler, dice, tell
        self.unix_ms = unix_ms
        self.offset_ms = 0
        self.read_only = False
        self.away = False
        self.gone = False  #: for ever
        self.generation, self.identity = FIRST, number
        self.transactions = 0
        self.boundaries = Boundaries(scheduler)
        self.engine, self.raw, rows = _engine(number)
        self.raw.executescript(rows)
        self.raw.execute("UPDATE catalog_release SET identity = ?", (number,))
        self.raw.create_function("julianday", 1, lambda _: _UNIX_EPOCH_DAYS + self.now_ms() / _DAY_MS)
        self.raw.create_function("sim_durable_ts", 3, self._note_durable_ts)
        self.on_durable_ts: Callable[[int, int, int], None] = lambda *_: None  #: task, old, new; after COMMIT
        self.on_commit: Callable[[], None] = lambda: None
        self._moved: list[tuple[int, int, int]] = []
        self.statements: list[tuple[str, Any, bool]] = []  # of the transaction under way
        self._late: list[tuple[str, Any, bool]] | None = None
        event.listen(self.engine, "before_cursor_execute", self._note_statement)
        self.whole = self.engine.connect()  # after the listener: a connection asks for them when it is made
        self.connection = QuickConnection(self.raw, self.whole, self._note)

    def now_ms(self) -> int:
        """Unix milliseconds by the database's clock."""
        return self.unix_ms() + self.offset_ms

    @property
    def is_away(self) -> bool:
        return self.away or self.gone

    def close(self) -> None:
        self.whole.close()
        event.remove(self.engine, "before_cursor_execute", self._note_statement)

    def query(self, sql: str, *args: object) -> list[Any]:
        """Read without scheduling points, for the oracle."""
        return self.raw.execute(sql, args).fetchall()

    @contextmanager
    def copied(self) -> Iterator[Connection]:
        """A copy of the database as it is now."""
        copy = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        copy.deserialize(self.raw.serialize())
        days = _UNIX_EPOCH_DAYS + self.now_ms() / _DAY_MS
        copy.create_function("julianday", 1, lambda _: days)
        engine = create_engine("sqlite://", creator=lambda: copy, poolclass=StaticPool)
        try:
            with engine.connect() as conn:
                yield conn
        finally:
            engine.dispose()
            copy.close()

    def moved_in_this_step(self) -> dict[int, int]:
        """Task -> the `durable_ts` to which the transaction that has just been committed has moved it."""
        return {task_id: new for task_id, _, new in self._moved}

    def begin(self) -> None:
        """A writer begins."""
        self.statements.clear()
        self._moved.clear()

    def committed(self) -> None:
        """A transaction has been committed."""
        self.transactions += 1
        self.on_commit()
        for moved in self._moved:
            self.on_durable_ts(*moved)
        self._moved.clear()

    def reach_commit(self) -> Point | None:
        """The current transaction is about to commit; where its process dies if it does so after it."""
        written = sorted({_written(sql) for sql, _, _ in self.statements} - {""})
        alive = all(sql.startswith(_ALIVE) for sql, _, _ in self.statements if _written(sql))
        point = self.boundaries.reach(f"COMMIT {' '.join(written) or 'of nothing'}", alive=alive)
        if point is not None and point.side is not Side.AFTER:
            raise Killed(point)
        return point

    def postpone(self) -> None:
        """The transaction under way is rolled back now and lands later."""
        self.land()  # the one before, if there still is one
        self._late = list(self.statements)
        self.scheduler.call_at(self.scheduler.now + self.dice.rand.random() ** 2 * 2.0, self.land)

    def land(self) -> None:
        """Let a late transaction happen, or not."""
        late, self._late = self._late, None
        if late is None or self.dice.rand.random() < 0.3:
            return
        self.tell("a late COMMIT lands")
        within = self.raw.in_transaction  # of the writer that waited for its locks, and shares its fate
        if within:
            self.statements += late
        else:
            self._moved.clear()  # notes of a transaction that was rolled back
        for sql, args, many in late:
            (self.raw.executemany if many else self.raw.execute)(sql, args)
        if not within:
            self.committed()

    def _note_statement(self, _c: Any, _cursor: Any, statement: str, args: Any, _ctx: Any, many: bool) -> None:
        self._note(statement, args, many)

    def _note(self, statement: str, args: Any, many: bool) -> None:
        if self._late is not None:
            written = {_written(sql) for sql, _, _ in self._late} - {""}
            # every transaction holds a shared lock of its row from its first statement on
            if _written(statement) == _GENERATION or _locked(statement) & written:
                self.land()
        self.statements.append((statement, args, many))

    def _note_durable_ts(self, task_id: int, old: int, new: int) -> None:
        self._moved.append((task_id, old, new))


class SimCatalog(Catalog):
    """One process's way to the database."""

    def __init__(self, database: SimDatabase, release: Release = THIS_RELEASE) -> None:
        self.release, self.generation, self.identity = release, database.generation, database.identity
        self._migrations = MIGRATIONS
        self.lead_to(database)

    def lead_to(self, database: SimDatabase) -> None:
        """Another database has the address from now on."""
        self._db, self._engine = database, database.engine

    def query(self, sql: str, *args: object) -> list[Any]:
        """As `SimDatabase.query`."""
        return self._db.query(sql, *args)

    def revision(self) -> str | None:
        with self.reading():
            ((revision,),) = self.query("SELECT version_num FROM alembic_version")
        return str(revision)

    def close(self) -> None:
        """The engine outlives the run."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        s = self._db.scheduler
        s.point("begin")
        fault = self._db.dice.roll("db_away", "db_undone", "db_lost", "db_late")
        s.sleep(self._db.dice.latency() / 4)
        db = self._db
        if fault == "db_away" or db.read_only or db.is_away:
            raise CatalogUnavailable("the catalog is away", determinate=True)
        db.begin()
        with self._dying(), super().transaction() as conn:
            yield conn
            point = db.reach_commit()
            if fault in ("db_undone", "db_late"):
                if fault == "db_late":
                    db.postpone()
                db.tell(fault)
                raise CatalogUnavailable("no reply to COMMIT", determinate=False)
        db.committed()
        if point is not None:
            db.boundaries.strike(point)
        s.point("commit")
        s.sleep(db.dice.latency() / 4)
        if fault == "db_lost":
            db.tell(fault)
            raise CatalogUnavailable("no reply to COMMIT", determinate=False)

    @contextmanager
    def _dying(self) -> Iterator[None]:
        """Around a transaction: a process that was killed in it dies once it is rolled back."""
        try:
            yield
        except Killed as e:
            self._db.boundaries.strike(e.point)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        s = self._db.scheduler
        s.point("read")
        fault = self._db.dice.roll("db_away")
        s.sleep(self._db.dice.latency() / 4)
        if fault or self._db.is_away:
            raise CatalogUnavailable("the catalog is away", determinate=True)
        with super().reading() as conn:
            yield conn
        s.point()

    @contextmanager
    def snapshot_connection(self) -> Iterator[Connection]:
        s = self._db.scheduler
        s.point("snapshot")
        s.sleep(self._db.dice.latency() / 4)
        if self._db.dice.roll("db_away") or self._db.is_away:
            raise CatalogUnavailable("the catalog is away", determinate=True)
        with self._db.copied() as conn:
            yield conn

    def _connect_writer(self) -> AbstractContextManager[Connection]:
        return _begun(self._db, "BEGIN IMMEDIATE")

    def _connect_reader(self) -> AbstractContextManager[Connection]:
        return _begun(self._db, "BEGIN")


@contextmanager
def _begun(database: SimDatabase, begin: str) -> Iterator[Connection]:
    """The run's one connection, in a transaction: no other task runs until it ends."""
    database.raw.execute(begin)
    try:
        yield cast("Connection", database.connection)
    finally:
        database.connection.rollback()


def _locked(statement: str) -> set[str]:
    """The tables whose rows a statement locks. Those of consumers, changefeeds and lanes are read FOR UPDATE, and that
    of the generation FOR SHARE, which SQLite's statements leave out."""
    read = {table for table in _READ_LOCKED if f"\nFROM {table} \n" in statement}
    return (read | {_written(statement)}) - {""}


def _written(statement: str) -> str:
    """The table that a statement writes to; empty when it only reads."""
    words = statement.split(None, 3)
    match words[0]:
        case "UPDATE":
            return words[1]
        case "INSERT" | "DELETE":
            return words[2]
    return ""


@cache
def _engine(_number: int) -> tuple[Engine, sqlite3.Connection, str]:
    """The one database of this process, and the script that empties it."""
    schema, rows = _migrated()
    raw = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    raw.executescript(schema)
    raw.create_function("sim_durable_ts", 3, lambda *_: None)
    raw.executescript(
        "CREATE TEMP TRIGGER sim_durable_ts_moves AFTER UPDATE OF durable_ts ON main.tasks "
        "WHEN new.durable_ts <> old.durable_ts "
        "BEGIN SELECT sim_durable_ts(new.task_id, old.durable_ts, new.durable_ts); END;"
    )
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    tables = [name for (name,) in raw.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
    empty = [f"DELETE FROM {name};" for name in tables]  # noqa: S608 - names of our own tables
    return engine, raw, "\n".join(["BEGIN;", *empty, *rows, "COMMIT;"])


@cache
def _migrated() -> tuple[str, list[str]]:
    """The schema that the migrations make, and the rows that they put into it."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog(f"sqlite:///{folder}/catalog.db")
        catalog.migrate()
        catalog.close()
        there = sqlite3.connect(f"{folder}/catalog.db")
        lines = [line for line in there.iterdump() if line not in ("BEGIN TRANSACTION;", "COMMIT;")]
        there.close()
    rows = [line for line in lines if line.startswith("INSERT INTO")]
    return "\n".join(line for line in lines if line not in rows), rows
