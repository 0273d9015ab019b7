"""How many statements the catalog is asked, however many tables, stores, tasks and tenants there are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from dispatcher.worker import DispatcherWorker
from metaserver.inventory import MANY_ROWS, REREAD_S, StoreItems
from metaserver.loop import MetaOptions, MetaWorker
from metaserver.reshape import ReshapeSettings
from tests.kit.catalog_cases import begin, elected
from tests.kit.manual_clock import ManualClock
from tests.kit.sorter_bench import Bench, change
from tests.kit.statements import StatementLog
from tistream.admin import views
from tistream.admin.views import Sources
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log import committed
from tistream.catalog.rows.reports import TaskReport, WorkerReport
from tistream.catalog.work import reports
from tistream.catalog.work import tasks as tasks_of_catalog
from tistream.catalog.work.stores import StoreAssignment, assign_stores, issue_incarnation, store_places
from tistream.catalog.work.tasks import list_tasks
from tistream.catalog.work.workers import heartbeat, list_workers, register_worker
from tistream.codec.table_key import record_key
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.memory import MemoryStore

TABLES = (1, 100, 1000)
T = Tenant(1, 1)


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.assign("s1")
    return bench


# ---- a flush


def per_flush(bench: Bench, counts: tuple[int, ...] = TABLES) -> list[set[int]]:
    """For each number of tables: how many statements the transactions took that published a row in each of them.

    Those of the tasks that moved are left out: one each, in one transaction or in two."""
    log = StatementLog(bench.catalog)
    bench.worker("s1")
    per_count, at = [], 20
    for seq, count in enumerate(counts, 1):
        keys = [record_key(table, seq) for table in range(1, count + 1)]
        rows = [row for key in keys for row in change(key, at - 9, at - 8, b"v")]
        with log:
            bench.put(seq, *rows, upto=at)
            bench.wait_for_durable_ts(at)
        flushes = log.with_a("INSERT INTO segments")
        assert flushes, "rows were published"
        per_count.append({sum(not sql.startswith("UPDATE tasks SET durable_ts") for sql in one) for one in flushes})
        at += 10
    return per_count


def test_a_flush_takes_as_many_statements_whatever_the_number_of_tables(bench: Bench) -> None:
    counts = per_flush(bench)
    assert counts == [{3}, {3}, {3}], "kinds of the tasks, objects, segments"


def test_a_flush_that_asks_for_each_table_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant sends a statement for each table of a segment, and the counts show it."""
    proper = committed.flush_in

    def chatty(conn: Connection, tenant: Tenant, objects: Any, advances: Any) -> frozenset[int]:
        for segment in (s for a in advances for s in a.segments):
            for table in range(segment.table_lo, segment.table_hi + 1):
                conn.execute(select(func.count()).where(tables.segments.c.table_lo == table))
        return proper(conn, tenant, objects, advances)

    monkeypatch.setattr(committed, "flush_in", chatty)
    counts = per_flush(bench)
    assert len(set.union(*counts)) > 1
    assert max(counts[2]) > max(counts[0]) + 900


def test_an_idle_sorter_asks_nothing_of_single_tables(bench: Bench) -> None:
    """Without rows its only statements move the durable watermarks."""
    log = StatementLog(bench.catalog)
    bench.worker("s1")
    bench.put(1, upto=20)
    bench.wait_for_durable_ts(20)
    with log:
        bench.put(2, upto=30)
        bench.wait_for_durable_ts(30)
    assert log.with_a("INSERT INTO segments") == []
    moved = log.with_a("UPDATE tasks SET durable_ts=")
    assert moved
    assert {len(one) for one in moved} <= {1, 2}, "one for each task that moved"


# ---- rounds and heartbeats


def dispatched(catalog: Catalog, stores: int) -> DispatcherWorker:
    begin(catalog, T, 10)
    for store in range(1, stores + 1):
        issue_incarnation(catalog, T, store)
    worker = DispatcherWorker(catalog, MemoryStore(), ManualClock(), "d1")
    worker.refresh()
    epoch = elected(catalog)
    given = [StoreAssignment(p.tenant, p.store_id, "d1", p.epoch) for p in store_places(catalog)]
    assert assign_stores(catalog, given, leader_epoch=epoch) == stores
    worker.refresh()
    assert len(worker._owned) == stores
    return worker


@pytest.mark.parametrize("stores", [1, 50])
def test_a_dispatcher_round_is_one_statement_and_one_for_each_changed_store(catalog: Catalog, stores: int) -> None:
    worker, log = dispatched(catalog, stores), StatementLog(catalog)
    with log:
        worker._refresh()
        worker._refresh()
    assert log.count == 2
    for row in worker._owned.values():
        worker._tail(row).max_cut_ts = 77
    with log:
        worker._refresh()
        worker._refresh()
    assert log.count == 2 + stores, "the largest cut_ts of each store is written once"
    with log:
        worker._beat()
    assert log.count == 1
    worker.stop()


