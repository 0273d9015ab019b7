"""Collects runs of rows of a record batch into one, copying each byte once.

One run is a slice and copies nothing. Several are copied run by run: the bytes of a run of binary values lie side by
side, so a run costs one copy per column however many rows it has. When runs are short (rows picked one by one)
Arrow's own `take` is used. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_RUN_ROWS_MIN = 8  # shorter on average: `take`


def gather(rows: pa.RecordBatch, starts: Ints, ends: Ints) -> pa.RecordBatch:
    """The rows of the runs `[starts[i], ends[i])`, one after the other. Runs are not empty."""
    if not len(starts):
        return rows.slice(0, 0)
    if len(starts) == 1:
        return rows.slice(int(starts[0]), int(ends[0] - starts[0]))
    counts = ends - starts
    total = int(counts.sum())
    index = np.arange(total) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    if total < _RUN_ROWS_MIN * len(starts):
        return rows.take(pa.array(index))
    columns = [
        _binary(column, starts, ends, index)
        if column.type == pa.binary()
        else pa.array(column.to_numpy()[index], column.type)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _binary(column: pa.BinaryArray, starts: Ints, ends: Ints, index: Ints) -> pa.BinaryArray:
    if column.null_count == len(column):
        return pa.nulls(len(index), pa.binary())
    validity, bounds, data = column.buffers()
    at = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
    out = np.zeros(len(index) + 1, np.int32)
    np.cumsum(at[index + 1] - at[index], out=out[1:])
    octets = pa.allocate_buffer(int(out[-1]))
    if data is not None:
        _copy(memoryview(data), at[starts], at[ends], memoryview(octets))
    valid, nulls = _valid(validity, index + column.offset) if column.null_count else (None, 0)
    return pa.BinaryArray.from_buffers(pa.binary(), len(index), [valid, pa.py_buffer(out), octets], nulls)


def _valid(validity: pa.Buffer, index: Ints) -> tuple[pa.Buffer, int]:
    """The validity bits at these places, and how many of them are null."""
    there = (np.frombuffer(validity, np.uint8)[index >> 3] >> (index & 7)) & 1
    return pa.py_buffer(np.packbits(there.astype(np.uint8), bitorder="little")), len(index) - int(there.sum())


def _copy(data: memoryview, starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], out: memoryview) -> None:
    to = np.cumsum(ends - starts)
    places = zip((to - (ends - starts)).tolist(), to.tolist(), starts.tolist(), ends.tolist(), strict=True)
    for to_start, to_end, start, end in places:
        out[to_start:to_end] = data[start:end]
