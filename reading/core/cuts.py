"""Cuts a long read into parts of about equal work (pure).

Estimates come from the catalog's rows, bytes and commit_ts range of each segment, taken to be spread evenly. Any cut is
correct, since a cursor may be at any commit_ts; the estimate decides sizes only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reading.core.merge import SegmentSpan


def bounded_end(segments: Sequence[SegmentSpan], *, after: int, upto: int, rows: int) -> int:
    """The largest end such that (after, end] holds at most `rows` rows; `after` when there is none.

    `segments` are all that may hold rows in (after, upto], sorted by lo_ts.
    """
    held = 0
    for segment in segments:
        held += segment.rows
        if held > rows:
            return max(after, min(segment.lo_ts - 1, upto))
    return upto


def cut_points(segments: Sequence[SegmentSpan], *, after: int, upto: int, parts: int, part_bytes: int) -> list[int]:
    """At most `parts` - 1 ascending commit_ts in (after, upto) that cut it into parts of about `part_bytes` or more."""
    if not segments or upto - after < 2:
        return []
    lo = np.array([max(s.lo_ts - 1, after) - after for s in segments], np.int64)
    hi = np.array([min(s.hi_ts, upto) - after for s in segments], np.int64)
    share = [
        s.length * (h - at) / (s.hi_ts - s.lo_ts + 1)
        for s, at, h in zip(segments, lo.tolist(), hi.tolist(), strict=True)
    ]
    weight = np.array(share)
    total = float(weight.sum())
    count = min(parts, math.ceil(total / part_bytes))
    if count < 2:
        return []
    at = np.unique(np.concatenate([lo, hi]))
    density = np.zeros(len(at))
    per_tick = weight / (hi - lo)
    np.add.at(density, np.searchsorted(at, lo), per_tick)
    np.add.at(density, np.searchsorted(at, hi), -per_tick)
    grown = np.concatenate([[0.0], np.cumsum(np.cumsum(density)[:-1] * np.diff(at))])
    wanted = np.arange(1, count) * total / count
    places = np.interp(wanted, np.maximum.accumulate(grown), at.astype(np.float64)).astype(np.int64)
    return [after + int(place) for place in np.unique(places) if 0 < place < upto - after]


def estimated_rows(segments: Sequence[SegmentSpan], *, after: int, upto: int) -> int:
    """Estimated number of rows in (after, upto]; 0 only when there is certainly none."""
    rows = 0.0
    for s in segments:
        lo, hi = max(s.lo_ts - 1, after), min(s.hi_ts, upto)
        if hi > lo:
            rows += s.rows * (hi - lo) / (s.hi_ts - s.lo_ts + 1)
    return math.ceil(rows)
