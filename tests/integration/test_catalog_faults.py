"""The catalog on a real MariaDB while hosts are lost, migrations are killed and the server becomes a replica.

Each fault is one that the server sees differently from a process that ends: a lost host closes nothing, a killed
migration leaves its first statements done, a demoted server answers every write with an error.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymysql
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, event, make_url, select, update

from simulator.chaos.servers.mariadb import MariaDBServer, mariadb, new_database
from simulator.chaos.servers.proxy import Proxy
from tests.kit.catalog_cases import START, T, activate, advance, begin, elected, silence_leader
from tistream.catalog.database import engine as engines
from tistream.catalog.database import mysql, tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import advance_durable_timestamps
from tistream.catalog.rows.tasks import Assignment
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.leader import acquire_leadership, get_leader
from tistream.catalog.work.stores import StoreAssignment, assign_stores, issue_incarnation, store_places
from tistream.catalog.work.tasks import assign_tasks, holds_leadership, list_tasks, task_places
from tistream.catalog.work.workers import register_worker
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LEADER_LEASE_MS

PATIENCE_S = 30
SHORT_S = 3  #: what stands for IDLE_S and LOCK_WAIT_S here
WRITES = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")

_number = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mariadb() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    return new_database(server, f"faults_{next(_number)}")


@pytest.fixture
def catalog(url: str, short: None) -> Iterator[Catalog]:
    new_catalog = Catalog(url)
    new_catalog.migrate()
    yield new_catalog
    new_catalog.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter waits than in earnest; what they must be is said by the suite."""
    for module in (mysql, engines):
        monkeypatch.setattr(module, "LOCK_WAIT_S", SHORT_S, raising=False)
        monkeypatch.setattr(module, "IDLE_S", SHORT_S, raising=False)


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    with Proxy(make_url(server).port or 0) as new_proxy:
        yield new_proxy


def through(proxy: Proxy, catalog: Catalog) -> Catalog:
    """The same catalog, over the proxy."""
    return Catalog(catalog._engine.url.set(port=proxy.port).render_as_string(hide_password=False))


