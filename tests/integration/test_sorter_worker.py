"""A sorter process in this one: SQLite catalog, store in memory, feed in memory, the real clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from sorter import inbox, merging, relief
from sorter.spill import Spill
from sorter.worker import SorterWorker
from tistream.catalog.committed import find_segments
from tistream.catalog.engine import Catalog
from tistream.catalog.owner import acquire_owner
from tistream.catalog.reports import TaskReport
from tistream.catalog.reshape import request_merge, split_task
from tistream.catalog.snapshots import durable_floor, positions
from tistream.catalog.stores import issue_incarnation
from tistream.catalog.tasks import TaskRow, assign_task, clear_task_error, get_task, list_tasks
from tistream.catalog.tenants import NewTask, TenantState, activate_tenant, change_state, register_tenant
from tistream.catalog.workers import list_workers, register_worker
from tistream.clock import SystemClock
from tistream.codec.committed_file import decode_committed_segment
from tistream.errors import CatalogUnavailable, StoreUnavailable
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.memory import MemoryStore
from tistream.testing.memory_feed import MemoryFeed
from tistream.testing.sorter_oracle import C, Mark, P, R, Row, Served
from tistream.testing.sorter_world import File, feed_batch, served

TENANT = Tenant(1, 7)
WAIT_S = 60.0


class FlakyCatalog(Catalog):
    """A catalog whose transactions fail as told: before they are committed, or only their reply."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lost_before = 0
        self.lost_replies = 0
        self.lost_before_of = self.lost_replies_of = ""  #: and the next transaction of this function

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        caller = sys._getframe(2).f_code.co_name
        if caller == self.lost_before_of:
            self.lost_before, self.lost_before_of = 1, ""
        if caller == self.lost_replies_of:
            self.lost_replies, self.lost_replies_of = 1, ""
        if self.lost_before:
            self.lost_before -= 1
            raise CatalogUnavailable("away", determinate=True)
        with super().transaction() as conn:
            yield conn
        if self.lost_replies:
            self.lost_replies -= 1
            raise CatalogUnavailable("reply lost", determinate=False)


class Bench:
    """Everything a worker needs, with one tenant of two tasks and one store."""

    def __init__(self, folder: Path) -> None:
        self.catalog = FlakyCatalog(f"sqlite:///{folder}/catalog.db")
        self.catalog.migrate()
        register_tenant(self.catalog, TENANT)
        tasks = [NewTask(kind="data", range=KeyRange(b"", b"m")), NewTask(kind="data", range=KeyRange(b"m", b""))]
        assert activate_tenant(self.catalog, TENANT, 10, tasks)
        issue_incarnation(self.catalog, TENANT, 1)
        self.store = MemoryStore()
        self.feed = MemoryFeed()
        self.tasks = [1, 2]
        self.workers: list[SorterWorker] = []

    def assign(self, worker_id: str) -> None:
        epoch = acquire_owner(self.catalog, "meta")
        assert epoch is not None
        for task_id in self.tasks:
            seen = get_task(self.catalog, task_id).epoch
            assert assign_task(self.catalog, task_id, worker_id=worker_id, seen_epoch=seen, owner_epoch=epoch)

    def worker(
        self,
        worker_id: str,
        *,
        snapshot_interval_s: float = 0.1,
        flush_interval_s: float = 0.02,
        spill: Spill | None = None,
    ) -> SorterWorker:
        made = SorterWorker(
            self.catalog,
            self.store,
            self.feed,
            SystemClock(),
            worker_id=worker_id,
            flush_interval_s=flush_interval_s,
            snapshot_interval_s=snapshot_interval_s,
            spill=spill,
        )
        self.workers.append(made)
        made.start()
        return made

    def put(self, seq: int, *rows: Row, upto: int, checkpoint_ts: int = 10) -> None:
        mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=checkpoint_ts, resolved_ts=upto)
        self.feed.put(feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=upto, rows=rows, marks=(mark,))))

    def row(self, task_id: int) -> TaskRow:
        return get_task(self.catalog, task_id)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {[w.problems() for w in self.workers]}"
            time.sleep(0.01)

    def wait_for_upper(self, upto: int) -> None:
        self.wait(lambda: all(self.row(t).upper >= upto for t in self.tasks), f"upper {upto}")

    def served(self) -> list[Served]:
        out = []
        for s in find_segments(self.catalog, TENANT, after_ts=0, upto_ts=1 << 62, limit=1000):
            data = self.store.get_range(s.object_key, s.offset, s.length)
            out += served(decode_committed_segment(s.object_key, s.segment_no, data, crc=s.crc, rows=s.rows))
        return sorted(out)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for worker in made.workers:
        worker.stop()
    made.catalog.close()


