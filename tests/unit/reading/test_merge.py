"""Page cutting against a brute-force reading of everything."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reading.core import merge

plan = partial(merge.plan, raw_bytes=1 << 40, truncated=False)


@dataclass(frozen=True)
class Seg:
    lo_ts: int
    hi_ts: int
    rows: int
    length: int = 1
    raw_length: int = 1
    ts: tuple[int, ...] = ()


def seg(*ts: int) -> Seg:
    return Seg(ts[0], ts[-1], len(ts), 10 * len(ts), 30 * len(ts), ts)


SEGMENTS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8).map(lambda v: seg(*sorted(v))), max_size=12)


def page(
    segments: list[Seg], after: int, upto: int, rows: int, stored_bytes: int, raw_bytes: int, listed: int
) -> tuple[list[int], int]:
    """One page as the reader makes it, where a catalog query returns at most `listed` segments."""
    while True:
        chosen = sorted((s for s in segments if s.hi_ts > after and s.lo_ts <= upto), key=lambda s: (s.lo_ts, s.hi_ts))
        truncated = len(chosen) > listed
        chosen = chosen[:listed]
        size = {"rows": rows, "stored_bytes": stored_bytes, "raw_bytes": raw_bytes}
        count, end = merge.plan(chosen, after=after, upto=upto, truncated=truncated, **size)
        if end > after:
            break
        listed *= 2
    ts = sorted(t for s in chosen[:count] for t in s.ts if after < t <= end)
    n, end = merge.cut(np.array(ts, np.uint64), upto=end, rows=rows)
    return ts[:n], end


@given(
    segments=SEGMENTS,
    upto=st.integers(1, 45),
    rows=st.integers(1, 10),
    stored_bytes=st.integers(1, 200),
    raw_bytes=st.integers(1, 600),
    listed=st.integers(1, 5),
    start=st.integers(0, 10),
)
def test_pages_deliver_everything_once_and_in_order(
    segments: list[Seg], upto: int, rows: int, stored_bytes: int, raw_bytes: int, listed: int, start: int
) -> None:
    delivered: list[int] = []
    at = start
    while at < upto:
        timestamps, end = page(segments, at, upto, rows, stored_bytes, raw_bytes, listed)
        assert end > at, "a page makes progress"
        assert all(at < t <= end for t in timestamps)
        delivered += timestamps
        at = end
    assert at == max(upto, start)
    assert delivered == sorted(t for s in segments for t in s.ts if start < t <= upto)


def test_a_commit_ts_is_never_cut_in_two() -> None:
    ts = np.array([5, 5, 5, 6], np.uint64)
    assert merge.cut(ts, upto=9, rows=2) == (3, 5)
    assert merge.cut(ts, upto=9, rows=4) == (4, 9)


def test_a_plan_ends_when_it_holds_enough_bytes() -> None:
    segments = [seg(1, 2), seg(5, 6), seg(9, 9)]
    assert plan(segments, after=0, upto=10, rows=100, stored_bytes=20) == (1, 4)
    assert plan(segments, after=0, upto=10, rows=100, stored_bytes=21) == (2, 8)


def test_a_plan_counts_rows_below_its_end_only() -> None:
    """Segments of compacted files reach far."""
    segments = [Seg(1, 1000, 1000), Seg(11, 1000, 1000), Seg(101, 1000, 900)]
    assert plan(segments, after=0, upto=2000, rows=100, stored_bytes=99) == (2, 100)
    assert plan(segments, after=0, upto=2000, rows=10, stored_bytes=99) == (1, 10)
    assert plan(segments, after=0, upto=2000, rows=500, stored_bytes=99) == (3, 2000)
    assert plan(segments, after=0, upto=2000, rows=500, stored_bytes=2) == (2, 100)


def flush(at: int, segments: int = 4) -> list[Seg]:
    """Segments of several tasks that were written together: all begin and end at about the same time."""
    return [Seg(at + n, at + 1000 - n, 1000, 10) for n in range(segments)]


def test_a_flush_of_which_hardly_a_row_would_be_in_the_page_is_left_to_the_next() -> None:
    segments = [*flush(1), *flush(1001), *flush(2001)]
    of_flushes = partial(plan, segments, after=0, upto=5000, rows=1 << 20)
    for stored_bytes in (75, 80, 81, 90, 91, 110):
        assert of_flushes(stored_bytes=stored_bytes) == (8, 2000)
    assert of_flushes(stored_bytes=111) == (12, 5000), "an open end excludes no segment"
    last = plan(segments[8:], after=2000, upto=5000, rows=1 << 20, stored_bytes=15)
    assert last == (2, 2002), "a flush that is larger than a page is read as far as it goes"


def test_a_page_gives_up_neither_many_rows_nor_little_reading() -> None:
    long = [Seg(1, 1000, 1000, 10), Seg(101, 1100, 1000, 10), Seg(121, 1120, 1000, 10), Seg(151, 1150, 1000, 10)]
    assert plan(long, after=0, upto=5000, rows=1 << 20, stored_bytes=25) == (3, 150)
    small = [Seg(1, 1000, 1000, 100), Seg(1001, 2000, 1000, 3), Seg(1002, 2000, 1000, 3), Seg(1003, 2000, 9, 3)]
    assert plan(small, after=0, upto=5000, rows=1 << 20, stored_bytes=104) == (3, 1002)


def test_a_page_cut_by_rows_reads_the_requested_rows() -> None:
    segments = [*flush(1), *flush(1001), *flush(2001)]
    assert plan(segments, after=0, upto=5000, rows=4001, stored_bytes=1 << 20)[0] == 6


def test_all_that_is_read_may_lie_above_the_page() -> None:
    segments = [Seg(5, 9, 2, 10), Seg(5, 9, 2, 10), Seg(5, 9, 2, 10)]
    assert plan(segments, after=0, upto=9, rows=100, stored_bytes=10) == (0, 4)
    assert plan(segments, after=4, upto=9, rows=100, stored_bytes=10) == (3, 9)