def within(seconds: float, what: Callable[[], bool]) -> bool:
    """Whether it becomes true in time; refusals that may be tried again are."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return True
        except CatalogUnavailable as e:
            if not e.determinate:
                raise
        time.sleep(0.02)
    return False


# ---- a host that is lost


class LostHost:
    """A process on a host that loses power inside a transaction, after the statements of `act`."""

    def __init__(self, proxy: Proxy, catalog: Catalog, act: Callable[[Any], object]) -> None:
        self._catalog, self._act, self._proxy = through(proxy, catalog), act, proxy
        self._lost, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LostHost:
        self._thread.start()
        assert self._lost.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._proxy.cut()
        self._thread.join(PATIENCE_S)
        self._catalog.close()

    def _run(self) -> None:
        with pytest.raises(CatalogUnavailable):
            self._transact()

    def _transact(self) -> None:
        with self._catalog.transaction() as conn:
            self._act(conn)
            self._proxy.lose()
            self._lost.set()
            self._over.wait(PATIENCE_S)


def given(catalog: Catalog, worker: str) -> set[int]:
    return {place.task_id for place in task_places(catalog) if place.owner == worker}


def test_a_host_lost_inside_a_flush_delays_its_own_task_only_and_not_for_long(catalog: Catalog, proxy: Proxy) -> None:
    ids = activate(catalog) + activate(catalog, Tenant(7, 1))
    epoch = elected(catalog)
    locked = ids[0]

    def assign() -> int:
        assignments = [Assignment(p.task_id, "s2", p.epoch) for p in task_places(catalog) if p.owner != "s2"]
        return assign_tasks(catalog, assignments, leader_epoch=epoch)

    def flush(conn: Any) -> None:
        conn.execute(update(tables.tasks).where(tables.tasks.c.task_id == locked).values(durable_ts=START + 1))

    with LostHost(proxy, catalog, flush):
        assert assign() == len(ids) - 1, "who waits for the row of a lost host gets it, or an error"
        assert given(catalog, "s2") == set(ids) - {locked}
        assert within(4 * SHORT_S, lambda: assign() == 1), "the server ends the session of a lost host"
    assert given(catalog, "s2") == set(ids)
    assert {row.durable_ts for row in list_tasks(catalog)} == {START}, "what was not committed did not happen"


def test_a_host_lost_while_it_assigns_delays_the_next_election_not_for_long(catalog: Catalog, proxy: Proxy) -> None:
    epoch = elected(catalog, "meta-1")
    with LostHost(proxy, catalog, lambda conn: holds_leadership(conn, epoch)):
        silence_within = 4 * SHORT_S
        assert within(silence_within, lambda: _silenced(catalog))
        assert acquire_leadership(catalog, "meta-2") == epoch + 1
    row = get_leader(catalog)
    assert row is not None
    assert row.name == "meta-2"


def _silenced(catalog: Catalog) -> bool:
    silence_leader(catalog, LEADER_LEASE_MS + 1000)
    return True


def test_a_host_lost_while_it_tells_an_event_delays_no_other_for_long(catalog: Catalog, proxy: Proxy) -> None:
    def count(conn: Any) -> None:
        conn.execute(update(tables.counters).where(tables.counters.c.name == "event").values(value=77))

    with LostHost(proxy, catalog, count):
        assert within(4 * SHORT_S, lambda: register_worker(catalog, "s1", "sorter", "") == 1)


# ---- migrations


class Killed(BaseException):
    """Stands for a process that is killed."""


@contextmanager
def killed_after(count: int) -> Iterator[list[tuple[str, str]]]:
    """Every migration of this block is killed after so many statements that write; the statements it got to."""
    seen: list[tuple[str, str]] = []

    def run(_conn: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, _many: bool) -> None:
        if sql.lstrip().upper().startswith(WRITES):
            seen.append((sql, str(parameters)))
            if len(seen) == count:
                raise Killed

    event.listen(Engine, "after_cursor_execute", run)
    try:
        yield seen
    finally:
        event.remove(Engine, "after_cursor_execute", run)


def test_a_migration_killed_after_any_statement_is_completed_by_the_next_start(url: str, tmp_path: Path) -> None:
    """Each start is killed one statement further on than the one before; in the end the tables are those of a catalog
    that was migrated at once."""
    starts, allowed, killed = 0, 1, set[tuple[str, str]]()
    while True:
        catalog = Catalog(url)
        try:
            with killed_after(allowed) as seen:
                catalog.migrate()
        except Killed:
            starts += 1
            allowed = allowed + 1 if seen[-1] in killed else 1  # rows are written again: they were not committed
            killed.add(seen[-1])
            continue
        finally:
            catalog.close()
        break
    assert starts > 40, "every statement of every migration"
    assert contents(Catalog(url)) == contents(migrated(f"sqlite:///{tmp_path}/at_once.db"))
    with Catalog(url).transaction() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []


def migrated(url: str) -> Catalog:
    catalog = Catalog(url)
    catalog.migrate()
    return catalog


def contents(catalog: Catalog) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    rows_by_table = {}
    for table in tables.metadata.sorted_tables:
        with catalog.reading() as conn:
            rows_by_table[table.name] = sorted(map(tuple, conn.execute(select(table))))
    return rows_by_table


def test_a_killed_migration_that_waited_for_a_backup_is_completed_by_the_next_start(url: str, proxy: Proxy) -> None:
    """The server still works on a statement whose client has gone: the next start must not work on the same one."""
    with pytest.raises(Killed), killed_after(3) as seen:
        migrated(url)
    assert "CREATE TABLE tasks" in seen[-1][0], "the next statement creates an index of the table that the backup reads"
    first = Catalog(make_url(url).set(port=proxy.port).render_as_string(hide_password=False))
    second = Catalog(url)
    errors: list[BaseException] = []

    def migrate(catalog: Catalog) -> None:
        try:
            catalog.migrate()
        except Exception as e:  # noqa: BLE001 - shown by the test
            errors.append(e)

    threads = [threading.Thread(target=migrate, args=(each,), daemon=True) for each in (first, second)]
    with backup(url) as shown:
        threads[0].start()
        assert within(PATIENCE_S, lambda: shown("metadata lock") == 1)
        proxy.cut()
        threads[0].join(PATIENCE_S)
        assert len(errors) == 1, "the first one's connection was cut"
        threads[1].start()
        assert within(PATIENCE_S, lambda: shown("metadata lock") + shown("lock") >= 2)
    threads[1].join(PATIENCE_S)
    assert not threads[1].is_alive()
    assert len(errors) == 1, errors[1:]
    with second.transaction() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []


@contextmanager
def backup(url: str) -> Iterator[Callable[[str], int]]:
    """A transaction that has read a table, as a backup's; gives how many sessions of the database wait like this."""
    place = make_url(url)
    with (
        pymysql.connect(host=place.host, port=place.port or 0, user="root", database=place.database) as conn,
        conn.cursor() as cursor,
    ):
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT count(*) FROM tasks")

        def shown(state: str) -> int:
            cursor.execute(
                "SELECT count(*) FROM information_schema.processlist WHERE db = %s AND state LIKE %s",
                (place.database, f"%{state}%"),
            )
            (value,) = cursor.fetchone() or (0,)
            return int(value)

        yield shown
        conn.rollback()


