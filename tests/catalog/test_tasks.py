"""The catalog's schema, tenants, tasks, leader and workers.

Each guard is tried from the losing side. Concurrent callers are threads that start together; time is moved by writing
old heartbeats into the database, never by waiting.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select

from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import (
    DDL,
    HIGH,
    LOW,
    ON_SQLALCHEMY,
    OTHER,
    START,
    T,
    activate,
    advance,
    elected,
    flush,
    silence_leader,
    together,
)
from tistream.catalog.database import tables
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.reports import StoreReport, StuckReport, TaskReport, WorkerReport
from tistream.catalog.rows.tasks import FrontierRow
from tistream.catalog.rows.tenants import NewTask, TenantState
from tistream.catalog.tenancy.tenants import activate_tenant, change_state, get_tenant, list_tenants, register_tenant
from tistream.catalog.work.leader import (
    acquire_leadership,
    get_leader,
    leader_report,
    renew_leadership,
    report_as_leader,
)
from tistream.catalog.work.tasks import (
    frontier,
    get_task,
    list_tasks,
    raise_resubscribe,
    retry_task,
    served_edge,
    served_edges,
    served_watermark,
    stop_task,
    tasks_owned_by,
)
from tistream.catalog.work.workers import drain_worker, heartbeat, list_workers, register_worker, retire_worker
from tistream.errors import Fenced, InvalidInput, NotFound, TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LEADER_LEASE_MS

_MIGRATE = "import sys; from tistream.catalog.database.engine import Catalog; Catalog(sys.argv[1]).migrate()"


class TestTasks:
    # the schema

    @ON_SQLALCHEMY
    def test_the_schema_is_the_sum_of_the_migrations(self, catalog: Catalog) -> None:
        with catalog.transaction() as conn:
            context = MigrationContext.configure(conn, opts={"compare_type": True})
            assert compare_metadata(context, tables.metadata) == []

    def test_migrating_again_changes_nothing(self, catalog: Catalog) -> None:
        activate(catalog)
        catalog.migrate()
        assert len(list_tasks(catalog)) == 3

    @ON_SQLALCHEMY
    def test_several_processes_migrate_at_once(self, url: str) -> None:
        started = [subprocess.Popen([sys.executable, "-c", _MIGRATE, url]) for _ in range(4)]
        assert [process.wait(120) for process in started] == [0, 0, 0, 0]
        catalog = Catalog(url)
        assert register_tenant(catalog, T).tenant == T
        catalog.close()

    @ON_SQLALCHEMY
    def test_several_threads_migrate_at_once(self, url: str) -> None:
        catalogs = [Catalog(url) for _ in range(3)]
        together(3, lambda i: catalogs[i].migrate())
        assert list_tasks(catalogs[0]) == []
        for catalog in catalogs:
            catalog.close()

    def test_keys_are_compared_as_bytes(self, catalog: Catalog) -> None:
        stem = b"\x80" + b"k" * 8000
        edges = [b"", b"T", b"t", b"t ", b"t\xff", *(stem + end for end in (b"", b"\x00", b" ", b"T", b"t", b"t\xff"))]
        ranges = [KeyRange(a, b) for a, b in zip(edges, [*edges[1:], b""], strict=True)]
        register_tenant(catalog, T)
        activate_tenant(catalog, T, START, [NewTask(kind="data", range=r) for r in reversed(ranges)])
        assert [row.range for row in frontier(catalog, T)] == ranges

    def test_a_transaction_that_raises_leaves_nothing(self, catalog: Catalog) -> None:
        def fail_late() -> None:
            with catalog.transaction() as conn:
                conn.execute(tables.counters.update().values(value=99))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_late()
        with catalog.reading() as conn:
            assert set(conn.execute(select(tables.counters.c.value)).scalars()) == {0}

    def test_a_statement_that_can_never_work_is_not_called_unavailable(self, catalog: Catalog) -> None:
        with pytest.raises(TiStreamError) as caught, catalog.reading() as conn:
            conn.exec_driver_sql("SELECT no_such_column FROM tenants")
        assert type(caught.value) is TiStreamError

    # tenants

    def test_registering_again_returns_the_row(self, catalog: Catalog) -> None:
        first = register_tenant(catalog, T)
        assert first.state is TenantState.AWAITING_SNAPSHOT
        assert register_tenant(catalog, T) == first == get_tenant(catalog, T)

    def test_a_tenant_that_is_not_registered_is_named(self, catalog: Catalog) -> None:
        with pytest.raises(NotFound, match="7/0 is not registered; register it"):
            get_tenant(catalog, T)

    def test_an_id_that_no_database_can_hold_is_refused(self, catalog: Catalog) -> None:
        with pytest.raises(InvalidInput):
            register_tenant(catalog, type(T)(1 << 63, 1))
        assert register_tenant(catalog, type(T)((1 << 63) - 1, 1)).tenant.cluster_id == (1 << 63) - 1

    def test_a_tenant_awaiting_its_snapshot_has_no_frontier(self, catalog: Catalog) -> None:
        register_tenant(catalog, T)
        assert frontier(catalog, T) == []
        assert served_watermark(catalog, T) == 0

    def test_activation_creates_tasks_at_the_snapshot(self, catalog: Catalog) -> None:
        activate(catalog)
        row = get_tenant(catalog, T)
        assert (row.state, row.start_ts) == (TenantState.ACTIVE, START)
        tasks = list_tasks(catalog, T)
        assert [(t.kind, t.range) for t in tasks] == [("data", LOW), ("data", HIGH), ("ddl", DDL)]
        assert {(t.start_ts, t.durable_ts, t.epoch, t.owner, t.error) for t in tasks} == {(START, START, 0, None, None)}
        assert list_tenants(catalog, TenantState.ACTIVE) == [row]
        assert list_tenants(catalog, TenantState.PAUSED) == []

    def test_a_tenant_is_activated_once_by_concurrent_callers(self, catalog: Catalog) -> None:
        register_tenant(catalog, T)
        task = NewTask(kind="data", range=KeyRange())
        won = together(8, lambda i: activate_tenant(catalog, T, START + i, [task]))
        assert won.count(True) == 1
        assert [t.durable_ts for t in list_tasks(catalog, T)] == [START + won.index(True)]
        assert get_tenant(catalog, T).start_ts == START + won.index(True)

    def test_an_unknown_tenant_is_not_activated(self, catalog: Catalog) -> None:
        assert not activate_tenant(catalog, T, START, [NewTask(kind="data", range=KeyRange())])
        assert list_tasks(catalog) == []

    def test_task_ids_are_unique_under_concurrency(self, catalog: Catalog) -> None:
        together(6, lambda i: activate(catalog, type(T)(8, i)))
        ids = [t.task_id for t in list_tasks(catalog)]
        assert len(set(ids)) == 18

    def test_a_state_changes_only_from_the_state_that_was_seen(self, catalog: Catalog) -> None:
        activate(catalog)
        active, paused = TenantState.ACTIVE, TenantState.PAUSED
        assert change_state(catalog, T, seen=active, to=paused, reason="key revoked")
        assert get_tenant(catalog, T).reason == "key revoked"
        assert not change_state(catalog, T, seen=active, to=paused, reason="")
        assert served_watermark(catalog, T) == START
        with pytest.raises(InvalidInput):
            change_state(catalog, T, seen=paused, to=TenantState.AWAITING_SNAPSHOT, reason="")

    # tasks

    def test_an_assignment_raises_the_epoch(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        leader_epoch = elected(catalog)
        life = register_worker(catalog, "sorter-1", "sorter", "")
        assert assign_task(catalog, low, worker_id="sorter-1", seen_epoch=0, leader_epoch=leader_epoch) == 1
        assert assign_task(catalog, high, worker_id="Sorter-1", seen_epoch=0, leader_epoch=leader_epoch) == 1
        assert [t.task_id for t in tasks_owned_by(catalog, "sorter-1", life)] == [low]
        assert assign_task(catalog, low, worker_id="sorter-2", seen_epoch=1, leader_epoch=leader_epoch) == 2
        assert tasks_owned_by(catalog, "sorter-1", life) == []
        assert get_task(catalog, low).epoch == 2

    def test_of_concurrent_assignments_one_wins(self, catalog: Catalog, low: int) -> None:
        leader_epoch = elected(catalog)
        for seen in range(5):
            epochs = race_for(catalog, low, seen, leader_epoch)
            assert sorted(epochs, key=str) == [seen + 1, None]
            assert get_task(catalog, low).owner == f"sorter-{epochs.index(seen + 1)}"

    def test_a_stopped_task_says_why_until_it_is_retried(self, catalog: Catalog, low: int) -> None:
        assert not stop_task(catalog, low, epoch=1, error="stale")
        assert stop_task(catalog, low, epoch=0, error="commit below W: schlüssel 数" + "x" * 100_000)
        assert (get_task(catalog, low).error or "").startswith("commit below W: schlüssel 数")
        assert retry_task(catalog, low, epoch=0)
        assert get_task(catalog, low).error is None

    def test_resubscribing_is_guarded_by_the_epoch(self, catalog: Catalog, low: int) -> None:
        assert raise_resubscribe(catalog, low, epoch=0)
        assert raise_resubscribe(catalog, low, epoch=0)
        assert not raise_resubscribe(catalog, low, epoch=1)
        assert [row.resubscribe_id for row in frontier(catalog, T)] == [0, 2, 0]

    def test_an_unknown_task_is_named(self, catalog: Catalog) -> None:
        with pytest.raises(NotFound, match="task 404 not found"):
            get_task(catalog, 404)

    def test_the_frontier_has_every_range_in_key_order(self, catalog: Catalog, low: int) -> None:
        activate(catalog, OTHER)
        flush(catalog, None, advance(low, START, START + 5))
        assert frontier(catalog, T) == [
            FrontierRow(range=DDL, durable_ts=START, resubscribe_id=0),
            FrontierRow(range=LOW, durable_ts=START + 5, resubscribe_id=0),
            FrontierRow(range=HIGH, durable_ts=START, resubscribe_id=0),
        ]

    def test_the_watermark_is_the_lowest_of_data_and_schema(self, catalog: Catalog) -> None:
        low, high, ddl = advanced(catalog)
        for task, durable_ts, lowest in ((low, 10, 20), (high, 20, 30), (ddl, 30, 99)):
            assert served_watermark(catalog, T) == START + durable_ts
            flush(catalog, None, advance(task, START + durable_ts, START + 99))
            assert served_watermark(catalog, T) == START + lowest

    def test_the_watermarks_of_several_tenants_are_those_of_each(self, catalog: Catalog) -> None:
        advanced(catalog)
        activate(catalog, OTHER)
        edges = served_edges(catalog, [T, OTHER, Tenant(9, 9)])
        assert {tenant: edge.ts for tenant, edge in edges.items()} == {T: START + 10, OTHER: START}
        assert served_edges(catalog, [OTHER]) == {OTHER: served_edge(catalog, OTHER)}
        assert served_edges(catalog, []) == {}
        many = [T, *(Tenant(8, n) for n in range(1000))]
        assert served_edges(catalog, many) == {T: edges[T]}

    # the leader

    def test_the_first_to_ask_is_elected(self, catalog: Catalog) -> None:
        assert get_leader(catalog) is None
        won = together(8, lambda i: acquire_leadership(catalog, f"meta-{i}"))
        assert sorted(won, key=str) == [1] + [None] * 7
        row = get_leader(catalog)
        assert row is not None
        assert (row.name, row.epoch) == (f"meta-{won.index(1)}", 1)

    def test_a_silent_leader_is_replaced_once_and_fenced(self, catalog: Catalog) -> None:
        old = elected(catalog, "meta-1")
        silence_leader(catalog, LEADER_LEASE_MS + 1000)
        assert leader_age(catalog) > LEADER_LEASE_MS
        won = together(4, lambda i: acquire_leadership(catalog, f"meta-{i + 2}"))
        assert sorted(won, key=str) == [old + 1] + [None] * 3
        with pytest.raises(Fenced):
            renew_leadership(catalog, "meta-1", old)
        renew_leadership(catalog, f"meta-{won.index(old + 1) + 2}", old + 1)

    def test_the_report_is_that_of_the_present_leader(self, catalog: Catalog) -> None:
        assert leader_report(catalog) == WorkerReport()
        old = elected(catalog, "meta-1")
        said = WorkerReport(problems=({"code": "TS-1020"},))
        report_as_leader(catalog, "meta-1", old, said)
        assert leader_report(catalog) == said
        new = acquire_leadership(catalog, "meta-1", starts=True)
        assert new is not None
        assert leader_report(catalog) == WorkerReport(), "another process has other problems"
        with pytest.raises(Fenced):
            report_as_leader(catalog, "meta-1", old, said)

    def test_a_leader_with_a_heartbeat_in_the_future_is_replaced(self, catalog: Catalog) -> None:
        old = elected(catalog, "meta-1")
        silence_leader(catalog, -LEADER_LEASE_MS - 60_000)  # the database's clock was set back by so much
        assert leader_age(catalog) > LEADER_LEASE_MS
        assert acquire_leadership(catalog, "meta-2") == old + 1
        silence_leader(catalog, -1000)
        assert acquire_leadership(catalog, "meta-3") is None

    # processes

    def test_a_worker_gets_a_new_incarnation_each_time(self, catalog: Catalog) -> None:
        incarnations = together(8, lambda i: register_worker(catalog, "sorter-1", "sorter", f"10.0.0.{i}:7000"))
        assert sorted(incarnations) == list(range(1, 9))
        (row,) = list_workers(catalog, "sorter")
        assert (row.incarnation, row.address, row.state) == (8, f"10.0.0.{incarnations.index(8)}:7000", "up")
        assert list_workers(catalog, "dispatcher") == []

    def test_an_older_life_is_fenced(self, catalog: Catalog) -> None:
        first = register_worker(catalog, "sorter-1", "sorter", "a")
        second = register_worker(catalog, "sorter-1", "sorter", "b")
        with pytest.raises(Fenced):
            heartbeat(catalog, "sorter-1", first)
        retire_worker(catalog, "sorter-1", first)
        heartbeat(catalog, "sorter-1", second)
        heartbeat(catalog, "sorter-1", second)  # also within the same millisecond

    def test_registering_again_fences_the_earlier_life_out_of_its_tasks(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        leader_epoch = elected(catalog)
        first = register_worker(catalog, "sorter-1", "sorter", "a")
        register_worker(catalog, "sorter-2", "sorter", "b")
        assign_task(catalog, low, worker_id="sorter-1", seen_epoch=0, leader_epoch=leader_epoch)
        assign_task(catalog, high, worker_id="sorter-2", seen_epoch=0, leader_epoch=leader_epoch)
        second = register_worker(catalog, "sorter-1", "sorter", "c")
        assert get_task(catalog, low).epoch == 2
        assert get_task(catalog, high).epoch == 1
        assert tasks_owned_by(catalog, "sorter-1", first) == [], "the old life must not learn the new epoch"
        assert [t.epoch for t in tasks_owned_by(catalog, "sorter-1", second)] == [2]

    def test_the_age_of_a_heartbeat_is_the_databases(self, catalog: Catalog) -> None:
        life = register_worker(catalog, "api-1", "api", "a")
        with catalog.transaction() as conn:
            conn.execute(tables.workers.update().values(heartbeat_ms=now_ms() - 60_000))
        assert 60_000 <= list_workers(catalog)[0].heartbeat_age_ms < 90_000
        heartbeat(catalog, "api-1", life)
        assert list_workers(catalog)[0].heartbeat_age_ms < 30_000

    def test_a_report_stays_until_the_next_one_or_the_next_life(self, catalog: Catalog) -> None:
        life = register_worker(catalog, "sorter-1", "sorter", "")
        stuck = StuckReport(start_key=b"a\x00", end_key=b"", watermark=None, store_id=3, file="1/7", reason="silent")
        task = TaskReport(task_id=7, epoch=2, bytes_per_s=12.5, watermark=5 << 18, split_key=b"t\x80", stuck=(stuck,))
        store = StoreReport(tenant=Tenant(1, 0), store_id=4, seq=9, silent_s=0.5)
        report = WorkerReport(bytes_per_s=100.0, tasks=(task,), stores=(store,), problems=({"code": "TS-1063"},))
        heartbeat(catalog, "sorter-1", life, report)
        heartbeat(catalog, "sorter-1", life)
        assert [row.report for row in list_workers(catalog)] == [report]
        register_worker(catalog, "sorter-1", "sorter", "")
        assert [row.report for row in list_workers(catalog)] == [WorkerReport()]

    def test_a_worker_that_was_declared_gone_comes_back_with_its_next_heartbeat(self, catalog: Catalog) -> None:
        life = register_worker(catalog, "dispatcher-1", "dispatcher", "a")
        assert drain_worker(catalog, "dispatcher-1", life)
        heartbeat(catalog, "dispatcher-1", life)
        assert list_workers(catalog)[0].state == "draining"
        assert not drain_worker(catalog, "dispatcher-1", life)
        retire_worker(catalog, "dispatcher-1", life)
        assert list_workers(catalog)[0].state == "gone"
        heartbeat(catalog, "dispatcher-1", life)
        assert list_workers(catalog)[0].state == "up"


def advanced(catalog: Catalog) -> list[int]:
    """The tasks of T, which have advanced by 10, 20 and 30."""
    tasks = activate(catalog)
    for n, task_id in enumerate(tasks, 1):
        flush(catalog, None, advance(task_id, START, START + 10 * n))
    return tasks


def race_for(catalog: Catalog, task_id: int, seen_epoch: int, leader_epoch: int) -> list[int | None]:
    """Two threads assign the task at once, to sorter-0 and to sorter-1."""

    def give(i: int) -> int | None:
        return assign_task(catalog, task_id, worker_id=f"sorter-{i}", seen_epoch=seen_epoch, leader_epoch=leader_epoch)

    return together(2, give)


def leader_age(catalog: Catalog) -> int:
    """Milliseconds since the leader's last heartbeat."""
    row = get_leader(catalog)
    assert row is not None
    return row.heartbeat_age_ms