def change(key: bytes, start_ts: int, commit_ts: int, value: bytes) -> tuple[Row, Row]:
    return (
        Row(kind=P, key=key, start_ts=start_ts, value=value),
        Row(kind=C, key=key, start_ts=start_ts, commit_ts=commit_ts),
    )


def expected(key: bytes, start_ts: int, commit_ts: int, value: bytes) -> Served:
    return Served(commit_ts=commit_ts, start_ts=start_ts, key=key, op=1, value=value, old_value=None)


def test_changes_of_both_tasks_reach_the_log_once_and_uppers_follow(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
    assert worker.wait_until_ready(WAIT_S)
    bench.put(1, *change(b"a", 11, 12, b"1"), *change(b"x", 13, 14, b"2"), upto=20)
    bench.put(2, upto=30)
    bench.wait_for_upper(30)
    assert bench.served() == [expected(b"a", 11, 12, b"1"), expected(b"x", 13, 14, b"2")]
    assert worker.problems() == []


def test_a_full_file_is_written_before_its_time_and_a_small_one_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sorter.worker.COMMITTED_FILE_BYTES_TARGET", 1000)
    bench.assign("s1")
    worker = bench.worker("s1", flush_interval_s=1000.0)  # it has flushed once, and found nothing
    bench.wait(lambda: len(worker.stats()) == 2, "tasks")
    bench.put(1, *change(b"a", 11, 12, b"1" * 499), *change(b"x", 13, 14, b"2" * 499), upto=20)
    bench.wait_for_upper(20)  # both together are a file's worth
    bench.put(2, *change(b"a", 21, 22, b"1" * 499), *change(b"x", 23, 24, b"2" * 498), upto=30)
    bench.wait(lambda: all(s.watermark == 30 for s in worker.stats().values()), "arrival")
    assert [s.upper for s in worker.stats().values()] == [20, 20]


def test_rows_beyond_the_memory_budget_wait_on_the_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "SPILL_BYTES_MIN", 100)
    monkeypatch.setattr("sorter.worker.RELIEF_INTERVAL_S", 0.02)
    bench.assign("s1")
    worker = bench.worker("s1", spill=Spill(0))
    prewrite, commit = change(b"a", 11, 25, b"1" * 1000)
    bench.put(1, prewrite, *change(b"b", 13, 24, b"2" * 1000), upto=12)
    bench.wait(lambda: any(s.bytes_on_disk > 1000 for s in worker.stats().values()), "spill")
    bench.put(2, commit, upto=30)
    bench.wait_for_upper(30)
    assert bench.served() == [expected(b"b", 13, 24, b"2" * 1000), expected(b"a", 11, 25, b"1" * 1000)]
    bench.wait(lambda: not any(s.bytes_on_disk for s in worker.stats().values()), "the disk to be free")
    assert worker.problems() == []


