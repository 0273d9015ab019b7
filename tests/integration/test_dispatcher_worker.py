"""A dispatcher over a real catalog: ownership, serving, giving files up. Threads and real time, in small portions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.reclaim import Reclaimer
from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from tests.kit.assignments import assign_store, assign_task
from tests.kit.awaited import Awaited, subscribed
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import begin, elected, new_catalog
from tests.kit.feed_port import request_of
from tests.kit.open_folder import OpenFolder
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.catalog.log.retention import database_time_ms
from tistream.catalog.log.snapshots import NewSnapshot, switch_snapshot
from tistream.catalog.rows.workers import WorkerState
from tistream.catalog.work.exports import begin_export, verify_export
from tistream.catalog.work.stores import StoreRow, issue_incarnation, list_stores, newest_incarnation, reclaimed
from tistream.catalog.work.tasks import list_tasks
from tistream.catalog.work.workers import list_workers, register_worker
from tistream.clock import SystemClock
from tistream.errors import AheadOfTime, FeedGap, FeedUnavailable, StoreRefused
from tistream.feed.protocol import FeedRequest, FeedStream
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import BatchKey, incarnation_prefix, store_prefix

T = Tenant(3, 4)
FAST = TailTiming(poll_s=0.02, retry_s=0.1)
Positions = dict[int, Position]


class World:
    """One tenant with two tasks and one store, dispatched by "d1"."""

    def __init__(self, path: Path) -> None:
        self.catalog = new_catalog(path)
        begin(self.catalog, T, 100, KeyRange(b"a", b"m"), KeyRange(b"m", b"z"))
        self.tasks = [task.task_id for task in list_tasks(self.catalog, T)]
        epoch = self.leader_epoch = elected(self.catalog)
        for task in self.tasks:
            assign_task(self.catalog, task, worker_id="s1", seen_epoch=0, leader_epoch=epoch)
        issue_incarnation(self.catalog, T, 7)
        self.assign("d1")
        self.folder = OpenFolder()
        self.snapshots = 0
        self.workers: list[DispatcherWorker] = []

    def worker(self, name: str = "d1", *, start: bool = False) -> DispatcherWorker:
        worker = DispatcherWorker(
            self.catalog, self.folder, SystemClock(), name, timing=FAST, reclaim_s=0.05 if start else 60
        )
        self.workers.append(worker)
        if start:
            worker.start()
            assert worker.wait_until_ready(10)
        return worker

    def row(self) -> StoreRow:
        return list_stores(self.catalog, T)[0]

    def assign(self, worker_id: str) -> None:
        row = self.row()
        seen = row.dispatcher_epoch
        assert assign_store(self.catalog, T, 7, worker_id=worker_id, seen_epoch=seen, leader_epoch=self.leader_epoch)

    def put(self, *seqs: int, incarnation: int = 1) -> None:
        for seq in seqs:
            key = BatchKey(tenant=T, store_id=7, incarnation=incarnation, seq=seq)
            self.folder.put(str(key), batch_bytes(key, [(b"a", b"z", [b"b", b"n", b"c"])]))

    def seqs(self, incarnation: int = 1) -> list[int]:
        keys = [key for key in self.folder.objects if f"/{incarnation:06d}/file-" in key]
        return sorted(int(key[-16:-4]) for key in keys)

    def consumed(self, task: int, positions: Positions) -> None:
        """The task's sorter makes a snapshot durable."""
        self.snapshots += 1
        key, n = f"snapshot-{self.snapshots}", self.snapshots
        new = NewSnapshot(key=key, n=n, objects={key: 1}, positions={7: positions})
        assert switch_snapshot(self.catalog, self.tasks[task], 1, new)

    def request(self, task: int = 0, positions: Positions | None = None) -> FeedRequest:
        return request_of(self.catalog, self.tasks[task], 7, positions)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    new_world = World(tmp_path)
    yield new_world
    for worker in new_world.workers:
        worker.stop()
    new_world.catalog.close()


def seqs_of(stream: Awaited[FeedStream], timeout_s: float = 0.2) -> list[tuple[int, int, bool]]:
    out = []
    while (batch := stream.next(timeout_s)) is not None:
        out.append((batch.incarnation, batch.seq, batch.closes))
    return out


def test_each_task_gets_its_part_of_every_file(world: World) -> None:
    world.put(1, 2)
    worker = world.worker(start=True)
    keys = []
    for task in (0, 1):
        batch = subscribed(worker, world.request(task)).next(5)
        assert batch is not None
        keys.append(batch.rows["key"].to_pylist())
        assert batch.regions["row_count"].to_pylist() == [len(keys[-1])]
    assert keys == [[b"b", b"c"], [b"n"]]
    assert set(world.folder.gets.values()) == {1}


