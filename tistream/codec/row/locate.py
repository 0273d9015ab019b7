"""Locates the bytes of each wanted column in row values (formats v2 and v1).

One pass over all rows fills two matrices of shape (wanted columns, rows): `position`, an index into one buffer, and
`length`, or MISSING (not in the row), NULL. Nothing is converted here. Afterwards every cell with length >= 0 lies
inside its own row, because a position is only ever written together with a length that was checked against the end of
that row; the loops that convert read exactly `length` bytes from `position`.

Format v2 holds each value in the form that the converters read. Format v1 differs for integers and times, which are
variable-length there: those are rewritten as 8 little-endian bytes into a scratch region of the buffer.

Unknown flags, ids out of order and bytes after the last column are damage and refused.
"""

from __future__ import annotations

import numpy as np

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.kernel import Number
from tistream.model.arrays import I32, I64, U8

SMALL_IDS = 256  # ids below have a direct table

# What a datum may hold, one bit a flag, by Kind: integers 3 4 8 9, floats 5, decimal 6, duration 7 or 8, bytes 1 2, ...
_INTEGER = 1 << 3 | 1 << 4 | 1 << 8 | 1 << 9
ACCEPTS = np.array(
    [_INTEGER] * 6
    + [1 << 5] * 2
    + [1 << 6, _INTEGER, 1 << 7 | 1 << 8 | 1 << 3]
    + [1 << 1 | 1 << 2] * 2
    + [1 << 10, 1 << 20]
    + [-1],  # an unknown type: whatever the datum is
    np.int64,
)


@kernel
def wanted(id_: Number, small: I32, ids: I64, columns: I32) -> Number:
    """Index of the wanted column with this id, else ABSENT. `ids` is ascending, `columns` goes with it."""
    if id_ < SMALL_IDS:
        return small[id_] if id_ >= 0 else k.ABSENT
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < id_:
            low = middle + 1
        else:
            high = middle
    return columns[low] if low < len(ids) and ids[low] == id_ else k.ABSENT


@kernel
def _locate_row(
    data: U8,
    start: Number,
    end: Number,
    small: I32,
    ids: I64,
    columns: I32,
    row: Number,
    position: I32,
    length: I32,
) -> tuple[Number, Number, Number]:
    """(cause, where, position of the checksum trailer or -1) of one v2 row."""
    if end - start < 6:
        return k.SHORT_HEADER, start, -1
    flags = data[start + 1]
    if flags & 0xFC:
        return k.UNKNOWN_FLAGS, start + 1, -1
    filled = np.int64(data[start + 2]) | np.int64(data[start + 3]) << 8
    total = filled + (np.int64(data[start + 4]) | np.int64(data[start + 5]) << 8)
    id_size, end_size = (4, 4) if flags & 1 else (1, 2)
    id_at = start + 6
    end_at = id_at + total * id_size
    body = end_at + filled * end_size
    if body > end:
        return k.SHORT_HEADER, start + 2, -1
    previous, last = np.int64(-1), np.int64(0)
    for j in range(total):
        at = id_at + j * id_size
        id_ = np.int64(k.little_endian(data, at, id_size)) if id_size == 4 else np.int64(data[at])
        if j == filled:
            previous = np.int64(-1)
        if id_ <= previous:
            return k.ID_ORDER, at, -1
        previous = id_
        c = wanted(id_, small, ids, columns)
        if j >= filled:
            if c >= 0 and length[c, row] == k.MISSING:
                length[c, row] = k.NULL
            continue
        at = end_at + j * end_size
        if end_size == 4:
            stop = np.int64(k.little_endian(data, at, 4))
        else:
            stop = np.int64(data[at]) | np.int64(data[at + 1]) << 8
        if stop < last or stop > end - body:
            return k.BAD_END, at, -1
        if c >= 0:
            position[c, row] = body + last
            length[c, row] = stop - last
        last = stop
    trailer = body + last
    if not flags & 2:
        return (k.TRAILING_BYTES, trailer, -1) if trailer != end else (0, 0, -1)
    if trailer >= end or end - trailer != (9 if data[trailer] & 8 else 5):
        return k.CHECKSUM_SIZE, trailer, -1
    if data[trailer] & 7 > 2:
        return k.CHECKSUM_VERSION, trailer, -1
    return 0, 0, trailer


@kernel
def locate(
    data: U8,
    offsets: I32,
    present: U8,
    small: I32,
    ids: I64,
    columns: I32,
    position: I32,
    length: I32,
    trailer: I32,
    fault: I32,
) -> tuple[Number, Number]:
    """Locate the columns of v2 rows; v1 rows stay MISSING throughout. Returns (v1 rows, rows with a checksum).

    `offsets` (rows + 1) into `data`, `present` 0 for rows without an image, `length` preset to MISSING, `trailer` gets
    the position of each row's checksum, else -1.
    """
    old, summed = 0, 0
    for row in range(len(offsets) - 1):
        trailer[row] = -1
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if not present[row]:
            for c in range(length.shape[0]):
                length[c, row] = k.NULL
        elif start == end:
            k.fail(fault, length, row, k.EMPTY, -1, start)
        elif data[start] != 0x80:
            old += 1
        else:
            cause, at, sum_at = _locate_row(data, start, end, small, ids, columns, row, position, length)
            if cause:
                k.fail(fault, length, row, cause, -1, at)
            elif sum_at >= 0:
                trailer[row] = sum_at
                summed += 1
    return old, summed


