"""Cuts a page out of the committed log (pure).

The log of a tenant is many segments of several tasks, each with a commit_ts range. A page is everything in
`(after, upto]` for the largest `upto` that keeps the page near its limits:

- segments are taken in order of their lowest commit_ts until they hold enough bytes, or enough rows below the lowest
  commit_ts of the next one. Rows of a segment below a commit_ts are estimated, as if spread evenly: segments of a
  compacted file reach far beyond one page. The estimate decides sizes only;
- a page ends below the lowest commit_ts of the first segment that is not read (`safe_end`);
- a page that has enough bytes drops its last segments again if they would contribute hardly a row: all segments of a
  flush begin at about the same commit_ts, so most would be read for nothing;
- if the rows are still too many, the page ends at the commit_ts of the row that fills it, with all rows of that
  commit_ts. A commit_ts that has more than a page may hold is none of these: `reading.log.inside` reads it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

_ROWS_KEPT = 0.95  # least share of the rows that a page keeps when it drops segments
_BYTES_KEPT = 0.9  # largest share of the bytes that it then still reads; above, nothing is dropped


class SegmentSpan(Protocol):
    """A segment as planning sees it: inclusive commit_ts range, number of rows, stored bytes."""

    @property
    def lo_ts(self) -> int: ...

    @property
    def hi_ts(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def raw_length(self) -> int: ...  # 0 = not known


def large_commit(segments: Sequence[SegmentSpan], *, after: int, raw_bytes: int) -> int | None:
    """The lowest commit_ts above `after` whose segments alone have surely more than `raw_bytes` unpacked.
    `segments` are sorted by lo_ts."""
    commit_ts = held = 0
    for segment in segments:
        if segment.lo_ts != segment.hi_ts or segment.lo_ts <= after:
            continue
        if segment.lo_ts != commit_ts:
            commit_ts, held = segment.lo_ts, 0
        held += segment.raw_length
        if held > raw_bytes:
            return commit_ts
    return None


def plan(
    segments: Sequence[SegmentSpan],
    *,
    after: int,
    upto: int,
    rows: int,
    stored_bytes: int,
    raw_bytes: int,
    truncated: bool,
) -> tuple[int, int]:
    """How many segments to read from the front of `segments`, and the commit_ts up to which they are complete.

    `segments` are sorted by lo_ts; `truncated`: the catalog has more after the last one. The end lies in
    `(after, upto]` unless `truncated` segments all start at the same commit_ts: then list more and call again.
    """
    held_rows = held_bytes = held_raw = 0
    for n, segment in enumerate(segments):
        safe_end = segment.lo_ts - 1
        if after < safe_end and (
            held_bytes >= stored_bytes
            or held_raw >= raw_bytes
            or (held_rows >= rows and _estimated_rows(segments[:n], after, min(safe_end, upto)) >= rows)
        ):
            if held_bytes >= stored_bytes or held_raw >= raw_bytes:
                n = _worth_reading(segments, n, after, upto)
            return n, min(segments[n].lo_ts - 1, upto)
        held_rows += segment.rows
        held_bytes += segment.length
        held_raw += segment.raw_length
    if truncated:
        last = segments[-1].lo_ts
        complete = next((n for n, segment in enumerate(segments) if segment.lo_ts == last), 0)
        return complete, min(last - 1, upto)
    return len(segments), upto


def _worth_reading(segments: Sequence[SegmentSpan], n: int, after: int, upto: int) -> int:
    """How many of the first `n` segments to read: fewer if these hold nearly all rows of the page in clearly fewer
    bytes. The page then ends below the first one dropped, still above `after`."""

    def rows_of(count: int) -> float:
        return _estimated_rows(segments[:count], after, min(segments[count].lo_ts - 1, upto))

    fewer = bisect_left(range(n), _ROWS_KEPT * rows_of(n), key=rows_of)
    stored = np.array([s.length for s in segments[:n]], np.int64)
    return fewer if stored[:fewer].sum() <= _BYTES_KEPT * stored.sum() else n


def _estimated_rows(segments: Sequence[SegmentSpan], after: int, end: int) -> float:
    """Estimated number of rows of the segments in (after, end]."""
    lo = np.array([max(s.lo_ts - 1, after) for s in segments], np.int64)
    hi = np.array([s.hi_ts for s in segments], np.int64)
    first = np.array([s.lo_ts - 1 for s in segments], np.int64)
    share = (np.minimum(hi, end) - lo) / (hi - first)
    return float((np.array([s.rows for s in segments]) * np.clip(share, 0, 1)).sum())


def cut(commit_ts: npt.NDArray[np.uint64], *, upto: int, rows: int) -> tuple[int, int]:
    """(number of rows at the front of the sorted `commit_ts` that make the page, the commit_ts at which it ends)."""
    n = int(np.searchsorted(commit_ts, np.uint64(upto), side="right"))
    if n <= rows:
        return n, upto
    end = commit_ts[rows - 1]
    return int(np.searchsorted(commit_ts, end, side="right")), int(end)
