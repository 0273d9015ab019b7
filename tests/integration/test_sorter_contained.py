"""What goes wrong with one task or one tenant of a sorter stops or delays that one, is shown, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sorter.core.task_core import TaskCore
from tests.kit.catalog_cases import begin
from tests.kit.memory_feed import MemoryFeed, MemoryStream
from tests.kit.sorter_bench import TENANT, Bench, change, expected
from tests.kit.sorter_oracle import C, D, Mark, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.log.snapshots import positions
from tistream.catalog.work.reshape import request_merge
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks, retry_task
from tistream.errors import StoreRefused
from tistream.feed.protocol import FeedBatch, FeedRequest, Wake
from tistream.ids import Position, Tenant
from tistream.runtime import containment

OTHER = Tenant(1, 8)
WAIT_S = 10.0


def batch(seq: int, *rows: Row, upto: int, incarnation: int = 1, closes: bool = False) -> FeedBatch:
    mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=upto)
    marks, cut_ts = ((), 0) if closes else ((mark,), upto)
    return feed_batch(
        File(store_id=1, incarnation=incarnation, seq=seq, cut_ts=cut_ts, rows=rows, marks=marks, closes=closes)
    )


class FeedOfEach:
    """A feed in memory for each task, or for each tenant."""

    def __init__(self) -> None:
        self.of: dict[object, MemoryFeed] = {at: MemoryFeed() for at in (1, 2, 3, TENANT, OTHER)}

    def open(self, request: FeedRequest, wake: Wake) -> MemoryStream:
        return self.of[request.task_id].open(request, wake)

    def put(self, fed: FeedBatch, *to: object) -> None:
        for at in to:
            self.of[at].put(fed)


class FeedOfEachTenant(FeedOfEach):
    def open(self, request: FeedRequest, wake: Wake) -> MemoryStream:
        return self.of[request.tenant].open(request, wake)


def saved(bench: Bench, seq: int) -> None:
    bench.wait(lambda: all(positions(bench.catalog, t) == {1: {1: Position(seq=seq)}} for t in (1, 2)), "saved")


def stopped_by(bench: Bench, key: str) -> None:
    bench.wait(lambda: key in (bench.row(1).error or ""), "the task stops and names the object")


def test_a_task_whose_state_is_gone_stops_and_no_sorter_ends(bench: Bench) -> None:
    first = bench.assigned("s1")
    bench.put(1, *change(b"x", 11, 12, b"2"), upto=20)
    bench.wait_for_durable_ts(20)
    saved(bench, 1)
    first.stop()
    key = bench.row(1).snapshot_key
    assert key is not None
    data = bench.store.get(key)
    bench.store.delete(key)
    bench.put(2, *change(b"a", 31, 32, b"3"), *change(b"x", 31, 32, b"3"), upto=40)
    for name, upto in (("s2", 40), ("s3", 50)):
        bench.assign(name)
        worker = bench.worker(name)
        stopped_by(bench, key)
        bench.wait(lambda upto=upto: bench.row(2).durable_ts == upto, "the other task goes on")  # type: ignore[misc]
        bench.wait(lambda worker=worker: any(key in p.message for p in worker.problems()), "shown")  # type: ignore[misc]
        bench.wait(lambda worker=worker: worker.ready, "ready")  # type: ignore[misc]
        bench.put(3, upto=50)
    bench.store.put(key, data)
    assert retry_task(bench.catalog, 1, epoch=bench.row(1).epoch)
    bench.wait_for_durable_ts(50)
    bench.wait(lambda: worker.problems() == [], "over")
    assert [s.key for s in bench.served()] == [b"x", b"a", b"x"]


def test_a_task_with_damaged_rows_stops_and_its_tenant_continues(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.assigned("s1")
    waits = Row(kind=D, key=b"a", start_ts=24, commit_ts=25, value=b"1")
    bench.put(1, waits, *change(b"x", 11, 12, b"2"), upto=20)
    bench.wait_for_durable_ts(20)
    saved(bench, 1)
    first.stop()
    (bad,) = [
        o.key for o in bench.store.list("snapshots/") if "/task-1/" in o.key and o.key != bench.row(1).snapshot_key
    ]
    sound = bench.store.get_range

    def flipped(key: str, offset: int, length: int) -> bytes:
        data = bytearray(sound(key, offset, length))
        if key == bad:
            data[len(data) // 2] ^= 1
        return bytes(data)

    monkeypatch.setattr(bench.store, "get_range", flipped)
    bench.assign("s2")
    worker = bench.worker("s2")
    bench.put(2, *change(b"x", 31, 32, b"3"), upto=40)
    stopped_by(bench, bad)
    bench.wait(lambda: bench.row(2).durable_ts == 40, "the other task goes on")
    assert worker.ready
    monkeypatch.setattr(bench.store, "get_range", sound)
    assert retry_task(bench.catalog, 1, epoch=bench.row(1).epoch)
    bench.wait_for_durable_ts(40)
    assert bench.served() == [expected(b"x", 11, 12, b"2"), expected(b"a", 24, 25, b"1"), expected(b"x", 31, 32, b"3")]


def test_bytes_that_were_damaged_on_their_way_stop_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.assigned("s1")
    bench.put(1, Row(kind=D, key=b"a", start_ts=24, commit_ts=25, value=b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    saved(bench, 1)
    first.stop()
    seen: set[tuple[str, int]] = set()

    def once(key: str, data: bytes, at: int) -> bytes:
        damaged = bytearray(data)
        if "snapshots/" in key and (key, at) not in seen:
            seen.add((key, at))
            damaged[len(damaged) // 2] ^= 1
        return bytes(damaged)

    get, get_range = bench.store.get, bench.store.get_range
    monkeypatch.setattr(bench.store, "get", lambda key: once(key, get(key), -1))
    monkeypatch.setattr(bench.store, "get_range", lambda key, at, size: once(key, get_range(key, at, size), at))
    bench.assign("s2")
    bench.worker("s2")
    bench.put(2, upto=40)
    bench.wait_for_durable_ts(40)
    assert len(seen) > 2
    assert bench.served() == [expected(b"a", 24, 25, b"1")]


def test_an_unexpected_error_of_one_task_does_not_stop_the_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.assign("s1")
    handle, flushes = TaskCore.handle, TaskCore.take

    def failing(core: TaskCore, fed: FeedBatch, *logged: Any) -> Any:
        if core.task_id == 1 and fed.seq == 2:
            raise KeyError("a defect")
        return handle(core, fed, *logged)

    monkeypatch.setattr(TaskCore, "handle", failing)
    worker = bench.worker("s1")
    bench.put(1, upto=20)
    bench.put(2, *change(b"x", 31, 32, b"3"), upto=40)
    bench.wait(lambda: bench.row(2).durable_ts == 40, "the other task goes on")
    bench.wait(lambda: any("task 1 take" in p.source and "a defect" in p.message for p in worker.problems()), "shown")
    assert worker.ready
    assert bench.row(1).error is None, "another build of the sorter may do better"

    def not_taken(core: TaskCore, w: int) -> Any:
        if core.task_id == 1:
            raise ValueError("rows that cannot be taken")
        return flushes(core, w)

    monkeypatch.setattr(TaskCore, "handle", handle)
    monkeypatch.setattr(TaskCore, "take", not_taken)
    bench.assign("s2")
    second = bench.worker("s2")
    bench.put(3, *change(b"a", 41, 42, b"4"), *change(b"x", 41, 42, b"4"), upto=50)
    bench.wait(lambda: bench.row(2).durable_ts == 50, "the other task of the same object goes on")
    bench.wait(lambda: any("task 1 write" in p.source for p in second.problems()), "shown")
    assert second.ready


def with_another_tenant(bench: Bench) -> FeedOfEachTenant:
    feed = FeedOfEachTenant()
    bench.feed = feed  # type: ignore[assignment]
    begin(bench.catalog, OTHER, 10)
    issue_incarnation(bench.catalog, OTHER, 1)
    bench.tasks = [row.task_id for row in list_tasks(bench.catalog)]
    return feed


def test_a_failing_flush_of_one_tenant_does_not_delay_another(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = with_another_tenant(bench)
    put = bench.store.put

    def refused(key: str, data: bytes) -> None:
        if key.startswith("committed/") and "/tenant-7/" in key:
            raise StoreRefused("AccessDenied", key=key)
        put(key, data)

    monkeypatch.setattr(bench.store, "put", refused)
    monkeypatch.setattr(containment, "RETRY_FIRST_S", 10_000.0)  # who waits for it waits for ever
    monkeypatch.setattr(containment, "RETRY_MAX_S", 10_000.0)
    worker = bench.assigned("s1")
    feed.put(batch(1, Row(kind=D, key=b"a", start_ts=18, commit_ts=19, value=b"1"), upto=20), TENANT)
    bench.wait(lambda: any("flush/1/7" in p.source or "flush" in p.source for p in worker.problems()), "shown")
    (other,) = [row.task_id for row in list_tasks(bench.catalog, OTHER)]
    for seq in range(1, 6):
        upto = 20 + 10 * seq
        row = Row(kind=D, key=b"k", start_ts=upto - 2, commit_ts=upto - 1, value=b"1")
        feed.put(batch(seq, row, upto=upto), OTHER)
        bench.wait(lambda upto=upto: bench.row(other).durable_ts == upto, "written")  # type: ignore[misc]
    monkeypatch.setattr(bench.store, "put", put)
    worker._flushing.tenants.resume(TENANT)
    bench.wait(lambda: bench.row(1).durable_ts == 20, "it goes on when it may")
    bench.wait(lambda: worker.problems() == [], "over")


def asked_to_merge(bench: Bench) -> None:
    left, right = list_tasks(bench.catalog, TENANT)
    assert request_merge(bench.catalog, left.task_id, right.task_id, seen_epochs=(left.epoch, right.epoch))


@pytest.mark.parametrize("right_is_ahead", [False, True])
def test_a_half_goes_on_when_the_other_stops_on_the_way_to_a_merge(bench: Bench, right_is_ahead: bool) -> None:
    feed = FeedOfEach()
    bench.feed = feed  # type: ignore[assignment]
    worker = bench.assigned("s1")
    feed.put(batch(1, *change(b"a", 11, 12, b"1"), upto=20), 1, 2)
    ahead = 30 if right_is_ahead else 20
    feed.put(batch(2, upto=ahead), 2)
    bench.wait(lambda: bench.row(1).durable_ts == 20 and bench.row(2).durable_ts == ahead, "written")
    asked_to_merge(bench)
    bench.wait(lambda: worker._runners[2].publication.upto is not None, "the merge is under way")
    feed.put(batch(2, Row(kind=C, key=b"a", start_ts=15, commit_ts=25), upto=30), 1)  # a commit without its prewrite
    bench.wait(lambda: bench.row(1).error is not None, "the left half stops")
    for seq in range(3, 6):
        feed.put(batch(seq, *change(b"x", 10 * seq + 1, 10 * seq + 2, b"3"), upto=10 * seq + 5), 2)
    bench.wait(lambda: bench.row(2).durable_ts == 55, "the right half goes on")
    assert any("task 1" in p.source for p in worker.problems())


def test_two_tasks_that_do_not_come_together_are_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sorter.worker.merging.PATIENCE_S", 0.2)
    feed = FeedOfEach()
    bench.feed = feed  # type: ignore[assignment]
    worker = bench.assigned("s1")
    feed.put(batch(1, upto=20), 1, 2)
    feed.put(batch(2, upto=30), 2)
    bench.wait(lambda: bench.row(1).durable_ts == 20 and bench.row(2).durable_ts == 30, "written")
    asked_to_merge(bench)
    bench.wait(lambda: any(p.code == "TS-1066" for p in worker.problems()), "shown")


def test_halves_that_saw_the_end_of_a_life_at_different_files_become_one(bench: Bench) -> None:
    """A late file came between: the left half ended the life before it, the right one has it in its snapshot."""
    feed = FeedOfEach()
    bench.feed = feed  # type: ignore[assignment]
    worker = bench.assigned("s1")
    for seq in range(1, 6):
        feed.put(batch(seq, *change(b"a", 10 * seq + 11, 10 * seq + 12, b"1"), upto=10 * seq + 20), 1, 2)
    bench.wait_for_durable_ts(70)
    issue_incarnation(bench.catalog, TENANT, 1)  # the pusher was replaced
    feed.put(batch(5, upto=0, closes=True), 1)
    feed.put(batch(6, upto=70), 2)
    ends = (1, Position(seq=5, closed=True)), (2, Position(seq=6))
    bench.wait(lambda: all(positions(bench.catalog, t).get(1, {}).get(1) == at for t, at in ends), "saved")
    worker.stop()
    bench.assign("s2")
    second = bench.worker("s2", snapshot_interval_s=1000.0)
    bench.wait(lambda: len(second.stats()) == 2, "tasks")
    asked_to_merge(bench)
    bench.wait(lambda: second._runners[2]._until is not None, "they have agreed where to meet")
    feed.put(batch(6, upto=0, closes=True), 2)
    feed.put(replace(batch(1, *change(b"b", 81, 82, b"2"), upto=90), incarnation=2), 1, 2, 3)
    bench.wait(lambda: len(list_tasks(bench.catalog, TENANT)) == 1, "one task")
    bench.wait(lambda: list_tasks(bench.catalog, TENANT)[0].durable_ts == 90, "it goes on")
    assert second.ready
