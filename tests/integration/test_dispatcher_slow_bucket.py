"""A bucket that answers late, and subscribers that read late: files are fetched side by side, once, within bounds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dispatcher.worker import DispatcherWorker
from tests.kit.awaited import next_seqs
from tests.kit.batch_files import subscriptions_of
from tests.kit.feed_port import DispatchedStore
from tistream.codec.batch_file import encode_batch_file
from tistream.limits import FEED_QUEUE_BATCHES_MAX, PREFETCH_FILES_MAX
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import Admit


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


Slow = tuple[DispatchedStore, SlowStore, DispatcherWorker]
Make = Callable[..., Slow]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    stores: list[DispatchedStore] = []

    def world(latency_s: float, files: int, value_bytes: int = 0, cache_bytes: int = 64 << 20) -> Slow:
        store = SlowStore(latency_s)
        one = DispatchedStore(tmp_path, store)
        stores.append(one)
        worker = one.dispatcher(cache_bytes=cache_bytes).worker
        for seq in range(1, files + 1):
            key = one.key(seq)
            rows, regions = subscriptions_of([(b"a", b"z", [b"b"])])
            if value_bytes:
                value = pa.array([seq.to_bytes(4, "little") * (value_bytes // 4)], pa.binary())
                rows = rows.set_column(rows.schema.get_field_index("value"), "value", value).cast(rows.schema)
            data = encode_batch_file(key, cut_ts=1000 + seq, rows=rows, regions=regions, write_id="w")
            store.put(str(key), data)
        return one, store, worker

    yield world
    for each in stores:
        each.close()


def test_files_that_are_there_come_side_by_side_and_in_order(make: Make) -> None:
    files = 32
    world, store, worker = make(0.15, files)
    stream = world.subscribe(to=worker)
    assert next_seqs(stream, files) == list(range(1, files + 1))
    assert store.at_once == PREFETCH_FILES_MAX
    assert set(store.found.values()) == {1}


def test_a_file_is_fetched_once_for_all_who_read_at_one_pace(make: Make) -> None:
    world, store, worker = make(0.02, 20)
    streams = [world.subscribe(to=worker) for _ in range(3)]
    seqs_read: list[list[int]] = [[] for _ in streams]
    for _ in range(20):
        for seqs, stream in zip(seqs_read, streams, strict=True):
            seqs += next_seqs(stream, 1)
    assert seqs_read == [list(range(1, 21))] * 3
    assert set(store.found.values()) == {1}


def test_who_does_not_read_makes_nobody_hold_more_than_the_bounds(make: Make) -> None:
    files, size, cache_bytes = 80, 1 << 20, 6 << 20
    world, store, worker = make(0.0, files, size, cache_bytes)
    lazy = world.subscribe()
    assert next_seqs(lazy, 1) == [1]
    before = -1
    while before != len(store.found):  # until nothing more is fetched for it
        before = len(store.found)
        time.sleep(0.5)
        assert worker._cache.bytes <= cache_bytes
    assert before < files
    assert before <= 2 * FEED_QUEUE_BATCHES_MAX + PREFETCH_FILES_MAX
    quick = world.subscribe(to=worker)
    assert next_seqs(quick, files) == list(range(1, files + 1)), "it is not held up by the other"
    assert worker._cache.bytes <= cache_bytes
    assert next_seqs(lazy, files - 1) == list(range(2, files + 1))
