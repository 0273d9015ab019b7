"""Cuts one batch file down to a task's key range.

A file is a handful of columns clustered by tenure, with one regions row per tenure naming its slice. For a range:

- a region that lies inside the range gives its slice whole; slices that touch are taken as one, without copying;
- a region that straddles an end of the range is cut row by row with exact key comparisons; its regions row keeps its
  own start and end key, because what it promises it promises for that whole region;
- a region that misses the range is left out, rows and promise alike;
- a region without rows still counts: its promise is the point.

Relations: the slices of a file tile its rows (the codec has checked it), and those of the result tile the result's;
rows keep their order in the file. The regions may stand in any order.

Pure: Arrow in, Arrow out. No Python object per row, and none per region except where slices do not touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream.change import REGIONS
from tistream.keyrange import KeyRange

_OFFSET = REGIONS.get_field_index("row_offset")
_COUNT = REGIONS.get_field_index("row_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A batch file made ready for routing; built once, shared by all subscribers."""

    rows: pa.RecordBatch  #: change.ROWS
    regions: pa.RecordBatch  #: change.REGIONS
    offsets: npt.NDArray[np.int64]  #: row_offset of each region
    counts: npt.NDArray[np.int64]  #: row_count of each region
    by_offset: npt.NDArray[np.int64]  #: region numbers in the order of their slices, those without rows included


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What one range gets of one file."""

    rows: pa.RecordBatch  #: change.ROWS, in file order
    regions: pa.RecordBatch  #: change.REGIONS, with offsets into `rows`


def directory(rows: pa.RecordBatch, regions: pa.RecordBatch) -> Directory:
    """Prepare a decoded file."""
    offsets = regions.column(_OFFSET).to_numpy().astype(np.int64)
    counts = regions.column(_COUNT).to_numpy().astype(np.int64)
    by_offset = np.argsort(offsets, kind="stable")
    return Directory(rows=rows, regions=regions, offsets=offsets, counts=counts, by_offset=by_offset)


def route(file: Directory, wanted: KeyRange) -> Routed:
    """The rows and regions of `file` that concern `wanted`."""
    touching, inside = _relation(file.regions, wanted)
    if bool((touching & inside).all()):
        return Routed(rows=file.rows, regions=file.regions)
    in_order = file.by_offset[touching[file.by_offset]]
    filled = in_order[file.counts[in_order] > 0]
    counts = file.counts.copy()
    pieces = _pieces(file, filled, inside, wanted, counts)
    offsets = np.zeros_like(counts)
    offsets[in_order] = np.cumsum(counts[in_order]) - counts[in_order]
    picked = np.flatnonzero(touching)
    return Routed(
        rows=_joined(pieces, file.rows), regions=_renumbered(file.regions, picked, offsets[picked], counts[picked])
    )


def _relation(regions: pa.RecordBatch, wanted: KeyRange) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which regions touch the range, and which reach over none of its ends."""
    start, end = regions.column("start_key"), regions.column("end_key")
    unbounded = _numpy(pc.equal(end, b""))
    touching = unbounded | _numpy(pc.greater(end, wanted.start))
    inside = _numpy(pc.greater_equal(start, wanted.start))
    if wanted.end:
        touching &= _numpy(pc.less(start, wanted.end))
        inside &= ~unbounded & _numpy(pc.less_equal(end, wanted.end))
    return touching, inside


def _pieces(
    file: Directory,
    filled: npt.NDArray[np.int64],
    inside: npt.NDArray[np.bool_],
    wanted: KeyRange,
    counts: npt.NDArray[np.int64],
) -> list[pa.RecordBatch]:
    """The slices of the regions `filled` (in file order), joined where they touch; `counts` is lowered for cut ones."""
    if not len(filled):
        return []
    starts, ends = file.offsets[filled], file.offsets[filled] + file.counts[filled]
    cut = ~inside[filled]
    opens = np.ones(len(filled), np.bool_)
    opens[1:] = (starts[1:] != ends[:-1]) | cut[1:] | cut[:-1]
    firsts = np.flatnonzero(opens)
    lasts = np.append(firsts[1:], len(filled)) - 1
    pieces: list[pa.RecordBatch] = []
    for start, end, is_cut, region in zip(
        starts[firsts].tolist(), ends[lasts].tolist(), cut[firsts].tolist(), filled[firsts].tolist(), strict=True
    ):
        piece = file.rows.slice(start, end - start)
        if is_cut:
            piece = _cut(piece, wanted)
            counts[region] = piece.num_rows
        pieces.append(piece)
    return pieces


def _cut(rows: pa.RecordBatch, wanted: KeyRange) -> pa.RecordBatch:
    """The rows whose key lies in the range, in their order."""
    keys = rows.column("key")
    keep = _numpy(pc.greater_equal(keys, wanted.start))
    if wanted.end:
        keep &= _numpy(pc.less(keys, wanted.end))
    kept = np.flatnonzero(keep)
    if not len(kept):
        return rows.slice(0, 0)
    first, last = int(kept[0]), int(kept[-1])
    if last - first + 1 == len(kept):
        return rows.slice(first, len(kept))
    return rows.filter(pa.array(keep))


def _joined(pieces: list[pa.RecordBatch], rows: pa.RecordBatch) -> pa.RecordBatch:
    pieces = [piece for piece in pieces if piece.num_rows]
    if not pieces:
        return rows.slice(0, 0)
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _renumbered(
    regions: pa.RecordBatch,
    picked: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> pa.RecordBatch:
    taken = regions.take(pa.array(picked))
    columns = taken.columns
    columns[_OFFSET] = pa.array(offsets.astype(np.uint64))
    columns[_COUNT] = pa.array(counts.astype(np.uint64))
    return pa.RecordBatch.from_arrays(columns, schema=regions.schema)


def _numpy(mask: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    out: npt.NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False)
    return out
