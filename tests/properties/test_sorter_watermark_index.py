"""Keys are placed between bounds as bisect does it, and rows are reached as a look at each of them says."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sorter.core.slots import Bounds
from sorter.core.watermark import RangeWatermarkMap
from sorter.core.watermark_index import Thresholds, reached
from sorter.rows.payload import RowRefs, Segment
from sorter.rows.run import Run
from tests.kit.sorter_oracle import Mark
from tests.kit.sorter_world import File, feed_batch
from tistream.codec.table_key import table_ids
from tistream.keyrange import KeyRange

KEYS = st.binary(max_size=3) | st.integers(0, 40).map(lambda i: b"t\x80\0\0\0\0\0\0%c_r\x80%c" % (i % 3, i))


def refs_of(keys: list[bytes]) -> RowRefs:
    return RowRefs.whole(Segment(pa.array(keys, pa.binary())))


@settings(deadline=None)  # the first example compiles
@given(st.sets(KEYS), st.lists(KEYS))
def test_keys_stand_between_bounds(inner: set[bytes], keys: list[bytes]) -> None:
    bounds = sorted(inner | {b""})
    index = Bounds(pa.array(bounds, pa.binary()))
    assert index.slots_of(refs_of(keys)).tolist() == [bisect_right(bounds, key) - 1 for key in keys]
    at, there = index.find(pa.array(keys, pa.binary()))
    assert at.tolist() == [bisect_left(bounds, key) for key in keys]
    assert there.tolist() == [key in inner or key == b"" for key in keys]


@settings(deadline=None)
@given(st.lists(KEYS | st.binary(min_size=8, max_size=10).map(lambda b: b"t" + b)))
def test_tables_of_keys_are_those_of_the_codec(keys: list[bytes]) -> None:
    assert refs_of(keys).tables().tolist() == table_ids(pa.array(keys, pa.binary())).tolist()


#: what a store says: where regions end, and how far each is resolved
SAID = st.tuples(
    st.lists(KEYS.filter(bool), max_size=4, unique=True).map(sorted), st.lists(st.integers(10, 30), min_size=5)
)


@settings(deadline=None)  # the first example compiles
@given(
    st.lists(st.tuples(KEYS, st.integers(10, 30)), min_size=1, max_size=20),
    st.lists(st.tuples(SAID, st.sets(st.integers(0, 19), max_size=3)), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_rows_are_reached_when_w_comes_above_them(
    versions: list[tuple[bytes, int]],
    steps: list[tuple[tuple[list[bytes], list[int]], set[int]]],
    strictly: bool,
    through: bool,
) -> None:
    keys, ts = [key for key, _ in versions], np.array([t for _, t in versions], np.uint64)
    run = Run(refs_of(keys), {"ts": ts})
    of = np.arange(len(ts), dtype=np.uint32)[::-1].copy() if through else None
    thresholds = Thresholds(ts[of].copy() if of is not None else ts, int(ts.min()), of)
    watermarks = RangeWatermarkMap(KeyRange(), 5)
    for seq, ((ends, resolved), leaving) in enumerate(steps, 1):
        edges = [b"", *ends, b""]
        marks = tuple(
            Mark(region_id=i + 1, start=edges[i], end=edges[i + 1], checkpoint_ts=5, resolved_ts=resolved[i])
            for i in range(len(ends) + 1)
        )
        batch = feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=1, rows=(), marks=marks))
        watermarks.apply(batch.regions, 1, 1, seq)
        watermarks.check()
        run.kill(np.array([i for i in leaving if i < len(run)], np.int64))
        w = watermarks.w_of(pa.array(keys, pa.binary())).tolist()
        want = [i for i, t in enumerate(ts.tolist()) if run.alive[i] and t + strictly <= w[i]]
        assert sorted(reached(run, thresholds, watermarks, strictly=strictly).tolist()) == want