@pytest.mark.parametrize("count", [2, 2000])
def test_a_heartbeat_is_one_statement_however_much_it_reports(catalog: Catalog, count: int) -> None:
    life, log = register_worker(catalog, "s1", "sorter", ""), StatementLog(catalog)
    with log:
        heartbeat(catalog, "s1", life, WorkerReport(tasks=tuple(TaskReport(task_id=n, epoch=1) for n in range(count))))
    assert log.count == 1


def many(catalog: Catalog, tenants: int, *, data_tasks: int = 2) -> None:
    """So many tenants, each with data tasks and a store."""
    for n in range(tenants):
        edges = [b"", *(b"%03d" % i for i in range(1, data_tasks)), b""]
        begin(catalog, Tenant(1, n), 10, *(KeyRange(a, b) for a, b in pairwise(edges)))
        issue_incarnation(catalog, Tenant(1, n), 1)


@pytest.mark.parametrize("tenants", [1, 20])
def test_a_round_of_assignment_without_news_asks_the_same_of_few_and_of_many(catalog: Catalog, tenants: int) -> None:
    many(catalog, tenants)
    lives = {name: register_worker(catalog, name, kind, "") for name, kind in (("s1", "sorter"), ("d1", "dispatcher"))}
    clock = ManualClock()
    options = MetaOptions(reshape=ReshapeSettings(split_bytes_per_s=1e6))
    meta = MetaWorker(catalog, MemoryStore(), clock, "meta-1", options)
    for _ in range(3):
        meta.assign()
    assert {row.owner for row in list_tasks(catalog)} == {"s1"}
    for name, life in lives.items():
        heartbeat(catalog, name, life)
    clock.advance(5)
    log = StatementLog(catalog)
    with log:
        meta.assign()
        meta.assign()
    assert log.count == IDLE_ROUND_STATEMENTS + IDLE_ROUND_WITH_REPORTS


IDLE_ROUND_STATEMENTS = 4  # election, pulses, stores, the stamp of tasks
IDLE_ROUND_WITH_REPORTS = 9  # as well, every two seconds: reports, stores and stamp for them; sorters, merges under way


# ---- what is read of many tasks


def test_a_reshape_round_reads_only_tasks_that_may_change(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    many(catalog, 20, data_tasks=3)
    life = register_worker(catalog, "s1", "sorter", "")
    clock, settings = ManualClock(), ReshapeSettings(split_bytes_per_s=1e6, merge_bytes_per_s=10, tasks_min=3)
    meta = MetaWorker(catalog, MemoryStore(), clock, "meta-1", MetaOptions(reshape=settings))
    meta.assign()
    hot = list_tasks(catalog, Tenant(1, 7))[1]
    idle = [TaskReport(task_id=row.task_id, epoch=row.epoch, bytes_per_s=1) for row in list_tasks(catalog)]
    busy = TaskReport(task_id=hot.task_id, epoch=hot.epoch, bytes_per_s=2e6, split_key=b"0015")
    read = counted(monkeypatch, tasks_of_catalog, "task_row")
    for said, rows in ((idle, 0), ([busy if r.task_id == hot.task_id else r for r in idle], 3)):
        heartbeat(catalog, "s1", life, WorkerReport(tasks=tuple(said)))
        clock.advance(5)
        before = read()
        meta.assign()
        assert read() - before == rows


def test_very_many_stores_are_read_only_when_something_has_changed(catalog: Catalog) -> None:
    begin(catalog, T, 10)
    for store_id in range(1, MANY_ROWS + 1):
        issue_incarnation(catalog, T, store_id)
    stores, log, now_s = StoreItems(catalog), StatementLog(catalog), 0.0
    first = stores.read(now_s)
    stores.read(now_s)  # learns the stamp
    with log:
        assert stores.read(now_s + REREAD_S / 2) is first
    assert log.count == 1
    epoch = elected(catalog)
    assert stores.write(first, [(7, "d1")], epoch) == 1
    assert [owner for owner in stores.read(now_s).owners if owner] == ["d1"]
    issue_incarnation(catalog, T, MANY_ROWS + 1)
    assert len(stores.read(now_s).rows) == MANY_ROWS + 1
    with log:
        stores.read(now_s + REREAD_S)
    assert log.count == 2, "now and then they are read whatever the stamp says"


def test_a_report_is_decoded_once_however_often_it_is_read(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    many(catalog, 1)
    life = register_worker(catalog, "s1", "sorter", "")
    decoded = counted(monkeypatch, reports, "decode_report")
    sources = Sources(catalog=catalog, clock=ManualClock())
    for version in range(1, 4):
        heartbeat(catalog, "s1", life, WorkerReport(held_bytes=version))
        before = decoded()
        for _ in range(5):
            assert list_workers(catalog)[0].report.held_bytes == version
            views.tasks_page(sources, limit=10)
            assert views.worker(sources, "s1")["held_bytes"] == version
        assert decoded() - before == 1


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Callable[[], int]:
    """How often a function of a module has been called from now on."""
    proper, calls = getattr(module, name), [0]

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return proper(*args, **kwargs)

    monkeypatch.setattr(module, name, counting)
    return lambda: calls[0]
