"""The recording of a real TiDB, pushed, routed and sorted by the real cores: the same log, whatever happens on the way.

The expected log is built from the recording's own lines with a dict; nothing of it comes from the cores.
"""

from __future__ import annotations

import random
import threading
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pusher.frontier import FrontierEntry
from simulator.capture import Capture
from simulator.push.capture_push import push_capture
from simulator.push.recording_push import PushProgress
from tests.kit.core_run import Life, Prepared, TaskRun, Trouble, prepare, run_tasks
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tests.kit.oracle import Change, batch_files, expected_changes, interleaved
from tests.kit.recording import committed_rows
from tistream.codec.table_key import DDL_JOB_TABLE_ID, META_RANGE, record_range, table_prefix
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED
from tistream.objectstore.memory import MemoryStore

RECORDING = Path(str(files("simulator") / "recording"))
CAPTURE = Capture(RECORDING)
S, LAST = CAPTURE.meta.start_ts, CAPTURE.meta.last_resolved_ts
JOBS = record_range(DDL_JOB_TABLE_ID)
NAMES = ("key", "commit_ts", "start_ts", "op", "value", "old_value")


def pushed(stop_at: int | None) -> dict[Life, list[Prepared]]:
    """The files of a pushed recording; stopped after so many ticks and pushed again: two incarnations per store."""
    store, clock = MemoryStore(), ManualClock()
    control = MemoryControl(Tenant(1, 2), [FrontierEntry(range=KeyRange(), durable_ts=S, resubscribe_id=0)])
    for ticks in (stop_at, None) if stop_at else (None,):
        stop = threading.Event()

        def progress(p: PushProgress, at: int | None = ticks, stop: threading.Event = stop) -> None:
            clock.advance(1)
            if p.ticks == at:
                stop.set()

        push_capture(RECORDING, control, lambda _: store, progress=progress, stop=stop, clock=clock)
        for (store_id, _), stream in batch_files(store).items():
            control.max_cut_ts[store_id] = max(control.max_cut_ts[store_id], stream[-1].cut_ts)
    return {life: prepare(stream) for life, stream in batch_files(store).items()}


@pytest.fixture(scope="module")
def whole() -> dict[Life, list[Prepared]]:
    return pushed(None)


@pytest.fixture(scope="module")
def twice() -> dict[Life, list[Prepared]]:
    return pushed(CAPTURE.meta.ticks // 2)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[bytes, int], Change]:
    return expected_changes(e for _, e in CAPTURE.events())


def tasks_of(rand: random.Random) -> dict[int, KeyRange]:
    """As a tenant is laid out: meta range and job table for DDL, the rest cut at some tables."""
    ids = pc.unique(committed_rows()["table_id"]).to_pylist()
    cuts = sorted(table_prefix(i) for i in rand.sample([i for i in ids if 0 < i < 1 << 40], 2))
    edges = [b"t", *cuts, JOBS.start, JOBS.end, b"u"]
    ranges = [META_RANGE, *(KeyRange(a, b) for a, b in pairwise(edges))]
    return dict(enumerate(ranges, 1))


def shuffled(streams: dict[Life, list[Prepared]], rand: random.Random) -> list[Prepared]:
    """In an order that a bucket and its readers may give: only each stream keeps its own."""
    by_file = {id(p.file): p for stream in streams.values() for p in stream}
    return [by_file[id(f)] for f in interleaved(([p.file for p in s] for s in streams.values()), rand)]


def check(tasks: dict[int, TaskRun], expected: dict[tuple[bytes, int], Change]) -> None:
    """Every task is at the end, and together they wrote what was committed, once, in order."""
    for task in tasks.values():
        assert task.durable_ts == task.core.watermark() == LAST, [str(s) for s in task.core.explain()]
        assert task.resubscribes == []
        stats = task.core.stats()
        assert (stats.waiting_commits, stats.undecided_commits) == (0, 0)
        for part in task.written:
            by = [(name, "ascending") for name in ("table_id", "commit_ts", "start_ts", "key")]
            assert pc.sort_indices(part, sort_keys=by).equals(pa.array(range(part.num_rows), pa.uint64()))
    written = pa.concat_tables([task.rows() for task in tasks.values()])
    columns = [written[name].to_pylist() for name in NAMES]
    written_changes = {(key, commit_ts): Change(*rest) for key, commit_ts, *rest in zip(*columns, strict=True)}
    assert len(written_changes) == written.num_rows, "a row was written twice"
    assert written_changes == {(key, ts): c for (key, ts), c in expected.items() if ts <= LAST}
    records = committed_rows().filter(pc.less_equal(committed_rows()["commit_ts"], pa.scalar(LAST, pa.uint64())))
    data = written.filter(pc.is_in(pc.binary_slice(written["key"], 9, 11), pa.array([b"_r"])))
    data = data.filter(pc.equal(pc.binary_slice(data["key"], 0, 1), b"t"))
    by = [(name, "ascending") for name in ("commit_ts", "start_ts", "key")]
    assert data.take(pc.sort_indices(data, sort_keys=by)).combine_chunks().equals(records.select(COMMITTED.names))


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_gives_the_same_log(
    whole: dict[Life, list[Prepared]], expected: dict[tuple[bytes, int], Change], seed: int
) -> None:
    rand = random.Random(seed)
    tasks = run_tasks(shuffled(whole, rand), tasks_of(rand), S, rand)
    assert sum(task.restarts for task in tasks.values()) > 5
    check(tasks, expected)


@pytest.mark.parametrize("seed", [3])
def test_two_incarnations_in_any_order(
    twice: dict[Life, list[Prepared]], expected: dict[tuple[bytes, int], Change], seed: int
) -> None:
    rand = random.Random(seed)
    assert {incarnation for _, incarnation in twice} == {1, 2}
    ended = {life: len(stream) for life, stream in twice.items() if life[1] == 1}
    tasks = run_tasks(shuffled(twice, rand), tasks_of(rand), S, rand, Trouble(), ended)
    check(tasks, expected)
    assert sum(task.core.stats().duplicates for task in tasks.values()) > 0
