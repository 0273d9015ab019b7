"""Converts located cells to the values of Arrow columns: one compiled loop per family of types.

Every loop takes (buffer, positions, lengths) of one column, writes one value per row (0 where the cell has no bytes)
and reports bad cells through `fail`. It reads exactly `length` bytes from `position`, which the locating pass has
checked to lie inside the row.
"""

from __future__ import annotations

import numpy as np

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.kernel import Bytes, Int32s, Int64s, Number, Uint64s

VECTOR_DIMENSIONS_MAX = 16383
DURATION_NS_MAX = (838 * 3600 + 59 * 60 + 59) * 10**9 + 999_999_999


@kernel
def _load(data: Bytes, at: Number, size: Number) -> Number:
    """An unsigned number of 1, 2, 4 or 8 bytes."""
    if size == 8:
        return k.little_endian(data, at, 8)
    if size == 4:
        return k.little_endian(data, at, 4)
    if size == 2:
        return np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
    return np.uint64(data[at])


@kernel
def signed(
    data: Bytes, position: Int32s, length: Int32s, c: Number, low: Number, high: Number, fault: Int32s, out: Int64s
) -> None:
    """Signed integers between `low` and `high`."""
    for row in range(len(out)):
        size = length[c, row]
        if size < 0:
            out[row] = 0
            continue
        at = position[c, row]
        if size != 1 and size != 2 and size != 4 and size != 8:
            k.fail(fault, length, row, k.INTEGER_WIDTH, c, at)
            continue
        shift = np.uint64(64 - 8 * size)
        value = np.int64(np.uint64(_load(data, at, size)) << shift) >> np.int64(shift)
        if value < low or value > high:
            k.fail(fault, length, row, k.OUT_OF_RANGE, c, at)
            continue
        out[row] = value


@kernel
def unsigned(
    data: Bytes, position: Int32s, length: Int32s, c: Number, high: Number, cause: Number, fault: Int32s, out: Uint64s
) -> None:
    """Unsigned integers up to `high`; beyond it the row fails with `cause`."""
    for row in range(len(out)):
        size = length[c, row]
        if size < 0:
            out[row] = 0
            continue
        at = position[c, row]
        if size != 1 and size != 2 and size != 4 and size != 8:
            k.fail(fault, length, row, k.INTEGER_WIDTH, c, at)
            continue
        value = np.uint64(_load(data, at, size))
        if value > high:
            k.fail(fault, length, row, cause, c, at)
            continue
        out[row] = value


@kernel
def times(data: Bytes, position: Int32s, length: Int32s, c: Number, fault: Int32s, out: Uint64s) -> None:
    """Packed times. Month and day may be 0 and need not exist in the calendar; clock fields must."""
    for row in range(len(out)):
        size = length[c, row]
        if size < 0:
            out[row] = 0
            continue
        at = position[c, row]
        if size != 1 and size != 2 and size != 4 and size != 8:
            k.fail(fault, length, row, k.INTEGER_WIDTH, c, at)
            continue
        value = np.uint64(_load(data, at, size))
        clock = np.int64(value >> np.uint64(24)) & 0x1FFFF
        year = np.int64(value >> np.uint64(46)) // 13
        micros = np.int64(value & np.uint64(0xFFFFFF))
        if clock >> 12 > 23 or (clock >> 6 & 63) > 59 or (clock & 63) > 59 or micros > 999_999 or year > 9999:
            k.fail(fault, length, row, k.NOT_A_TIME, c, at)
            continue
        out[row] = value


@kernel
def floats(data: Bytes, position: Int32s, length: Int32s, c: Number, fault: Int32s, out: Uint64s) -> None:
    """The bits of doubles, from their order-preserving form."""
    top = np.uint64(1) << np.uint64(63)
    for row in range(len(out)):
        size = length[c, row]
        if size < 0:
            out[row] = 0
            continue
        at = position[c, row]
        if size != 8:
            k.fail(fault, length, row, k.FLOAT_WIDTH, c, at)
            continue
        bits = np.uint64(k.big_endian(data, at, 8))
        out[row] = bits ^ top if bits & top else ~bits


@kernel
def check_vectors(data: Bytes, position: Int32s, length: Int32s, c: Number, fault: Int32s) -> None:
    """Turn the cells of a vector column into those of its numbers: 4 bytes each, without the count."""
    for row in range(length.shape[1]):
        size = np.int64(length[c, row])
        if size < 0:
            continue
        at = position[c, row]
        count = size // 4 - 1
        proper = size >= 4 and size % 4 == 0 and count <= VECTOR_DIMENSIONS_MAX
        if not proper or np.int64(k.little_endian(data, at, 4)) != count:
            k.fail(fault, length, row, k.BAD_VECTOR, c, at)
        else:
            position[c, row] = at + 4
            length[c, row] = size - 4


@kernel
def total_size(length: Int32s, c: Number) -> Number:
    """Bytes of a column's cells. Cells may share bytes (defaults), so this can exceed the buffer."""
    total = np.int64(0)
    for row in range(length.shape[1]):
        if length[c, row] > 0:
            total += length[c, row]
    return total


@kernel
def gather(data: Bytes, position: Int32s, length: Int32s, c: Number, offsets: Int32s, out: Bytes) -> None:
    """Copy the cells of a column one after the other; `offsets` (rows + 1) says where each begins."""
    to = np.int64(0)
    for row in range(length.shape[1]):
        offsets[row] = to
        size = np.int64(length[c, row])
        if size > 0:
            at = np.int64(position[c, row])
            for j in range(size):
                out[to + j] = data[at + j]
            to += size
    offsets[length.shape[1]] = to


@kernel
def repair_utf8(data: Bytes, offsets: Int32s, new_offsets: Int64s, out: Bytes) -> Number:
    """Copy strings with U+FFFD (3 bytes) for each byte that is not part of a UTF-8 character. Returns bytes written.

    `out` holds three bytes for each byte of `data`.
    """
    to = np.int64(0)
    for row in range(len(offsets) - 1):
        new_offsets[row] = to
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        while at < end:
            size = k.utf8_size(data, at, end)
            if size == 0:
                out[to], out[to + 1], out[to + 2] = 0xEF, 0xBF, 0xBD
                to += 3
                at += 1
            else:
                for j in range(size):
                    out[to + j] = data[at + j]
                to += size
                at += size
    new_offsets[len(offsets) - 1] = to
    return to
