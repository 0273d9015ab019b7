"""Gauges of the whole service, and counts of statements."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import event

from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import (
    ON_SQLALCHEMY,
    OTHER,
    START,
    T,
    activate,
    advance,
    elected,
    flush,
    grown_log,
    segment,
    shift,
)
from tests.kit.manual_clock import ManualClock
from tests.kit.statements import StatementLog
from tistream import ts as tso
from tistream.admin.changefeeds import changefeeds_of
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import changefeeds, consumer_members, consumers, lanes, tasks, workers
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer, claim_partition
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.tenancy.tenants import change_state, list_tenants, register_tenant
from tistream.catalog.work.changefeeds import create_changefeed, fail_changefeed
from tistream.catalog.work.core.lane_scope import TableScope
from tistream.catalog.work.gauges import CatalogGauges
from tistream.catalog.work.lanes import (
    LaneAssignment,
    assign_lanes,
    attempt_stretch,
    fail_stretch,
    finish_stretch,
    isolate,
    lane_places,
    lanes_of,
    list_lanes,
)
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.stream_ends import end_stream
from tistream.catalog.work.tasks import stop_task, tasks_of_tenants
from tistream.catalog.work.workers import register_worker, retire_worker
from tistream.ids import Tenant
from tistream.runtime import metrics

Shown = dict[tuple[str, ...], float]


def shown(gauges: CatalogGauges) -> dict[str, Shown]:
    """Family -> label values -> value."""
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples} for family in gauges()
    }


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


class TestGauges:
    def test_an_empty_service_shows_zeros(self, catalog: Catalog) -> None:
        found = shown(CatalogGauges(catalog, ManualClock()))
        assert found["tistream_catalog_up"] == {(): 1}
        assert found["tistream_checkpoint_lag_seconds"] == {}
        assert found["tistream_tenants"] == {(state,): 0 for state in TenantState}
        assert found["tistream_tasks"] == {("stopped",): 0, ("waiting",): 0, ("running",): 0}
        assert found["tistream_stops"] == {("tenant",): 0, ("store",): 0, ("job",): 0}
        assert found["tistream_workers"] == {}
        assert "tistream_owner_epoch" not in found

    def test_tenants_tasks_workers_and_the_owner(self, catalog: Catalog) -> None:
        first = activate(catalog)
        activate(catalog, OTHER)
        assert change_state(catalog, OTHER, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="asked")
        register_tenant(catalog, Tenant(8, 8))
        incarnation = register_worker(catalog, "sorter-1", "sorter", "")
        register_worker(catalog, "sorter-2", "sorter", "")
        retire_worker(catalog, "sorter-2", register_worker(catalog, "sorter-2", "sorter", ""))
        register_worker(catalog, "dispatcher-1", "dispatcher", "")
        with catalog.transaction() as conn:
            conn.execute(workers.update().where(workers.c.worker_id == "dispatcher-1").values(heartbeat_ms=1))
        epoch = elected(catalog)
        for task_id in first[:2]:
            assert assign_task(catalog, task_id, worker_id="sorter-1", seen_epoch=0, leader_epoch=epoch) == 1
        assert stop_task(catalog, first[0], epoch=1, error="broken")
        assert incarnation == 1
        found = shown(CatalogGauges(catalog, ManualClock(tso.physical_ms(START) + 1500)))
        assert found["tistream_checkpoint_lag_seconds"] == {("7", "0"): 1.5}, "a paused tenant does not lag"
        assert found["tistream_checkpoint_lag_max_seconds"] == {(): 1.5}
        assert found["tistream_tenants_not_shown"] == {(): 0}
        states = {state: count for (state,), count in found["tistream_tenants"].items() if count}
        assert states == {"ACTIVE": 1, "PAUSED": 1, "AWAITING_SNAPSHOT": 1}
        assert found["tistream_tasks"] == {("stopped",): 1, ("running",): 1, ("waiting",): 4}
        assert found["tistream_workers"] == {("dispatcher", "silent"): 1, ("sorter", "up"): 1, ("sorter", "gone"): 1}
        assert found["tistream_owner_epoch"] == {(): epoch}
        assert 0 <= found["tistream_owner_age_seconds"][()] < 60

    def test_consumers_with_their_lag_members_and_unread_partitions(self, catalog: Catalog) -> None:
        activate(catalog)
        with catalog.transaction() as conn:
            conn.execute(tasks.update().values(durable_ts=tso.compose(tso.physical_ms(START) + 9000)))
        add_consumer(catalog, T, "feed", START, partitions=3, idle_limit_ms=60_000)
        add_consumer(catalog, T, "unread", START, partitions=2, idle_limit_ms=0)
        add_consumer(catalog, T, "paused", START)
        CONSUMERS.switch(catalog, T, "paused", ReaderState.STOPPED)
        for member, lease_ms in (("a", 600_000), ("b", -1)):
            claim_partition(catalog, T, "feed", member, session=None, lease_ms=lease_ms)
        claim_partition(catalog, T, "feed", "a", session=None, lease_ms=600_000)  # takes those of b: it held none
        shift(catalog, consumers.c.last_active_ms, -5000, consumers.c.consumer_id == "unread")
        found = shown(CatalogGauges(catalog, ManualClock()))
        feed, unread = ("7", "0", "feed"), ("7", "0", "unread")
        assert found["tistream_consumer_lag_seconds"] == {feed: 9, unread: 9}, "a paused one does not lag"
        assert found["tistream_consumer_members"] == {feed: 1, unread: 0}
        assert found["tistream_consumer_partitions_unread"] == {feed: 0, unread: 2}
        assert found["tistream_consumer_idle_limit_seconds"] == {feed: 60, unread: 0}
        assert 5 <= found["tistream_consumer_idle_seconds"][unread] < 60
        with catalog.transaction() as conn:
            conn.execute(consumer_members.update().values(expires_ms=1))
        found = shown(CatalogGauges(catalog, ManualClock()))
        assert found["tistream_consumer_members"][feed] == 0
        assert found["tistream_consumer_partitions_unread"][feed] == 3, "the lease of its holder has ended"

    def test_replications_with_the_parts_of_their_lag_and_their_errors(self, catalog: Catalog) -> None:
        grown_log(catalog)
        served_ts = tso.compose(tso.physical_ms(START) + 9000)
        with catalog.transaction() as conn:
            conn.execute(tasks.update().values(durable_ts=served_ts))
        for name in ("dr", "lake", "paused"):
            create_changefeed(
                catalog, T, name, START, sink_uri="s3://b/p?protocol=csv", options="{}", filters="{}",
                scopes=[TableScope(number=n, of=2) for n in range(2)], target_ts=0, hold_ms=0,
            )  # fmt: skip
        CHANGEFEEDS.switch(catalog, T, "paused", ReaderState.STOPPED)
        register_worker(catalog, "w", "replicate", "")
        wanted = [LaneAssignment(place.lane_id, "w", place.epoch) for place in lane_places(catalog)]
        assign_lanes(catalog, wanted, leader_epoch=elected(catalog))
        dr = [job.lane for job in lanes_of(catalog, "w", 1) if job.lane.changefeed_id == "dr"]
        attempt_stretch(catalog, dr[0], tso.compose(tso.physical_ms(START) + 2000), "a record")
        fail_stretch(catalog, dr[0], {"code": "TS-1100", "message": 'says "stopped":true'})
        finish_stretch(catalog, dr[1], served_ts, rows=30, size=400, letters=3)
        found = shown(CatalogGauges(catalog, ManualClock()))
        lag = {key[2:]: seconds for key, seconds in found["tistream_replication_lag_seconds"].items()}
        assert {key: lag[key] for key in lag if key[1] != "resolved_ts"} == {
            ("dr", "queue"): 7, ("dr", "destination"): 2, ("lake", "queue"): 9, ("lake", "destination"): 0,
        }, "a paused one does not lag"  # fmt: skip
        behind_s = lag["dr", "resolved_ts"] - (time.time() - tso.physical_ms(served_ts) / 1000)
        assert abs(behind_s) < 60
        ids = "7", "0"
        assert set(found["tistream_replication_state"]) == {
            (*ids, "dr", "error"), (*ids, "lake", "normal"), (*ids, "paused", "stopped"),
        }  # fmt: skip
        of_dr = [
            found[f"tistream_replication_{name}"][*ids, "dr"] for name in ("rows", "bytes", "tries", "dead_letters")
        ]
        assert of_dr == [30, 400, 1, 3]
        assert set(found["tistream_replication_lanes_stopped"].values()) == {0}, "the words of an error stop nothing"
        rest, alone = dr[1].scope.isolate("shop.orders")
        isolate(catalog, list_lanes(catalog, T, "dr")[1], rest, alone, {"code": "TS-1101"})
        fail_changefeed(catalog, next(j.lane for j in lanes_of(catalog, "w", 1) if j.lane.changefeed_id == "lake"), {})
        found = shown(CatalogGauges(catalog, ManualClock()))
        assert found["tistream_replication_lanes_stopped"][*ids, "dr"] == 1
        assert (*ids, "lake", "failed") in found["tistream_replication_state"]
        assert set(found["tistream_replication_unmoved_seconds"]) == {(*ids, "dr")}

    def test_a_replication_does_not_lag_before_its_log_begins(self, catalog: Catalog) -> None:
        register_tenant(catalog, T)
        create_changefeed(
            catalog, T, "early", None, sink_uri="s3://b/p?protocol=csv", options="{}", filters="{}",
            scopes=[TableScope(number=0, of=1)], target_ts=0, hold_ms=0,
        )  # fmt: skip
        found = shown(CatalogGauges(catalog, ManualClock()))
        assert found["tistream_replication_state"] == {("7", "0", "early", "normal"): 1}
        for name in ("lag", "unmoved"):
            assert found.get(f"tistream_replication_{name}_seconds", {}) == {}, "else it would lag since 1970"
        (fact,) = changefeeds_of(catalog, T)
        assert (fact["rpo"], fact["checkpoint_time"]) == (None, None)

    def test_a_replication_of_a_stream_that_has_ended_does_not_lag(self, catalog: Catalog) -> None:
        grown_log(catalog)
        end_ts = tso.compose(tso.physical_ms(START) + 9000)
        with catalog.transaction() as conn:
            conn.execute(tasks.update().values(durable_ts=end_ts))
        create_changefeed(
            catalog, T, "dr", START, sink_uri="s3://b/p?protocol=csv", options="{}", filters="{}",
            scopes=[TableScope(number=0, of=1)], target_ts=0, hold_ms=0,
        )  # fmt: skip
        incarnation, _ = issue_incarnation(catalog, T, 1)
        assert end_stream(catalog, T, 1, incarnation, end_ts)

        def parts() -> list[float]:
            found = shown(CatalogGauges(catalog, ManualClock()))["tistream_replication_lag_seconds"]
            (fact,) = changefeeds_of(catalog, T)
            lag = [found["7", "0", "dr", part] for part in metrics.LAG_PARTS]
            assert [fact["rpo"][f"{part}_s"] for part in metrics.LAG_PARTS] == lag
            assert fact["rpo"]["total_s"] == sum(lag)
            return lag

        assert parts() == [0, 9, 0], "what is not written lags behind the end"
        with catalog.transaction() as conn:
            conn.execute(lanes.update().values(checkpoint_ts=end_ts))
            conn.execute(changefeeds.update().values(checkpoint_ts=end_ts, last_active_ms=1))
        assert parts() == [0, 0, 0]
        assert set(shown(CatalogGauges(catalog, ManualClock()))["tistream_replication_unmoved_seconds"].values()) == {0}

    def test_only_those_that_lag_most_have_a_line(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tistream.catalog.work.gauges._SLOWEST", _slowest(1))
        activate(catalog)
        activate(catalog, OTHER)
        found = shown(CatalogGauges(catalog, ManualClock(tso.physical_ms(START))))
        assert len(found["tistream_checkpoint_lag_seconds"]) == 1
        assert found["tistream_tenants_not_shown"] == {(): 1}

    def test_the_catalog_is_asked_at_most_every_few_seconds(self, catalog: Catalog) -> None:
        clock, asked = ManualClock(), []
        event.listen(catalog._engine, "after_cursor_execute", lambda *_: asked.append(1))
        gauges = CatalogGauges(catalog, clock)
        gauges()
        once = len([each for each in asked if each])
        assert 0 < once <= 22  # with what a driver asks for itself
        for _ in range(10):
            gauges()
        assert len(asked) == once
        clock.advance(metrics.CATALOG_LOOK_S)
        gauges()
        assert len(asked) > once

    def test_statements_and_write_transactions_are_counted(self, catalog: Catalog) -> None:
        list_tenants(catalog)  # connected
        names = ("tistream_catalog_transactions_total", "tistream_catalog_statements_total")
        before = value(names[0], outcome="committed"), value(names[0], outcome="rolled back")
        statements, timed = value(names[1], outcome="ok"), value("tistream_catalog_statement_seconds_count")
        register_tenant(catalog, T)
        assert value(names[0], outcome="committed") == before[0] + 1
        list_tenants(catalog)
        assert value(names[0], outcome="committed") == before[0] + 1, "a reader is no transaction"
        with pytest.raises(ZeroDivisionError), catalog.transaction():
            raise ZeroDivisionError
        assert value(names[0], outcome="rolled back") == before[1] + 1
        ran = value(names[1], outcome="ok") - statements
        assert ran >= 3
        assert value("tistream_catalog_statement_seconds_count") - timed == ran

    @ON_SQLALCHEMY
    def test_a_flush_takes_as_many_statements_whatever_it_holds(self, catalog: Catalog) -> None:
        catalog.migrate()
        log, tasks, found = StatementLog(catalog), activate(catalog), list[int]()
        for n, count in enumerate((1, 100, 1000)):
            seen = START + 10 * n
            held = tuple(segment(i, seen + 1, seen + 9, (i, i)) for i in range(count))
            with log:
                assert flush(catalog, f"f/{n}", advance(tasks[0], seen, seen + 10, *held)) == {tasks[0]}
            found.append(log.count)
        assert found == [5, 5, 5], "generation, durable_ts, kind, object, segments"

    def test_the_tasks_of_some_tenants_are_read_together(self, catalog: Catalog) -> None:
        log, mine = StatementLog(catalog), activate(catalog)
        theirs = activate(catalog, OTHER)
        activate(catalog, Tenant(8, 0))
        with log:
            assert [row.task_id for row in tasks_of_tenants(catalog, {OTHER, T, Tenant(8, 9)})] == [*mine, *theirs]
            assert tasks_of_tenants(catalog, []) == []
        assert log.count == 1


def _slowest(limit: int) -> object:
    from tistream.catalog.work import gauges

    return gauges._SLOWEST.limit(limit)
