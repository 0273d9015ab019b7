"""The whole dispatcher as sorters of other processes see it: catalog, object store, Flight, takeover by another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.flight_server import FlightDispatcher
from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import begin, elected, new_catalog
from tests.kit.feed_port import catalog_feed, flight_dispatcher, make_token, owned, request_of
from tistream.catalog.work.stores import assign_store, issue_incarnation
from tistream.clock import SystemClock
from tistream.errors import CorruptObject, FeedUnavailable
from tistream.feed.protocol import FeedBatch, FeedStream
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.local import LocalStore
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectStore

T = Tenant(1, 1)
FAST = TailTiming(poll_s=0.02, retry_s=0.1)


class World:
    def __init__(self, path: Path, store: ObjectStore) -> None:
        self.catalog = new_catalog(path)
        begin(self.catalog, T, 1, KeyRange(b"a", b"z"))
        self.leader_epoch = elected(self.catalog)
        issue_incarnation(self.catalog, T, 7)
        self.store = store
        self.dispatchers: list[FlightDispatcher] = []
        make_token(self.catalog, self.leader_epoch)
        owned(self.catalog, 1, self.leader_epoch)
        self.feed = catalog_feed(self.catalog)

    def dispatcher(self, name: str, seen_epoch: int) -> FlightDispatcher:
        """A running dispatcher that owns the store."""
        made = flight_dispatcher(
            self.catalog, DispatcherWorker(self.catalog, self.store, SystemClock(), name, timing=FAST)
        )
        self.dispatchers.append(made)
        made.start()
        assert made.wait_until_ready(10)
        assert assign_store(self.catalog, T, 7, worker_id=name, seen_epoch=seen_epoch, leader_epoch=self.leader_epoch)
        return made

    def put(self, seq: int, incarnation: int = 1) -> None:
        key = BatchKey(tenant=T, store_id=7, incarnation=incarnation, seq=seq)
        self.store.put(str(key), batch_bytes(key, [(b"a", b"c", [b"b%d" % seq])]))

    def subscribe(self) -> FeedStream:
        return self.feed.subscribe(request_of(self.catalog, 1, 7))


@pytest.fixture(params=["memory", "folder"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "bucket"))
    yield made
    made.feed.close()
    for dispatcher in made.dispatchers:
        dispatcher.stop()
    made.catalog.close()


def take(stream: FeedStream, count: int) -> list[FeedBatch]:
    """So many batches, waiting out a dispatcher that is not there."""
    found: list[FeedBatch] = []
    for _ in range(400):
        if len(found) == count:
            break
        try:
            batch = stream.next(0.05)
        except FeedUnavailable:
            continue
        found += [batch] if batch is not None else []
    return found


def test_a_sorter_is_served_across_a_takeover_and_a_new_incarnation(world: World) -> None:
    first = world.dispatcher("d1", 0)
    stream = world.subscribe()
    for seq in (1, 2, 3):
        world.put(seq)
    got = take(stream, 3)
    assert [batch.rows["key"].to_pylist() for batch in got] == [[b"b1"], [b"b2"], [b"b3"]]
    first.stop()
    world.put(4)
    second = world.dispatcher("d2", 1)
    assert second.address != first.address
    issue_incarnation(world.catalog, T, 7)
    world.put(1, incarnation=2)
    shown = [(batch.incarnation, batch.seq, batch.closes) for batch in take(stream, 3)]
    assert shown == [(1, 4, False), (1, 4, True), (2, 1, False)]
    stream.close()


def test_damage_is_named_over_the_wire_and_among_the_problems(world: World) -> None:
    dispatcher = world.dispatcher("d1", 0)
    key = BatchKey(tenant=T, store_id=7, incarnation=1, seq=1)
    data = batch_bytes(key, [(b"a", b"c", [b"b"])])
    world.store.put(str(key), data[: len(data) // 2])
    stream = world.subscribe()
    with pytest.raises(CorruptObject) as raised:
        take(stream, 1)
    assert raised.value.facts["object"] == str(key)
    assert [problem.facts["object"] for problem in dispatcher.problems()] == [str(key)]
    stream.close()
