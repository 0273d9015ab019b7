"""Columns that live in the record key: the integer handle and the clustered primary key.

A column found in the value always wins (prefix keys and collated strings keep their original there), so only cells
without bytes are filled. Datums of a key are rewritten in the form that the converters read, into a region of
the buffer as large as the keys: no datum grows when it is decoded, so row `i` stays in its own part.

Record key: `t`, 8 bytes of table id, `_r`, then 8 bytes (integer handle), or key-form datums padded with zeros to 9.
"""

from __future__ import annotations

import numpy as np

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.kernel import Number
from tistream.codec.row.locate import datum_size
from tistream.model.arrays import I32, I64, U8

PREFIX_SIZE = 11
INT_KEY_SIZE = 19


@kernel
def _is_record_key(keys: U8, start: Number, end: Number) -> Number:
    return end - start > PREFIX_SIZE and keys[start] == 0x74 and keys[start + 9] == 0x5F and keys[start + 10] == 0x72


@kernel
def int_handles(
    keys: U8,
    offsets: I32,
    present: U8,
    column: Number,
    data: U8,
    base: Number,
    position: I32,
    length: I32,
    fault: I32,
) -> None:
    """Give `column` the handle of each row that does not hold the column itself. Writes from `data[base:]`."""
    for row in range(len(offsets) - 1):
        if not present[row] or fault[0, row] or length[column, row] >= 0:
            continue
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if end - start != INT_KEY_SIZE or not _is_record_key(keys, start, end):
            k.fail(fault, length, row, k.NOT_INT_KEY, column, -1)
            continue
        at = base + start - np.int64(offsets[0])
        value = k.big_endian(keys, start + PREFIX_SIZE, 8) ^ (np.uint64(1) << np.uint64(63))
        k.put_little_endian(data, at, value)
        position[column, row], length[column, row] = at, 8


@kernel
def _unpack_bytes(keys: U8, at: Number, end: Number, out: U8, to: Number) -> tuple[Number, Number]:
    """Undo the 8-byte groups of a string. (next position or -1, bytes written)."""
    written = np.int64(0)
    while at + 9 <= end:
        pad = 0xFF - np.int64(keys[at + 8])
        if pad > 8:
            return -1, 0
        for j in range(8):
            if j < 8 - pad:
                out[to + written + j] = keys[at + j]
            elif keys[at + j] != 0:
                return -1, 0
        written += 8 - pad
        at += 9
        if pad:
            return at, written
    return -1, 0


@kernel
def _unpack_datum(keys: U8, at: Number, end: Number, out: U8, to: Number) -> tuple[Number, Number]:
    """Rewrite the key-form datum at `at`. (next position or -1, bytes written)."""
    flag = np.int64(keys[at])
    if flag == 1:
        return _unpack_bytes(keys, at + 1, end, out, to)
    if flag < 3 or flag > 7:
        return -1, 0
    size = datum_size(keys, flag, at + 1, end)
    if size < 0:
        return -1, 0
    if flag == 5 or flag == 6:
        for j in range(size):
            out[to + j] = keys[at + 1 + j]
    else:
        value = k.big_endian(keys, at + 1, 8)
        if flag != 4:
            value ^= np.uint64(1) << np.uint64(63)
        k.put_little_endian(out, to, value)
    return at + 1 + size, size


@kernel
def common_handles(
    keys: U8,
    offsets: I32,
    present: U8,
    columns: I32,
    accepts: I64,
    data: U8,
    base: Number,
    position: I32,
    length: I32,
    fault: I32,
) -> None:
    """Give the columns of the clustered primary key (ABSENT = not wanted) the key's datums, from `data[base:]` on."""
    for row in range(len(offsets) - 1):
        if not present[row] or fault[0, row]:
            continue
        lacking = False
        for c in columns:
            lacking = lacking or (c >= 0 and length[c, row] < 0)
        if not lacking:
            continue
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if not _is_record_key(keys, start, end) or end - start == INT_KEY_SIZE:
            k.fail(fault, length, row, k.NOT_COMMON_KEY, -1, -1)
            continue
        at, to = start + PREFIX_SIZE, base + start - np.int64(offsets[0])
        for c in columns:
            if at >= end or keys[at] == 0:
                if c >= 0 and length[c, row] < 0:
                    k.fail(fault, length, row, k.SHORT_KEY, c, -1)
                    break
                continue
            flag = np.int64(keys[at])
            after, size = _unpack_datum(keys, at, end, data, to)
            if after < 0:
                k.fail(fault, length, row, k.NOT_COMMON_KEY, c, -1)
                break
            if c >= 0 and length[c, row] < 0:
                if not accepts[c] >> flag & 1:
                    k.fail(fault, length, row, k.WRONG_DATUM, c, -1)
                    break
                position[c, row], length[c, row] = to, size
            at, to = after, to + size
