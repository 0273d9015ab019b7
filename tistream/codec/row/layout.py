"""Column specs and row layouts: the row codec's view of a table, and the storage form of each column.

`ColumnSpec` and `RowLayout` are plain hashable values, so anything derived from them can be cached. `schemas.layout`
builds them from a table version; this package does not depend on schemas. `kind_of` folds MySQL's type numbers into the
few kinds that are decoded differently, `storage_type` gives the Arrow type of the storage form.

A column of an unknown type (or one that TiDB cannot store: GEOMETRY, NULL) has the kind UNKNOWN: it
is NULL in the rows that hold no value of it, and a row that holds one fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
VECTOR, JSON, DECIMAL, ENUM, SET = 225, 245, 246, 247, 248
TINYBLOB, MEDIUMBLOB, LONGBLOB, BLOB, VARSTRING, STRING = 249, 250, 251, 252, 253, 254

DECIMAL_DIGITS_MAX, DECIMAL_FRACTION_MAX = 65, 30  # what a stored value may have


class ValueKind(IntEnum):
    """The ways in which a stored value is decoded."""

    SIGNED = 0
    UNSIGNED = 1
    YEAR = 2
    BIT = 3
    ENUM = 4
    SET = 5
    FLOAT = 6
    DOUBLE = 7
    DECIMAL = 8
    TIME = 9  #: DATE, DATETIME, TIMESTAMP
    DURATION = 10  #: TIME
    TEXT = 11
    BINARY = 12
    JSON = 13
    VECTOR = 14
    UNKNOWN = 15  #: a type without a rule: only its NULLs can be decoded


_INTEGERS = {TINY: 8, SHORT: 16, INT24: 32, LONG: 32, LONGLONG: 64}
_STRINGS = frozenset({VARCHAR, VARSTRING, STRING, TINYBLOB, MEDIUMBLOB, LONGBLOB, BLOB})
_OTHERS = {
    YEAR: ValueKind.YEAR,
    BIT: ValueKind.BIT,
    ENUM: ValueKind.ENUM,
    SET: ValueKind.SET,
    FLOAT: ValueKind.FLOAT,
    DOUBLE: ValueKind.DOUBLE,
    DECIMAL: ValueKind.DECIMAL,
    DATE: ValueKind.TIME,
    NEWDATE: ValueKind.TIME,
    DATETIME: ValueKind.TIME,
    TIMESTAMP: ValueKind.TIME,
    TIME: ValueKind.DURATION,
    JSON: ValueKind.JSON,
    VECTOR: ValueKind.VECTOR,
}
_TYPES = {
    ValueKind.YEAR: pa.uint16(),
    ValueKind.BIT: pa.uint64(),
    ValueKind.ENUM: pa.uint64(),
    ValueKind.SET: pa.uint64(),
    ValueKind.FLOAT: pa.float32(),
    ValueKind.DOUBLE: pa.float64(),
    ValueKind.TIME: pa.uint64(),
    ValueKind.DURATION: pa.int64(),
    ValueKind.TEXT: pa.string(),
    ValueKind.BINARY: pa.binary(),
    ValueKind.JSON: pa.string(),
    ValueKind.VECTOR: pa.list_(pa.float32()),
    ValueKind.UNKNOWN: pa.binary(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """One column, for decoding and printing."""

    id: int  #: the number in stored rows
    name: str
    tp: int  #: MySQL type number
    unsigned: bool = False
    not_null: bool = False
    flen: int = -1  #: display length; digits of a DECIMAL, bits of a BIT, bytes of a BINARY
    decimal: int = -1  #: fraction digits; -1 = unspecified
    binary: bool = False  #: the charset is `binary`: bytes, not text
    elems: tuple[str, ...] = ()  #: ENUM and SET labels
    origin_default: object = None  #: value of rows written before the column existed: str, int, float or None
    origin_default_bit: bytes | None = None  #: the same of a BIT column
    zerofill: bool = False  #: numbers are printed with leading zeros
    charset: str = ""  #: of texts, ENUM and SET
    version: int = 0  #: ColumnInfo.version; from 1 on TIMESTAMP defaults are in UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """How the rows of one table version are read."""

    name: str  #: "db.table", for errors
    columns: tuple[ColumnSpec, ...]  #: wanted columns, in output order
    int_handle: int | None = None  #: id of the column that is the integer row key (pk_is_handle)
    common_handle: tuple[int, ...] = ()  #: column ids of the clustered primary key's datums, in index order


def kind_of(column: ColumnSpec) -> ValueKind:
    """How the column's values are decoded; UNKNOWN for a type number without a rule."""
    if column.tp in _INTEGERS:
        return ValueKind.UNSIGNED if column.unsigned else ValueKind.SIGNED
    if column.tp in _STRINGS:
        return ValueKind.BINARY if column.binary else ValueKind.TEXT
    return _OTHERS.get(column.tp, ValueKind.UNKNOWN)


def integer_bits(column: ColumnSpec) -> int:
    """Width of an integer column's storage form."""
    return _INTEGERS[column.tp]


def decimal_shape(column: ColumnSpec) -> tuple[int, int]:
    """Digits and fraction digits of a DECIMAL column's storage form."""
    scale = min(max(column.decimal, 0), DECIMAL_FRACTION_MAX)
    digits = column.flen if 0 < column.flen <= DECIMAL_DIGITS_MAX else DECIMAL_DIGITS_MAX
    return max(digits, scale, 1), scale


def fsp_of(column: ColumnSpec) -> int:
    """Fraction digits of seconds, 0 to 6."""
    return min(max(column.decimal, 0), 6)


def storage_type(column: ColumnSpec) -> pa.DataType:
    """The Arrow type of the column's storage form."""
    kind = kind_of(column)
    if kind in (ValueKind.SIGNED, ValueKind.UNSIGNED):
        return pa.type_for_alias(f"{'u' if kind is ValueKind.UNSIGNED else ''}int{integer_bits(column)}")
    if kind is ValueKind.DECIMAL:
        digits, scale = decimal_shape(column)
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    return _TYPES[kind]


def storage_schema(layout: RowLayout) -> pa.Schema:
    """The schema of a decoded batch."""
    return pa.schema([pa.field(column.name, storage_type(column)) for column in layout.columns])
