"""The whole recording through the pushers, judged by the plain form of the watermark rule."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from copy import deepcopy
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard

from pusher.frontier import FrontierEntry
from simulator.capture import Capture
from simulator.push.capture_push import push_capture
from simulator.push.recording_push import PushProgress, PushResult
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tests.kit.oracle import Change, WatermarkOracle, batch_files, expected_changes, interleaved
from tistream.codec.batch_file import BatchFile
from tistream.errors import InvalidInput, ObjectConflict, StoreUnavailable
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.memory import MemoryStore

RECORDING = Path(str(files("simulator") / "recording"))
TENANT = Tenant(1, 2)
CAPTURE = Capture(RECORDING)
S, LAST = CAPTURE.meta.start_ts, CAPTURE.meta.last_resolved_ts


@pytest.fixture(scope="module")
def expected() -> dict[tuple[bytes, int], Change]:
    return expected_changes(e for _, e in CAPTURE.events())


def frontier_at(durable_ts: int) -> list[FrontierEntry]:
    return [FrontierEntry(range=KeyRange(), durable_ts=durable_ts, resubscribe_id=0)]


class Bench:
    """A bucket, a control plane and a player that can be stopped at a tick."""

    def __init__(self) -> None:
        self.store, self.control, self.clock = MemoryStore(), MemoryControl(TENANT, frontier_at(S)), ManualClock()
        self.stop_at = 0  #: ticks
        self.seen: list[PushProgress] = []

    def push(self) -> PushResult:
        stop = threading.Event()

        def progress(p: PushProgress) -> None:
            self.seen.append(p)
            self.clock.advance(1)
            self.on_progress(p)
            if p.phase == "pushing" and p.ticks == self.stop_at:
                stop.set()

        return push_capture(
            RECORDING,
            self.control,
            lambda _: self.store,
            progress=progress,
            stop=stop,
            clock=self.clock,
        )

    def on_progress(self, p: PushProgress) -> None:
        """For subclasses."""

    def oracle(self, seed: int = 0) -> WatermarkOracle:
        oracle = WatermarkOracle(S)
        for file in interleaved(batch_files(self.store).values(), random.Random(seed)):
            oracle.feed(file)
        return oracle

    def check(self, expected: dict[tuple[bytes, int], Change], seed: int = 0) -> WatermarkOracle:
        oracle = self.oracle(seed)
        assert oracle.watermark == LAST
        assert oracle.served == expected
        return oracle


@pytest.fixture(scope="module")
def whole() -> Bench:
    bench = Bench()
    result = bench.push()
    assert (result.complete, result.last_resolved_ts) == (True, LAST)
    return bench


def test_a_recording_is_complete_in_any_order(whole: Bench, expected: dict[tuple[bytes, int], Change]) -> None:
    whole.check(expected, seed=1)


def test_its_end_is_known_before_the_first_tick_and_again_when_it_is_pushed_again(
    expected: dict[tuple[bytes, int], Change],
) -> None:
    bench, ends = Bench(), []
    bench.stop_at = 1
    bench.on_progress = lambda p: ends.append(dict(bench.control.ends)) if p.phase == "pushing" else None  # type: ignore[method-assign]
    newest = dict.fromkeys(CAPTURE.meta.store_ids, LAST)
    for life in (1, 2):
        assert not bench.push().complete
        assert ends[0] == newest
        assert set(bench.control.incarnations.values()) == {life}
        ends.clear()


def test_each_store_writes_every_tick_and_the_schema_comes_first(whole: Bench) -> None:
    streams = batch_files(whole.store)
    assert set(streams) == {(s, 1) for s in CAPTURE.meta.store_ids}
    ticks = [int(e["now_ts"]) for _, e in CAPTURE.events() if e["t"] == "TICK"]
    for stream in streams.values():
        assert sorted({f.cut_ts for f in stream}) == ticks
    snapshot = whole.store.get(str(SchemaSnapKey(tenant=TENANT, ts=S)))
    assert zstandard.decompress(snapshot) == CAPTURE.schema_snapshot()
    phases = [p.phase for p in whole.seen]
    assert (phases[0], phases[-1], whole.seen[-1].ticks) == ("connecting", "done", CAPTURE.meta.ticks)


def test_pushed_again_whole_it_writes_one_final_file_per_store(
    whole: Bench, expected: dict[tuple[bytes, int], Change]
) -> None:
    bench = Bench()
    bench.control = deepcopy(whole.control)
    for info in whole.store.list(""):
        bench.store.put(info.key, whole.store.get(info.key))
    before = {life: len(f) for life, f in batch_files(bench.store).items()}
    bench.control.entries = frontier_at(LAST)
    bench.control.max_cut_ts.update(dict.fromkeys(CAPTURE.meta.store_ids, LAST))
    result = bench.push()
    assert (result.complete, result.last_resolved_ts, result.files) == (True, LAST, len(CAPTURE.meta.store_ids))
    after = {life: len(f) for life, f in batch_files(bench.store).items()}
    assert after == before | {(s, 2): 1 for s in CAPTURE.meta.store_ids}
    bench.check(expected)


@pytest.mark.parametrize("seed", range(2))
def test_stopped_anywhere_and_resumed_at_a_stale_frontier(expected: dict[tuple[bytes, int], Change], seed: int) -> None:
    rand = random.Random(seed)
    bench = Bench()
    bench.stop_at = rand.randint(1, CAPTURE.meta.ticks - 1)
    assert bench.push().complete is False
    cuts: dict[int, int] = defaultdict(int)
    for (store_id, _), stream in batch_files(bench.store).items():
        survived = rand.randint(0, len(stream))  # what was under way when the process died is not there
        for file in stream[survived:]:
            bench.store.delete(str(file.key))
        read = rand.randint(0, survived)  # and the dispatcher has read some of it
        cuts[store_id] = stream[read - 1].cut_ts if read else 0
    bench.control.max_cut_ts.update(cuts)
    bench.control.entries = frontier_at(rand.randint(S, bench.oracle().durable_ts))
    bench.stop_at = 0
    result = bench.push()
    assert (result.complete, result.last_resolved_ts) == (True, LAST)
    bench.check(expected, seed)


class FollowedBench(Bench):
    """A sorter that keeps up: it publishes what it has, in three tasks, and asks for new subscriptions now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = WatermarkOracle(S)
        self.fed: dict[tuple[int, int], int] = defaultdict(int)
        self.rand = random.Random(4)
        self.resubscribed = 0
        self.decoded: dict[str, BatchFile] = {}

    def on_progress(self, p: PushProgress) -> None:
        if p.phase != "pushing" or p.ticks % 4:
            return
        for life, stream in batch_files(self.store, decoded=self.decoded).items():
            for file in stream[self.fed[life] :]:
                self.follower.feed(file)
            self.fed[life] = len(stream)
        self.resubscribed += self.rand.random() < 0.3
        bounds = [b"", b"t\x80\x00\x00\x00\x00\x00\x00\x90", b"t\x80\x00\x00\x00\x00\x00\x01\x10", b""]
        self.control.entries = [
            FrontierEntry(
                range=KeyRange(start, end),
                durable_ts=self.follower.durable_ts,
                resubscribe_id=self.resubscribed if at == 1 else 0,
            )
            for at, (start, end) in enumerate(pairwise(bounds))
        ]


