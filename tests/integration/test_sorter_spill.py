from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sorter.core import eviction
from sorter.core.eviction import evict, held_bytes
from sorter.rows import run
from sorter.rows.payload import RowRefs, Segment
from sorter.rows.run import Run
from sorter.worker.spill import Spill, default_budget_bytes
from tistream.errors import StoreUnavailable


class CountingSpill(Spill):
    """Remembers what was written."""

    def __init__(self) -> None:
        super().__init__(0)
        self.files: list[int] = []

    def write(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        self.files.append(len(batches))
        return super().write(batches)


def numbered(segment: Segment, ts: int, **more: Segment) -> Run:
    return Run(
        RowRefs.whole(segment), {"ts": np.arange(ts, ts + segment.rows, dtype=np.uint64)}, young=more.get("young")
    )


def test_segments_leave_the_memory_once_for_all_runs_that_lie_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", 100)
    segment = Segment(pa.array([b"k" * 50, b"l" * 50]), pa.array([b"v", None]))
    small = Segment(pa.array([b"m"]))
    runs = [numbered(segment, 1, young=segment), numbered(segment, 3), numbered(small, 5)]
    disk = CountingSpill()
    assert evict(runs, disk, segment.nbytes + small.nbytes) == segment.nbytes + small.nbytes
    assert disk.files == [2], "the small one goes with its neighbour"
    assert runs[0].refs.segments == runs[1].refs.segments == (runs[0].young,)
    assert [s.on_disk for r in runs for s in r.refs.segments] == [True, True, True]
    assert runs[1].refs.column("key").to_pylist() == [b"k" * 50, b"l" * 50]
    assert runs[1].refs.column("value").to_pylist() == [b"v", None]
    assert runs[2].refs.column("key").to_pylist() == [b"m"]
    assert held_bytes(runs, on_disk=True) == sum(s.nbytes for s in {*runs[0].refs.segments, *runs[2].refs.segments})


def test_what_is_left_is_too_small_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [numbered(Segment(pa.array([b"k" * 100])), 1)]
    assert evict(runs, Spill(0), 1 << 30) == 0
    assert not runs[0].refs.segments[0].on_disk


def test_many_small_segments_share_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "FILE_BYTES", 10_000)
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", 1000)
    runs = [numbered(Segment(pa.array([b"%03d" % i + b"x" * 997])), i) for i in range(100)]
    disk = CountingSpill()
    assert evict(runs, disk, 1 << 30) >= 100_000
    assert sum(disk.files) == 100
    assert len(disk.files) <= 11
    assert [r.refs.column("key")[0].as_py()[:3] for r in runs] == [b"%03d" % i for i in range(100)]


def test_numbers_and_indexes_follow_the_bytes_and_answer_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", 1)
    monkeypatch.setattr(run, "ARRAY_BYTES_MIN", 1)
    keys = pa.array([b"key %d" % i for i in range(5000)])
    spilled = numbered(Segment(keys), 100)
    same = numbered(Segment(keys.take(pa.array(range(0, 5000, 7)))), 0)
    same.numbers["ts"][:] = spilled.numbers["ts"][::7]
    lookup_keys = same.lookup_keys(np.arange(len(same)), "ts")
    before = spilled.find(lookup_keys, "ts")
    in_memory = held_bytes([spilled])
    assert evict([spilled], Spill(0), in_memory) > in_memory - 3 * len(spilled)
    assert held_bytes([spilled]) < 3 * len(spilled), "the alive flags, and little more"
    after = spilled.find(lookup_keys, "ts")
    assert [a.tolist() for a in after] == [b.tolist() for b in before]
    assert len(after[0]) == len(same)
    spilled.kill(after[1])
    assert int(spilled.alive.sum()) == len(spilled) - len(same)
    assert spilled.first_equals("ts").tolist() == list(range(5000))


def test_released_pages_are_read_again() -> None:
    disk = Spill(0)
    (batch,) = disk.write([pa.record_batch({"key": pa.array([b"k" * 10_000] * 10)})])
    (array,) = disk.write_arrays([np.arange(10_000)])
    disk.release()
    assert batch.column("key").to_pylist() == [b"k" * 10_000] * 10
    assert array.sum() == 10_000 * 9_999 // 2


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        Spill(0, tmp_path / "nowhere").write([pa.record_batch({"key": pa.array([b"k"])})])


@pytest.fixture
def small_files() -> Iterator[int]:
    """The system refuses to let a file grow beyond 1 MiB: writes fail as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield 1 << 20
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_what_the_disk_does_not_take_stays_where_it_was(small_files: int, tmp_path: Path) -> None:
    runs = [numbered(Segment(pa.array([b"a" * (2 * small_files)])), 1)]
    with pytest.raises(StoreUnavailable, match=os.strerror(errno.EFBIG)):
        evict(runs, Spill(0, tmp_path), 1 << 30)
    assert not runs[0].refs.segments[0].on_disk
    assert runs[0].refs.column("key").to_pylist() == [b"a" * (2 * small_files)]
    assert list(tmp_path.iterdir()) == []


def test_the_budget_is_a_part_of_what_there_is() -> None:
    assert 0 < default_budget_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
