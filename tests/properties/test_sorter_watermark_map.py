"""The watermark map against that of the oracle, with arbitrary rows, repeated lists, ranges and restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given, settings

from sorter.core.watermark import RangeWatermarkMap
from tests.kit.sorter_oracle import Mark, OracleSorter
from tests.kit.sorter_world import File, feed_batch
from tistream.keyrange import KeyRange

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
    st.integers(1, 40),
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


def spoken(said: list[Mark], kind: str, value: Any) -> list[Mark]:
    """What a store says next."""
    if kind == "says":
        return list(value)
    if kind == "ticks":
        return [replace(m, resolved_ts=max(0, m.resolved_ts + value), ready_ts=m.ready_ts or value % 2) for m in said]
    number, key = value
    out: list[Mark] = []
    for i, m in enumerate(said):
        if i == number and m.start < key and (not m.end or key < m.end):
            out += [replace(m, end=key, region_id=9), replace(m, start=key)]
        else:
            out.append(m)
    return out


class Pair:
    """The map, and the oracle, which knows no restart."""

    def __init__(self, where: KeyRange) -> None:
        self.where = where
        self.map = RangeWatermarkMap(where, START)
        self.oracle = OracleSorter(where.start, where.end, START)

    def apply(self, store: int, life: int, seq: int, said: list[Mark]) -> None:
        file = File(store_id=store, incarnation=life, seq=seq, cut_ts=0, rows=(), marks=tuple(said))
        before = list(self.oracle.slices())
        moved = self.map.apply(feed_batch(file).regions, store, life, seq)
        self.oracle.file(store, life, 0, [], said)
        assert moved == (list(self.oracle.slices()) != before)

    def restart(self) -> None:
        saved = self.map.snapshot()
        self.map = RangeWatermarkMap(self.where, START)
        self.map.restore(*saved)

    def agree(self) -> None:
        ours, bounds = self.map, [b for b in self.oracle.bounds if b in self.where]
        ours.check()
        assert ours.w_of(pa.array(bounds, pa.binary())).tolist() == [self.oracle.w_of(b) for b in bounds]
        assert ours.watermark() == self.oracle.watermark()
        slices = [(start, w if covered else None) for start, w, covered in self.oracle.slices()]
        assert [(range_.start, w) for range_, w in ours.slices()] == slices
        assert ours.slice_count() == len(slices)
        assert bool(ours.watermark_gaps()) == (ours.watermark() is None) == any(s.w is None for s in ours.explain())


@settings(max_examples=300, deadline=None)
@given(range_=edges, script=st.lists(steps, max_size=14))
def test_the_map_is_the_oracles(range_: tuple[bytes, bytes], script: list[Step]) -> None:
    pair = Pair(KeyRange(*range_))
    said: dict[int, list[Mark]] = {1: [], 2: [], 3: []}
    life = {1: 1, 2: 1, 3: 1}
    for seq, (kind, store, value) in enumerate(script, 1):
        if kind == "forgets":
            pair.map.forget(store, life[store])
            life[store] += 1
        elif kind == "restarts":
            pair.restart()
        else:
            said[store] = spoken(said[store], kind, value)
            pair.apply(store, life[store], seq, said[store])
        pair.agree()


def test_a_region_list_that_grows_and_shrinks_leaves_no_slots_behind() -> None:
    rng = np.random.default_rng(5)
    pair, resolved = Pair(KeyRange()), START
    for seq in range(1, 40):
        cuts = sorted({int(x).to_bytes(3, "big") for x in rng.integers(1, 1 << 24, int(rng.integers(1, 30)))})
        bounds = [b"", *cuts, b""]
        resolved += int(rng.integers(0, 5))
        late = rng.integers(0, 3, len(bounds) - 1)
        said = [
            Mark(
                region_id=i,
                version=seq,
                start=bounds[i],
                end=bounds[i + 1],
                checkpoint_ts=START,
                resolved_ts=resolved + int(late[i]),
            )
            for i in range(len(bounds) - 1)
        ]
        pair.apply(1, 1, seq, said)
        pair.agree()
        assert len(pair.map._slots) <= 2 * len(said) + pair.map.slice_count()
