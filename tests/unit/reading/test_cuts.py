"""Cutting long reads: bounds hold whatever lies where, parts are about equal."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from reading.core.cuts import bounded_end, cut_points, estimated_rows


@dataclass(frozen=True)
class Seg:
    lo_ts: int
    hi_ts: int
    rows: int
    length: int
    raw_length: int = 0


T = 470_000_000_000_000_000  # a TSO: beyond what a double holds exactly

segs = st.lists(
    st.builds(
        lambda lo, span, rows, length: Seg(T + lo, T + lo + span, min(rows, span + 1), length),
        st.integers(1, 10_000),
        st.integers(0, 5_000),
        st.integers(1, 300),
        st.integers(1, 1000),
    ),
    min_size=1,
    max_size=30,
).map(lambda segments: sorted(segments, key=lambda s: (s.lo_ts, s.hi_ts)))


@given(segs, st.integers(1, 2000), st.integers(0, 12_000))
def test_no_more_rows_than_asked_for_lie_below_the_end(segments: list[Seg], rows: int, after: int) -> None:
    """However they are spread: all of a segment that begins at or below the end are counted."""
    after, upto = T + after, T + 20_000
    listed = [s for s in segments if s.hi_ts > after]
    end = bounded_end(listed, after=after, upto=upto, rows=rows)
    assert after <= end <= upto
    if end > after:
        assert sum(s.rows for s in listed if s.lo_ts <= end) <= rows
    if sum(s.rows for s in listed) <= rows:
        assert end == upto


@given(segs, st.integers(0, 9_000), st.integers(1, 6_000), st.integers(1, 40), st.integers(1, 3000))
def test_cuts_rise_between_the_ends(segments: list[Seg], after: int, width: int, parts: int, part_bytes: int) -> None:
    after = T + after
    upto = after + width
    within = [s for s in segments if s.hi_ts > after and s.lo_ts <= upto]
    cuts = cut_points(within, after=after, upto=upto, parts=parts, part_bytes=part_bytes)
    assert all(a < b for a, b in itertools.pairwise([after, *cuts, upto]))
    assert len(cuts) < parts
    assert len(cuts) * part_bytes < sum(s.length for s in within) + part_bytes


def test_parts_hold_about_the_same() -> None:
    segments = [Seg(T + 1, T + 1000, 100, 1000), Seg(T + 1001, T + 1100, 900, 9000), Seg(T + 1101, T + 5000, 1, 10)]
    cuts = cut_points(segments, after=T, upto=T + 5000, parts=10, part_bytes=1)
    bounds = [T, *cuts, T + 5000]
    row_counts = [estimated_rows(segments, after=a, upto=b) for a, b in itertools.pairwise(bounds)]
    assert len(row_counts) == 10
    assert max(row_counts) < 130


def test_a_small_read_stays_whole() -> None:
    assert cut_points([Seg(T + 1, T + 9, 5, 100)], after=T, upto=T + 10, parts=8, part_bytes=100) == []
    assert cut_points([], after=T, upto=T + 10, parts=8, part_bytes=1) == []


def test_estimates_are_zero_only_without_rows() -> None:
    assert estimated_rows([Seg(T + 1, T + 100_000, 1, 1)], after=T + 5, upto=T + 6) == 1
    assert estimated_rows([Seg(T + 10, T + 20, 7, 1)], after=T, upto=T + 9) == 0
    assert estimated_rows([Seg(T + 10, T + 20, 7, 1)], after=T + 20, upto=T + 30) == 0
    assert estimated_rows([Seg(T + 10, T + 20, 7, 1)], after=T, upto=T + 30) == 7
