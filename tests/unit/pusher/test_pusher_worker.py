"""The pusher of one store over a modelled cluster, with real threads and a faulty in-memory object store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pusher.core.source import CheckpointOf, SourceEvent, SubscriptionOpened, Tick
from pusher.frontier import FrontierEntry, FrontierReader
from pusher.upload_spill import UploadSpill
from pusher.worker import PusherWorker
from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Version
from simulator.push.model_source import ModelSource
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tests.kit.oracle import Change, WatermarkOracle, batch_files, interleaved
from tests.kit.waiting import eventually
from tistream.errors import Fenced, InvalidInput, ObjectConflict, StoreUnavailable
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import INCARNATION_CHECK_MS
from tistream.model.change import Op
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.memory import MemoryStore

TENANT = Tenant(3, 7)
S = 1000


class UnsteadyStore(MemoryStore):
    """An object store that can be held, fail before writing, or write and lose the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()
        self.fail_before = 0
        self.fail_after = 0
        self.tries: list[tuple[str, bytes]] = []
        self.in_flight = self.in_flight_max = 0

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self.lock:
            self.tries.append((key, bytes(data)))
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            self.gate.wait()
            self._put(key, data)
        finally:
            with self.lock:
                self.in_flight -= 1

    def _put(self, key: str, data: bytes | memoryview) -> None:
        with self.lock:
            before, self.fail_before = self.fail_before > 0, max(0, self.fail_before - 1)
        if before:
            raise StoreUnavailable(key=key)
        super().put(key, data)
        with self.lock:
            after, self.fail_after = self.fail_after > 0, max(0, self.fail_after - 1)
        if after:
            raise StoreUnavailable("the answer was lost", key=key, determinate=False)


class Rig:
    """One store with regions, its pusher, and what was committed."""

    def __init__(
        self, *, bounds: tuple[bytes, ...] = (b"m",), queue_bytes_max: int = 1 << 20, spill: UploadSpill | None = None
    ) -> None:
        ranges = zip((b"", *bounds), (*bounds, b""), strict=True)
        regions = [Region(region_id=n, version=1, store_id=1, range=KeyRange(*r)) for n, r in enumerate(ranges, 1)]
        self.cluster = Cluster(regions, floor_ts=S)
        self.store, self.clock = UnsteadyStore(), ManualClock()
        self.control = MemoryControl(TENANT, [FrontierEntry(range=KeyRange(), durable_ts=S, resubscribe_id=0)])
        self.source = ModelSource(self.cluster, 1)
        self.worker = PusherWorker(
            source=self.source,
            control=self.control,
            frontier=FrontierReader(self.control, self.clock),
            store=self.store,
            clock=self.clock,
            queue_bytes_max=queue_bytes_max,
            spill=spill,
        )
        self.ts = S
        self.keys = count()
        self.committed: dict[tuple[bytes, int], Change] = {}
        self.worker.start(threading.Event())

    def commit(self, key: bytes, value: bytes = b"v") -> None:
        self.ts += 2
        self.cluster.commit_one_phase(key, Version(self.ts - 1, self.ts, Op.PUT, value, None))
        self.committed[key, self.ts] = Change(self.ts - 1, Op.PUT, value, None)

    def tick(self) -> None:
        """Commit something in both regions, then tick."""
        for prefix in b"az":
            self.commit(bytes([prefix]) + b"%06d" % next(self.keys))
        self.ts += 1
        self.clock.advance(1)
        self.worker.step()
        self.cluster.tick(self.ts)
        self.source.tick(self.ts)
        self.worker.step()

    def durable(self) -> None:
        assert self.worker.wait_until_durable(30)

    def oracle(self) -> WatermarkOracle:
        oracle = WatermarkOracle(S)
        for file in interleaved(batch_files(self.store).values(), random.Random(5)):
            oracle.feed(file)
        return oracle

    def check(self) -> None:
        oracle = self.oracle()
        assert (oracle.watermark, oracle.served) == (self.ts, self.committed)


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    with ExitStack() as stack:

        def make(**options: Any) -> Rig:
            rig = Rig(**options)
            stack.callback(rig.worker.close)
            stack.callback(rig.store.gate.set)
            return rig

        yield make


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


def test_one_file_per_tick_and_nothing_is_missing(rig: Rig) -> None:
    for _ in range(10):
        rig.tick()
    rig.durable()
    ((life, files),) = batch_files(rig.store).items()
    assert (life, [f.key.seq for f in files]) == ((1, 1), list(range(1, 11)))
    assert rig.store.in_flight_max <= 4
    rig.check()


