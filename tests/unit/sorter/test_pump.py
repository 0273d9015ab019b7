"""One thread for all subscriptions: in order, apart from each other, nothing lost or repeated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sorter.worker.inbox import Inbox
from sorter.worker.pump import Pump, Reader
from tests.kit.made_stores import MadeStore, MadeStores
from tests.kit.waiting import eventually
from tistream.clock import SystemClock
from tistream.errors import CorruptObject, FeedUnavailable, TiStreamError
from tistream.feed.protocol import FeedRequest, FeedStream, Wake
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

T = Tenant(1, 1)
CLOCK = SystemClock()


class World:
    def __init__(self) -> None:
        self.stores: dict[int, MadeStore] = {}
        self.pump = Pump(self, lambda: None, CLOCK)
        self.pump.start()

    def open(self, request: FeedRequest, wake: Wake) -> FeedStream:
        return MadeStores(*self.stores.values()).open(request, wake)

    def read(self, store_id: int, inbox: Inbox, last: int = 0) -> tuple[MadeStore, Reader]:
        """A store with files up to `last`, and its reader."""
        store = self.stores[store_id] = MadeStore(store_id, last)
        request = FeedRequest(tenant=T, store_id=store_id, task_id=store_id, epoch=1, worker_id="s1", range=KeyRange())
        return store, self.pump.read(request, inbox)


@pytest.fixture
def world() -> Iterator[World]:
    new_world = World()
    yield new_world
    new_world.pump.stop()


def take(inbox: Inbox, count: int) -> list[int]:
    seqs: list[int] = []
    eventually(lambda: _take(inbox, seqs) >= count)
    return seqs


def _take(inbox: Inbox, seqs: list[int]) -> int:
    while (batch := inbox.take()) is not None:
        seqs.append(batch.seq)
    return len(seqs)


def test_many_are_moved_in_order(world: World) -> None:
    inboxes = [Inbox() for _ in range(300)]
    for n, inbox in enumerate(inboxes):
        world.read(n, inbox, 5)
    assert [take(inbox, 5) for inbox in inboxes] == [[1, 2, 3, 4, 5]] * 300
    for store in world.stores.values():
        store.grow(6)
    assert [take(inbox, 1) for inbox in inboxes] == [[6]] * 300
    looks = sum(store.looks for store in world.stores.values())
    assert looks < 300 * 6 * 2 + 1000, "no subscription is polled without a reason"


def test_a_full_inbox_holds_up_its_own_subscription_only(world: World) -> None:
    full, other = Inbox(batches_max=2), Inbox()
    world.read(1, full, 50)
    store, _ = world.read(2, other)
    eventually(lambda: full.count == 2)
    for seq in range(1, 40):
        eventually(lambda: bool(store.wakes))
        store.grow(seq)
        assert take(other, 1) == [seq]
    assert full.count == 2
    assert take(full, 50) == list(range(1, 51))


def test_trouble_is_shown_while_it_lasts_and_the_place_is_kept(world: World) -> None:
    inbox = Inbox()
    store, reader = world.read(1, inbox, 2)
    assert take(inbox, 2) == [1, 2]
    assert reader.problems() == []
    store.trouble = CorruptObject("torn", object="file-3")
    store.grow(4)
    eventually(lambda: len(reader.problems()) == 1)
    assert reader.problems()[0].facts["object"] == "file-3"
    store.trouble = None
    store.grow(4)
    assert take(inbox, 2) == [3, 4]
    assert reader.problems() == []
    assert store.starts == [0]


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), FeedUnavailable(), TiStreamError("odd")])
def test_what_ends_it_has_it_opened_again_after_the_last_batch(world: World, error: Exception) -> None:
    inbox = Inbox(batches_max=1)
    store, _ = world.read(1, inbox, 5)
    eventually(lambda: inbox.count == 1)
    store.raises = error
    assert take(inbox, 5) == [1, 2, 3, 4, 5]
    assert len(store.starts) == 2


def test_a_stream_that_cannot_be_closed_ends_no_other(world: World) -> None:
    broken, sound = Inbox(batches_max=1), Inbox()
    store, reader = world.read(1, broken, 3)
    other, _ = world.read(2, sound, 1)
    eventually(lambda: broken.count == 1)
    store.raises, store.close_raises = FeedUnavailable(), ZeroDivisionError("a defect")
    assert take(broken, 3) == [1, 2, 3]
    reader.ask_to_stop()
    eventually(lambda: not reader.is_alive)
    other.grow(2)
    assert take(sound, 2) == [1, 2]


def test_a_stopped_reader_is_closed_and_the_others_continue(world: World) -> None:
    first, second = Inbox(batches_max=1), Inbox()
    one, reader = world.read(1, first, 9)
    other, _ = world.read(2, second, 1)
    assert take(second, 1) == [1]
    eventually(lambda: first.count == 1)
    reader.ask_to_stop()
    reader.join()
    assert not reader.is_alive
    assert not one.wakes
    seqs = take(first, 1)
    other.grow(2)
    assert take(second, 1) == [2]
    assert seqs == [1]
    assert first.count == 0


def test_stopping_the_pump_ends_all(world: World) -> None:
    readers = [world.read(n, Inbox())[1] for n in range(20)]
    world.pump.stop()
    for reader in readers:
        reader.join()
    assert not any(reader.is_alive for reader in readers)
    assert not any(store.wakes for store in world.stores.values())