def test_a_store_of_another_dispatcher_is_refused_with_its_owner(world: World) -> None:
    other = world.worker("d2")
    with pytest.raises(FeedUnavailable) as raised:
        subscribed(other, world.request())
    assert (raised.value.facts["asked"], raised.value.facts["owner"]) == ("d2", "d1")
    world.assign("d2")
    assert subscribed(other, world.request()).next(0) is None


def test_a_store_that_moves_away_ends_the_streams_here(world: World) -> None:
    world.put(1)
    worker = world.worker()
    stream = subscribed(worker, world.request())
    assert seqs_of(stream) == [(1, 1, False)]
    world.assign("d2")
    worker.refresh()
    with pytest.raises(FeedUnavailable):
        stream.next(0)
    world.assign("d1")
    issue_incarnation(world.catalog, T, 7)
    worker.refresh()
    assert seqs_of(stream) == [(1, 1, True)]


def test_of_a_store_that_moves_away_nothing_is_kept(world: World) -> None:
    world.put(1)
    worker = world.worker()
    stream = subscribed(worker, world.request())
    assert seqs_of(stream) == [(1, 1, False)]
    worker.refresh()
    worker.reclaim()
    noted = worker._noted, worker._swept, worker._fruitless, worker._reclaimer.waiting
    assert [list(each) for each in noted] == [[(T, 7)]] * 4
    world.assign("d2")
    worker.refresh()
    assert [list(each) for each in noted] == [[]] * 4


def test_a_new_incarnation_in_the_catalog_ends_the_old_one(world: World) -> None:
    world.put(1, 2)
    worker = world.worker(start=True)
    stream = subscribed(worker, world.request())
    assert seqs_of(stream) == [(1, 1, False), (1, 2, False)]
    issue_incarnation(world.catalog, T, 7)
    world.put(1, incarnation=2)
    assert seqs_of(stream, 2) == [(1, 2, True), (2, 1, False)]


def test_the_largest_cut_ts_reaches_the_catalog(world: World) -> None:
    world.put(1, 2)
    worker = world.worker()
    seqs_of(subscribed(worker, world.request()))
    worker.refresh()
    assert world.row().max_cut_ts == 1002
    assert issue_incarnation(world.catalog, T, 7) == (2, 1002)


def test_only_what_every_task_has_durably_consumed_is_deleted(world: World) -> None:
    world.put(1, 2, 3, 4)
    worker = world.worker()
    assert len(seqs_of(subscribed(worker, world.request()))) == 4  # received, but not durable
    worker.refresh()
    worker.reclaim()
    assert world.seqs() == [1, 2, 3, 4]
    world.consumed(0, {1: Position(seq=4)})
    worker.reclaim()
    assert world.seqs() == [1, 2, 3, 4]
    world.consumed(1, {1: Position(seq=2)})
    worker.reclaim()
    assert world.seqs() == [3, 4]
    assert reclaimed(world.catalog, T, 7) == {1: 2}
    with pytest.raises(FeedGap):
        subscribed(worker, world.request(0, {1: Position(seq=1)})).next(0)
    assert seqs_of(subscribed(worker, world.request(1, {1: Position(seq=2)}))) == [(1, 3, False), (1, 4, False)]


def test_a_closed_incarnation_goes_whole_with_what_lies_behind_its_gap(world: World) -> None:
    world.put(1, 2, 9)
    issue_incarnation(world.catalog, T, 7)
    world.put(1, incarnation=2)
    worker = world.worker()
    worker.refresh()
    for task in (0, 1):
        world.consumed(task, {1: Position(seq=2, closed=True), 2: Position(seq=0)})
    worker.reclaim()
    assert world.seqs(1) == []
    assert world.seqs(2) == [1]
    assert seqs_of(subscribed(worker, world.request(0, {1: Position(seq=2, closed=True)}))) == [(2, 1, False)]


def test_a_zombie_dispatcher_deletes_nothing(world: World) -> None:
    world.put(1, 2)
    zombie = world.worker("d1")
    zombie.refresh()
    world.assign("d2")
    for task in (0, 1):
        world.consumed(task, {1: Position(seq=2)})
    zombie.reclaim()
    assert world.seqs() == [1, 2]
    assert reclaimed(world.catalog, T, 7) == {1: 0}
    heir = world.worker("d2")
    heir.refresh()
    heir.reclaim()
    assert world.seqs() == []


