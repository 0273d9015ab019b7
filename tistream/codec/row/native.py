"""Converts storage columns to Arrow's native types. Lossy only where docs/types.md says so.

DATE                date32            a zero or impossible date becomes NULL
DATETIME            timestamp[us]     the same
TIMESTAMP           timestamp[us, UTC] the same
TIME                duration[us]
ENUM                dictionary<int32, string>, "" for the value of a failed insert
SET                 list<string>
everything else     as stored
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.row.columns import mask_of
from tistream.codec.row.layout import DATE, NEWDATE, TIMESTAMP, ColumnSpec, ValueKind, kind_of, storage_type
from tistream.codec.row.text import enum_labels, members, numbers
from tistream.errors import InvalidInput

_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_LABELS = pa.dictionary(pa.int32(), pa.string())


def native_type(column: ColumnSpec) -> pa.DataType:
    """The Arrow type that `native` gives."""
    match kind_of(column):
        case ValueKind.TIME:
            if column.tp in (DATE, NEWDATE):
                return pa.date32()
            return pa.timestamp("us", "UTC" if column.tp == TIMESTAMP else None)
        case ValueKind.DURATION:
            return pa.duration("us")
        case ValueKind.ENUM:
            return _LABELS
        case ValueKind.SET:
            return pa.list_(pa.string())
        case _:
            return storage_type(column)


def native(column: ColumnSpec, values: pa.Array) -> pa.Array:
    """Convert a column in storage form. Raises InvalidInput if it is not in that form."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.type != storage_type(column):
        raise InvalidInput("not the storage form of the column", column=column.name, type=str(values.type))
    match kind_of(column):
        case ValueKind.TIME:
            return _times(column, values)
        case ValueKind.DURATION:
            nanos, valid = numbers(values, np.int64)
            # towards zero, as fractions are cut when a TIME is printed
            micros = np.sign(nanos) * (np.abs(nanos) // 1000)
            return _array(native_type(column), micros, valid)
        case ValueKind.ENUM:
            enum_labels(column, values)  # refuses indexes without a label
            indexes, valid = numbers(values, np.uint64)
            places = pa.array(np.where(valid, indexes, np.uint64(0)).astype(np.int32), mask=~valid)
            return pa.DictionaryArray.from_arrays(places, pa.array(["", *column.elems], pa.string()))
        case ValueKind.SET:
            masks, valid = numbers(values, np.uint64)
            different, index = np.unique(np.where(valid, masks, np.uint64(0)), return_inverse=True)
            lists = pa.array([members(column, mask) for mask in different.tolist()], native_type(column))
            return lists.take(pa.array(index.astype(np.int64), mask=~valid))
        case _:
            return values


def _array(type_: pa.DataType, values: npt.NDArray[np.generic], valid: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [mask_of(valid), pa.py_buffer(np.ascontiguousarray(values))])


def _times(column: ColumnSpec, values: pa.Array) -> pa.Array:
    packed, valid = numbers(values, np.uint64)
    months = (packed >> np.uint64(46)).astype(np.int64)
    year, month = months // 13, months % 13
    day = (packed >> np.uint64(41)).astype(np.int64) & 31
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    valid = valid & (year >= 1) & (month >= 1) & (day >= 1) & (day <= _MONTH_DAYS[month] + (leap & (month == 2)))
    days = np.where(valid, _days(year, month, day), 0)
    if column.tp in (DATE, NEWDATE):
        return _array(pa.date32(), days.astype(np.int32), valid)
    clock = (packed >> np.uint64(24)).astype(np.int64) & 0x1FFFF
    seconds = days * 86400 + (clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
    micros = seconds * 1_000_000 + (packed & np.uint64(0xFFFFFF)).astype(np.int64)
    return _array(native_type(column), np.where(valid, micros, 0), valid)


def _days(
    year: npt.NDArray[np.int64], month: npt.NDArray[np.int64], day: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Days since 1970-01-01, counting years from March so that the leap day comes last."""
    shifted = year - (month <= 2)
    of_year = (153 * np.where(month > 2, month - 3, month + 9) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + of_year - 719468
