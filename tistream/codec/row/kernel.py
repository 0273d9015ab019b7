"""Shared by the compiled loops of this package: the decorator, byte readers and the causes of bad rows.

Every loop stays inside its row: a reader takes the end of the readable bytes and returns a negative next position
instead of reading past it. A loop that finds an error calls `fail`, which keeps the first cause of a row and marks all
its cells as NULL, so that later loops skip it.

The loops take read-only arrays, so each is compiled for one set of types only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tistream.codec.compiled import kernel
from tistream.model.arrays import I32, U8

Number = Any  # a machine integer: int in Python, int64 or uint64 when compiled

MISSING, NULL = -1, -2  # lengths of cells that have no bytes
ABSENT = -3  # a column that the layout does not want

CAUSES = (
    "",
    "the value is empty",
    "the header is longer than the value",
    "unknown row flags",
    "column ids are not ascending",
    "a column ends before it begins or beyond the value",
    "bytes after the last column",
    "the checksum trailer has a wrong size",
    "the checksum version is unknown",
    "the checksum does not match",
    "a broken variable-length integer",
    "a column id is not an integer datum",
    "an unknown datum flag",
    "a datum is longer than the value",
    "the datum does not fit the column's type",
    "not a record key with an integer handle",
    "not a record key with a clustered primary key",
    "the key ends before the column",
    "an integer of an impossible width",
    "out of the column's range",
    "a float of an impossible width",
    "a decimal of an impossible shape",
    "a decimal with impossible digits",
    "not a time",
    "not a label of the column",
    "a broken vector",
    "a broken JSON document",
    "a JSON document nested too deep",
    "a JSON document that refers to its parts more than once",
    "a JSON number that is not finite",
    "the row lacks the column, and the column's origin default cannot be used",
    "a value of a column type that is not known",
    "two columns of the table have one id",
)
(
    _,
    EMPTY,
    SHORT_HEADER,
    UNKNOWN_FLAGS,
    ID_ORDER,
    BAD_END,
    TRAILING_BYTES,
    CHECKSUM_SIZE,
    CHECKSUM_VERSION,
    CHECKSUM,
    BAD_VARINT,
    BAD_COLUMN_ID,
    BAD_FLAG,
    SHORT_DATUM,
    WRONG_DATUM,
    NOT_INT_KEY,
    NOT_COMMON_KEY,
    SHORT_KEY,
    INTEGER_WIDTH,
    OUT_OF_RANGE,
    FLOAT_WIDTH,
    DECIMAL_SHAPE,
    DECIMAL_DIGITS,
    NOT_A_TIME,
    NOT_A_LABEL,
    BAD_VECTOR,
    BAD_JSON,
    DEEP_JSON,
    SHARED_JSON,
    INFINITE_JSON,
    UNUSABLE_DEFAULT,
    UNKNOWN_TYPE,
    SAME_ID,
) = range(len(CAUSES))


@kernel
def fail(fault: I32, length: I32, row: Number, cause: Number, column: Number, at: Number) -> None:
    """Keep the first cause of a bad row: (cause, column index or -1, position in the buffer or -1)."""
    if fault[0, row] == 0:
        fault[0, row] = cause
        fault[1, row] = column
        fault[2, row] = at
    for c in range(length.shape[0]):
        length[c, row] = NULL


@kernel
def little_endian(data: U8, at: Number, size: Number) -> Number:
    """`size` bytes as an unsigned number."""
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return value


@kernel
def big_endian(data: U8, at: Number, size: Number) -> Number:
    """`size` bytes as an unsigned number."""
    value = np.uint64(0)
    for k in range(size):
        value = (value << np.uint64(8)) | np.uint64(data[at + k])
    return value


@kernel
def uvarint(data: U8, at: Number, end: Number) -> tuple[Number, Number]:
    """(value, next position), the latter negative if the bytes end, run over 10 or over 64 bits."""
    value = np.uint64(0)
    for k in range(10):
        if at + k >= end:
            return np.uint64(0), -1
        byte = data[at + k]
        if k == 9 and byte > 1:
            return np.uint64(0), -1
        value |= np.uint64(byte & 0x7F) << np.uint64(7 * k)
        if byte < 0x80:
            return value, at + k + 1
    return np.uint64(0), -1


@kernel
def unzigzag(value: Number) -> Number:
    """The signed number of a zigzag one, as its 64-bit pattern."""
    half = np.uint64(value) >> np.uint64(1)
    if np.uint64(value) & np.uint64(1):
        return ~half
    return half


@kernel
def put_little_endian(out: U8, at: Number, value: Number) -> None:
    """Write 8 bytes."""
    for k in range(8):
        out[at + k] = np.uint8((np.uint64(value) >> np.uint64(8 * k)) & np.uint64(0xFF))


@kernel
def utf8_size(data: U8, at: Number, end: Number) -> Number:
    """Bytes of the UTF-8 character at `at`, or 0 if there is none (overlong, surrogate, cut off, beyond U+10FFFF)."""
    first = data[at]
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return 0
    size = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if at + size > end:
        return 0
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if data[at + 1] < low or data[at + 1] > high:
        return 0
    for k in range(2, size):
        if data[at + k] & 0xC0 != 0x80:
            return 0
    return size
