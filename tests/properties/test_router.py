"""Routing against the obvious way: look at every row and every region one by one."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.router import directory, route
from tests.kit.batch_files import Subscription, keys_in, subscriptions_of
from tistream.keyrange import KeyRange

KEYS = st.binary(max_size=3).map(lambda b: bytes(x & 0x83 for x in b))  # few bytes, on both sides of 0x80: many ties


@st.composite
def ranges(draw: st.DrawFn) -> KeyRange:
    start, end = sorted((draw(KEYS), draw(KEYS)))
    return KeyRange(start, end if end > start else b"")


@st.composite
def subscriptions(draw: st.DrawFn) -> list[Subscription]:
    drawn: list[Subscription] = []
    for region in draw(st.lists(ranges(), max_size=8)):
        keys = [key for key in draw(st.lists(KEYS, max_size=6)) if key in region]
        drawn.append((region.start, region.end, keys))
    return drawn


@settings(deadline=None)  # the first example compiles
@given(subscriptions(), ranges(), st.randoms(use_true_random=False))
def test_exactly_the_rows_and_promises_of_the_range(shape: list[Subscription], part: KeyRange, rand: object) -> None:
    order = list(range(len(shape)))
    rand.shuffle(order)  # type: ignore[attr-defined]
    rows, regions = subscriptions_of(shape, order)
    routed = route(directory(rows, regions), part)
    assert routed.rows["key"].to_pylist() == keys_in(rows, part)
    assert routed.rows["start_ts"].to_pylist() == [
        ts for ts, key in zip(rows["start_ts"].to_pylist(), rows["key"].to_pylist(), strict=True) if key in part
    ]
    expected = [r for r in regions.to_pylist() if KeyRange(r["start_key"], r["end_key"]).intersect(part)]
    regions_routed = routed.regions.to_pylist()
    assert [r["region_id"] for r in regions_routed] == [r["region_id"] for r in expected]
    for before, after in zip(expected, regions_routed, strict=True):
        whole = rows.slice(before["row_offset"], before["row_count"])
        cut = routed.rows.slice(after["row_offset"], after["row_count"])
        assert cut["key"].to_pylist() == keys_in(whole, part)
        same = before.keys() - {"row_offset", "row_count"}
        assert {k: before[k] for k in same} == {k: after[k] for k in same}
    assert sum(r["row_count"] for r in regions_routed) == routed.rows.num_rows


@settings(deadline=None)  # the first example compiles
@given(subscriptions(), st.lists(KEYS, max_size=4))
def test_tiles_share_out_every_row_exactly_once(shape: list[Subscription], cuts: list[bytes]) -> None:
    rows, regions = subscriptions_of(shape)
    edges = [b"", *sorted({cut for cut in cuts if cut}), b""]
    file = directory(rows, regions)
    tiles = [KeyRange(a, b) for a, b in itertools.pairwise(edges)]
    served = [ts for tile in tiles for ts in route(file, tile).rows["start_ts"].to_pylist()]
    assert sorted(served) == rows["start_ts"].to_pylist()
