"""The slots against the map that looks at every row of every file: the same answers whatever the stores say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given, settings

from sorter.core.watermark import RangeWatermarkMap
from tests.kit.plain_watermark import PlainWatermarkMap
from tests.kit.sorter_oracle import Mark
from tests.kit.sorter_world import File, feed_batch
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS

KEYS = [b"", b"a", b"b", b"b\x00", b"c", b"d", b"e", b"f", b"g", b"\xff"]
START = 10
Step = tuple[str, int, Any]

edges = st.tuples(st.sampled_from(KEYS), st.sampled_from([*KEYS, b""])).filter(lambda e: not e[1] or e[0] < e[1])
stores = st.integers(1, 3)
marks = st.builds(
    lambda e, checkpoint, gain, region, ready: Mark(
        region_id=region,
        start=e[0],
        end=e[1],
        checkpoint_ts=checkpoint,
        resolved_ts=max(0, checkpoint + gain),
        ready_ts=ready,
    ),
    edges,
    st.integers(5, 40),
    st.integers(-6, 15),
    st.integers(1, 5),
    st.sampled_from([0, 2, 2, 2]),
)
steps = st.one_of(
    st.tuples(st.just("says"), stores, st.lists(marks, max_size=6)),
    st.tuples(st.just("ticks"), stores, st.integers(-2, 8)),
    st.tuples(st.just("ticks"), stores, st.integers(-2, 8)),
    st.tuples(st.just("splits"), stores, st.tuples(st.integers(0, 5), st.sampled_from(KEYS))),
    st.tuples(st.just("forgets"), stores, st.none()),
    st.tuples(st.just("restarts"), stores, st.none()),
)


def spoken(said: list[Mark], kind: str, told: Any) -> list[Mark]:
    """What a store says next."""
    if kind == "says":
        return list(told)
    if kind == "ticks":
        return [replace(m, resolved_ts=max(0, m.resolved_ts + told), ready_ts=m.ready_ts or told % 2) for m in said]
    number, key = told
    out: list[Mark] = []
    for i, m in enumerate(said):
        if i == number and m.start < key and (not m.end or key < m.end):
            out += [replace(m, end=key, region_id=9), replace(m, start=key)]
        else:
            out.append(m)
    return out


def same(ours: RangeWatermarkMap, plain: PlainWatermarkMap) -> None:
    ours.check()
    plain.check()
    assert list(ours.slices()) == list(plain.slices())
    assert sorted(ours.waiting(), key=str) == sorted(plain.waiting(), key=str)
    assert ours.watermark_gaps() == plain.watermark_gaps()
    assert ours.watermark() == plain.watermark()
    assert ours.highest() == plain.highest()
    inside = pa.array([k for k in KEYS if k in ours.range], pa.binary())
    assert ours.w_of(inside).tolist() == plain.w_of(inside).tolist()
    assert {str(s) for s in ours.explain()} == {str(s) for s in plain.explain()}
    (slices, waiting), (plain_slices, plain_waiting) = ours.snapshot(), plain.snapshot()
    assert slices.equals(plain_slices)
    assert sorted(waiting.to_pylist(), key=str) == sorted(plain_waiting.to_pylist(), key=str)


@settings(max_examples=200, deadline=None)
@given(range_=edges, script=st.lists(steps, max_size=14))
def test_slots_give_what_the_plain_map_gives(range_: tuple[bytes, bytes], script: list[Step]) -> None:
    where = KeyRange(*range_)
    ours, plain = RangeWatermarkMap(where, START), PlainWatermarkMap(where, START)
    said: dict[int, list[Mark]] = {1: [], 2: [], 3: []}
    life = {1: 1, 2: 1, 3: 1}
    for seq, (kind, store, told) in enumerate(script, 1):
        if kind == "forgets":
            ours.forget(store, life[store])
            plain.forget(store, life[store])
            life[store] += 1
        elif kind == "restarts":
            saved = plain.snapshot()
            ours, plain = RangeWatermarkMap(where, START), PlainWatermarkMap(where, START)
            ours.restore(*saved)
            plain.restore(*saved)
        else:
            said[store] = spoken(said[store], kind, told)
            file = File(store_id=store, incarnation=life[store], seq=seq, cut_ts=0, rows=(), marks=tuple(said[store]))
            regions = feed_batch(file).regions
            moved = plain.apply(regions, store, life[store], seq)
            assert ours.apply(regions, store, life[store], seq) == moved
        same(ours, plain)


def test_a_region_list_that_grows_and_shrinks_leaves_no_slots_behind() -> None:
    rng = np.random.default_rng(5)
    ours, plain = RangeWatermarkMap(KeyRange(), START), PlainWatermarkMap(KeyRange(), START)
    resolved = START
    for seq in range(1, 60):
        count = int(rng.integers(1, 200))
        cuts = sorted({int(x).to_bytes(3, "big") for x in rng.integers(1, 1 << 24, count)})
        bounds = [b"", *cuts, b""]
        resolved += int(rng.integers(0, 5))
        late = rng.integers(0, 3, len(bounds) - 1)
        regions = pa.RecordBatch.from_pylist(
            [
                {
                    "region_id": i,
                    "version": seq,
                    "start_key": bounds[i],
                    "end_key": bounds[i + 1],
                    "tenure_open_ts": 1,
                    "tenure_ready_ts": 1,
                    "checkpoint_ts": START,
                    "resolved_ts": resolved + int(late[i]),
                    "row_offset": 0,
                    "row_count": 0,
                }
                for i in range(len(bounds) - 1)
            ],
            schema=REGIONS,
        )
        assert ours.apply(regions, 1, 1, seq) == plain.apply(regions, 1, 1, seq)
        same(ours, plain)
        explained = len(bounds) - 1
        differing = ours.slice_count()
        assert len(ours._slots) <= 2 * explained + differing