def test_while_the_disk_takes_nothing_a_large_task_waits_and_the_other_goes_on(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relief, "SPILL_BYTES_MIN", 100)
    monkeypatch.setattr(inbox, "INBOX_BYTES_MAX", 1)
    bench.assign("s1")
    worker = bench.worker("s1", snapshot_interval_s=1000.0, spill=Spill(60_000, tmp_path / "full"))
    prewrites = [Row(kind=P, key=b"a%03d" % n, start_ts=11, value=b"v" * 1000) for n in range(200)]
    for seq in range(1, 21):
        bench.put(seq, *prewrites[10 * seq - 10 : 10 * seq], upto=10)
    bench.wait(lambda: any("takes no rows" in p.message for p in worker.problems()), "the disk is named")
    bench.wait(lambda: worker.stats()[2].bytes_held < 60_000 and bench.row(2).error is None, "the other is well")
    time.sleep(0.5)
    assert worker.stats()[1].open_prewrites < 100, "no more than its memory holds"
    (tmp_path / "full").mkdir()
    bench.wait(lambda: worker.stats()[1].open_prewrites == 200, "all is taken in")
    commits = [Row(kind=C, key=row.key, start_ts=11, commit_ts=25) for row in prewrites]
    bench.put(21, *commits, upto=30)
    bench.wait_for_upper(30)
    assert bench.served() == [expected(row.key, 11, 25, b"v" * 1000) for row in prewrites]
    bench.wait(lambda: worker.problems() == [], "problems pass")


def test_a_transaction_that_takes_many_slices_and_objects_is_written_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sorter.due.DECIDE_ROWS", 7)
    monkeypatch.setattr("sorter.output.PIECE_ROWS", 5)
    monkeypatch.setattr("sorter.publisher.FILE_BYTES_TARGET", 500)
    bench.assign("s1")
    bench.worker("s1", snapshot_interval_s=0.01)
    keys = [b"a%03d" % (n * 37 % 100) for n in range(100)]
    bench.put(1, *(Row(kind=P, key=key, start_ts=11, value=b"v" * 30) for key in keys), upto=10)
    bench.put(2, *(Row(kind=C, key=key, start_ts=11, commit_ts=25) for key in reversed(keys)), upto=30)
    bench.wait_for_upper(30)
    assert bench.served() == [expected(key, 11, 25, b"v" * 30) for key in sorted(keys)]
    found = find_segments(bench.catalog, TENANT, after_ts=0, upto_ts=1 << 62, limit=1000)
    assert len({s.object_key for s in found}) > 5
    assert {(s.lo_ts, s.hi_ts) for s in found} == {(25, 25)}


def test_a_task_moves_to_another_worker_in_the_middle_of_a_transaction(bench: Bench) -> None:
    bench.assign("s1")
    first = bench.worker("s1")
    prewrite, commit = change(b"a", 21, 25, b"kept")
    bench.put(1, *change(b"a", 11, 12, b"old"), prewrite, upto=20)
    bench.wait_for_upper(20)
    bench.wait(lambda: positions(bench.catalog, 1) == {1: {1: Position(seq=1)}}, "snapshot")
    first.stop()
    bench.assign("s2")
    bench.worker("s2")
    bench.put(2, commit, upto=30)
    bench.wait_for_upper(30)
    assert bench.served() == [expected(b"a", 11, 12, b"old"), expected(b"a", 21, 25, b"kept")]


def test_without_any_snapshot_a_new_owner_replays_and_writes_nothing_twice(bench: Bench) -> None:
    bench.assign("s1")
    bench.worker("s1", snapshot_interval_s=1000.0)
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_upper(20)
    bench.assign("s2")  # s1 still runs, and still believes
    bench.worker("s2", snapshot_interval_s=1000.0)
    bench.put(2, *change(b"a", 21, 22, b"2"), upto=30)
    bench.wait_for_upper(30)
    assert bench.served() == [expected(b"a", 11, 12, b"1"), expected(b"a", 21, 22, b"2")]


@pytest.mark.parametrize(("before", "replies"), [(3, 0), (0, 3), (2, 2)])
def test_a_catalog_that_fails_or_loses_its_reply_loses_no_row(bench: Bench, before: int, replies: int) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
    assert worker.wait_until_ready(WAIT_S)
    for seq in range(1, 8):
        bench.catalog.lost_before, bench.catalog.lost_replies = before, replies
        bench.put(seq, *change(b"a", seq * 10 + 1, seq * 10 + 2, b"v%d" % seq), upto=seq * 10 + 10)
        bench.wait_for_upper(seq * 10 + 10)
    want = [expected(b"a", s * 10 + 1, s * 10 + 2, b"v%d" % s) for s in range(1, 8)]
    assert bench.served() == want
    bench.wait(lambda: worker.problems() == [], "problems pass")