@pytest.mark.parametrize("fails", ["fail_before", "fail_after"])
def test_an_upload_is_tried_again_with_the_same_bytes(rig: Rig, fails: str) -> None:
    setattr(rig.store, fails, 5)
    for _ in range(6):
        rig.tick()
    rig.durable()
    assert rig.worker.uploads().retries == 5
    assert len(rig.store.tries) == 11
    assert len(set(rig.store.tries)) == 6
    rig.check()


def test_foreign_bytes_under_our_key_stop_the_pusher(rig: Rig) -> None:
    rig.store.put(str(BatchKey(tenant=TENANT, store_id=1, incarnation=1, seq=2)), b"foreign")
    rig.tick()
    rig.tick()
    with pytest.raises(ObjectConflict) as caught:
        rig.worker.wait_until_durable(30)
    assert "Another pusher" in caught.value.hint
    with pytest.raises(ObjectConflict):
        rig.worker.step()


def test_uploads_start_in_order_and_at_most_four_at_once(rig: Rig) -> None:
    rig.store.gate.clear()
    for _ in range(9):
        rig.tick()
    eventually(lambda: rig.store.in_flight == 4)
    rig.store.gate.set()
    rig.durable()
    assert rig.store.in_flight_max == 4
    started = [int(key[-16:-4]) for key, _ in rig.store.tries]
    assert all(abs(at - seq) < 4 for at, seq in enumerate(started, 1))


