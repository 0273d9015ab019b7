"""The committed log: flushes, segments, snapshots, stores, schema versions."""

from __future__ import annotations

import pytest

from tests.kit.assignments import assign_store, assign_task
from tests.kit.catalog_cases import (
    OTHER,
    START,
    T,
    activate,
    advance,
    elected,
    flush,
    long_key,
    referred,
    segment,
    share,
    snapshot,
    together,
)
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import advance_durable_timestamps, durable_timestamps, find_segments
from tistream.catalog.log.objects import object_states, stored_bytes, tombstone
from tistream.catalog.log.retention import database_time_ms
from tistream.catalog.log.schema_versions import add_schema_version, latest_schema_version
from tistream.catalog.log.snapshots import ALL_CONSUMED, durable_floor, positions
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.work.stores import (
    forget_incarnations,
    issue_incarnation,
    list_stores,
    newest_incarnation,
    note_cut_ts,
    reclaimed,
    set_reclaimed,
    stores_of_dispatcher,
)
from tistream.catalog.work.tasks import get_task
from tistream.catalog.work.workers import register_worker
from tistream.errors import Fenced, TiStreamError
from tistream.ids import Position
from tistream.ts import TS_MAX


class TestCommittedLog:
    # flushes

    def test_a_flush_shows_its_segments_and_moves_the_durable_timestamps(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        done = flush(
            catalog,
            "committed/1",
            advance(low, START, START + 10, segment(0)),
            advance(high, START, START + 20),
            advance(ddl, START, START + 30, segment(1)),
        )
        assert done == {low, high, ddl}
        expected = {low: (0, START + 10), high: (0, START + 20), ddl: (0, START + 30)}
        assert durable_timestamps(catalog, [low, high, ddl]) == expected
        (data,) = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=10)
        (of_ddl,) = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, kind="ddl", limit=10)
        assert (data.object_key, data.task_id, data.kind, data.number) == ("committed/1", low, "data", 0)
        assert (data.start_key, data.end_key) == (long_key(b"t\x00\xff"), long_key(b"t\xff\x00"))
        assert (data.rows, data.offset, data.length, data.crc) == (3, 8, 100, 0xFFFF_FFFF)
        assert (of_ddl.task_id, of_ddl.number) == (ddl, 1)
        assert stored_bytes(catalog, T) == {("committed", "live"): (1, 1000)}

    def test_a_flush_without_an_object_only_moves_durable_timestamps(self, catalog: Catalog, low: int) -> None:
        assert flush(catalog, None, advance(low, START, START + 1)) == {low}
        assert get_task(catalog, low).durable_ts == START + 1
        assert stored_bytes(catalog, T) == {}

    def test_durable_timestamps_of_several_tenants_move_by_their_own_guards(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        foreign, other, _ = activate(catalog, OTHER)
        assert assign_task(catalog, high, worker_id="sorter-2", seen_epoch=0, leader_epoch=elected(catalog)) == 1
        advances = [
            (OTHER, advance(foreign, START, START + 10)),
            (T, advance(ddl, START - 1, START + 10)),  # not the durable watermark that it has
            (T, advance(high, START, START + 10)),  # not the epoch that it has
            (T, advance(other, START, START + 10)),  # not a task of this tenant
            (T, advance(low, START, START + 10)),
        ]
        assert advance_durable_timestamps(catalog, advances) == {low, foreign}
        moved = {low: (0, START + 10), foreign: (0, START + 10)}
        rest = {high: (1, START), ddl: (0, START), other: (0, START)}
        assert durable_timestamps(catalog, [low, high, ddl, foreign, other]) == {**rest, **moved}
        with pytest.raises(TiStreamError):
            advance_durable_timestamps(catalog, [(T, advance(low, START + 10, START + 20, segment()))])
        assert durable_timestamps(catalog, [low]) == {low: (0, START + 10)}

    def test_a_stale_epoch_leaves_nothing(self, catalog: Catalog, low: int) -> None:
        assign_task(catalog, low, worker_id="sorter-2", seen_epoch=0, leader_epoch=elected(catalog))
        assert flush(catalog, "committed/1", advance(low, START, START + 10, segment())) == frozenset()
        assert durable_timestamps(catalog, [low]) == {low: (1, START)}
        assert_nothing_visible(catalog)

    def test_a_stale_durable_ts_leaves_nothing(self, catalog: Catalog, low: int) -> None:
        flush(catalog, None, advance(low, START, START + 5))
        assert flush(catalog, "committed/1", advance(low, START, START + 10, segment())) == frozenset()
        assert durable_timestamps(catalog, [low]) == {low: (0, START + 5)}
        assert_nothing_visible(catalog)

    def test_another_tenants_task_is_not_moved(self, catalog: Catalog) -> None:
        activate(catalog)
        foreign, *_ = activate(catalog, OTHER)
        assert flush(catalog, "committed/1", advance(foreign, START, START + 10, segment())) == frozenset()
        assert_nothing_visible(catalog)

    def test_of_accepted_and_refused_tasks_only_the_accepted_are_visible(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        assign_task(catalog, high, worker_id="sorter-2", seen_epoch=0, leader_epoch=elected(catalog))
        done = flush(
            catalog,
            "committed/1",
            advance(high, START, START + 10, segment(0), segment(1)),
            advance(low, START, START + 10, segment(2)),
            advance(ddl, START, START + 10),
        )
        assert done == {low, ddl}
        expected = {low: (0, START + 10), high: (1, START), ddl: (0, START + 10)}
        assert durable_timestamps(catalog, [low, high, ddl]) == expected
        assert [s.number for s in find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)] == [2]

    def test_an_object_is_inserted_only_when_a_task_with_segments_matched(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        assign_task(catalog, high, worker_id="sorter-2", seen_epoch=0, leader_epoch=elected(catalog))
        done = flush(
            catalog, "committed/1", advance(high, START, START + 10, segment()), advance(low, START, START + 10)
        )
        assert done == {low}
        assert_nothing_visible(catalog)

    def test_one_flush_may_hold_several_objects_which_become_visible_together(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        same = START + 5, START + 5
        parts = [segment(no, *same, key=f"committed/{n}") for n in (1, 2, 3) for no in (0, 1)]
        assert tombstone(catalog, T, "committed/3")
        with pytest.raises(Fenced):
            flush(catalog, None, advance(low, START, START + 5, *parts))
        assert find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9) == [], "one of them was given up: none"
        assert durable_timestamps(catalog, [low]) == {low: (0, START)}
        other = segment(0, key="committed/9")
        assign_task(catalog, high, worker_id="sorter-2", seen_epoch=0, leader_epoch=elected(catalog))
        done = flush(catalog, None, advance(low, START, START + 5, *parts[:4]), advance(high, START, START + 10, other))
        assert done == {low}
        segments = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)
        assert [(s.object_key[-1], s.number) for s in segments] == [("1", 0), ("1", 1), ("2", 0), ("2", 1)]
        assert stored_bytes(catalog, T)["committed", "live"] == (2, 2000), "the object of nobody's segments stays out"

    def test_an_object_key_is_used_once(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        flush(catalog, "committed/1", advance(low, START, START + 10, segment()))
        with pytest.raises(Fenced) as caught:
            flush(catalog, "committed/1", advance(high, START, START + 10, segment(1)))
        assert caught.value.facts["object_key"] == "committed/1"
        assert durable_timestamps(catalog, [high]) == {high: (0, START)}, "the whole flush was undone"

    def test_a_tombstoned_key_is_never_published(self, catalog: Catalog, low: int) -> None:
        assert tombstone(catalog, T, "committed/1")
        with pytest.raises(Fenced):
            flush(catalog, "committed/1", advance(low, START, START + 10, segment()))
        assert get_task(catalog, low).durable_ts == START
        assert find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9) == []

    def test_a_live_object_is_not_buried(self, catalog: Catalog, low: int) -> None:
        flush(catalog, "committed/1", advance(low, START, START + 10, segment()))
        assert not tombstone(catalog, T, "committed/1")
        assert stored_bytes(catalog, T) == {("committed", "live"): (1, 1000)}

    def test_the_same_flush_twice_at_once_happens_once(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        advances = [advance(task_id, START, START + 10, segment(task_id)) for task_id in (low, high, ddl)]
        done = together(6, lambda i: flush(catalog, f"committed/{i}", *(advances if i % 2 else reversed(advances))))
        assert sorted(map(len, done)) == [0, 0, 0, 0, 0, 3]
        assert len(find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)) == 2

    @pytest.mark.parametrize(
        ("new_durable_ts", "segments"),
        [(START, ()), (START - 1, ()), (START + 9, (segment(),)), (START + 10, (segment(lo=START),))],
        ids=["stalled", "falling", "a segment above the new watermark", "a segment at the old watermark"],
    )
    def test_a_flush_that_contradicts_itself_is_refused(
        self, catalog: Catalog, low: int, new_durable_ts: int, segments: tuple[SegmentRow, ...]
    ) -> None:
        with pytest.raises(TiStreamError, match="invariant violated"):
            flush(catalog, "committed/1", advance(low, START, new_durable_ts, *segments))
        assert get_task(catalog, low).durable_ts == START

    # finding segments

    def test_segments_are_found_by_time(self, catalog: Catalog) -> None:
        fill(catalog)
        segments = find_segments(catalog, T, after_ts=START + 10, upto_ts=START + 11, limit=10)
        assert [(s.object_key, s.number) for s in segments] == [("committed/2", 0), ("committed/2", 1)]
        assert find_segments(catalog, T, after_ts=START + 30, upto_ts=TS_MAX, limit=10) == []
        assert find_segments(catalog, T, after_ts=0, upto_ts=START, limit=10) == []
        assert find_segments(catalog, OTHER, after_ts=0, upto_ts=TS_MAX, limit=10) == []

    def test_segments_come_in_order_up_to_the_limit(self, catalog: Catalog) -> None:
        fill(catalog)
        segments = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)
        assert [(s.lo_ts - START, s.hi_ts - START) for s in segments] == [(1, 10), (11, 18), (11, 20), (26, 30)]
        assert len(find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=2)) == 2

    @pytest.mark.parametrize(
        ("table_ids", "lows"),
        [
            ([5], [1, 11, 11]),
            ([11], [11]),
            ([0, 40], [26]),
            ([12], []),
            ([], []),
            (range(1000, 3000), []),
            ([*range(1000, 1300), 4], [1, 11, 11, 26]),
        ],
        ids=["one", "edge", "outside and edge", "in a hole", "none", "many, above", "many, as an interval"],
    )
    def test_table_ids_narrow(self, catalog: Catalog, table_ids: list[int], lows: list[int]) -> None:
        fill(catalog)
        segments = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, table_ids=table_ids, limit=9)
        assert [s.lo_ts - START for s in segments] == lows

    def test_superseded_segments_are_not_found(self, catalog: Catalog) -> None:
        fill(catalog)
        with catalog.transaction() as conn:
            of = tables.objects.c.object_key == "committed/2"
            conn.execute(tables.objects.update().where(of).values(state="superseded"))
        segments = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)
        assert [s.object_key for s in segments] == ["committed/1", "committed/3"]

    # snapshots

    def test_a_snapshot_switches_pointer_and_positions_together(self, catalog: Catalog, low: int) -> None:
        first = {0: {1: Position(seq=4, closed=True), 2: Position(seq=1)}, 9: {1: Position(seq=8)}}
        assert snapshot(catalog, low, 1, first)
        assert positions(catalog, low) == first
        second = {0: {1: Position(seq=4, closed=True), 2: Position(seq=2)}, 9: {1: Position(seq=8)}}
        assert snapshot(catalog, low, 2, second)
        row = get_task(catalog, low)
        assert (row.snapshot_key, row.snapshot_no) == (f"snapshots/{low}/0-2", 2)
        assert positions(catalog, low) == second
        assert stored_bytes(catalog, T) == {("snapshot", "live"): (1, 10), ("snapshot", "superseded"): (1, 10)}

    @pytest.mark.parametrize(("n", "epoch"), [(2, 1), (1, 0), (0, 0)], ids=["stale epoch", "same number", "older"])
    def test_a_stale_snapshot_changes_nothing(self, catalog: Catalog, low: int, n: int, epoch: int) -> None:
        at = {0: {1: Position(seq=4)}}
        assert snapshot(catalog, low, 1, at)
        assert not snapshot(catalog, low, n, {0: {1: Position(seq=7)}}, epoch)
        assert positions(catalog, low) == at
        assert get_task(catalog, low).snapshot_no == 1
        assert stored_bytes(catalog, T) == {("snapshot", "live"): (1, 10)}

    def test_a_snapshot_whose_key_is_taken_changes_nothing(self, catalog: Catalog, low: int) -> None:
        assert snapshot(catalog, low, 1, {0: {1: Position(seq=4)}})
        assert tombstone(catalog, T, f"snapshots/{low}/0-2")
        with pytest.raises(Fenced):
            snapshot(catalog, low, 2, {0: {1: Position(seq=5)}})
        assert positions(catalog, low) == {0: {1: Position(seq=4)}}
        assert get_task(catalog, low).snapshot_no == 1

    @pytest.mark.parametrize(
        "then",
        [
            {0: {1: Position(seq=4, closed=True), 2: Position(seq=5)}},
            {0: {1: Position(seq=5, closed=True), 2: Position(seq=6)}},
            {0: {1: Position(seq=4), 2: Position(seq=6)}},
            {0: {1: Position(seq=4, closed=True)}},
            {},
        ],
        ids=["falls", "closed moves", "closed opens", "incarnation vanishes", "store vanishes"],
    )
    def test_positions_never_fall(self, catalog: Catalog, low: int, then: dict[int, dict[int, Position]]) -> None:
        before = {0: {1: Position(seq=4, closed=True), 2: Position(seq=6)}}
        assert snapshot(catalog, low, 1, before)
        with pytest.raises(TiStreamError, match="a position never falls"):
            snapshot(catalog, low, 2, then)
        assert positions(catalog, low) == before
        assert get_task(catalog, low).snapshot_no == 1

    def test_of_concurrent_snapshots_the_newest_stays(self, catalog: Catalog, low: int) -> None:
        together(6, lambda i: snapshot(catalog, low, i + 1, {0: {1: Position(seq=i + 1)}}))
        assert get_task(catalog, low).snapshot_key == f"snapshots/{low}/0-6"
        assert positions(catalog, low) == {0: {1: Position(seq=6)}}
        assert stored_bytes(catalog, T)["snapshot", "live"] == (1, 10)

    def test_objects_that_a_snapshot_keeps_stay_live_and_others_do_not(self, catalog: Catalog, low: int) -> None:
        assert snapshot(catalog, low, 2, {}, more=["runs/1", "runs/2"])
        assert snapshot(catalog, low, 4, {}, more=["runs/3"], keeps=["runs/2"])
        keys = ["runs/1", "runs/2", "runs/3", f"snapshots/{low}/0-2", f"snapshots/{low}/0-4"]
        states = ["superseded", "live", "live", "superseded", "live"]
        assert object_states(catalog, keys) == dict(zip(keys, states, strict=True))
        assert not tombstone(catalog, T, "runs/2")
        assert referred(catalog, low) == {"runs/2", "runs/3", f"snapshots/{low}/0-4"}

    def test_a_snapshot_keeps_only_what_the_one_before_refers_to(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        assert snapshot(catalog, low, 2, {}, more=["runs/1"])
        assert snapshot(catalog, low, 3, {})
        for task_id, keeps in ((low, ["runs/1"]), (high, [f"snapshots/{low}/0-3"]), (low, ["nothing"])):
            assert not snapshot(catalog, task_id, 4, {0: {1: Position(seq=1)}}, keeps=keeps)
        assert (get_task(catalog, low).snapshot_no, get_task(catalog, high).snapshot_no) == (3, 0)
        assert positions(catalog, low) == {}
        assert object_states(catalog, ["runs/1"]) == {"runs/1": "superseded"}
        assert referred(catalog, low) == {f"snapshots/{low}/0-3"}

    def test_an_object_of_two_tasks_goes_with_the_last_one(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        assert snapshot(catalog, low, 1, {}, more=["runs/1"])
        share(catalog, high, "runs/1")
        assert snapshot(catalog, low, 2, {})
        assert object_states(catalog, ["runs/1"]) == {"runs/1": "live"}
        assert snapshot(catalog, high, 1, {}, keeps=["runs/1"])
        assert object_states(catalog, ["runs/1"]) == {"runs/1": "live"}
        assert snapshot(catalog, high, 2, {})
        assert object_states(catalog, ["runs/1"]) == {"runs/1": "superseded"}

    def test_of_two_tasks_that_let_go_at_once_one_is_the_last(self, catalog: Catalog) -> None:
        low, high, _ = activate(catalog)
        shared = [f"runs/{i}" for i in range(8)]
        assert snapshot(catalog, low, 1, {}, more=shared)
        for key in shared:
            share(catalog, high, key)
        both = together(2, lambda i: snapshot(catalog, (low, high)[i], 2, {}))
        assert both == [True, True]
        assert set(object_states(catalog, shared).values()) == {"superseded"}

    # the floor

    def test_the_floor_is_the_lowest_over_all_tasks(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        for _ in range(2):
            issue_incarnation(catalog, T, 5)
        assert snapshot(catalog, low, 1, {5: {1: Position(seq=9, closed=True), 2: Position(seq=30)}})
        assert snapshot(catalog, high, 1, {5: {1: Position(seq=9, closed=True), 2: Position(seq=20)}})
        assert durable_floor(catalog, T, 5) == {1: 0, 2: 0}, "the DDL task has no position yet"
        assert snapshot(catalog, ddl, 1, {5: {1: Position(seq=7), 2: Position(seq=25)}})
        assert durable_floor(catalog, T, 5) == {1: 7, 2: 20}
        assert snapshot(catalog, ddl, 2, {5: {1: Position(seq=9, closed=True), 2: Position(seq=25)}})
        assert durable_floor(catalog, T, 5) == {1: ALL_CONSUMED, 2: 20}

    def test_the_floor_is_zero_before_there_are_tasks(self, catalog: Catalog) -> None:
        issue_incarnation(catalog, T, 0)
        assert durable_floor(catalog, T, 0) == {1: 0}
        assert durable_floor(catalog, T, 1) == {}

    def test_another_tenants_tasks_do_not_count(self, catalog: Catalog) -> None:
        own, theirs = activate(catalog), activate(catalog, OTHER)
        for tenant in (T, OTHER):
            issue_incarnation(catalog, tenant, 5)
        for task_id in own:
            assert snapshot(catalog, task_id, 1, {5: {1: Position(seq=3)}})
        assert snapshot(catalog, theirs[0], 1, {5: {1: Position(seq=8)}})
        assert durable_floor(catalog, T, 5) == {1: 3}
        assert durable_floor(catalog, OTHER, 5) == {1: 0}

    # stores

    def test_incarnations_are_unique_under_concurrency(self, catalog: Catalog) -> None:
        incarnations = together(12, lambda _: issue_incarnation(catalog, T, 0))
        assert sorted(incarnations) == [(n, 0) for n in range(1, 13)]
        assert reclaimed(catalog, T, 0) == dict.fromkeys(range(1, 13), 0)
        assert newest_incarnation(catalog, T, 0) == 12
        assert newest_incarnation(catalog, OTHER, 0) == 0
        assert issue_incarnation(catalog, OTHER, 0) == (1, 0)

    def test_a_new_incarnation_knows_the_largest_cut_ts(self, catalog: Catalog) -> None:
        issue_incarnation(catalog, T, 3)
        for cut_ts in (START + 5, START + 9, START + 7):
            note_cut_ts(catalog, T, 3, cut_ts)
        assert issue_incarnation(catalog, T, 3) == (2, START + 9)
        (row,) = list_stores(catalog, T)
        assert (row.store_id, row.incarnation, row.max_cut_ts, row.dispatcher) == (3, 2, START + 9, None)
        assert list_stores(catalog, OTHER) == []

    def test_a_store_is_assigned_by_its_epoch_and_the_owners(self, catalog: Catalog) -> None:
        issue_incarnation(catalog, T, 0)
        epoch = elected(catalog)
        life = register_worker(catalog, "d-1", "dispatcher", "")
        assert assign_store(catalog, T, 0, worker_id="d-1", seen_epoch=0, leader_epoch=epoch) == 1
        assert assign_store(catalog, T, 0, worker_id="d-2", seen_epoch=0, leader_epoch=epoch) is None
        assert assign_store(catalog, T, 0, worker_id="d-2", seen_epoch=1, leader_epoch=epoch + 1) is None
        assert assign_store(catalog, T, 1, worker_id="d-2", seen_epoch=0, leader_epoch=epoch) is None
        before = database_time_ms(catalog)
        (row,), database_ms = stores_of_dispatcher(catalog, "d-1", life)
        assert (row.store_id, row.dispatcher_epoch) == (0, 1)
        assert database_ms is not None
        assert before <= database_ms <= database_time_ms(catalog)
        assert stores_of_dispatcher(catalog, "d-1", life + 1) == ([], None)
        won = together(2, lambda i: assign_store(catalog, T, 0, worker_id=f"d-{i}", seen_epoch=1, leader_epoch=epoch))
        assert sorted(won, key=str) == [2, None]

    def test_reclaiming_is_guarded_and_never_falls(self, catalog: Catalog) -> None:
        issue_incarnation(catalog, T, 0)
        assign_store(catalog, T, 0, worker_id="d-1", seen_epoch=0, leader_epoch=elected(catalog))
        assert not set_reclaimed(catalog, T, 0, 1, 50, dispatcher_epoch=0)
        assert set_reclaimed(catalog, T, 0, 1, 40, dispatcher_epoch=1)
        assert set_reclaimed(catalog, T, 0, 1, 40, dispatcher_epoch=1)
        assert set_reclaimed(catalog, T, 0, 1, 30, dispatcher_epoch=1)
        assert reclaimed(catalog, T, 0) == {1: 40}
        assert not set_reclaimed(catalog, T, 0, 2, 10, dispatcher_epoch=1), "an incarnation that was never issued"
        assert set_reclaimed(catalog, T, 0, 1, ALL_CONSUMED, dispatcher_epoch=1)
        assert reclaimed(catalog, T, 0) == {1: ALL_CONSUMED}

    def test_ended_incarnations_are_forgotten_from_the_oldest_on(self, catalog: Catalog) -> None:
        tasks = activate(catalog)
        for _ in range(5):
            issue_incarnation(catalog, T, 5)
        assign_store(catalog, T, 5, worker_id="d-1", seen_epoch=0, leader_epoch=elected(catalog))
        for task_id in tasks:
            assert snapshot(catalog, task_id, 1, {5: {1: Position(seq=9, closed=True), 2: Position(seq=3)}})
            assert snapshot(catalog, task_id, 2, {5: {4: Position(seq=2)}}), "1 to 3 have ended since"
            with pytest.raises(TiStreamError, match="a position never falls"):
                snapshot(catalog, task_id, 3, {5: {3: Position(seq=1), 4: Position(seq=2)}})
        assert durable_floor(catalog, T, 5) == {1: ALL_CONSUMED, 2: ALL_CONSUMED, 3: ALL_CONSUMED, 4: 2, 5: 0}
        assert all(set_reclaimed(catalog, T, 5, n, ALL_CONSUMED, dispatcher_epoch=1) for n in (1, 3))
        assert not forget_incarnations(catalog, T, 5, below=9, dispatcher_epoch=0), "a dispatcher of before"
        assert forget_incarnations(catalog, T, 5, below=9, dispatcher_epoch=1)
        assert set(reclaimed(catalog, T, 5)) == {2, 3, 4, 5}, "2 is not given up yet"
        assert all(set_reclaimed(catalog, T, 5, n, ALL_CONSUMED, dispatcher_epoch=1) for n in (2, 4, 5))
        assert forget_incarnations(catalog, T, 5, below=9, dispatcher_epoch=1)
        assert set(reclaimed(catalog, T, 5)) == {5}, "never the newest"
        assert issue_incarnation(catalog, T, 5)[0] == 6

    # schema versions and objects

    def test_the_newest_schema_version_is_found(self, catalog: Catalog) -> None:
        assert latest_schema_version(catalog, T) is None
        for ts in (START + 20, START, START + 10):
            add_schema_version(catalog, T, ts, f"schemas/{ts}", 5)
        add_schema_version(catalog, T, START, f"schemas/{START}", 5)
        assert latest_schema_version(catalog, T) == (START + 20, f"schemas/{START + 20}")
        with pytest.raises(Fenced):
            add_schema_version(catalog, T, START, "schemas/other", 5)


def fill(catalog: Catalog) -> None:
    """Three flushes of one task: tables 1-5; 5-6 and 5-11 at the same time; 40-50."""
    low, *_ = activate(catalog)
    flush(catalog, "committed/1", advance(low, START, START + 10, segment(0, START + 1, START + 10, (1, 5))))
    second = (segment(0, START + 11, START + 18, (5, 6)), segment(1, START + 11, START + 20, (5, 11)))
    flush(catalog, "committed/2", advance(low, START + 10, START + 25, *second))
    flush(catalog, "committed/3", advance(low, START + 25, START + 30, segment(0, START + 26, START + 30, (40, 50))))


def assert_nothing_visible(catalog: Catalog) -> None:
    """No object and no segment of tenant T."""
    assert stored_bytes(catalog, T) == {}
    assert find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9) == []
