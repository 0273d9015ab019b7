"""Renders storage columns as text: MySQL's, and the variants of output formats.

Times and decimals have the column's fraction digits, TIMESTAMP is in UTC, zero and invalid dates are printed as they
are. FLOAT and DOUBLE have the fewest digits that read back as the same number (of 32 and 64 bits), with an exponent
below 1e-15 and from 1e15 on. (TiDB cuts a FLOAT that it prints with an exponent to six digits; here none are lost.)
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.compiled import kernel, view
from tistream.codec.row.columns import mask_of, strings
from tistream.codec.row.convert import repair_utf8
from tistream.codec.row.decimals import write_decimals
from tistream.codec.row.glyphs import MYSQL, PLAIN, float_chars, write_durations, write_times
from tistream.codec.row.layout import DATE, NEWDATE, ColumnSpec, ValueKind, decimal_shape, fsp_of, kind_of, storage_type
from tistream.errors import InvalidInput
from tistream.model.arrays import I64, U8

_TIME_CHARS_MAX = 32
_DECIMAL_CHARS_MAX = 84


def text(column: ColumnSpec, values: pa.Array) -> pa.StringArray:
    """One string a value, NULL for NULL. ENUM gives its label, SET its labels joined by commas, BIT a decimal number.

    Raises InvalidInput if `values` is not in the column's storage form.
    """
    values = _checked(column, values)
    match kind_of(column):
        case ValueKind.TEXT | ValueKind.JSON:
            return values
        case ValueKind.SIGNED | ValueKind.UNSIGNED | ValueKind.BIT:
            return values.cast(pa.string())
        case ValueKind.YEAR:
            return pc.utf8_lpad(values.cast(pa.string()), 4, "0")
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return _floats(values, MYSQL)
        case ValueKind.DECIMAL:
            return _decimals(column, values)
        case ValueKind.TIME:
            packed, valid = numbers(values, np.uint64)
            offsets, out = _room(len(values), _TIME_CHARS_MAX)
            write_times(packed, column.tp in (DATE, NEWDATE), fsp_of(column), offsets, out)
            return strings(offsets, out, valid, column.name)
        case ValueKind.DURATION:
            nanos, valid = numbers(values, np.int64)
            offsets, out = _room(len(values), _TIME_CHARS_MAX)
            write_durations(nanos, fsp_of(column), offsets, out)
            return strings(offsets, out, valid, column.name)
        case ValueKind.ENUM:
            return enum_labels(column, values)
        case ValueKind.SET:
            return set_labels(column, values)
        case ValueKind.VECTOR:
            return _vectors(column, values)
        case ValueKind.BINARY:
            return binary_as_text(column, values)
        case ValueKind.UNKNOWN:
            return pa.nulls(len(values), pa.string())


def float_plain(values: pa.Array, single: bool) -> pa.StringArray:
    """Floats with the fewest digits and never an exponent; `single` rounds to 32 bits first."""
    return _floats(values.cast(pa.float32() if single else pa.float64(), safe=False), PLAIN)


def enum_labels(column: ColumnSpec, values: pa.Array) -> pa.StringArray:
    """Labels of ENUM indexes; "" for 0, the value of a failed insert."""
    indexes, valid = numbers(values, np.uint64)
    labels = pa.array(["", *column.elems], pa.string())
    return labels.take(pa.array(_within(column, indexes, valid, len(labels)), mask=~valid))


def set_labels(column: ColumnSpec, values: pa.Array) -> pa.StringArray:
    """Labels of SET bitmasks in the order of their definition, joined by commas."""
    masks, valid = numbers(values, np.uint64)
    different, index = np.unique(np.where(valid, masks, np.uint64(0)), return_inverse=True)
    names = [",".join(members(column, mask)) for mask in different.tolist()]
    return pa.array(names, pa.string()).take(pa.array(index.astype(np.int64), mask=~valid))


def members(column: ColumnSpec, mask: int) -> list[str]:
    """The labels of one SET value. Raises InvalidInput for a bit without a label."""
    if mask >> len(column.elems):
        raise InvalidInput("a set bit without a label", column=column.name, value=mask)
    return [label for bit, label in enumerate(column.elems) if mask >> bit & 1]


def bit_bytes(column: ColumnSpec, values: pa.Array) -> pa.BinaryArray:
    """BIT(n) values as (n + 7) // 8 bytes, big-endian."""
    size = (min(max(column.flen, 1), 64) + 7) // 8
    bits, valid = numbers(values, np.uint64)
    parts = bits.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - size :]
    buffers = [mask_of(valid), pa.py_buffer(np.ascontiguousarray(parts))]
    return pa.Array.from_buffers(pa.binary(size), len(values), buffers).cast(pa.binary())


