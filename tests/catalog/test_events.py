"""Events, operator actions, and pages of tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.assignments import assign_store, assign_task
from tests.kit.catalog_cases import DDL, HIGH, LOW, OTHER, T, activate, elected, shift, together
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import (
    SINGLE_EVENTS_MAX,
    EventKind,
    list_events,
    prune_events,
    record_assignments,
    record_event,
)
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.tenancy.tenants import change_state, register_tenant
from tistream.catalog.work import listing
from tistream.catalog.work.leader import acquire_leadership, note_silence
from tistream.catalog.work.move import move_task
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import get_task, retry_task, stop_task
from tistream.catalog.work.workers import (
    drain_worker,
    get_worker,
    list_workers,
    register_worker,
    retire_worker,
    undrain_worker,
)
from tistream.errors import NotFound, StateForbids
from tistream.limits import LEASE_MS


def told(catalog: Catalog, **filters: object) -> list[tuple[str, str]]:
    """(kind, subject) of what happened, in order."""
    events = list_events(catalog, limit=1000, **filters)  # type: ignore[arg-type]
    return [(event.kind, event.subject) for event in reversed(events)]


class TestEvents:
    def test_each_change_tells_an_event_in_its_transaction(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        low, *_ = activate(catalog)
        life = register_worker(catalog, "s1", WorkerKind.SORTER, "there")
        assert assign_task(catalog, low, worker_id="s1", seen_epoch=0, leader_epoch=epoch) == 1
        assert stop_task(catalog, low, epoch=1, error="a promise was broken")
        assert retry_task(catalog, low, epoch=1, actor="ann")
        issue_incarnation(catalog, T, 4)
        assert assign_store(catalog, T, 4, worker_id="d1", seen_epoch=0, leader_epoch=epoch) == 1
        assert drain_worker(catalog, "s1", life, actor="ann")
        assert undrain_worker(catalog, "s1", life)
        retire_worker(catalog, "s1", life)
        assert change_state(catalog, T, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="a test", actor="ann")
        assert told(catalog) == [
            ("owner.elected", "meta-1"),
            ("tenant.registered", "7/0"),
            ("tenant.activated", "7/0"),
            ("worker.registered", "s1"),
            ("task.assigned", str(low)),
            ("task.stopped", str(low)),
            ("task.retried", str(low)),
            ("store.assigned", "4"),
            ("worker.draining", "s1"),
            ("worker.returned", "s1"),
            ("worker.gone", "s1"),
            ("tenant.paused", "7/0"),
        ]
        newest = list_events(catalog, limit=1)[0]
        assert (newest.tenant, newest.actor, newest.detail) == (T, "ann", {"was": "ACTIVE", "reason": "a test"})
        stopped = list_events(catalog, limit=1, kind="task.stopped")[0]
        assert stopped.detail == {"owner": "s1", "error": "a promise was broken"}
        assert newest.at_ms >= stopped.at_ms > 1_600_000_000_000

    def test_what_changes_nothing_tells_nothing(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        low, *_ = activate(catalog)
        life = register_worker(catalog, "s1", WorkerKind.SORTER, "")
        issue_incarnation(catalog, T, 4)
        retire_worker(catalog, "s1", life)
        before = told(catalog)
        assert acquire_leadership(catalog, "meta-1") is None
        assert acquire_leadership(catalog, "meta-2") is None
        register_tenant(catalog, T)
        assert assign_task(catalog, low, worker_id="s1", seen_epoch=9, leader_epoch=epoch) is None
        assert assign_task(catalog, low, worker_id="s1", seen_epoch=0, leader_epoch=epoch + 1) is None
        assert assign_store(catalog, T, 4, worker_id="d1", seen_epoch=9, leader_epoch=epoch) is None
        assert not stop_task(catalog, low, epoch=9, error="")
        assert not retry_task(catalog, low, epoch=9)
        assert not drain_worker(catalog, "s1", life)
        assert not undrain_worker(catalog, "s1", life)
        retire_worker(catalog, "s1", life)
        retire_worker(catalog, "s1", life - 1)
        assert not change_state(catalog, T, seen=TenantState.PAUSED, to=TenantState.ACTIVE, reason="")
        assert told(catalog) == before

    def test_events_are_read_newest_first_and_followed_from_a_number(self, catalog: Catalog) -> None:
        register_tenant(catalog, T)
        register_tenant(catalog, OTHER)
        register_worker(catalog, "s1", WorkerKind.SORTER, "")
        newest, middle, oldest = list_events(catalog, limit=9)
        assert newest.event_id > middle.event_id > oldest.event_id
        assert list_events(catalog, limit=1, below=middle.event_id) == [oldest]
        assert list_events(catalog, limit=1, above=oldest.event_id) == [middle]
        assert list_events(catalog, limit=9, above=newest.event_id) == []
        assert list_events(catalog, limit=9, tenant=OTHER) == [middle]
        assert list_events(catalog, limit=9, kind="worker") == [newest]
        assert list_events(catalog, limit=9, kind="tenant.registered", subject="7/0") == [oldest]
        assert list_events(catalog, limit=9, kind="work_r") == []

    def test_numbers_rise_with_the_commits_of_concurrent_writers(self, catalog: Catalog) -> None:
        together(4, lambda i: [register_worker(catalog, f"w{i}", WorkerKind.API, "") for _ in range(5)])
        ids = [event.event_id for event in list_events(catalog, limit=100)]
        assert len(ids) == 20
        assert ids == list(range(ids[0], ids[0] - 20, -1))

    def test_assignments_are_told_one_by_one_or_summed_up(self, catalog: Catalog) -> None:
        with catalog.transaction() as conn:
            record_assignments(conn, EventKind.TASK_ASSIGNED, [], leader_epoch=3)
            record_assignments(conn, EventKind.TASK_ASSIGNED, [(1, T, "s1"), (2, None, "s2")], leader_epoch=3)
            many = [(n, T, f"s{n % 2}") for n in range(SINGLE_EVENTS_MAX + 1)]
            record_assignments(conn, EventKind.TASK_ASSIGNED, many, leader_epoch=3)
        summed, second, first = list_events(catalog, limit=9)
        assert (first.subject, first.tenant, first.detail) == ("1", T, {"to": "s1", "leader_epoch": 3})
        assert (second.subject, second.tenant, second.event_id) == ("2", None, first.event_id + 1)
        assert (summed.subject, summed.detail["to"]) == ("201 at once", {"s0": 101, "s1": 100})
        assert summed.at_ms >= first.at_ms > 1_600_000_000_000

    def test_a_transaction_that_fails_tells_nothing(self, catalog: Catalog) -> None:
        def fail() -> None:
            with catalog.transaction() as conn:
                record_event(conn, EventKind.TASK_SPLIT, 1)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert told(catalog) == []

    def test_a_long_detail_and_foreign_letters_are_kept_as_far_as_they_fit(self, catalog: Catalog) -> None:
        with catalog.transaction() as conn:
            record_event(conn, EventKind.TASK_STOPPED, "ä" * 300, error="x" * 20_000, n=1)
        event = list_events(catalog, limit=1)[0]
        assert event.subject == "?" * 128
        assert event.detail == {"error": "x" * 1000, "n": "1"}

    def test_events_are_pruned_by_number_and_age(self, catalog: Catalog) -> None:
        for i in range(6):
            register_worker(catalog, f"w{i}", WorkerKind.API, "")
        assert prune_events(catalog) == 0
        assert prune_events(catalog, keep=4) == 2
        assert [subject for _, subject in told(catalog)] == ["w2", "w3", "w4", "w5"]
        shift(catalog, tables.events.c.at_ms, -8 * 86_400_000, tables.events.c.subject == "w4")
        assert prune_events(catalog, days=9) == 0
        assert prune_events(catalog, days=7) == 1
        assert [subject for _, subject in told(catalog)] == ["w2", "w3", "w5"]

    # moving

    def test_a_person_moves_a_task_past_the_elected_owner(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        low, *_ = activate(catalog)
        register_worker(catalog, "s1", WorkerKind.SORTER, "")
        register_worker(catalog, "s2", WorkerKind.SORTER, "")
        assert assign_task(catalog, low, worker_id="s1", seen_epoch=0, leader_epoch=epoch) == 1
        assert move_task(catalog, low, worker_id="s2", seen_epoch=0) is None
        assert move_task(catalog, low, worker_id="s2", seen_epoch=1, actor="ann") == 2
        assert (get_task(catalog, low).owner, get_task(catalog, low).epoch) == ("s2", 2)
        assert assign_task(catalog, low, worker_id="s1", seen_epoch=1, leader_epoch=epoch) is None
        moved = list_events(catalog, limit=1)[0]
        assert (moved.kind, moved.subject, moved.actor, moved.tenant) == ("task.moved", str(low), "ann", T)
        assert moved.detail == {"was": "s1", "to": "s2", "epoch": 2, "leader_epoch": epoch}

    def test_nothing_is_moved_to_who_cannot_take_it(self, catalog: Catalog, low: int) -> None:
        register_worker(catalog, "d1", WorkerKind.DISPATCHER, "")
        draining = register_worker(catalog, "s1", WorkerKind.SORTER, "")
        drain_worker(catalog, "s1", draining)
        register_worker(catalog, "s2", WorkerKind.SORTER, "")
        shift(catalog, tables.workers.c.heartbeat_ms, -LEASE_MS - 1000, tables.workers.c.worker_id == "s2")
        for name in ("d1", "s1", "s2", "nobody"):
            with pytest.raises(StateForbids):
                move_task(catalog, low, worker_id=name, seen_epoch=0)
        assert get_task(catalog, low).epoch == 0

    def test_a_living_replay_keeps_its_tasks(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        low, *_ = activate(catalog)
        register_worker(catalog, "r1", WorkerKind.REPLAY, "")
        register_worker(catalog, "s1", WorkerKind.SORTER, "")
        assert assign_task(catalog, low, worker_id="r1", seen_epoch=0, leader_epoch=epoch) == 1
        with pytest.raises(StateForbids):
            move_task(catalog, low, worker_id="s1", seen_epoch=1)
        shift(catalog, tables.workers.c.heartbeat_ms, -LEASE_MS - 1000, tables.workers.c.worker_id == "r1")
        assert move_task(catalog, low, worker_id="s1", seen_epoch=1) == 2

    def test_draining_can_be_taken_back(self, catalog: Catalog) -> None:
        life = register_worker(catalog, "s1", WorkerKind.SORTER, "")
        assert not undrain_worker(catalog, "s1", life)
        assert drain_worker(catalog, "s1", life)
        assert not undrain_worker(catalog, "s1", life - 1)
        assert undrain_worker(catalog, "s1", life)
        worker = get_worker(catalog, "s1")
        assert replace(worker, heartbeat_age_ms=0) == replace(list_workers(catalog)[0], heartbeat_age_ms=0)
        assert worker.state is WorkerState.UP
        with pytest.raises(NotFound):
            get_worker(catalog, "s2")

    # pages

    def test_tasks_are_read_a_page_at_a_time(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        low, high, ddl = activate(catalog)
        others = activate(catalog, OTHER)
        first = listing.page_tasks(catalog, limit=4)
        assert [t.task_id for t in first] == [low, high, ddl, others[0]]
        assert [t.task_id for t in listing.page_tasks(catalog, limit=4, after_id=others[0])] == others[1:]
        assert [t.task_id for t in listing.page_tasks(catalog, limit=9, tenant=OTHER)] == others
        assign_task(catalog, high, worker_id="s1", seen_epoch=0, leader_epoch=epoch)
        stop_task(catalog, ddl, epoch=0, error="why")
        assert [t.task_id for t in listing.page_tasks(catalog, limit=9, owner="s1")] == [high]
        assert [t.task_id for t in listing.page_tasks(catalog, limit=9, stopped=True)] == [ddl]
        assert first[0] == get_task(catalog, low)

    def test_ranges_are_read_in_key_order(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        activate(catalog, OTHER)
        assert [t.range for t in listing.page_ranges(catalog, T, limit=9)] == [DDL, LOW, HIGH]
        assert [t.task_id for t in listing.page_ranges(catalog, T, limit=1, after=(DDL.start, ddl))] == [low]
        assert [t.task_id for t in listing.page_ranges(catalog, T, limit=9, after=(LOW.start, low))] == [high]
        assert listing.page_ranges(catalog, T, limit=9, after=(HIGH.start, high)) == []

    def test_counts_and_who_does_not_run(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        low, high, ddl = activate(catalog)
        activate(catalog, OTHER)
        assign_task(catalog, low, worker_id="s1", seen_epoch=0, leader_epoch=epoch)
        stop_task(catalog, ddl, epoch=0, error="why")
        issue_incarnation(catalog, T, 4)
        assign_store(catalog, T, 4, worker_id="d1", seen_epoch=0, leader_epoch=epoch)
        counts = listing.count_tasks(catalog)
        assert (counts.total, counts.stopped, counts.waiting) == (6, 1, 4)
        assert listing.count_tasks(catalog, OTHER).waiting == 3
        assert listing.tasks_per_owner(catalog) == {"s1": 1}
        assert listing.stores_per_dispatcher(catalog) == {"d1": 1}
        assert [t.task_id for t in listing.idle_tasks(catalog, limit=9, tenant=T)] == [high, ddl]
        assert len(listing.idle_tasks(catalog, limit=4)) == 4
        assert change_state(catalog, T, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="")
        rest = {TenantState.PAUSED}
        assert [t.task_id for t in listing.idle_tasks(catalog, limit=9, tenant=T, resting=rest)] == [ddl]
        assert len(listing.idle_tasks(catalog, limit=9, resting=rest)) == 4
        assert [t.task_id for t in listing.tasks_by_id(catalog, [ddl, low, 999])] == [low, ddl]
        assert listing.tasks_by_id(catalog, []) == []


def test_a_worker_whose_heartbeats_end_is_told_once_whoever_leads(catalog: Catalog) -> None:
    """A killed process tells nothing itself."""
    epoch = elected(catalog)
    life = register_worker(catalog, "s1", WorkerKind.SORTER, "")
    for is_silent in (False, True, True, False, True):
        note_silence(catalog, "s1", life, is_silent=is_silent, leader_epoch=epoch)
        note_silence(catalog, "s1", life, is_silent=not is_silent, leader_epoch=epoch - 1)
    again = register_worker(catalog, "s1", WorkerKind.SORTER, "")
    for is_silent in (False, True):
        note_silence(catalog, "s1", again, is_silent=is_silent, leader_epoch=epoch)
    assert [kind.split(".")[1] for kind, _ in told(catalog, kind="worker")] == [
        "registered", "silent", "returned", "silent", "registered", "silent",
    ]  # fmt: skip


def test_what_is_locked_after_an_event_is_noticed(catalog: Catalog, backend: str, events_come_last: list[str]) -> None:
    """The judge of all tests of the catalog. The simulator's connection is none of SQLAlchemy's, and is not watched."""
    with catalog.transaction() as conn:
        tables.next_numbers(conn, "task", 1)
        record_event(conn, EventKind.TASK_MOVED, 1)
    assert events_come_last == []
    with catalog.transaction() as conn:
        record_event(conn, EventKind.TASK_MOVED, 1)
        tables.next_numbers(conn, "task", 1)
    assert len(events_come_last) == (backend != "simulator")
    events_come_last.clear()
