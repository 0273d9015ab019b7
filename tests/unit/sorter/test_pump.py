"""One thread for all subscriptions: in order, apart from each other, nothing lost or repeated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sorter.worker.inbox import Inbox
from sorter.worker.pump import Pump, PumpedReader
from tests.kit.batch_files import subscriptions_of
from tests.kit.waiting import eventually
from tistream.clock import SystemClock
from tistream.errors import CorruptObject, FeedUnavailable, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.runtime.service import Repeating

T = Tenant(1, 1)
CLOCK = SystemClock()
ROWS, REGIONS = subscriptions_of([(b"a", b"z", [b"b"])])


class Files:
    """A WatchedFeed: store -> how many files it has. What is in the way of a store is told, or raised."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.trouble: dict[int, TiStreamError] = {}
        self.raises: dict[int, Exception] = {}
        self.wakes: dict[int, Wake] = {}
        self.opened: list[tuple[int, int]] = []
        self.looks = 0

    def watch(self, request: FeedRequest, wake: Wake) -> View:
        self.wakes[request.store_id] = wake
        view = View(self, request)
        self.opened.append((request.store_id, view.seq))
        return view

    def grow(self, store_id: int, last: int) -> None:
        self.last[store_id] = last
        self.wakes[store_id].set()


class View:
    def __init__(self, files: Files, request: FeedRequest) -> None:
        self._files, self._store_id = files, request.store_id
        self.seq = request.positions.get(1, Position(seq=0)).seq

    def look(self) -> FeedBatch | NoBatch:
        files = self._files
        files.looks += 1
        if (error := files.raises.pop(self._store_id, None)) is not None:
            raise error
        if (trouble := files.trouble.get(self._store_id)) is not None:
            return trouble, CLOCK.monotonic() + 0.01
        if self.seq >= files.last.get(self._store_id, 0):
            return None, float("inf")
        self.seq += 1
        return FeedBatch(
            store_id=self._store_id, incarnation=1, seq=self.seq, cut_ts=self.seq, rows=ROWS, regions=REGIONS
        )

    def close(self) -> None:
        self._files.wakes.pop(self._store_id, None)


class World:
    def __init__(self) -> None:
        self.files = Files()
        self.pump = Pump(self.files, Repeating("loop", lambda: None, interval_s=1.0, clock=CLOCK), CLOCK)
        self.pump.start()

    def read(self, store_id: int, inbox: Inbox) -> PumpedReader:
        request = FeedRequest(tenant=T, store_id=store_id, task_id=store_id, epoch=1, worker_id="s1", range=KeyRange())
        return self.pump.read(request, inbox)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.pump.stop()


def take(inbox: Inbox, count: int) -> list[int]:
    found: list[int] = []
    eventually(lambda: _take(inbox, found) >= count)
    return found


def _take(inbox: Inbox, found: list[int]) -> int:
    while (batch := inbox.take()) is not None:
        found.append(batch.seq)
    return len(found)


def test_many_are_moved_in_order(world: World) -> None:
    inboxes = [Inbox() for _ in range(300)]
    for n, inbox in enumerate(inboxes):
        world.files.last[n] = 5
        world.read(n, inbox)
    assert [take(inbox, 5) for inbox in inboxes] == [[1, 2, 3, 4, 5]] * 300
    for n in range(300):
        world.files.grow(n, 6)
    assert [take(inbox, 1) for inbox in inboxes] == [[6]] * 300
    assert world.files.looks < 300 * 6 * 2 + 1000, "nobody is looked at without a reason"


def test_a_full_inbox_holds_up_its_own_subscription_only(world: World) -> None:
    full, other = Inbox(batches_max=2), Inbox()
    world.files.last = {1: 50, 2: 0}
    world.read(1, full)
    world.read(2, other)
    eventually(lambda: full.count == 2)
    for seq in range(1, 40):
        eventually(lambda: 2 in world.files.wakes)
        world.files.grow(2, seq)
        assert take(other, 1) == [seq]
    assert full.count == 2
    assert take(full, 50) == list(range(1, 51))


def test_trouble_is_shown_while_it_lasts_and_the_place_is_kept(world: World) -> None:
    inbox = Inbox()
    world.files.last[1] = 2
    reader = world.read(1, inbox)
    assert take(inbox, 2) == [1, 2]
    assert reader.problems() == []
    world.files.trouble[1] = CorruptObject("torn", object="file-3")
    world.files.grow(1, 4)
    eventually(lambda: len(reader.problems()) == 1)
    assert reader.problems()[0].facts["object"] == "file-3"
    del world.files.trouble[1]
    assert take(inbox, 2) == [3, 4]
    assert reader.problems() == []
    assert world.files.opened == [(1, 0)]


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), FeedUnavailable(), TiStreamError("odd")])
def test_what_ends_it_has_it_opened_anew_behind_the_last_batch(world: World, error: Exception) -> None:
    inbox = Inbox(batches_max=1)
    world.files.last[1] = 5
    world.read(1, inbox)
    eventually(lambda: inbox.count == 1)
    world.files.raises[1] = error
    assert take(inbox, 5) == [1, 2, 3, 4, 5]
    assert len(world.files.opened) == 2


def test_a_stopped_reader_is_closed_and_the_others_continue(world: World) -> None:
    first, second = Inbox(batches_max=1), Inbox()
    world.files.last = {1: 9, 2: 1}
    reader = world.read(1, first)
    world.read(2, second)
    assert take(second, 1) == [1]
    eventually(lambda: first.count == 1)
    reader.ask_to_stop()
    reader.join()
    assert not reader.is_alive
    assert 1 not in world.files.wakes
    held = take(first, 1)
    world.files.grow(2, 2)
    assert take(second, 1) == [2]
    assert held == [1]
    assert first.count == 0


def test_stopping_the_pump_ends_all(world: World) -> None:
    readers = [world.read(n, Inbox()) for n in range(20)]
    world.pump.stop()
    for reader in readers:
        reader.join()
    assert not any(reader.is_alive for reader in readers)
    assert world.files.wakes == {}
