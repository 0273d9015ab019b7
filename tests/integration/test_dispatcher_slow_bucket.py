"""A bucket that answers late, and subscribers that read late: files are fetched side by side, once, within bounds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from tests.kit.batch_files import batch_bytes, subscriptions_of
from tests.kit.catalog_cases import begin, elected, new_catalog
from tests.kit.feed_port import catalog_feed, flight_dispatcher, make_token, owned, request_of
from tistream.catalog.work.stores import assign_store, issue_incarnation
from tistream.clock import SystemClock
from tistream.codec.batch_file import encode_batch_file
from tistream.feed.protocol import FeedStream
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import FEED_QUEUE_BATCHES_MAX, PREFETCH_FILES_MAX
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import Admit

T = Tenant(1, 1)
LONG_S = 60.0


class SlowStore(MemoryStore):
    """Every GET takes its time; they are counted, also how many went on at once."""

    def __init__(self, latency_s: float) -> None:
        super().__init__()
        self.latency_s = latency_s
        self.gets: Counter[str] = Counter()
        self.at_once = 0
        self._now = 0
        self._counting = threading.Lock()

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        with self._counting:
            self.gets[key] += 1
            self._now += 1
            self.at_once = max(self.at_once, self._now)
        try:
            time.sleep(self.latency_s)
            return super().get(key, admit)
        finally:
            with self._counting:
                self._now -= 1

    @property
    def found(self) -> dict[str, int]:
        """How often each file that exists was asked for."""
        return {key: count for key, count in self.gets.items() if key in self._objects}


class World:
    """One store, dispatched by "d1", with a subscriber in this process or over Flight."""

    def __init__(self, path: Path, latency_s: float, cache_bytes: int = 64 << 20) -> None:
        self.catalog = new_catalog(path)
        begin(self.catalog, T, 1, KeyRange(b"a", b"z"))
        leader_epoch = elected(self.catalog)
        issue_incarnation(self.catalog, T, 7)
        self.store = SlowStore(latency_s)
        timing = TailTiming(poll_s=0.02, retry_s=0.1)
        self.worker = DispatcherWorker(
            self.catalog, self.store, SystemClock(), "d1", timing=timing, cache_bytes=cache_bytes
        )
        make_token(self.catalog, leader_epoch)
        self.dispatcher = flight_dispatcher(self.catalog, self.worker)
        self.dispatcher.start()
        assert self.dispatcher.wait_until_ready(10)
        assert assign_store(self.catalog, T, 7, worker_id="d1", seen_epoch=0, leader_epoch=leader_epoch)
        owned(self.catalog, 1, leader_epoch)
        self.flight = catalog_feed(self.catalog)
        self.streams: list[FeedStream] = []

    def put(self, count: int, value_bytes: int = 0) -> None:
        for seq in range(1, count + 1):
            key = BatchKey(tenant=T, store_id=7, incarnation=1, seq=seq)
            data = batch_bytes(key, [(b"a", b"z", [b"b"])])
            if value_bytes:
                rows, regions = subscriptions_of([(b"a", b"z", [b"b"])])
                value = pa.array([seq.to_bytes(4, "little") * (value_bytes // 4)], pa.binary())
                rows = rows.set_column(rows.schema.get_field_index("value"), "value", value).cast(rows.schema)
                data = encode_batch_file(key, cut_ts=1000 + seq, rows=rows, regions=regions, write_id="w")
            self.store.put(str(key), data)

    def subscribe(self, *, over_flight: bool = False) -> FeedStream:
        request = request_of(self.catalog, 1, 7)
        self.streams.append((self.flight if over_flight else self.worker).subscribe(request))
        return self.streams[-1]

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self.flight.close()
        self.dispatcher.stop()
        self.catalog.close()


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[World] = []

    def world(latency_s: float, **more: int) -> World:
        made.append(World(tmp_path, latency_s, **more))
        return made[-1]

    yield world
    for each in made:
        each.close()


def take(stream: FeedStream, count: int) -> list[int]:
    """The seqs of so many batches."""
    found: list[int] = []
    deadline = time.monotonic() + LONG_S
    while len(found) < count and time.monotonic() < deadline:
        batch = stream.next(0.2)
        found += [batch.seq] if batch is not None else []
    return found


def test_files_that_are_there_come_side_by_side_and_in_order(make: Make) -> None:
    files = 32
    world = make(0.15)
    world.put(files)
    stream = world.subscribe()
    assert take(stream, files) == list(range(1, files + 1))
    assert world.store.at_once == PREFETCH_FILES_MAX
    assert set(world.store.found.values()) == {1}


def test_a_file_is_fetched_once_for_all_who_read_at_one_pace(make: Make) -> None:
    world = make(0.02)
    world.put(20)
    streams = [world.subscribe() for _ in range(3)]
    found: list[list[int]] = [[] for _ in streams]
    for _ in range(20):
        for seqs, stream in zip(found, streams, strict=True):
            seqs += take(stream, 1)
    assert found == [list(range(1, 21))] * 3
    assert set(world.store.found.values()) == {1}


def test_who_does_not_read_makes_nobody_hold_more_than_the_bounds(make: Make) -> None:
    files, size, cache_bytes = 80, 1 << 20, 6 << 20
    world = make(0.0, cache_bytes=cache_bytes)
    world.put(files, size)
    lazy = world.subscribe(over_flight=True)
    assert take(lazy, 1) == [1]
    before = -1
    while before != len(world.store.found):  # until nothing more is fetched for it
        before = len(world.store.found)
        time.sleep(0.5)
        assert world.worker._cache.bytes <= cache_bytes
    assert before < files
    assert before <= 2 * FEED_QUEUE_BATCHES_MAX + PREFETCH_FILES_MAX
    quick = world.subscribe()
    assert take(quick, files) == list(range(1, files + 1)), "it is not held up by the other"
    assert world.worker._cache.bytes <= cache_bytes
    assert take(lazy, files - 1) == list(range(2, files + 1))