# ---- a server that becomes a replica


def test_connections_to_a_server_that_became_read_only_are_not_used_again(server: str) -> None:
    """The endpoint leads to the new writer: every pooled connection to the old one is of no use any more."""
    name = "demoted"
    with tempfile.TemporaryDirectory(prefix="tistream-mariadb-") as folder:
        old = MariaDBServer(Path(folder))
        try:
            old.start()
            new_port = make_url(server).port or 0
            for url in (new_database(old.url(), name), new_database(server, name)):
                migrated(url).close()
            for port in (old.port, new_port):
                admin(port, "CREATE USER IF NOT EXISTS app@'%'", f"GRANT ALL ON {name}.* TO app@'%'")
            with Proxy(old.port) as proxy:
                catalog = Catalog(f"mysql+pymysql://app@127.0.0.1:{proxy.port}/{name}")
                fill_pool(catalog, 3)
                admin(old.port, "SET GLOBAL read_only = 1")
                with pytest.raises(CatalogUnavailable) as caught:
                    register_tenant(catalog, T)
                assert caught.value.determinate
                proxy.lead_to(new_port)
                done = [attempt(partial(register_tenant, catalog, Tenant(1, n))) for n in range(5)]
                assert done.count(False) <= 1, "the first may meet the old server once more"
                fill_pool(catalog, 3)
                catalog.close()
        finally:
            old.stop()


def admin(port: int, *statements: str) -> None:
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as conn, conn.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def fill_pool(catalog: Catalog, count: int) -> None:
    """So many connections at once, each of which writes."""
    met = threading.Barrier(count)

    def write() -> None:
        with catalog.transaction() as conn:
            conn.execute(tables.events.delete().where(tables.events.c.event_id < 0))
            met.wait(PATIENCE_S)

    threads = [threading.Thread(target=write) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not met.broken


def attempt(act: Callable[[], object]) -> bool:
    try:
        act()
    except CatalogUnavailable:
        return False
    return True


# ---- round trips


@pytest.mark.parametrize("count", [3, 300])
def test_round_trips_do_not_grow_with_the_number_of_items(catalog: Catalog, proxy: Proxy, count: int) -> None:
    """With a millisecond on the way, a leader that pays one for each item loses its election."""
    edges = [b"", *(b"%06d" % n for n in range(1, count)), b""]
    begin(catalog, T, START, *(KeyRange(a, b) for a, b in pairwise(edges)))
    for store_id in range(min(count, 20)):
        issue_incarnation(catalog, T, store_id)
    epoch = elected(catalog)
    far = through(proxy, catalog)
    far.ping()
    tasks = [Assignment(p.task_id, f"s{p.task_id % 3}", p.epoch, T) for p in task_places(catalog)]
    stores = [StoreAssignment(T, p.store_id, f"d{p.store_id % 2}", p.epoch) for p in store_places(catalog)]
    assert turns(proxy, lambda: assign_tasks(far, tasks, leader_epoch=epoch)) <= ROUND_TRIPS_MAX
    assert turns(proxy, lambda: assign_stores(far, stores, leader_epoch=epoch)) <= ROUND_TRIPS_MAX
    durable_timestamps = [(T, advance(a.task_id, START, START + 1, epoch=1)) for a in tasks]
    assert turns(proxy, lambda: advance_durable_timestamps(far, durable_timestamps)) <= ROUND_TRIPS_MAX
    assert {row.durable_ts for row in list_tasks(catalog)} == {START + 1}
    far.close()


ROUND_TRIPS_MAX = 12


def turns(proxy: Proxy, act: Callable[[], object]) -> int:
    """How many round trips it takes."""
    before = proxy.turns
    assert act()
    return proxy.turns - before