def binary_as_text(column: ColumnSpec, values: pa.Array) -> pa.StringArray:
    """Bytes read as UTF-8, with U+FFFD for each byte that is not part of a character."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        offsets = view(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        data = view(values.buffers()[2], np.uint8)
        new_offsets, out = _room(len(values), 0)[0], np.empty(3 * int(offsets[-1] - offsets[0]), np.uint8)
        repair_utf8(data, offsets, new_offsets, out)
        return strings(new_offsets, out, _valid(values), column.name)


Scalar = TypeVar("Scalar", bound=np.generic)


def numbers(values: pa.Array, dtype: type[Scalar]) -> tuple[npt.NDArray[Scalar], npt.NDArray[np.bool_]]:
    """(values, validity) of a fixed-width array of `dtype`; values at NULLs are arbitrary."""
    if len(values) == 0:
        return np.empty(0, dtype), np.empty(0, np.bool_)
    whole = view(values.buffers()[1], dtype)
    return whole[values.offset : values.offset + len(values)], _valid(values)


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return valid


def _checked(column: ColumnSpec, values: pa.Array) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.type != storage_type(column):
        raise InvalidInput("not the storage form of the column", column=column.name, type=str(values.type))
    return values


def _within(
    column: ColumnSpec, indexes: npt.NDArray[np.uint64], valid: npt.NDArray[np.bool_], count: int
) -> npt.NDArray[np.int64]:
    kept = np.where(valid, indexes, np.uint64(0))
    if (kept >= np.uint64(count)).any():
        raise InvalidInput("an enum index without a label", column=column.name, value=int(kept.max()))
    return kept.astype(np.int64)


def _room(rows: int, chars: int) -> tuple[I64, U8]:
    return np.empty(rows + 1, np.int64), np.empty(rows * chars, np.uint8)


def _floats(values: pa.Array, style: int) -> pa.StringArray:
    offsets, out = float_chars(values, style)
    return strings(offsets, out, _valid(values), "")


def _decimals(column: ColumnSpec, values: pa.Array) -> pa.StringArray:
    digits, scale = decimal_shape(column)
    size = 2 if digits <= 38 else 4
    offsets, out = _room(len(values), _DECIMAL_CHARS_MAX)
    words = np.empty((0, size), np.uint64)
    if len(values):
        whole = view(values.buffers()[1], np.uint64).reshape(-1, size)
        words = whole[values.offset : values.offset + len(values)]
    write_decimals(words, scale, offsets, out)
    return strings(offsets, out, _valid(values), column.name)


@kernel
def _join(ends: I64, lists: I64, chars: U8, offsets: I64, out: U8) -> None:
    """Put brackets and commas around the characters of each list's numbers."""
    to = 0
    for row in range(len(lists) - 1):
        offsets[row] = to
        out[to] = 91
        to += 1
        for item in range(lists[row], lists[row + 1]):
            if item > lists[row]:
                out[to] = 44
                to += 1
            for j in range(ends[item], ends[item + 1]):
                out[to] = chars[j]
                to += 1
        out[to] = 93
        to += 1
    offsets[len(lists) - 1] = to


def _vectors(column: ColumnSpec, values: pa.Array) -> pa.StringArray:
    """[1,2.5]: fewest digits of a float32, never an exponent."""
    flat = values.flatten()
    lists = np.zeros(len(values) + 1, np.int64)
    np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(), out=lists[1:])
    ends, chars = float_chars(flat, PLAIN)
    offsets = np.empty(len(values) + 1, np.int64)
    out = np.empty(int(ends[-1]) + len(flat) + 2 * len(values), np.uint8)
    _join(ends, lists, chars, offsets, out)
    return strings(offsets, out, _valid(values), column.name)
