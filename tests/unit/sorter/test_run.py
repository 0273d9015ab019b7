from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sorter.core.watermark import RangeWatermarkMap
from sorter.core.watermark_index import Reach, Thresholds, reached
from sorter.rows import payload, run
from sorter.rows.payload import RowRefs, Segment
from sorter.rows.run import LookupKeys, Run, RunSet
from tests.kit.sorter_oracle import Mark
from tests.kit.sorter_world import File, feed_batch
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange


def run_of(keys: list[bytes], ts: list[int], *, young: bool = False, value: bytes = b"") -> Run:
    segment = Segment(pa.array(keys, pa.binary()), pa.array([value] * len(keys), pa.binary()))
    return Run(RowRefs.whole(segment), {"ts": np.array(ts, np.uint64)}, young=segment if young else None)


def keys_of(one: Run) -> list[bytes]:
    keys: list[bytes] = one.refs.take(one.living()).column("key").to_pylist()
    return keys


@pytest.mark.parametrize("bits", [0, 4, 64])
def test_a_row_is_found_by_its_whole_key_and_timestamp(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "HASH_MASK", (1 << bits) - 1)
    keys = [b"k" * n + b"%d" % (n % 3) for n in range(40)]
    one_run = run_of(keys, [7] * 40)
    for n in range(40):
        for key, ts, expected in ((keys[n], 7, [n]), (keys[n], 8, []), (keys[n] + b"x", 7, [])):
            sought = run_of([key], [ts])
            assert one_run.find(sought.lookup_keys(np.arange(1), "ts"), "ts")[1].tolist() == expected
    one_run.kill(np.array([5, 5, 6]))
    assert one_run.live == 38
    assert one_run.find(one_run.lookup_keys(np.array([5, 6, 7]), "ts"), "ts")[1].tolist() == [7]


def test_all_equal_rows_are_found_even_if_there_are_more_than_lookup_keys() -> None:
    one_run = run_of([b"a"] * 100 + [b"b"], [1] * 101)
    matched, rows = one_run.find(run_of([b"a"], [1]).lookup_keys(np.arange(1), "ts"), "ts")
    assert (set(matched.tolist()), sorted(rows.tolist())) == ({0}, list(range(100)))
    assert one_run.first_equals("ts").tolist() == [0] * 100 + [100]


def test_survivors_of_old_batches_are_copied_and_full_batches_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "YOUNG_BYTES", 0)
    runs = RunSet(("key", "value"))
    runs.add(few := run_of([b"%d" % i for i in range(100)], [1] * 100, young=True, value=b"v" * 50))
    runs.add(full := run_of([b"a%d" % i for i in range(100)], [1] * 100, young=True, value=b"v" * 50))
    few.kill(np.arange(98))
    runs.compact()
    assert full.young is None
    assert [id(r) for r in runs][1:] == [id(full)]
    assert keys_of(runs.runs[0]) == [b"98", b"99"]
    assert runs.runs[0].refs.segments[0].rows == 2


def test_runs_that_are_half_empty_or_many_are_put_together() -> None:
    runs = RunSet(("key", "value"))
    for i in range(run.FAN_IN):
        runs.add(run_of([b"%d" % i], [i]))
    runs.add(half := run_of([b"x"] * 1000, [9] * 1000))
    half.kill(np.arange(999))
    runs.compact()
    assert sorted(key for r in runs for key in keys_of(r)) == sorted([b"%d" % i for i in range(run.FAN_IN)] + [b"x"])
    assert len(runs.runs) < 3
    assert max(len(r) for r in runs) < 20


def test_a_column_whose_offsets_lie_is_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 9, 1, 3], np.int32))
    with pytest.raises(CorruptObject, match="outside"):
        Segment(pa.BinaryArray.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"abc")]))


def test_rows_behind_a_stalled_slice_are_not_read() -> None:
    watermarks = RangeWatermarkMap(KeyRange(), 10)

    def lift(left: int, right: int) -> None:
        marks = (
            Mark(region_id=1, start=b"", end=b"m", checkpoint_ts=10, resolved_ts=left),
            Mark(region_id=2, start=b"m", end=b"", checkpoint_ts=10, resolved_ts=right),
        )
        batch = feed_batch(File(store_id=1, incarnation=1, seq=1, cut_ts=1, rows=(), marks=marks))
        watermarks.apply(batch.regions, 1, 1, 1)

    one_run = run_of([b"a", b"b", b"x", b"y"], [20, 40, 20, 40])

    def look() -> list[bytes]:
        places = reached(one_run, Thresholds(one_run.ts("ts"), 20), watermarks, strictly=False)
        return sorted(one_run.refs.take(places).column("key").to_pylist())

    lift(19, 19)
    assert look() == []
    assert one_run.reach is None
    lift(30, 19)
    assert look() == [b"a"]
    one_run.kill(np.array([0]))
    before = one_run.reach
    lift(39, 19)
    assert look() == []
    assert isinstance(one_run.reach, Reach)
    assert isinstance(before, Reach)
    assert one_run.reach.rows is before.rows, "the rows were grouped again"
    lift(40, 20)
    assert look() == [b"b", b"x"]
    assert look() == [b"b", b"x"], "rows are reported until they leave"


def test_lookup_keys_find_each_other() -> None:
    a = run_of([b"a", b"b", b"a"], [1, 1, 2])
    b = run_of([b"b", b"a"], [1, 1])
    left: LookupKeys = a.lookup_keys(np.arange(3), "ts")
    right = b.lookup_keys(np.arange(2), "ts")
    assert left.within(right).tolist() == [True, True, False]
    assert sorted(zip(*(x.tolist() for x in left.pairs(right)), strict=True)) == [(0, 1), (1, 0)]