def test_a_broken_promise_stops_one_task_loudly_and_the_other_goes_on(bench: Bench) -> None:
    bench.assign("s1")
    bench.worker("s1")
    bench.put(1, upto=20)
    bench.wait_for_upper(20)
    bench.put(2, upto=30)
    bench.wait_for_upper(30)
    bench.put(3, Row(kind=C, key=b"a", start_ts=31, commit_ts=35), upto=40)
    bench.put(4, *change(b"x", 41, 42, b"x"), upto=50)
    bench.wait(lambda: bench.row(1).error is not None and bench.row(2).upper == 50, "stopped")
    error = bench.row(1).error or ""
    for fact in ("key=61", "commit_ts=35", "region_id=1", "store_id=1", "incarnation=1", "seq=3"):
        assert fact in error
    assert bench.row(1).upper == 30
    assert bench.served() == [expected(b"x", 41, 42, b"x")]
    clear_task_error(bench.catalog, 1)  # the upstream has not changed: it stops again
    bench.wait(lambda: bench.row(1).error is not None, "stopped again")


def test_an_idle_tasks_position_moves_so_that_files_can_be_reclaimed(bench: Bench) -> None:
    bench.assign("s1")
    bench.worker("s1")
    for seq in range(1, 4):
        bench.put(seq, upto=20)
    bench.wait(lambda: durable_floor(bench.catalog, TENANT, 1) == {1: 3}, "positions")


def test_an_undecided_commit_raises_the_reopen_id_and_holds_the_task(bench: Bench) -> None:
    bench.assign("s1")
    bench.worker("s1")
    marks = tuple(
        Mark(region_id=1, version=v, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0, open_ts=v, ready_ts=0)
        for v in (1, 2)
    )
    rows = (
        Row(kind=P, key=b"a", start_ts=11, value=b"one", tenure=0),
        Row(kind=P, key=b"a", start_ts=11, value=b"two", tenure=1),
        Row(kind=C, key=b"a", start_ts=11, commit_ts=15, tenure=1),
    )
    bench.feed.put(feed_batch(File(store_id=1, incarnation=1, seq=1, cut_ts=16, rows=rows, marks=marks)))
    bench.put(2, upto=30)
    bench.wait(lambda: bench.row(1).reopen_id == 1 and bench.row(2).upper == 30, "reopen")
    bench.wait(lambda: bench.row(1).upper == 14, "everything below it is written")
    whole = Row(kind=4, key=b"a", start_ts=11, commit_ts=15, value=b"two")
    bench.put(3, whole, upto=40, checkpoint_ts=14)
    bench.wait_for_upper(40)
    assert bench.served() == [expected(b"a", 11, 15, b"two")]


