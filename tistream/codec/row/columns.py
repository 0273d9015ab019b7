"""Converts one located column to an Arrow array in storage form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.row import convert, kernel
from tistream.codec.row.decimals import decimals, limbs_of
from tistream.codec.row.jsontext import json_text
from tistream.codec.row.layout import (
    DATE,
    NEWDATE,
    ColumnSpec,
    ValueKind,
    decimal_shape,
    fsp_of,
    integer_bits,
    kind_of,
    storage_type,
)
from tistream.errors import InvalidInput
from tistream.model.arrays import I32, I64, U8, U64

BUFFER_BYTES_MAX = (1 << 31) - 1  # offsets of Arrow's binary arrays are 32 bits
YEAR_MAX = 2155
ALL_BITS = (1 << 64) - 1
_TIME_OF_DAY, _MICROSECONDS = (1 << 41) - 1, (1 << 24) - 1  # of a packed time


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Where every cell of a batch is. Converters write `length` and `fault` of rows that turn out bad."""

    data: U8
    position: I32  #: (columns, rows)
    length: I32  #: (columns, rows); negative = NULL
    fault: I32  #: (3, rows): cause, column, position


def column_of(column: ColumnSpec, cells: Cells, c: int) -> pa.Array:
    """The c-th column. Bad cells are reported in `cells.fault`; their rows are NULL from then on."""
    match kind_of(column):
        case ValueKind.SIGNED:
            bits = integer_bits(column)
            signed = np.empty(cells.length.shape[1], np.int64)
            low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
            if column.tp == 9:  # MEDIUMINT
                low, high = -(1 << 23), (1 << 23) - 1
            convert.signed(cells.data, cells.position, cells.length, c, low, high, cells.fault, signed)
            return _fixed(column, cells, c, signed.astype(f"i{bits // 8}"))
        case ValueKind.UNSIGNED:
            bits = integer_bits(column)
            values = _unsigned(cells, c, (1 << (24 if column.tp == 9 else bits)) - 1, kernel.OUT_OF_RANGE)
            return _fixed(column, cells, c, values.astype(f"u{bits // 8}"))
        case ValueKind.YEAR:
            return _fixed(column, cells, c, _unsigned(cells, c, YEAR_MAX, kernel.OUT_OF_RANGE).astype(np.uint16))
        case ValueKind.BIT:
            high = (1 << column.flen) - 1 if 0 < column.flen < 64 else ALL_BITS
            return _fixed(column, cells, c, _unsigned(cells, c, high, kernel.OUT_OF_RANGE))
        case ValueKind.ENUM:
            return _fixed(column, cells, c, _unsigned(cells, c, len(column.elems), kernel.NOT_A_LABEL))
        case ValueKind.SET:
            high = (1 << min(len(column.elems), 64)) - 1
            return _fixed(column, cells, c, _unsigned(cells, c, high, kernel.NOT_A_LABEL))
        case ValueKind.TIME:
            packed = np.empty(cells.length.shape[1], np.uint64)
            convert.times(cells.data, cells.position, cells.length, c, cells.fault, packed)
            return _fixed(column, cells, c, _shown_time(column, packed))
        case ValueKind.DURATION:
            nanos = np.empty(cells.length.shape[1], np.int64)
            bound = convert.DURATION_NS_MAX
            convert.signed(cells.data, cells.position, cells.length, c, -bound, bound, cells.fault, nanos)
            return _fixed(column, cells, c, nanos - np.fmod(nanos, 10 ** (9 - fsp_of(column))))
        case ValueKind.FLOAT | ValueKind.DOUBLE as kind:
            bits_of = np.empty(cells.length.shape[1], np.uint64)
            convert.floats(cells.data, cells.position, cells.length, c, cells.fault, bits_of)
            doubles = bits_of.view(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                return _fixed(column, cells, c, doubles.astype(np.float32) if kind is ValueKind.FLOAT else doubles)
        case ValueKind.DECIMAL:
            digits, scale = decimal_shape(column)
            words = np.empty((cells.length.shape[1], 2 if digits <= 38 else 4), np.uint64)
            bound_of = limbs_of(10**digits)
            decimals(cells.data, cells.position, cells.length, c, scale, bound_of, cells.fault, words)
            return _fixed(column, cells, c, words)
        case ValueKind.VECTOR:
            convert.check_vectors(cells.data, cells.position, cells.length, c, cells.fault)
            offsets, numbers = _gathered(column, cells, c)
            child = pa.Array.from_buffers(pa.float32(), len(numbers) // 4, [None, pa.py_buffer(numbers)])
            buffers = [_mask(cells, c), pa.py_buffer(offsets // 4)]
            return pa.Array.from_buffers(storage_type(column), cells.length.shape[1], buffers, children=[child])
        case ValueKind.JSON:
            stored = int(convert.total_size(cells.length, c))
            long_offsets, chars = json_text(cells.data, cells.position, cells.length, c, stored, cells.fault)
            return strings(long_offsets, chars, cells.length[c] >= 0, column.name)
        case ValueKind.TEXT:
            return _text(column, cells, c)
        case ValueKind.UNKNOWN:
            refuse(cells.fault, cells.length, np.flatnonzero(cells.length[c] >= 0), kernel.UNKNOWN_TYPE, c)
            return pa.nulls(cells.length.shape[1], storage_type(column))
        case ValueKind.BINARY:
            offsets, copied = _gathered(column, cells, c)
            buffers = [_mask(cells, c), pa.py_buffer(offsets), pa.py_buffer(copied)]
            return pa.Array.from_buffers(pa.binary(), cells.length.shape[1], buffers)


def refuse(fault: I32, length: I32, rows: npt.NDArray[np.intp], cause: int, column: int) -> None:
    """Fail these rows for a reason without a position."""
    first = rows[fault[0, rows] == 0]
    fault[:, first] = np.array([[cause], [column], [-1]], np.int32)
    length[:, rows] = kernel.NULL


def _unsigned(cells: Cells, c: int, high: int, cause: int) -> U64:
    values = np.empty(cells.length.shape[1], np.uint64)
    convert.unsigned(cells.data, cells.position, cells.length, c, np.uint64(high), cause, cells.fault, values)
    return values


def _gathered(column: ColumnSpec, cells: Cells, c: int) -> tuple[I32, U8]:
    total = int(convert.total_size(cells.length, c))
    if total > BUFFER_BYTES_MAX:
        raise InvalidInput("too many bytes in one column of a batch", column=column.name, bytes=total)
    offsets, out = np.empty(cells.length.shape[1] + 1, np.int32), np.empty(total, np.uint8)
    convert.gather(cells.data, cells.position, cells.length, c, offsets, out)
    return offsets, out


def _text(column: ColumnSpec, cells: Cells, c: int) -> pa.Array:
    rows = cells.length.shape[1]
    offsets, copied = _gathered(column, cells, c)
    buffers = [_mask(cells, c), pa.py_buffer(offsets), pa.py_buffer(copied)]
    try:
        return pa.Array.from_buffers(pa.binary(), rows, buffers).cast(pa.string())
    except pa.ArrowInvalid:  # some row is not UTF-8
        new_offsets, out = np.empty(rows + 1, np.int64), np.empty(3 * len(copied), np.uint8)
        convert.repair_utf8(copied, offsets, new_offsets, out)
        return strings(new_offsets, out, cells.length[c] >= 0, column.name)


def _shown_time(column: ColumnSpec, packed: U64) -> U64:
    """Without what the column's type cannot show: TiDB stored the time of day in a DATE whose default was the current
    date (7.1 to 8.1)."""
    if column.tp in (DATE, NEWDATE):
        return packed & ~np.uint64(_TIME_OF_DAY)
    dropped = 10 ** (6 - fsp_of(column))
    return packed if dropped == 1 else packed - (packed & np.uint64(_MICROSECONDS)) % np.uint64(dropped)


def _fixed(column: ColumnSpec, cells: Cells, c: int, values: npt.NDArray[np.generic]) -> pa.Array:
    return pa.Array.from_buffers(storage_type(column), cells.length.shape[1], [_mask(cells, c), pa.py_buffer(values)])


def _mask(cells: Cells, c: int) -> pa.Buffer | None:
    return mask_of(cells.length[c] >= 0)


def mask_of(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's validity bitmap; None when nothing is NULL."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def strings(offsets: I64, chars: U8, valid: npt.NDArray[np.bool_], name: str) -> pa.Array:
    """A string array of characters known to be UTF-8. `chars` may be longer than what the offsets cover."""
    total = int(offsets[-1])
    if total > BUFFER_BYTES_MAX:
        raise InvalidInput("too many characters in one column of a batch", column=name, bytes=total)
    kept = chars[:total] if len(chars) <= 2 * total else chars[:total].copy()
    buffers = [mask_of(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(kept)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
