"""The meaning of a constant: each kind of column has one scale on which its values are compared.

integers, YEAR, BIT     whole numbers, exactly; a constant with a fraction equals none of them
DECIMAL                 exactly, with all digits
FLOAT, DOUBLE           as doubles
DATE, DATETIME          'YYYY-MM-DD[ HH:MM[:SS[.ffffff]]]', as stored: zero dates are the smallest
TIMESTAMP               the same in UTC, or with an offset: ...Z, ...+02:00
TIME                    '[-]HHH:MM[:SS[.ffffff]]'
CHAR, VARCHAR, TEXT     by code points: case, accents and trailing spaces count, whatever the collation
BINARY, BLOB            by bytes
ENUM, SET               by label as text ('a,b' of a SET), or by number with a number
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from reading.filters.core.syntax import Literal
from tistream.codec.row.encode import pack_time
from tistream.codec.row.layout import TIMESTAMP, ColumnSpec, ValueKind, kind_of
from tistream.codec.row.text import enum_labels, set_labels

_NUMBER = re.compile(r"[+-]?(?:\d{1,100}(?:\.\d{0,100})?|\.\d{1,100})(?:[eE][+-]?\d{1,3})?")
_MOMENT = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?(Z|[+-]\d{2}:\d{2})?"
)
_SPAN = re.compile(r"(-?)(\d{1,3}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?")
_WHOLE = frozenset({ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.YEAR, ValueKind.BIT})
_LABELLED = frozenset({ValueKind.ENUM, ValueKind.SET})
_NUMBERS = frozenset({*_WHOLE, ValueKind.DECIMAL, ValueKind.FLOAT, ValueKind.DOUBLE})


class Scale(StrEnum):
    """The ways in which values are compared."""

    COUNT = "count"  #: integers and decimals, exactly: the constant is a Decimal
    FLOAT = "float"
    TEXT = "text"
    BYTES = "bytes"


class DoesNotFit(Exception):
    """A constant, or an operator, that does not fit the column; the text says why."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant on the scale of a column."""

    scale: Scale
    value: Decimal | float | str | bytes


def scale_of(spec: ColumnSpec) -> Scale:
    """How the column's values are compared with each other and with texts. DoesNotFit when they are not."""
    match kind_of(spec):
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return Scale.FLOAT
        case ValueKind.TEXT | ValueKind.ENUM | ValueKind.SET:
            return Scale.TEXT
        case ValueKind.BINARY:
            return Scale.BYTES
        case ValueKind.JSON | ValueKind.VECTOR | ValueKind.UNKNOWN:
            raise DoesNotFit(f"column {spec.name} has a type that is not compared; IS [NOT] NULL is possible")
        case _:
            return Scale.COUNT


def on_scale(spec: ColumnSpec, values: pa.Array, scale: Scale) -> pa.Array:
    """A column in storage form as values of a scale."""
    kind = kind_of(spec)
    if scale is Scale.FLOAT:
        # beyond 2^53 to the nearest double, as SQL does; -0.0 becomes 0.0, which is_in tells apart
        return pc.add(values.cast(pa.float64(), safe=False), 0.0)
    if scale is Scale.TEXT and kind in _LABELLED:
        return enum_labels(spec, values) if kind is ValueKind.ENUM else set_labels(spec, values)
    return values


def constant(spec: ColumnSpec, literal: Literal) -> Constant:
    """The constant on the column's scale. DoesNotFit when it has no meaning there. NULL is the caller's."""
    value, kind, scale = literal.value, kind_of(spec), scale_of(spec)
    assert value is not None
    if kind in _LABELLED and not isinstance(value, str):
        return Constant(Scale.COUNT, _number(spec, value))
    match scale:
        case Scale.TEXT | Scale.BYTES:
            return Constant(scale, _chars(spec, scale, value))
        case Scale.FLOAT:
            return Constant(scale, float(_number(spec, value)) + 0.0)
        case _ if kind is ValueKind.TIME:
            return Constant(scale, Decimal(_moment(spec, value)))
        case _ if kind is ValueKind.DURATION:
            return Constant(scale, Decimal(_span(spec, value)))
        case _:
            return Constant(scale, _number(spec, value))


def are_comparable(left: ColumnSpec, right: ColumnSpec) -> bool:
    """Whether two columns may be compared with each other."""
    kinds = {kind_of(left), kind_of(right)}
    if kinds <= _NUMBERS:
        return True
    if ValueKind.TIME in kinds or ValueKind.DURATION in kinds:
        return len(kinds) == 1
    return scale_of(left) is scale_of(right) and Scale.COUNT is not scale_of(left)


def _number(spec: ColumnSpec, value: Decimal | str | bytes) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bytes):
        return Decimal(int.from_bytes(value, "big"))
    if kind_of(spec) is ValueKind.BIT or not _NUMBER.fullmatch(value.strip()):
        raise DoesNotFit(f"column {spec.name} is a number, {value[:40]!r} is not")
    return Decimal(value.strip())


def _chars(spec: ColumnSpec, scale: Scale, value: Decimal | str | bytes) -> str | bytes:
    if isinstance(value, Decimal):
        raise DoesNotFit(f"column {spec.name} is {scale}: put the constant in quotes")
    if isinstance(value, str):
        return value if scale is Scale.TEXT else value.encode()
    if scale is Scale.BYTES:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise DoesNotFit(f"column {spec.name} is text, the bytes are not UTF-8") from e


def _moment(spec: ColumnSpec, value: Decimal | str | bytes) -> int:
    """The packed form of a moment."""
    match = _MOMENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise DoesNotFit(f"column {spec.name} is a date or time: write 'YYYY-MM-DD HH:MM:SS' or a part of it")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    micros, offset = int((match[7] or "").ljust(6, "0")), match[8]
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise DoesNotFit(f"{value!r} is not a date or time")
    if offset is None:
        return pack_time(year, month, day, hour, minute, second, micros)
    if spec.tp != TIMESTAMP:
        raise DoesNotFit(f"column {spec.name} has no time zone: leave out {offset}")
    try:
        sign = -1 if offset[0] == "-" else 1
        shift = timedelta(0) if offset == "Z" else sign * timedelta(hours=int(offset[1:3]), minutes=int(offset[4:]))
        when = datetime(year, month, day, hour, minute, second, micros, timezone(shift)).astimezone(UTC)
    except (ValueError, OverflowError) as e:
        raise DoesNotFit(f"{value!r} is not a date or time") from e
    return pack_time(when.year, when.month, when.day, when.hour, when.minute, when.second, when.microsecond)


def _span(spec: ColumnSpec, value: Decimal | str | bytes) -> int:
    """Nanoseconds of a TIME."""
    match = _SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[3]) > 59 or int(match[4] or 0) > 59:
        raise DoesNotFit(f"column {spec.name} is a TIME: write '[-]HH:MM[:SS]'")
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
    nanos = seconds * 10**9 + int((match[5] or "").ljust(6, "0")) * 1000
    return -nanos if match[1] else nanos
