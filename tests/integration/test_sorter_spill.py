from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sorter import run
from sorter.payload import Place, Segment
from sorter.run import Run, RunSet
from sorter.spill import Spill
from tistream.errors import StoreUnavailable


def test_large_segments_leave_the_memory_once_for_all_runs_that_lie_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SPILL_BYTES_MIN", 100)
    segment = Segment(pa.array([b"k" * 50, b"l" * 50]), pa.array([b"v", None]))
    small = Segment(pa.array([b"m"]))
    numbers = {"ts": np.array([1, 2], np.uint64)}
    runs = [Run(Place.whole(segment), numbers, young=segment), Run(Place.whole(segment), numbers)]
    runs.append(Run(Place.whole(small), {"ts": np.array([3], np.uint64)}))
    written: list[pa.RecordBatch] = []

    def write(batch: pa.RecordBatch) -> pa.RecordBatch:
        written.append(batch)
        return Spill(0).write(batch)

    moved: dict[int, tuple[Segment, Segment]] = {}
    assert runs[0].move_out(write, moved) == segment.nbytes
    assert [r.move_out(None, moved) for r in runs[1:]] == [0, 0]
    assert len(written) == 1
    assert runs[0].place.segments == runs[1].place.segments == (runs[0].young,)
    assert runs[0].place.segments[0].on_disk
    assert not runs[2].place.segments[0].on_disk
    assert runs[1].place.column("key").to_pylist() == [b"k" * 50, b"l" * 50]
    assert runs[1].place.column("value").to_pylist() == [b"v", None]
    held = RunSet(("key", "value"), runs)
    assert held.disk_bytes() > 100 > held.nbytes() - sum(r.nbytes() for r in runs)


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        Spill(0, tmp_path / "nowhere").write(pa.record_batch({"key": pa.array([b"k"])}))