def test_a_fenced_worker_stops_everything(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
    assert worker.wait_until_ready(WAIT_S)
    register_worker(bench.catalog, "s1", "sorter", "another life")
    bench.wait(lambda: any(p.fatal and "loop" in p.source for p in worker.problems()), "stopped")
    assert worker.stats() == {}
    assert not worker.ready


def test_a_failing_feed_is_shown_and_tried_again_at_the_same_place(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
    assert worker.wait_until_ready(WAIT_S)
    bench.feed.failures_left = 8
    bench.wait(lambda: any("task 1 store 1" in p.source for p in worker.problems()), "shown")
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_upper(20)
    assert bench.served() == [expected(b"a", 11, 12, b"1")]
    bench.wait(lambda: worker.problems() == [], "over")


def test_a_gap_in_the_feed_is_waited_out_and_nothing_is_skipped(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
    assert worker.wait_until_ready(WAIT_S)
    bench.put(2, *change(b"a", 21, 22, b"2"), upto=30)
    bench.wait(lambda: any(p.code == "TS-1060" for p in worker.problems()), "the gap is shown")
    assert {bench.row(t).upper for t in bench.tasks} == {10}


def test_rows_that_cannot_be_fetched_cost_a_restart_of_the_task_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
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
    bench.wait_for_upper(20)
    assert len(fetched) > 3
    assert bench.served() == [expected(b"a", 11, 12, b"1")]
    bench.wait(lambda: again.problems() == [], "over")


def test_a_good_end_saves_everything_and_retires(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1", snapshot_interval_s=1000.0)
    bench.put(1, Row(kind=P, key=b"a", start_ts=11, value=b"1"), upto=11)
    bench.put(2, Row(kind=R, key=b"b", start_ts=11, op=0), upto=11)
    bench.wait_for_upper(11)
    bench.wait(lambda: all(s.open_prewrites == (t == 1) for t, s in worker.stats().items()), "consumed")
    worker.stop()
    assert positions(bench.catalog, 1)[1][1].seq >= 1
    assert bench.row(1).snapshot_key is not None
    assert [w.state for w in list_workers(bench.catalog)] == ["gone"]


def rows_of(bench: Bench) -> list[TaskRow]:
    return list_tasks(bench.catalog, TENANT)


def asked_to_merge(bench: Bench) -> None:
    left, right = rows_of(bench)
    assert request_merge(bench.catalog, left.task_id, right.task_id, seen_epochs=(left.epoch, right.epoch))


def test_a_task_is_split_while_rows_wait_and_both_parts_write_theirs(bench: Bench) -> None:
    bench.assign("s1")
    bench.worker("s1")
    late = Row(kind=C, key=b"b", start_ts=15, commit_ts=25)
    bench.put(1, *change(b"a", 11, 12, b"1"), Row(kind=P, key=b"b", start_ts=15, value=b"2"), upto=20)
    bench.wait_for_upper(20)
    bench.wait(lambda: positions(bench.catalog, 1) == {1: {1: Position(seq=1)}}, "a snapshot")
    parts = split_task(bench.catalog, 1, b"b", seen_epoch=bench.row(1).epoch)
    assert parts is not None
    bench.tasks = [*parts, 2]
    bench.put(2, late, *change(b"a", 21, 22, b"3"), upto=30)
    bench.wait_for_upper(30)
    found = [expected(b"a", 11, 12, b"1"), expected(b"a", 21, 22, b"3"), expected(b"b", 15, 25, b"2")]
    assert bench.served() == found


def test_two_tasks_become_one_while_rows_wait(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
    waiting = [Row(kind=P, key=key, start_ts=15, value=b"w") for key in (b"b", b"y")]
    bench.put(1, *change(b"a", 11, 12, b"1"), *change(b"x", 11, 12, b"2"), *waiting, upto=20)
    bench.wait_for_upper(20)
    asked_to_merge(bench)
    bench.wait(lambda: len(rows_of(bench)) == 1, "the merge")
    (row,) = rows_of(bench)
    assert (row.range, row.upper, row.owner) == (KeyRange(b"", b""), 20, "s1")
    bench.tasks = [row.task_id]
    bench.put(2, *(Row(kind=C, key=key, start_ts=15, commit_ts=25) for key in (b"b", b"y")), upto=30)
    bench.wait_for_upper(30)
    early = [expected(b"a", 11, 12, b"1"), expected(b"x", 11, 12, b"2")]
    assert bench.served() == [*early, expected(b"b", 15, 25, b"w"), expected(b"y", 15, 25, b"w")]
    assert worker.problems() == []


@pytest.mark.parametrize("fault", ["the reply is lost", "the catalog is away", "the sorter is replaced"])
def test_a_merge_that_goes_wrong_leaves_two_tasks_or_one(bench: Bench, fault: str) -> None:
    bench.assign("s1")
    bench.worker("s1", snapshot_interval_s=1000.0)
    bench.put(1, *change(b"a", 11, 12, b"1"), *change(b"x", 13, 14, b"2"), upto=20)
    bench.wait_for_upper(20)
    match fault:
        case "the reply is lost":
            bench.catalog.lost_replies_of = "merge_tasks"
        case "the catalog is away":
            bench.catalog.lost_before_of = "merge_tasks"
        case _:
            bench.worker("s2")
            bench.assign("s2")
    asked_to_merge(bench)
    bench.wait(lambda: len(rows_of(bench)) == 1, "the merge")
    bench.tasks = [row.task_id for row in rows_of(bench)]
    bench.put(2, *change(b"a", 21, 22, b"3"), upto=30)
    bench.wait_for_upper(30)
    early = [expected(b"a", 11, 12, b"1"), expected(b"x", 13, 14, b"2")]
    assert bench.served() == [*early, expected(b"a", 21, 22, b"3")]


def test_two_tasks_that_do_not_come_together_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PATIENCE_S", 0.0)
    monkeypatch.setattr(merging, "FIRST_PAUSE_S", 0.3)
    bench.assign("s1")
    bench.worker("s1")
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_upper(20)
    asked_to_merge(bench)
    bench.put(2, *change(b"x", 21, 22, b"2"), upto=30)
    bench.wait_for_upper(30)
    assert bench.served() == [expected(b"a", 11, 12, b"1"), expected(b"x", 21, 22, b"2")]
    assert len(rows_of(bench)) == 2
    monkeypatch.setattr(merging, "PATIENCE_S", 60.0)
    bench.wait(lambda: len(rows_of(bench)) == 1, "the merge")


def test_the_tasks_of_a_paused_tenant_rest_and_go_on_from_where_they_were(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1")
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_upper(20)
    assert change_state(bench.catalog, TENANT, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="asked")
    bench.wait(lambda: worker.stats() == {}, "resting")
    bench.put(2, *change(b"b", 21, 22, b"2"), *change(b"x", 21, 23, b"3"), upto=30)
    mark = [(bench.row(t).upper, bench.row(t).snapshot_n, bench.row(t).epoch) for t in bench.tasks]
    worker._flush.hurry()
    worker._save.hurry()
    bench.wait(lambda: not any(p.is_alive for r in worker._leaving for p in r._leaving), "readers gone")
    assert [(bench.row(t).upper, bench.row(t).snapshot_n, bench.row(t).epoch) for t in bench.tasks] == mark
    assert change_state(bench.catalog, TENANT, seen=TenantState.PAUSED, to=TenantState.ACTIVE, reason="")
    bench.wait_for_upper(30)
    rows = (expected(b"a", 11, 12, b"1"), expected(b"b", 21, 22, b"2"), expected(b"x", 21, 23, b"3"))
    assert bench.served() == list(rows)


def test_its_heartbeats_say_what_its_tasks_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sorter.worker.HEARTBEAT_MS", 20)
    monkeypatch.setattr("sorter.worker.LOOK_INTERVAL_S", 0.02)
    bench.assign("s1")
    bench.worker("s1")
    bench.put(1, *change(b"a", 11, 12, b"1"), Row(kind=P, key=b"b", start_ts=13, value=b"2"), upto=12)
    bench.put(2, upto=12)

    def told() -> dict[int, TaskReport]:
        return {task.task_id: task for row in list_workers(bench.catalog) for task in row.report.tasks}

    bench.wait(lambda: 1 in told() and told()[1].open_rows == 1, "the open prewrite is told")
    report = told()[1]
    assert (report.epoch, report.watermark) == (bench.row(1).epoch, 12)
    assert report.bytes_per_s > 0 < report.rows_per_s
    assert report.held_bytes > 0


def test_who_drains_goes_on_and_saves_often_until_it_has_nothing(bench: Bench) -> None:
    bench.assign("s1")
    worker = bench.worker("s1", snapshot_interval_s=1000.0)
    bench.put(1, upto=20)
    bench.wait_for_upper(20)
    before = bench.row(1).snapshot_n
    worker.begin_drain()
    assert [w.state for w in list_workers(bench.catalog)] == ["draining"]
    assert not worker.drained()
    bench.put(2, *change(b"a", 21, 22, b"1"), upto=30)
    bench.wait_for_upper(30)
    bench.wait(lambda: bench.row(1).snapshot_n > before, "saved")
    bench.worker("s2", snapshot_interval_s=1000.0)
    bench.assign("s2")
    assert worker.drained()
    bench.put(3, *change(b"b", 31, 32, b"1"), upto=40)
    bench.wait_for_upper(40)
    assert bench.served() == [expected(b"a", 21, 22, b"1"), expected(b"b", 31, 32, b"1")]
