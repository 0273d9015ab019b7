"""Cuts one batch file down to a task's key range.

A file is a few columns clustered by subscription, with one regions row per subscription that names its slice of rows.
For a range:

- a region inside the range gives its whole slice;
- a region that straddles an end of the range is cut row by row with exact key comparisons; its regions row keeps its
  own start and end key, because its watermark applies to the whole region;
- a region outside the range is omitted, rows and watermark alike;
- a region without rows is kept for its watermark.

The result is runs of rows. Adjacent runs are joined; a single large run is a slice of the file's memory, others are
gathered (`dispatcher.gather`). With regions in key order a task's rows are one run, and its regions are found by
bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatcher.gather import gather
from tistream.keyrange import KeyRange
from tistream.model.arrays import I64, Mask
from tistream.model.change import REGIONS

_OFFSET = REGIONS.get_field_index("row_offset")
_COUNT = REGIONS.get_field_index("row_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A batch file made ready for routing; built once, shared by all subscribers."""

    rows: pa.RecordBatch  #: change.ROWS
    regions: pa.RecordBatch  #: change.REGIONS
    offsets: I64  #: row_offset of each region
    counts: I64  #: row_count of each region
    by_key: I64  #: region numbers in the order of their start keys
    starts: pa.BinaryArray  #: start keys in that order
    ends: pa.BinaryArray  #: end keys in that order
    bounded: int  #: number of `ends` that are not infinite; they come first when `nested` is false
    nested: bool  #: in key order the ends do not rise: subscriptions overlap, bisection would miss some


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What one range gets of one file."""

    rows: pa.RecordBatch  #: change.ROWS, in file order
    regions: pa.RecordBatch  #: change.REGIONS, with offsets into `rows`


def directory(rows: pa.RecordBatch, regions: pa.RecordBatch) -> Directory:
    """Index a decoded file for routing."""
    starts, ends = regions.column("start_key"), regions.column("end_key")
    by_key = np.arange(regions.num_rows)
    if not _rises(starts):
        sorting = pc.sort_indices(starts)
        by_key = sorting.to_numpy().astype(np.int64)
        starts, ends = starts.take(sorting), ends.take(sorting)
    infinite = _numpy(pc.equal(ends, b""))
    bounded = len(infinite) - int(infinite.sum())
    return Directory(
        rows=rows,
        regions=regions,
        offsets=regions.column(_OFFSET).to_numpy().astype(np.int64),
        counts=regions.column(_COUNT).to_numpy().astype(np.int64),
        by_key=by_key,
        starts=starts,
        ends=ends,
        bounded=bounded,
        nested=bool(infinite[:bounded].any()) or not _rises(ends.slice(0, bounded)),
    )


def route(file: Directory, range_: KeyRange) -> Routed:
    """The rows and regions of `file` that belong to `range_`."""
    picked, straddles = _scan(file, range_) if file.nested else _bisect(file, range_)
    if len(picked) == len(file.offsets) and not straddles.any():
        return Routed(rows=file.rows, regions=file.regions)
    order = np.argsort(file.offsets[picked], kind="stable")
    starts, ends, counts = _runs(file, picked[order], straddles[order], range_)
    offsets, sizes = np.empty_like(counts), np.empty_like(counts)
    offsets[order], sizes[order] = np.cumsum(counts) - counts, counts
    return Routed(rows=gather(file.rows, starts, ends), regions=_renumbered(file.regions, picked, offsets, sizes))


def _bisect(file: Directory, range_: KeyRange) -> tuple[I64, Mask]:
    """The regions that touch the range, in file order, and which of them straddle one of its ends."""
    starts, ends, n = file.starts, file.ends, len(file.starts)

    def start(i: int) -> bytes:
        key: bytes = starts[i].as_py()
        return key

    def end(i: int) -> bytes:
        key: bytes = ends[i].as_py()
        return key

    first = bisect_right(range(file.bounded), range_.start, key=end)
    last = bisect_left(range(n), range_.end, key=start) if range_.end else n
    inside_from = bisect_left(range(n), range_.start, key=start)
    inside_to = bisect_right(range(file.bounded), range_.end, key=end) if range_.end else n
    at = np.arange(first, max(first, last))
    picked, straddles = file.by_key[at], (at < inside_from) | (at >= inside_to)
    order = np.argsort(picked, kind="stable")
    return picked[order], straddles[order]


def _scan(file: Directory, range_: KeyRange) -> tuple[I64, Mask]:
    """The same by a linear scan, for nested regions."""
    start, end = file.regions.column("start_key"), file.regions.column("end_key")
    infinite = _numpy(pc.equal(end, b""))
    touching = infinite | _numpy(pc.greater(end, range_.start))
    inside = _numpy(pc.greater_equal(start, range_.start))
    if range_.end:
        touching &= _numpy(pc.less(start, range_.end))
        inside &= ~infinite & _numpy(pc.less_equal(end, range_.end))
    picked = np.flatnonzero(touching)
    return picked, ~inside[picked]


def _runs(file: Directory, regions: I64, straddles: Mask, range_: KeyRange) -> tuple[I64, I64, I64]:
    """Starts and ends of the runs of rows of these regions (in slice order), and the number of rows of each region."""
    firsts, counts = file.offsets[regions], file.counts[regions].copy()
    starts, ends = [firsts[:0]], [firsts[:0]]
    done = 0
    for i in np.flatnonzero(straddles & (counts > 0)).tolist():
        cut_starts, cut_ends = _kept(file.rows, int(firsts[i]), int(counts[i]), range_)
        starts += [firsts[done:i], cut_starts]
        ends += [firsts[done:i] + counts[done:i], cut_ends]
        counts[i] = (cut_ends - cut_starts).sum()
        done = i + 1
    starts.append(firsts[done:])
    ends.append(firsts[done:] + counts[done:])
    return *_joined(np.concatenate(starts), np.concatenate(ends)), counts


def _kept(rows: pa.RecordBatch, first: int, count: int, range_: KeyRange) -> tuple[I64, I64]:
    keys = rows.column("key").slice(first, count)
    keep = _numpy(pc.greater_equal(keys, range_.start))
    if range_.end:
        keep &= _numpy(pc.less(keys, range_.end))
    framed = np.zeros(count + 2, np.bool_)
    framed[1:-1] = keep
    edges = np.flatnonzero(framed[1:] != framed[:-1]) + first
    return edges[::2], edges[1::2]


def _joined(starts: I64, ends: I64) -> tuple[I64, I64]:
    """The same rows with empty runs removed and adjacent runs joined."""
    filled = ends > starts
    starts, ends = starts[filled], ends[filled]
    opens = np.ones(len(starts), np.bool_)
    opens[1:] = starts[1:] != ends[:-1]
    closes = np.ones(len(starts), np.bool_)
    closes[:-1] = opens[1:]
    return starts[opens], ends[closes]


def _renumbered(regions: pa.RecordBatch, picked: I64, offsets: I64, counts: I64) -> pa.RecordBatch:
    touch = len(picked) and int(picked[-1] - picked[0]) + 1 == len(picked)
    touch = touch and 2 * len(picked) >= regions.num_rows  # a smaller slice would keep all of them in memory
    taken = regions.slice(int(picked[0]), len(picked)) if touch else regions.take(pa.array(picked))
    columns = taken.columns
    columns[_OFFSET] = pa.array(offsets.astype(np.uint64))
    columns[_COUNT] = pa.array(counts.astype(np.uint64))
    return pa.RecordBatch.from_arrays(columns, schema=regions.schema)


def _rises(keys: pa.BinaryArray) -> bool:
    if len(keys) < 2:
        return True
    return bool(pc.all(pc.less_equal(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py())


def _numpy(mask: pa.BooleanArray) -> Mask:
    out: Mask = mask.to_numpy(zero_copy_only=False)
    return out