def test_a_full_queue_drops_the_stream_and_resumes_as_a_new_incarnation(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(queue_bytes_max=1)
    rig.tick()
    rig.durable()
    rig.control.entries = [FrontierEntry(range=KeyRange(), durable_ts=rig.oracle().durable_ts, resubscribe_id=0)]
    rig.store.gate.clear()
    for _ in range(12):
        rig.tick()
    assert (rig.worker.stalled, rig.worker.overflows, rig.worker.incarnation) == (True, 1, 1)
    rig.store.gate.set()
    while rig.worker.stalled:
        rig.worker.step(0.05)
    assert rig.worker.incarnation == 2
    rig.tick()
    rig.durable()
    streams = batch_files(rig.store)
    assert set(streams) == {(1, 1), (1, 2)}
    assert set(streams[1, 2][0].regions.column("checkpoint_ts").to_pylist()) == {S + 5}
    rig.check()


def test_a_full_queue_spills_and_the_stream_continues(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = make_rig(queue_bytes_max=1, spill=UploadSpill(tmp_path / "s", 1 << 20))
    rig.store.gate.clear()
    for _ in range(12):
        rig.tick()
    assert len(list((tmp_path / "s").iterdir())) > 5
    assert (rig.worker.stalled, rig.worker.overflows, rig.worker.incarnation) == (False, 0, 1)
    rig.store.gate.set()
    rig.durable()
    rig.check()


def test_no_opening_scan_begins_while_half_of_the_queue_waits(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(queue_bytes_max=40_000)
    rig.tick()
    rig.durable()
    rig.store.gate.clear()
    while rig.worker.wait_until_queued_at_most(20_000, 0.0):
        rig.tick()
    moved = rig.cluster.split(2, [b"y"], [3])
    for _ in range(3):
        rig.tick()
    assert not rig.worker.stalled
    assert not any(rig.cluster.subscribed(region.region_id) for region in moved)
    rig.store.gate.set()
    rig.durable()
    rig.tick()
    rig.tick()
    assert all(rig.cluster.subscribed(region.region_id) for region in moved)
    rig.durable()
    rig.check()


def test_resuming_waits_for_the_control_plane(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(queue_bytes_max=1)
    rig.store.gate.clear()
    for _ in range(12):
        rig.tick()
    rig.store.gate.set()
    rig.durable()
    rig.control.away = True
    rig.worker.step()
    assert rig.worker.stalled
    rig.control.away = False
    rig.tick()
    assert rig.worker.stalled is False
    rig.durable()
    rig.check()


def test_a_pusher_ends_when_a_newer_one_has_begun(rig: Rig) -> None:
    rig.tick()
    assert rig.control.issue_incarnation(1).incarnation == 2
    rig.clock.advance(INCARNATION_CHECK_MS / 1000)
    with pytest.raises(Fenced) as caught:
        rig.worker.step()
    assert (caught.value.facts["incarnation"], caught.value.facts["newest"]) == (1, 2)
    rig.durable()
    assert [f.key.seq for f in batch_files(rig.store)[1, 1]] == [1]


def test_a_pusher_of_another_store_ends_nothing(rig: Rig) -> None:
    rig.control.issue_incarnation(2)
    for _ in range(5):
        rig.tick()
    rig.durable()
    rig.check()


def test_resuming_is_not_being_replaced(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(queue_bytes_max=1)
    rig.store.gate.clear()
    for _ in range(12):
        rig.tick()
    assert rig.worker.stalled
    rig.clock.advance(60)  # a check is due, but nothing is written meanwhile
    rig.worker.step()
    rig.store.gate.set()
    while rig.worker.stalled:
        rig.worker.step(0.05)
    assert rig.worker.incarnation == 2
    rig.clock.advance(60)
    rig.tick()
    rig.durable()
    rig.check()


def test_start_outlives_an_outage_of_the_control_plane() -> None:
    rig = Rig()
    rig.control.fail_next = 4
    rig.control.max_cut_ts[1] = 77
    assert rig.worker.start(threading.Event()) == 77
    assert rig.worker.incarnation == 2
    rig.worker.close()


def test_time_never_falls_behind_what_was_pushed() -> None:
    rig = Rig()
    rig.control.max_cut_ts[1] = S + 100
    rig.worker.start(threading.Event())
    with pytest.raises(InvalidInput, match="is behind"):
        rig.tick()
    rig.worker.close()


def test_a_raised_resubscribe_id_ends_the_subscriptions_of_its_range_only(rig: Rig) -> None:
    rig.control.entries = [
        FrontierEntry(range=KeyRange(b"", b"m"), durable_ts=S, resubscribe_id=0),
        FrontierEntry(range=KeyRange(b"m", b""), durable_ts=S, resubscribe_id=0),
    ]
    rig.tick()
    rig.tick()
    rig.control.entries[1] = FrontierEntry(range=KeyRange(b"m", b""), durable_ts=S + 4, resubscribe_id=1)
    rig.tick()
    assert rig.worker.resubscribing
    rig.tick()
    assert not rig.worker.resubscribing
    rig.durable()
    (files,) = batch_files(rig.store).values()
    checkpoints = [
        sorted(zip(*(f.regions.column(n).to_pylist() for n in ("region_id", "checkpoint_ts")), strict=True))
        for f in files
    ]
    assert checkpoints[:3] == [[(1, S), (2, S)]] * 3
    assert checkpoints[3] == [(1, S), (2, S), (2, S + 4)]  # the closing row, and the new subscription's
    rig.check()


def test_no_subscription_without_a_frontier_and_the_last_one_serves_in_an_outage(rig: Rig) -> None:
    published, rig.control.entries = rig.control.entries, []
    rig.tick()
    rig.control.entries = published
    rig.tick()
    rig.control.away = True
    rig.clock.advance(60)
    rig.cluster.split(2, [b"x"], [9])
    rig.tick()
    rig.durable()
    (files,) = batch_files(rig.store).values()
    assert [f.regions.num_rows for f in files] == [0, 2, 4]
    rig.check()


class ScriptedSource:
    """One region, registered in the first poll behind a tick, as the feed of a store does it."""

    store_id = 1

    def __init__(self, clock: ManualClock, between: Callable[[], None]) -> None:
        self.clock, self.between = clock, between
        self.ticks = 0
        self.resubscribed: list[list[int]] = []

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> list[SourceEvent]:
        self.ticks += 1
        events: list[SourceEvent] = [Tick(cut_ts=S + self.ticks)]
        if self.ticks == 1:
            part = KeyRange(b"t1", b"t2")
            checkpoint_ts = checkpoint_of(part)
            assert checkpoint_ts is not None
            self.between()
            opened = SubscriptionOpened(
                subscription=1, region_id=7, version=1, range=part, checkpoint_ts=checkpoint_ts, open_ts=S
            )
            events.append(opened)
        return events

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        self.resubscribed.append(list(subscriptions))

    def drop(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


def test_a_resubscribe_id_first_seen_after_a_tick_is_honoured() -> None:
    """The frontier that a region was given, and the newer one that the tick of the same poll is compared with."""
    clock = ManualClock()
    part = KeyRange(b"t1", b"t2")
    control = MemoryControl(TENANT, [FrontierEntry(range=part, durable_ts=S, resubscribe_id=0)])

    def between() -> None:
        clock.advance(1.0)  # what was read of the frontier is old by now
        control.entries = [FrontierEntry(range=part, durable_ts=S, resubscribe_id=1)]

    source = ScriptedSource(clock, between)
    worker = PusherWorker(
        source=source,
        control=control,
        frontier=FrontierReader(control, clock),
        store=MemoryStore(),
        clock=clock,
    )
    worker.start(threading.Event())
    for _ in range(5):
        worker.step()
        clock.advance(1.0)
    worker.close()
    assert source.resubscribed[:1] == [[1]]