def test_files_stay_until_an_export_of_the_catalog_has_the_decision(world: World) -> None:
    world.put(1, 2, 3)
    for task in (0, 1):
        world.consumed(task, {1: Position(seq=2)})
    first = begin_export(world.catalog, leader_epoch=world.leader_epoch)
    worker = world.worker()
    worker.refresh()
    assert left_by(worker, world) == [1, 2, 3]
    assert reclaimed(world.catalog, T, 7) == {1: 2}
    _verified(world, first)
    assert left_by(worker, world) == [1, 2, 3], "it began before the decision"
    for task in (0, 1):
        world.consumed(task, {1: Position(seq=3)})
    assert left_by(worker, world) == [1, 2, 3], "one decision at a time"
    assert reclaimed(world.catalog, T, 7) == {1: 2}
    _verified(world, begin_export(world.catalog, leader_epoch=world.leader_epoch))
    assert left_by(worker, world) == [3]
    assert left_by(worker, world) == [3], "decided since"
    _verified(world, begin_export(world.catalog, leader_epoch=world.leader_epoch))
    heir = world.worker("d2")
    world.assign("d2")
    heir.refresh()
    assert left_by(heir, world) == [], "the next owner sweeps"


def _verified(world: World, number: int) -> None:
    """The export with this number is whole."""
    facts = {"snapshot_ms": 1, "rows": 1, "size": 1}
    verify_export(world.catalog, number, f"exports/{number}", leader_epoch=world.leader_epoch, **facts)


def left_by(worker: DispatcherWorker, world: World, *incarnation: int) -> list[int]:
    """The files that are there after another round."""
    worker.reclaim()
    return world.seqs(*incarnation)


def test_leftovers_of_a_crash_between_catalog_and_delete_are_swept(world: World) -> None:
    world.put(1, 2, 3)
    for task in (0, 1):
        world.consumed(task, {1: Position(seq=2)})
    first = world.worker()
    first.refresh()
    world.folder.away = True
    first.reclaim()
    assert any("did not answer" in p.message and "store-7/reclaim" in p.source for p in first.problems())
    world.folder.away = False
    assert world.seqs() == [1, 2, 3]
    eventually(lambda: left_by(first, world) == [3], "tried again")
    assert first.problems() == []
    world.put(1, 2)  # as if the first owner had crashed instead
    world.assign("d2")
    second = world.worker("d2")
    second.refresh()
    second.reclaim()
    assert world.seqs() == [3]


def test_ended_incarnations_are_forgotten_and_their_late_files_are_neither_read_nor_kept(world: World) -> None:
    incarnations = 40
    for _ in range(incarnations):
        issue_incarnation(world.catalog, T, 7)
    newest = incarnations + 1
    world.put(1, incarnation=newest)
    for task in (0, 1):
        world.consumed(task, {newest: Position(seq=0)})
    first = world.worker()
    first.refresh()
    first.reclaim()  # gives them up
    eventually(lambda: not first._reclaiming, "a round is waited for no longer than its interval")
    world.assign("d2")
    second = world.worker("d2")
    second.refresh()
    world.folder.listed.clear()
    second.reclaim()  # sweeps
    eventually(lambda: not second._reclaiming, "a round is waited for no longer than its interval")
    del world.folder.listed[incarnation_prefix(T, 7, newest)]  # those that read it look for more
    assert world.folder.listed == {store_prefix(T, 7): 1}, "one LIST for all incarnations of a store"
    assert reclaimed(world.catalog, T, 7) == {newest: 0}
    assert newest_incarnation(world.catalog, T, 7) == newest, "no number is issued twice"
    world.put(1, 2, incarnation=3)  # a pusher that was away for long
    positions = {newest - 1: Position(seq=4, closed=True)}
    for worker in (first, second):  # the first one does not know that it lost the store, nor that they are forgotten
        assert seqs_of(subscribed(worker, world.request(0, positions))) == [(newest, 1, False)]
    with pytest.raises(FeedGap):
        subscribed(second, world.request(0)).next(0)  # it has lost its positions: never guess
    world.assign("d3")
    third = world.worker("d3")
    third.refresh()
    third.reclaim()
    assert (world.seqs(3), world.seqs(newest)) == ([], [1])


def test_an_incarnation_with_a_file_that_cannot_be_deleted_is_not_forgotten(world: World) -> None:
    world.put(1)
    issue_incarnation(world.catalog, T, 7)
    for task in (0, 1):
        world.consumed(task, {2: Position(seq=0)})
    world.folder.away = True
    worker = world.worker()
    worker.refresh()
    worker.reclaim()
    assert set(reclaimed(world.catalog, T, 7)) == {1, 2}
    world.folder.away = False
    eventually(lambda: left_by(worker, world, 1) == [], "deleted")
    world.assign("d2")
    heir = world.worker("d2")
    heir.refresh()
    heir.reclaim()
    assert set(reclaimed(world.catalog, T, 7)) == {2}


