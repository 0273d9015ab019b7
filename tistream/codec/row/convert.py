"""Converts located cells to the values of Arrow columns: one compiled loop per family of types.

Every loop takes (buffer, positions, lengths) of one column, writes one value per row (0 where the cell has no bytes)
and reports bad cells through `fail`. It reads exactly `length` bytes from `position`, which the locating pass has
checked to lie inside the row.
"""

from __future__ import annotations

import numpy as np

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.kernel import Number
from tistream.model.arrays import I32, I64, U8, U64

VECTOR_DIMENSIONS_MAX = 16383
DURATION_NS_MAX = (838 * 3600 + 59 * 60 + 59) * 10**9 + 999_999_999


@kernel
def _load(data: U8, position: I32, length: I32, c: Number, row: Number, fault: I32) -> Number:
    """The cell as an unsigned number of 1, 2, 4 or 8 bytes, 0 where it has no bytes. Another width fails the row."""
    size, at = length[c, row], position[c, row]
    if size == 8:
        return k.little_endian(data, at, 8)
    if size == 4:
        return k.little_endian(data, at, 4)
    if size == 2:
        return np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
    if size == 1:
        return np.uint64(data[at])
    if size >= 0:
        k.fail(fault, length, row, k.INTEGER_WIDTH, c, at)
    return np.uint64(0)


@kernel
def signed(data: U8, position: I32, length: I32, c: Number, low: Number, high: Number, fault: I32, out: I64) -> None:
    """Signed integers between `low` and `high`."""
    for row in range(len(out)):
        value, size = np.uint64(_load(data, position, length, c, row, fault)), length[c, row]
        out[row] = 0
        if size > 0:
            shift = np.uint64(64 - 8 * size)
            out[row] = np.int64(value << shift) >> np.int64(shift)
            if out[row] < low or out[row] > high:
                k.fail(fault, length, row, k.OUT_OF_RANGE, c, position[c, row])


@kernel
def unsigned(
    data: U8, position: I32, length: I32, c: Number, high: Number, cause: Number, fault: I32, out: U64
) -> None:
    """Unsigned integers up to `high`; beyond it the row fails with `cause`."""
    for row in range(len(out)):
        out[row] = _load(data, position, length, c, row, fault)
        if out[row] > high:
            k.fail(fault, length, row, cause, c, position[c, row])


@kernel
def times(data: U8, position: I32, length: I32, c: Number, fault: I32, out: U64) -> None:
    """Packed times. Month and day may be 0 and need not exist in the calendar; clock fields must."""
    for row in range(len(out)):
        value = np.uint64(_load(data, position, length, c, row, fault))
        clock = np.int64(value >> np.uint64(24)) & 0x1FFFF
        year = np.int64(value >> np.uint64(46)) // 13
        micros = np.int64(value & np.uint64(0xFFFFFF))
        if clock >> 12 > 23 or (clock >> 6 & 63) > 59 or (clock & 63) > 59 or micros > 999_999 or year > 9999:
            k.fail(fault, length, row, k.NOT_A_TIME, c, position[c, row])
        out[row] = value


@kernel
def floats(data: U8, position: I32, length: I32, c: Number, fault: I32, out: U64) -> None:
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
def check_vectors(data: U8, position: I32, length: I32, c: Number, fault: I32) -> None:
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
def total_size(length: I32, c: Number) -> Number:
    """Bytes of a column's cells. Cells may share bytes (defaults), so this can exceed the buffer."""
    total = np.int64(0)
    for row in range(length.shape[1]):
        if length[c, row] > 0:
            total += length[c, row]
    return total


@kernel
def gather(data: U8, position: I32, length: I32, c: Number, offsets: I32, out: U8) -> None:
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
def repair_utf8(data: U8, offsets: I32, new_offsets: I64, out: U8) -> Number:
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