@kernel
def _json_size(data: U8, at: Number, end: Number) -> Number:
    """Bytes of the JSON value at `at`, type byte included; negative if it does not fit."""
    if at >= end:
        return -1
    kind, left, size = data[at], end - at - 1, np.int64(-1)
    if kind == 0x01 or kind == 0x03:
        if left >= 8:
            size = np.int64(k.little_endian(data, at + 5, 4))
    elif kind == 0x04:
        size = np.int64(1)
    elif kind in (0x09, 0x0A, 0x0B, 0x0E, 0x0F, 0x10):
        size = np.int64(8)
    elif kind == 0x11:
        size = np.int64(12)
    elif kind == 0x0C or kind == 0x0D:
        skip = 1 if kind == 0x0D else 0
        count, after = k.uvarint(data, at + 1 + skip, end)
        if after >= 0 and count <= np.uint64(end - after):
            size = np.int64(after) - at - 1 + np.int64(count)
    return size + 1 if 0 <= size <= left else -1


@kernel
def decimal_size(digits: Number, fraction: Number) -> Number:
    """Bytes of MySQL's binary decimal of that shape; negative if there is no such shape."""
    if digits < 1 or digits > 65 or fraction > 30 or fraction > digits:
        return -1
    whole = digits - fraction
    # a partial group of d digits takes (d + 1) // 2 bytes
    return (whole // 9) * 4 + (whole % 9 + 1) // 2 + (fraction // 9) * 4 + (fraction % 9 + 1) // 2


@kernel
def datum_size(data: U8, flag: Number, at: Number, end: Number) -> Number:
    """Bytes of a datum's body after its flag, for the flags that do not depend on the column; negative = broken."""
    left, size = end - at, np.int64(-1)
    if flag == 3 or flag == 4 or flag == 5 or flag == 7:
        size = np.int64(8)
    elif flag == 6:
        if left >= 2:
            body = decimal_size(np.int64(data[at]), np.int64(data[at + 1]))
            size = body + 2 if body >= 0 else np.int64(-1)
    elif flag == 10:
        size = np.int64(_json_size(data, at, end))
    elif flag == 20 and left >= 4:
        size = 4 + 4 * np.int64(k.little_endian(data, at, 4))
    return size if 0 <= size <= left else -1


@kernel
def _locate_old_row(
    data: U8,
    start: Number,
    end: Number,
    tables: tuple[I32, I64, I32, I64],
    scratch: Number,
    row: Number,
    position: I32,
    length: I32,
) -> tuple[Number, Number, Number]:
    """(cause, column, where) of one v1 row. Writes integers to `data[scratch:]`, 8 bytes a wanted column."""
    small, ids, columns, accepts = tables
    if end - start == 1 and data[start] == 0:
        return 0, -1, 0
    at = start
    while at < end:
        if data[at] != 8:
            return k.BAD_COLUMN_ID, -1, at
        raw, after = k.uvarint(data, at + 1, end)
        if after < 0:
            return k.BAD_VARINT, -1, at
        if after >= end:
            return k.SHORT_DATUM, -1, at
        c = wanted(np.int64(k.unzigzag(raw)), small, ids, columns)
        flag = np.int64(data[after])
        body = after + 1
        if flag == 0:
            at = body
            if c >= 0:
                length[c, row] = k.NULL
            continue
        value, size = np.uint64(0), np.int64(-1)
        if flag == 8 or flag == 9 or flag == 2:
            value, after = k.uvarint(data, body, end)
            if after < 0:
                return k.BAD_VARINT, c, body
            size = after - body
            if flag != 9:
                value = k.unzigzag(value)
            if flag == 2:
                if value > np.uint64(end - after):
                    return k.SHORT_DATUM, c, body
                body, size = after, np.int64(value)
        elif flag in (3, 4, 5, 6, 7, 10, 20):
            size = datum_size(data, flag, body, end)
            if size < 0:
                return k.SHORT_DATUM, c, body
            if flag == 3 or flag == 4 or flag == 7:
                value = k.big_endian(data, body, 8)
                if flag != 4:
                    value ^= np.uint64(1) << np.uint64(63)
        else:
            return k.BAD_FLAG, c, body - 1
        if c >= 0:
            if not accepts[c] >> flag & 1:
                return k.WRONG_DATUM, c, body - 1
            if flag in (3, 4, 7, 8, 9):
                k.put_little_endian(data, scratch + 8 * c, value)
                position[c, row], length[c, row] = scratch + 8 * c, 8
            else:
                position[c, row], length[c, row] = body, size
        at = body + size
    return 0, -1, 0


@kernel
def locate_old(
    data: U8,
    offsets: I32,
    present: U8,
    tables: tuple[I32, I64, I32, I64],
    scratch: Number,
    position: I32,
    length: I32,
    fault: I32,
) -> None:
    """Locate the columns of v1 rows. `tables` = small, ids, columns, accepted flags of each wanted column.

    `data` is written from `scratch` on: 8 bytes for each (v1 row, wanted column).
    """
    for row in range(len(offsets) - 1):
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if present[row] and start < end and data[start] != 0x80:
            cause, c, at = _locate_old_row(data, start, end, tables, scratch, row, position, length)
            if cause:
                k.fail(fault, length, row, cause, c, at)
            scratch += 8 * length.shape[0]
