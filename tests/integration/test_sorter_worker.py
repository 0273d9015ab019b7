"""A sorter process in this one: SQLite catalog, store in memory, feed in memory, the real clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sorter.core import eviction
from sorter.worker import inbox
from sorter.worker.runner import TaskRunner
from sorter.worker.spill import Spill
from tests.kit.sorter_bench import TENANT, Bench, change, expected
from tests.kit.sorter_oracle import C, D, Mark, P, R, Row
from tests.kit.sorter_world import File, feed_batch
from tests.kit.waiting import WAIT_S
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.snapshots import durable_floor, positions
from tistream.catalog.rows.reports import TaskReport
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import change_state
from tistream.catalog.work.tasks import retry_task
from tistream.catalog.work.workers import list_workers, register_worker
from tistream.errors import StoreUnavailable
from tistream.ids import Position


def test_changes_of_both_tasks_reach_the_log_once_and_durable_timestamps_follow(bench: Bench) -> None:
    worker = bench.assigned("s1")
    assert worker.wait_until_ready(WAIT_S)
    bench.put(1, *change(b"a", 11, 12, b"1"), *change(b"x", 13, 14, b"2"), upto=20)
    bench.put(2, upto=30)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [expected(b"a", 11, 12, b"1"), expected(b"x", 13, 14, b"2")]
    assert worker.problems() == []


def test_a_full_file_is_written_early_and_a_small_one_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sorter.worker.flushing.COMMITTED_FILE_BYTES_TARGET", 1000)
    worker = bench.assigned("s1", flush_interval_s=1000.0)  # it has flushed once, and found nothing
    bench.wait(lambda: len(worker.stats()) == 2, "tasks")
    bench.put(1, *change(b"a", 11, 12, b"1" * 499), *change(b"x", 13, 14, b"2" * 499), upto=20)
    bench.wait_for_durable_ts(20)  # both together are a file's worth
    bench.put(2, *change(b"a", 21, 22, b"1" * 499), *change(b"x", 23, 24, b"2" * 498), upto=30)
    bench.wait(lambda: all(s.watermark == 30 for s in worker.stats().values()), "arrival")
    assert [s.durable_ts for s in worker.stats().values()] == [20, 20]


def test_rows_that_cannot_be_spilled_hold_back_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sorter.worker.runner.BACKLOG_BYTES_MAX", 2000)
    put = bench.store.put

    def failing(key: str, data: bytes) -> None:
        raise StoreUnavailable("503", key=key)

    worker = bench.assigned("s1")
    bench.wait(lambda: len(worker.stats()) == 2, "tasks")
    monkeypatch.setattr(bench.store, "put", failing)
    at = [seq * 10 for seq in range(1, 11)]
    for seq, ts in enumerate(at, 1):
        bench.put(seq, *change(b"a", ts + 1, ts + 2, b"v" * 999), upto=ts + 10)
    bench.wait(lambda: worker.stats()[2].watermark == 110, "what the other has no rows of")
    bench.wait(lambda: worker.stats()[1].ready_rows == 2, "what there is room for")
    time.sleep(0.3)
    assert worker.stats()[1].ready_rows == 2, "a row more than there was room for"
    monkeypatch.setattr(bench.store, "put", put)
    bench.wait_for_durable_ts(110)
    assert bench.served() == [expected(b"a", ts + 1, ts + 2, b"v" * 999) for ts in at]
    bench.wait(lambda: worker.problems() == [], "problems pass")


def test_rows_beyond_the_memory_budget_wait_on_the_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", 100)
    monkeypatch.setattr("sorter.worker.worker.EVICTION_INTERVAL_S", 0.02)
    worker = bench.assigned("s1", spill=Spill(0))
    prewrite, commit = change(b"a", 11, 25, b"1" * 1000)
    bench.put(1, prewrite, *change(b"b", 13, 24, b"2" * 1000), upto=12)
    bench.wait(lambda: any(s.bytes_on_disk > 1000 for s in worker.stats().values()), "spill")
    bench.put(2, commit, upto=30)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [expected(b"b", 13, 24, b"2" * 1000), expected(b"a", 11, 25, b"1" * 1000)]
    bench.wait(lambda: not any(s.bytes_on_disk for s in worker.stats().values()), "the disk to be free")
    assert worker.problems() == []


def test_a_full_disk_delays_only_a_large_task(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", 100)
    monkeypatch.setattr(inbox, "INBOX_BYTES_MAX", 1)
    worker = bench.assigned("s1", snapshot_interval_s=1000.0, spill=Spill(60_000, tmp_path / "full"))
    prewrites = [Row(kind=P, key=b"a%03d" % n, start_ts=11, value=b"v" * 1000) for n in range(200)]
    for seq in range(1, 21):
        bench.put(seq, *prewrites[10 * seq - 10 : 10 * seq], upto=10)
    bench.wait(lambda: any("cannot write spilled rows" in p.message for p in worker.problems()), "the disk is named")
    bench.wait(lambda: worker.stats()[2].bytes_held < 60_000 and bench.row(2).error is None, "the other is well")
    time.sleep(0.5)
    assert worker.stats()[1].open_prewrites < 100, "no more than its memory holds"
    (tmp_path / "full").mkdir()
    bench.wait(lambda: worker.stats()[1].open_prewrites == 200, "all is taken in")
    commits = [Row(kind=C, key=row.key, start_ts=11, commit_ts=25) for row in prewrites]
    bench.put(21, *commits, upto=30)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [expected(row.key, 11, 25, b"v" * 1000) for row in prewrites]
    bench.wait(lambda: worker.problems() == [], "problems pass")


def test_a_transaction_of_many_slices_and_objects_is_whole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sorter.core.decision_queue.DECIDE_ROWS", 7)
    monkeypatch.setattr("sorter.rows.output.PIECE_ROWS", 5)
    monkeypatch.setattr("sorter.worker.publisher.FILE_BYTES_TARGET", 500)
    bench.assigned("s1", snapshot_interval_s=0.01)
    keys = [b"a%03d" % (n * 37 % 100) for n in range(100)]
    bench.put(1, *(Row(kind=P, key=key, start_ts=11, value=b"v" * 30) for key in keys), upto=10)
    bench.put(2, *(Row(kind=C, key=key, start_ts=11, commit_ts=25) for key in reversed(keys)), upto=30)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [expected(key, 11, 25, b"v" * 30) for key in sorted(keys)]
    segments = find_segments(bench.catalog, TENANT, after_ts=0, upto_ts=1 << 62, limit=1000)
    assert len({s.object_key for s in segments}) > 5
    assert {(s.lo_ts, s.hi_ts) for s in segments} == {(25, 25)}


def test_a_worker_whose_tasks_leave_during_a_flush_rests(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sorter.rows.output.PIECE_ROWS", 1)
    monkeypatch.setattr("sorter.worker.publisher.FILE_BYTES_TARGET", 1)
    monkeypatch.setattr("sorter.worker.flushing.SWEEP_S", 1000.0)
    put, turns = bench.store.put, []

    def slowly(key: str, data: bytes) -> None:
        time.sleep(0.02)
        put(key, data)

    worker = bench.assigned("s1", snapshot_interval_s=1000.0)
    turn = worker._loop._step

    def counted() -> None:
        turns.append(0)
        turn()

    bench.wait(lambda: len(worker.stats()) == 2, "tasks")
    monkeypatch.setattr(bench.store, "put", slowly)
    keys = [b"a%03d" % n for n in range(300)]
    rows = [row for key in keys for row in change(key, 11, 25, b"v")]
    bench.put(1, *rows, upto=30)
    bench.wait(lambda: len(list(bench.store.list("committed/"))) > 3, "a flush is under way")
    bench.assign("s2")
    bench.wait(lambda: not worker.stats(), "the tasks have left")
    monkeypatch.setattr(worker._loop, "_step", counted)
    time.sleep(1.0)
    assert len(turns) < 100, "it has nothing to do"


def test_a_task_moves_to_another_worker_in_the_middle_of_a_transaction(bench: Bench) -> None:
    first = bench.assigned("s1")
    prewrite, commit = change(b"a", 21, 25, b"kept")
    bench.put(1, *change(b"a", 11, 12, b"old"), prewrite, upto=20)
    bench.wait_for_durable_ts(20)
    bench.wait(lambda: positions(bench.catalog, 1) == {1: {1: Position(seq=1)}}, "snapshot")
    first.stop()
    bench.assign("s2")
    bench.worker("s2")
    bench.put(2, commit, upto=30)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [expected(b"a", 11, 12, b"old"), expected(b"a", 21, 25, b"kept")]


def test_without_any_snapshot_a_new_owner_replays_and_writes_nothing_twice(bench: Bench) -> None:
    bench.assigned("s1", snapshot_interval_s=1000.0)
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    bench.assign("s2")  # s1 still runs, and still believes
    bench.worker("s2", snapshot_interval_s=1000.0)
    bench.put(2, *change(b"a", 21, 22, b"2"), upto=30)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [expected(b"a", 11, 12, b"1"), expected(b"a", 21, 22, b"2")]


@pytest.mark.parametrize(("before", "replies"), [(3, 0), (0, 3), (2, 2)])
def test_a_catalog_that_fails_or_loses_its_reply_loses_no_row(bench: Bench, before: int, replies: int) -> None:
    worker = bench.assigned("s1")
    assert worker.wait_until_ready(WAIT_S)
    for seq in range(1, 8):
        bench.catalog.lost_before, bench.catalog.lost_replies = before, replies
        bench.put(seq, *change(b"a", seq * 10 + 1, seq * 10 + 2, b"v%d" % seq), upto=seq * 10 + 10)
        bench.wait_for_durable_ts(seq * 10 + 10)
    want = [expected(b"a", s * 10 + 1, s * 10 + 2, b"v%d" % s) for s in range(1, 8)]
    assert bench.served() == want
    bench.wait(lambda: worker.problems() == [], "problems pass")


def test_a_broken_promise_stops_one_task_loudly_and_the_other_goes_on(bench: Bench) -> None:
    bench.assigned("s1")
    bench.put(1, upto=20)
    bench.wait_for_durable_ts(20)
    bench.put(2, upto=30)
    bench.wait_for_durable_ts(30)
    bench.put(3, Row(kind=C, key=b"a", start_ts=31, commit_ts=35), upto=40)
    bench.put(4, *change(b"x", 41, 42, b"x"), upto=50)
    bench.wait(lambda: bench.row(1).error is not None and bench.row(2).durable_ts == 50, "stopped")
    error = bench.row(1).error or ""
    for fact in ("key=61", "commit_ts=35", "region_id=1", "store_id=1", "incarnation=1", "seq=3"):
        assert fact in error
    assert bench.row(1).durable_ts == 30
    assert bench.served() == [expected(b"x", 41, 42, b"x")]
    assert retry_task(bench.catalog, 1, epoch=bench.row(1).epoch)  # the upstream has not changed: it stops again
    bench.wait(lambda: bench.row(1).error is not None, "stopped again")


def test_an_idle_tasks_position_moves_so_that_files_can_be_reclaimed(bench: Bench) -> None:
    bench.assigned("s1")
    for seq in range(1, 4):
        bench.put(seq, upto=20)
    bench.wait(lambda: durable_floor(bench.catalog, TENANT, 1) == {1: 3}, "positions")


def test_an_undecided_commit_raises_the_resubscribe_id_and_holds_the_task(bench: Bench) -> None:
    bench.assigned("s1")
    marks = tuple(
        Mark(region_id=1, version=v, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0, open_ts=v, ready_ts=0)
        for v in (1, 2)
    )
    rows = (
        Row(kind=P, key=b"a", start_ts=11, value=b"one", subscription=0),
        Row(kind=P, key=b"a", start_ts=11, value=b"two", subscription=1),
        Row(kind=C, key=b"a", start_ts=11, commit_ts=15, subscription=1),
    )
    bench.feed.put(feed_batch(File(store_id=1, incarnation=1, seq=1, cut_ts=16, rows=rows, marks=marks)))
    bench.put(2, upto=30)
    bench.wait(lambda: bench.row(1).resubscribe_id == 1 and bench.row(2).durable_ts == 30, "resubscribe")
    bench.wait(lambda: bench.row(1).durable_ts == 14, "everything below it is written")
    whole = Row(kind=4, key=b"a", start_ts=11, commit_ts=15, value=b"two")
    bench.put(3, whole, upto=40, checkpoint_ts=14)
    bench.wait_for_durable_ts(40)
    assert bench.served() == [expected(b"a", 11, 15, b"two")]


def test_problems_can_be_listed_while_a_task_stops(bench: Bench) -> None:
    """A probe lists them on its thread, at any moment of the loop."""
    worker = bench.worker("s1")
    worker.stop()

    class Stopping(dict[int, TaskRunner]):
        def __contains__(self, task_id: object) -> bool:
            worker._stopped[len(worker._stopped) + 1] = "by the loop"
            return super().__contains__(task_id)

    worker._stopped, worker._runners = {1: "before"}, Stopping()
    assert [problem.message for problem in worker.problems()] == ["before"]


def test_a_fenced_worker_stops_everything(bench: Bench) -> None:
    worker = bench.assigned("s1")
    assert worker.wait_until_ready(WAIT_S)
    register_worker(bench.catalog, "s1", "sorter", "another life")
    bench.wait(lambda: any(p.fatal and "loop" in p.source for p in worker.problems()), "stopped")
    assert worker.stats() == {}
    assert not worker.ready


def test_a_failing_feed_is_shown_and_tried_again_at_the_same_place(bench: Bench) -> None:
    worker = bench.assigned("s1")
    assert worker.wait_until_ready(WAIT_S)
    bench.feed.failures_left = 8
    bench.wait(lambda: any("task 1 store 1" in p.source for p in worker.problems()), "shown")
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    assert bench.served() == [expected(b"a", 11, 12, b"1")]
    bench.wait(lambda: worker.problems() == [], "over")


def test_a_gap_in_the_feed_is_waited_out_and_nothing_is_skipped(bench: Bench) -> None:
    worker = bench.assigned("s1")
    assert worker.wait_until_ready(WAIT_S)
    bench.put(2, *change(b"a", 21, 22, b"2"), upto=30)
    bench.wait(lambda: any(p.code == "TS-1060" for p in worker.problems()), "the gap is shown")
    assert {bench.row(t).durable_ts for t in bench.tasks} == {10}


def test_rows_that_cannot_be_fetched_restart_only_their_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = bench.assigned("s1")
    bench.put(1, Row(kind=P, key=b"a", start_ts=11, value=b"1"), upto=10)
    bench.wait(lambda: positions(bench.catalog, 1) == {1: {1: Position(seq=1)}}, "saved")
    worker.stop()
    bench.assign("s2")
    fetched, fetch = [], bench.store.get_range

    def failing(key: str, offset: int, length: int) -> bytes:
        fetched.append(key)
        if len(fetched) < 4:
            raise StoreUnavailable("503", key=key)
        return fetch(key, offset, length)

    monkeypatch.setattr(bench.store, "get_range", failing)
    again = bench.worker("s2")
    assert again.wait_until_ready(WAIT_S)
    assert fetched == []
    bench.put(2, Row(kind=C, key=b"a", start_ts=11, commit_ts=12), upto=20)
    bench.wait_for_durable_ts(20)
    assert len(fetched) > 3
    assert bench.served() == [expected(b"a", 11, 12, b"1")]
    bench.wait(lambda: again.problems() == [], "over")


def test_rows_are_fetched_again_only_when_they_would_be_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.assigned("s1", flush_interval_s=1000.0)  # it has flushed once, and found nothing
    bench.wait(lambda: len(first.stats()) == 2, "tasks")
    ready = [Row(kind=D, key=b"a", start_ts=ts - 1, commit_ts=ts, value=b"1") for ts in (12, 35)]
    bench.put(1, *ready, upto=20)
    bench.wait(lambda: positions(bench.catalog, 1) == {1: {1: Position(seq=1)}}, "saved")
    first.crash()
    bench.assign("s2")
    fetch, fetched, away = bench.store.get_range, [], True

    def failing(key: str, offset: int, length: int) -> bytes:
        fetched.append(key)
        if away:
            raise StoreUnavailable("503", key=key)
        return fetch(key, offset, length)

    monkeypatch.setattr(bench.store, "get_range", failing)
    again = bench.worker("s2")
    bench.put(2, upto=30)
    bench.wait(lambda: bool(fetched and again.problems()), "it is shown")
    bench.put(3, upto=40)
    fetched.clear()
    time.sleep(1.0)
    assert len(fetched) < 30, "not with every turn of the loop"
    away = False
    bench.wait_for_durable_ts(40)
    assert bench.served() == [expected(b"a", ts - 1, ts, b"1") for ts in (12, 35)]


def test_a_good_end_saves_everything_and_retires(bench: Bench) -> None:
    worker = bench.assigned("s1", snapshot_interval_s=1000.0)
    bench.put(1, Row(kind=P, key=b"a", start_ts=11, value=b"1"), upto=11)
    bench.put(2, Row(kind=R, key=b"b", start_ts=11, op=0), upto=11)
    bench.wait_for_durable_ts(11)
    bench.wait(lambda: all(s.open_prewrites == (t == 1) for t, s in worker.stats().items()), "consumed")
    worker.stop()
    assert positions(bench.catalog, 1)[1][1].seq >= 1
    assert bench.row(1).snapshot_key is not None
    assert [w.state for w in list_workers(bench.catalog)] == ["gone"]


def test_the_tasks_of_a_paused_tenant_rest_and_go_on_from_where_they_were(bench: Bench) -> None:
    worker = bench.assigned("s1")
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    assert change_state(bench.catalog, TENANT, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="asked")
    bench.wait(lambda: worker.stats() == {}, "resting")
    bench.put(2, *change(b"b", 21, 22, b"2"), *change(b"x", 21, 23, b"3"), upto=30)
    mark = [(bench.row(t).durable_ts, bench.row(t).snapshot_no, bench.row(t).epoch) for t in bench.tasks]
    worker._flush.run_soon()
    worker._save.run_soon()
    bench.wait(lambda: not any(p.is_alive for r in worker._stopping for p in r._leaving), "readers gone")
    assert [(bench.row(t).durable_ts, bench.row(t).snapshot_no, bench.row(t).epoch) for t in bench.tasks] == mark
    assert change_state(bench.catalog, TENANT, seen=TenantState.PAUSED, to=TenantState.ACTIVE, reason="")
    bench.wait_for_durable_ts(30)
    rows = (expected(b"a", 11, 12, b"1"), expected(b"b", 21, 22, b"2"), expected(b"x", 21, 23, b"3"))
    assert bench.served() == list(rows)


def test_its_heartbeats_say_what_its_tasks_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tistream.catalog.work.heartbeat.HEARTBEAT_MS", 20)
    monkeypatch.setattr("sorter.worker.worker.CHECK_INTERVAL_S", 0.02)
    bench.assigned("s1")
    bench.put(1, *change(b"a", 11, 12, b"1"), Row(kind=P, key=b"b", start_ts=13, value=b"2"), upto=12)
    bench.put(2, upto=12)

    def reported() -> dict[int, TaskReport]:
        return {task.task_id: task for row in list_workers(bench.catalog) for task in row.report.tasks}

    bench.wait(lambda: 1 in reported() and reported()[1].open_rows == 1, "the open prewrite is told")
    report = reported()[1]
    assert (report.epoch, report.watermark) == (bench.row(1).epoch, 12)
    assert report.bytes_per_s > 0 < report.rows_per_s
    assert report.held_bytes > 0


def test_who_drains_goes_on_and_saves_often_until_it_has_nothing(bench: Bench) -> None:
    worker = bench.assigned("s1", snapshot_interval_s=1000.0)
    bench.put(1, upto=20)
    bench.wait_for_durable_ts(20)
    before = bench.row(1).snapshot_no
    worker.begin_drain()
    assert [w.state for w in list_workers(bench.catalog)] == ["draining"]
    assert not worker.drained()
    bench.put(2, *change(b"a", 21, 22, b"1"), upto=30)
    bench.wait_for_durable_ts(30)
    bench.wait(lambda: bench.row(1).snapshot_no > before, "saved")
    bench.worker("s2", snapshot_interval_s=1000.0)
    bench.assign("s2")
    assert worker.drained()
    bench.put(3, *change(b"b", 31, 32, b"1"), upto=40)
    bench.wait_for_durable_ts(40)
    assert bench.served() == [expected(b"a", 21, 22, b"1"), expected(b"b", 31, 32, b"1")]
