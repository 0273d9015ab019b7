"""Arrow's variable-length bytes as two plain arrays, for codecs that cut, insert and compare bytes of all rows at once.

    bounds    int64, rows + 1: row i has data[bounds[i]:bounds[i + 1]]; bounds[0] is 0
    data      uint8: the bytes of all rows

A NULL counts as empty bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.model.arrays import U8, Mask

Bounds = npt.NDArray[np.int64]


def flat(array: pa.BinaryArray) -> tuple[Bounds, U8]:
    """(bounds, data) of an array or a slice of one; `data` is a view."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return bounds - bounds[0], np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]


def array_of(bounds: Bounds, data: U8) -> pa.BinaryArray:
    """The opposite of `flat`. OverflowError when the bytes of all rows are 2 GiB or more."""
    if bounds[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{bounds[-1]:,} bytes are too many for one array")
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def kept(bounds: Bounds, data: U8, keep: Mask) -> pa.BinaryArray:
    """The rows without the bytes that the mask (one per byte) leaves out."""
    left = np.concatenate((np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)))
    return array_of(left[bounds], data[keep])