def test_a_following_frontier_repeats_little_loses_none(
    expected: dict[tuple[bytes, int], Change], whole: Bench
) -> None:
    bench = FollowedBench()
    bench.push()
    assert bench.resubscribed
    checkpoints = {
        c for s in batch_files(bench.store).values() for f in s for c in f.regions["checkpoint_ts"].to_pylist()
    }
    assert len(checkpoints) > 5
    assert bench.check(expected).duplicates < whole.check(expected).duplicates


def test_it_waits_until_the_frontier_is_published() -> None:
    class Waiting(Bench):
        def on_progress(self, p: PushProgress) -> None:
            if p.phase == "waiting" and len(self.seen) > 5:
                assert not batch_files(self.store)
                assert str(SchemaSnapKey(tenant=TENANT, ts=S)) in {o.key for o in self.store.list("")}
                self.control.entries = frontier_at(S)

    bench = Waiting()
    bench.control.entries = []
    bench.stop_at = 2
    bench.push()
    assert any("AWAITING_SNAPSHOT" in p.problem for p in bench.seen)
    assert batch_files(bench.store)


def test_the_same_schema_in_other_bytes_is_fine_and_another_schema_is_not() -> None:
    bench = Bench()
    bench.stop_at = 1
    key = str(SchemaSnapKey(tenant=TENANT, ts=S))
    bench.store.put(key, zstandard.ZstdCompressor(level=19).compress(CAPTURE.schema_snapshot()))
    bench.push()
    assert batch_files(bench.store)
    other = Bench()
    other.store.put(key, zstandard.compress(b'{"ts": "1"}'))
    with pytest.raises(ObjectConflict):
        other.push()


def test_another_recording_cannot_be_pushed_behind_this_one() -> None:
    bench = Bench()
    bench.control.max_cut_ts[1] = LAST + 1
    with pytest.raises(InvalidInput, match="beyond the end"):
        bench.push()


def test_an_outage_of_service_and_bucket_is_waited_out() -> None:
    class Unsteady(MemoryStore):
        left = 40

        def put(self, key: str, data: bytes | memoryview) -> None:
            self.left -= 1
            if self.left > 0 and self.left % 2:
                raise StoreUnavailable(key=key)
            super().put(key, data)

    bench = Bench()
    bench.store, bench.control.fail_next, bench.stop_at = Unsteady(), 7, 20
    bench.push()
    oracle = bench.oracle()
    assert oracle.watermark
    assert oracle.watermark > S


def test_speed_follows_the_recorded_clock() -> None:
    bench = Bench()
    stop = threading.Event()
    at: list[tuple[float, int]] = []

    def progress(p: PushProgress) -> None:
        if p.phase == "pushing":
            at.append((bench.clock.monotonic(), p.now_ts >> 18))
            if p.ticks == 12:
                stop.set()

    push_capture(
        RECORDING, bench.control, lambda _: bench.store, speed=2, progress=progress, stop=stop, clock=bench.clock
    )
    (began, first_ms), *rest = at
    assert len(rest) >= 11
    for now_s, tick_ms in rest:
        assert now_s - began == pytest.approx((tick_ms - first_ms) / 2000, abs=0.002)