def test_a_refused_delete_of_one_store_holds_back_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    issue_incarnation(world.catalog, T, 8)
    given = {"worker_id": "d1", "seen_epoch": 0, "leader_epoch": world.leader_epoch}
    assert assign_store(world.catalog, T, 8, **given)  # type: ignore[arg-type]
    worker = world.worker()
    worker.refresh()
    deleted: list[str] = []

    def delete(self: Reclaimer, row: StoreRow, tail: object) -> int:
        if row.store_id == 7:
            raise StoreRefused("AccessDenied", key="file")
        deleted.append(f"store {row.store_id}")
        return 1

    monkeypatch.setattr(Reclaimer, "reclaim", delete)
    worker.reclaim()
    assert deleted == ["store 8"]
    assert [p.source for p in worker.problems()] == ["d1/3/4/store-7/reclaim"]


def test_a_second_life_of_the_same_name_silences_the_first(world: World) -> None:
    world.put(1)
    worker = world.worker(start=True)
    stream = subscribed(worker, world.request())
    assert stream.next(5) is not None
    register_worker(world.catalog, "d1", "dispatcher", "")
    worker._heartbeat.wake()
    worker._heartbeat._thread.join(10)  # type: ignore[union-attr]
    with pytest.raises(FeedUnavailable):
        stream.next(0)
    assert [problem.fatal for problem in worker.problems()] == [True]
    assert not worker.wait_until_ready(0)


def test_a_stopped_worker_is_gone_in_the_catalog_and_its_streams_say_so(world: World) -> None:
    worker = world.worker(start=True)
    stream = subscribed(worker, world.request())
    worker.stop()
    worker.stop()
    with pytest.raises(FeedUnavailable):
        stream.next(1)
    assert [w.state for w in list_workers(world.catalog, "dispatcher")] == [WorkerState.GONE]


def test_a_gap_shows_among_the_problems(world: World) -> None:
    world.put(2)
    worker = DispatcherWorker(
        world.catalog, world.folder, SystemClock(), "d1", timing=TailTiming(poll_s=0.02, gap_after_s=0.05, retry_s=0.05)
    )
    world.workers.append(worker)
    stream = subscribed(worker, world.request())
    with pytest.raises(FeedGap):
        stream.next(5)
    (problem,) = worker.problems()
    assert problem.code == FeedGap.code
    assert str(problem.facts["missing"]).endswith("file-000000000001.seg")
    assert problem.source == "d1/3/4/store-7"


def test_a_file_ahead_of_the_database_clock_is_held_and_named(world: World) -> None:
    """Over the real catalog, whose clock decides."""
    hour_ahead = tso.compose(database_time_ms(world.catalog) + 3_600_000)
    world.put(1)
    key = BatchKey(tenant=T, store_id=7, incarnation=1, seq=2)
    world.folder.put(str(key), batch_bytes(key, [(b"a", b"z", [b"b"])], hour_ahead))
    worker = world.worker(start=True)
    stream = subscribed(worker, world.request())
    assert (batch := stream.next(5)) is not None
    assert batch.seq == 1
    with pytest.raises(AheadOfTime, match="ahead of the catalog's clock"):
        stream.next(5)
    (problem,) = worker.problems()
    assert (problem.code, problem.source, problem.ends_process) == ("TS-1067", "d1/3/4/store-7", False)
    assert problem.facts["object"] == str(key)
    assert problem.facts["time"] == tso.to_text(hour_ahead)
    assert 3500 < problem.facts["ahead_s"] <= 3600  # type: ignore[operator]
    assert {m.name: m.samples[0].value for m in worker.measured()}["tistream_dispatcher_files_held"] == 1
    worker.refresh()
    assert world.row().max_cut_ts < hour_ahead
    issue_incarnation(world.catalog, T, 7)  # the pusher was restarted
    worker.refresh()
    assert (batch := stream.next(5)) is not None
    assert (batch.incarnation, batch.seq, batch.closes) == (1, 1, True)


def test_heartbeats_report_stores_and_draining_serves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tistream.catalog.work.heartbeat.HEARTBEAT_MS", 20)
    monkeypatch.setattr("dispatcher.worker.REFRESH_S", 0.02)
    world.put(1, 2)
    worker = world.worker(start=True)
    stream = subscribed(worker, world.request())
    assert seqs_of(stream) == [(1, 1, False), (1, 2, False)]

    def reported() -> tuple[int, int] | None:
        stores = list_workers(world.catalog)[0].report.stores
        return (stores[0].incarnation, stores[0].seq) if stores and stores[0].bytes_per_s > 0 else None

    clock, deadline = SystemClock(), SystemClock().monotonic() + 60
    while reported() != (1, 2):
        assert clock.monotonic() < deadline
        assert stream.next(0.02) is None
    worker.begin_drain()
    assert not worker.drained()
    world.put(3)
    assert seqs_of(stream, 5.0)[:1] == [(1, 3, False)]
    world.assign("d2")
    assert worker.drained()
