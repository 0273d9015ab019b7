"""Gathers runs of rows of a record batch into one batch, copying each byte at most once.

A single run with at least half of the batch is a slice and copies nothing. A smaller slice would keep the whole batch
in memory as long as one of its rows is held, and no budget would count that. So other runs are copied by compiled
loops run by run, so only offsets and validity are handled per row. For short runs (scattered rows) Arrow's `take` is
used. Pure.

Runs lie inside the batch; the offsets of its binary columns are checked before they are used.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from tistream.codec.compiled import copy_bytes, kernel, view
from tistream.errors import invariant
from tistream.model.arrays import I32, I64, U8

_RUN_ROWS_MIN = 8  # shorter on average: `take`


def gather(rows: pa.RecordBatch, starts: I64, ends: I64) -> pa.RecordBatch:
    """The rows of the runs `[starts[i], ends[i])`, concatenated. Runs are not empty."""
    if not len(starts):
        return _nothing(rows.schema)
    if len(starts) == 1:
        run = rows.slice(int(starts[0]), int(ends[0] - starts[0]))
        if 2 * run.nbytes >= rows.nbytes:
            return run
    counts = ends - starts
    total = int(counts.sum())
    if total < _RUN_ROWS_MIN * len(starts):
        index = np.arange(total) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return rows.take(pa.array(index))
    invariant(int(starts.min()) >= 0 and int(ends.max()) <= rows.num_rows, "a run lies outside its batch")
    gathered = [
        _binary(column, starts, ends, total) if column.type == pa.binary() else _numbers(column, starts, ends, total)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(gathered, schema=rows.schema)


@lru_cache(maxsize=8)
def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _numbers(column: pa.Array, starts: I64, ends: I64, total: int) -> pa.Array:
    width = column.type.byte_width
    out = pa.allocate_buffer(total * width)
    octets = view(column.buffers()[1], np.uint8)
    first = column.offset
    _copy_runs(octets, (starts + first) * width, (ends + first) * width, np.frombuffer(out, np.uint8))
    return pa.Array.from_buffers(column.type, total, [None, out])


def _binary(column: pa.BinaryArray, starts: I64, ends: I64, total: int) -> pa.BinaryArray:
    if column.null_count == len(column):
        return pa.nulls(total, pa.binary())
    validity, bounds, data = column.buffers()
    at = view(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
    octets = view(data, np.uint8)
    first, last = at[starts].astype(np.int64), at[ends].astype(np.int64)
    invariant(
        bool((first >= 0).all() and (first <= last).all() and (last <= len(octets)).all()),
        "offsets point outside their bytes",
    )
    offsets = pa.allocate_buffer(4 * (total + 1))
    _move_offsets(at, starts, ends, np.frombuffer(offsets, np.int32))
    out = pa.allocate_buffer(int((last - first).sum()))
    _copy_runs(octets, first, last, np.frombuffer(out, np.uint8))
    valid, nulls = None, 0
    if column.null_count:
        valid = pa.allocate_buffer((total + 7) // 8)
        bits = np.frombuffer(valid, np.uint8)
        nulls = total - _copy_bits(view(validity, np.uint8), starts + column.offset, ends + column.offset, bits)
    return pa.BinaryArray.from_buffers(pa.binary(), total, [valid, offsets, out], nulls)


@kernel
def _copy_runs(octets: U8, starts: I64, ends: I64, out: U8) -> None:
    to, base = np.uint64(out.ctypes.data), np.uint64(octets.ctypes.data)
    for i in range(len(starts)):
        size = np.uint64(ends[i] - starts[i])
        copy_bytes(to, base + np.uint64(starts[i]), size)
        to += size


@kernel
def _move_offsets(at: I32, starts: I64, ends: I64, out: I32) -> None:
    out[0] = 0
    to = 0
    for i in range(len(starts)):
        shift = out[to] - at[starts[i]]
        for row in range(starts[i], ends[i]):
            to += 1
            out[to] = at[row + 1] + shift


@kernel
def _copy_bits(bits: U8, starts: I64, ends: I64, out: U8) -> int:
    """The bits of the runs, concatenated; the number of set bits."""
    out[:] = 0
    to = count = 0
    for i in range(len(starts)):
        for row in range(starts[i], ends[i]):
            bit = (bits[row >> 3] >> (row & 7)) & 1
            out[to >> 3] |= bit << (to & 7)
            count += bit
            to += 1
    return count
