"""The watermark map against the plain one of the oracle, with arbitrary rows, ranges and restarts."""

from __future__ import annotations

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from sorter.core.watermark import RangeWatermarkMap
from tests.kit.sorter_oracle import Mark, OracleSorter
from tests.kit.sorter_world import File, feed_batch
from tistream.keyrange import KeyRange

KEYS = [b"", b"a", b"b", b"b\x00", b"c", b"d", b"e", b"\xff"]
edges = st.tuples(st.sampled_from(KEYS), st.sampled_from([*KEYS, b""])).filter(lambda e: not e[1] or e[0] < e[1])
marks = st.builds(
    lambda e, checkpoint, gain, region, ready: Mark(
        region_id=region, start=e[0], end=e[1], checkpoint_ts=checkpoint, resolved_ts=checkpoint + gain, ready_ts=ready
    ),
    edges,
    st.integers(1, 30),
    st.integers(0, 10),
    st.integers(1, 3),
    st.sampled_from([0, 2, 2, 2]),
)


@settings(max_examples=300, deadline=None)
@given(
    range_=edges,
    files=st.lists(st.tuples(st.integers(1, 3), st.lists(marks, max_size=4)), max_size=8),
    restart_after=st.integers(0, 8),
)
def test_the_map_is_the_plain_map(
    range_: tuple[bytes, bytes], files: list[tuple[int, list[Mark]]], restart_after: int
) -> None:
    where = KeyRange(*range_)
    ours, oracle = RangeWatermarkMap(where, 10), OracleSorter(where.start, where.end, 10)
    inside = [k for k in KEYS if k in where]
    for seq, (store, rows) in enumerate(files, 1):
        before = {k: int(w) for k, w in zip(inside, ours.w_of(pa.array(inside, pa.binary())), strict=True)}
        file = File(store_id=store, incarnation=1, seq=seq, cut_ts=0, rows=(), marks=tuple(rows))
        ours.apply(feed_batch(file).regions, store, 1, seq)
        oracle.file(store, 1, 0, [], rows)
        ours.check()
        now = {k: int(w) for k, w in zip(inside, ours.w_of(pa.array(inside, pa.binary())), strict=True)}
        assert now == {k: oracle.w_of(k) for k in inside}
        assert all(now[k] >= before[k] for k in inside)
        assert ours.watermark() == oracle.watermark()
        assert bool(ours.watermark_gaps()) == (ours.watermark() is None) == (any(s.w is None for s in ours.explain()))
        if seq == restart_after:
            saved = ours.snapshot()
            ours = RangeWatermarkMap(where, 10)
            ours.restore(*saved)
