"""Collects runs of rows of a record batch into one, copying each byte once.

One run is a slice and copies nothing. Several are copied run by run, column by column: the values of a run lie side by
side, so a run costs one copy per column however many rows it has, and nothing is computed per row. When runs are short
(rows picked one by one) Arrow's own `take` is used. Pure.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
_Runs = list[slice]
_T = TypeVar("_T", bound=np.generic)

_RUN_ROWS_MIN = 8  # shorter on average: `take`


def gather(rows: pa.RecordBatch, starts: Ints, ends: Ints) -> pa.RecordBatch:
    """The rows of the runs `[starts[i], ends[i])`, one after the other. Runs are not empty."""
    if not len(starts):
        return rows.slice(0, 0)
    if len(starts) == 1:
        return rows.slice(int(starts[0]), int(ends[0] - starts[0]))
    counts = ends - starts
    total = int(counts.sum())
    if total < _RUN_ROWS_MIN * len(starts):
        index = np.arange(total) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return rows.take(pa.array(index))
    runs = _runs(starts, ends)
    columns = [
        _binary(column, starts, ends, runs)
        if column.type == pa.binary()
        else pa.array(_joined(column.to_numpy(), runs), column.type)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _binary(column: pa.BinaryArray, starts: Ints, ends: Ints, runs: _Runs) -> pa.BinaryArray:
    counts = ends - starts
    total = int(counts.sum())
    if column.null_count == len(column):
        return pa.nulls(total, pa.binary())
    validity, bounds, data = column.buffers()
    at = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
    first, last = at[starts], at[ends]
    sizes = last - first
    out = np.zeros(total + 1, np.int32)
    np.concatenate([at[1:][run] for run in runs], out=out[1:])
    out[1:] += np.repeat((np.cumsum(sizes) - sizes - first).astype(np.int32), counts)
    octets = pa.allocate_buffer(int(out[-1]))
    if data is not None:
        whole = np.frombuffer(data, np.uint8)
        np.concatenate([whole[run] for run in _runs(first, last)], out=np.frombuffer(octets, np.uint8))
    valid, nulls = _valid(validity, column.offset, len(column), runs) if column.null_count else (None, 0)
    return pa.BinaryArray.from_buffers(pa.binary(), total, [valid, pa.py_buffer(out), octets], nulls)


def _valid(validity: pa.Buffer, offset: int, length: int, runs: _Runs) -> tuple[pa.Buffer, int]:
    """The validity bits of the runs, and how many of them are null."""
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=offset + length, bitorder="little")[offset:]
    there = _joined(bits, runs)
    return pa.py_buffer(np.packbits(there, bitorder="little")), len(there) - int(there.sum())


def _joined(values: npt.NDArray[_T], runs: _Runs) -> npt.NDArray[_T]:
    return np.concatenate([values[run] for run in runs])


def _runs(
    starts: npt.NDArray[np.int64] | npt.NDArray[np.int32], ends: npt.NDArray[np.int64] | npt.NDArray[np.int32]
) -> _Runs:
    return [slice(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
