"""The value of a column in rows that were written before the column existed.

It is in the form of a v2 row, so it decodes like any other cell. `origin_default` is frozen when the column is added;
the current default does not matter. Without one the value is NULL, or the type's zero value for NOT NULL columns: 0,
"", the first ENUM member, the zero time, JSON null.

TiDB keeps the value as a text and casts it to the column's type whenever it reads a row that lacks the column, so the
rules here are those of that cast, not those of printing: a YEAR of two digits is completed, the trailing spaces of a
CHAR are cut, JSON is parsed, numbers are rounded to the column's fraction digits.
"""

from __future__ import annotations

import json
import math
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from tistream.codec.row.encode import binary_decimal, binary_json, ordered_float, pack_time
from tistream.codec.row.layout import STRING, ColumnSpec, ValueKind, decimal_shape, kind_of
from tistream.errors import InvalidInput

_EXACT = Context(prec=100)
_TIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?)?", re.ASCII)
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?", re.ASCII)
_INTEGER_DIGITS_MAX = 20
_YEARS = range(1901, 2156)


def stored_default(column: ColumnSpec) -> bytes | None:
    """None stands for NULL. Raises InvalidInput if the default cannot be cast to the column's type."""
    value = column.origin_default
    kind = kind_of(column)
    if kind is ValueKind.BIT and column.origin_default_bit is not None:
        value = column.origin_default_bit
    try:
        if value is None:
            return _zero(column, kind) if column.not_null else None
        return _encode(column, kind, value)
    except (ValueError, ArithmeticError, RecursionError, struct.error) as error:
        raise InvalidInput("an origin default that does not fit its column", column=column.name, value=value) from error


def _zero(column: ColumnSpec, kind: ValueKind) -> bytes:
    if kind is ValueKind.TEXT:
        return b""
    if kind is ValueKind.BINARY:
        return _padded(column, b"")
    if kind is ValueKind.JSON:
        return binary_json(None)
    if kind is ValueKind.VECTOR:
        return bytes(4)
    if kind is ValueKind.ENUM:
        return (1 if column.elems else 0).to_bytes(8, "little")
    if kind in (ValueKind.FLOAT, ValueKind.DOUBLE, ValueKind.DECIMAL, ValueKind.UNKNOWN):
        return _encode(column, kind, 0)
    return bytes(8)


def _encode(column: ColumnSpec, kind: ValueKind, value: object) -> bytes:
    shown = str(value)
    match kind:
        case ValueKind.TEXT:
            return (shown.rstrip(" ") if column.tp == STRING else shown).encode()
        case ValueKind.BINARY:
            return _padded(column, shown.encode())
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return ordered_float(_float(column, float(shown)))
        case ValueKind.DECIMAL:
            return _decimal(column, Decimal(shown))
        case ValueKind.TIME:
            return _packed_time(shown).to_bytes(8, "little")
        case ValueKind.DURATION:
            return _nanos(shown).to_bytes(8, "little", signed=True)
        case ValueKind.ENUM:
            return _enum(column, value).to_bytes(8, "little")
        case ValueKind.SET:
            return _set(column, value).to_bytes(8, "little")
        case ValueKind.BIT if isinstance(value, bytes | str):
            raw = value if isinstance(value, bytes) else value.encode("latin-1")
            return int.from_bytes(raw, "big").to_bytes(8, "little")
        case ValueKind.YEAR:
            return _year(value).to_bytes(8, "little")
        case ValueKind.JSON:
            return binary_json(json.loads(shown, parse_int=_json_integer, parse_constant=_not_json))
        case ValueKind.VECTOR:
            return _vector(column, shown)
        case ValueKind.UNKNOWN:
            raise ValueError("a column type that is not known")
        case _:
            return _integer(shown).to_bytes(8, "little", signed=kind is ValueKind.SIGNED)


def _integer(shown: str) -> int:
    number = Decimal(shown)
    if number.adjusted() > _INTEGER_DIGITS_MAX:  # else 1e999999999 is a number of a billion digits
        raise ValueError(shown)
    return int(number.to_integral_value(ROUND_HALF_UP))


def _padded(column: ColumnSpec, value: bytes) -> bytes:
    """BINARY(n) holds n bytes."""
    return value.ljust(column.flen, b"\0") if column.tp == STRING and column.flen > 0 else value


def _float(column: ColumnSpec, value: float) -> float:
    """FLOAT(m,d) and DOUBLE(m,d) keep d fraction digits, rounded half to even. Only finite numbers are stored."""
    if not math.isfinite(value):
        raise ValueError(value)
    if column.flen < 0 or not 0 <= column.decimal <= 30:
        return value
    shift = 10.0**column.decimal
    return round(value * shift) / shift if math.isfinite(value * shift) else value


def _decimal(column: ColumnSpec, value: Decimal) -> bytes:
    digits, scale = decimal_shape(column)
    number = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    if len(number.as_tuple().digits) > digits:
        raise ValueError("too many digits")
    return binary_decimal(number, digits, scale)


def _packed_time(shown: str) -> int:
    match = _TIME.fullmatch(shown.strip())
    if match is None:
        raise ValueError(shown)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    return pack_time(year, month, day, hour, minute, second, int((match[7] or "").ljust(6, "0")))


def _nanos(shown: str) -> int:
    match = _DURATION.fullmatch(shown.strip())
    if match is None:
        raise ValueError(shown)
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
    nanos = seconds * 10**9 + int((match[5] or "").ljust(6, "0")) * 1000
    return -nanos if match[1] else nanos


def _year(value: object) -> int:
    """0 to 69 are 2000 to 2069, 70 to 99 are 1970 to 1999. The text 0 is the year 2000, the number 0 and the text 0000
    are the zero year."""
    shown = str(value)
    year = _integer(shown.strip())
    if year == 0 and (not isinstance(value, str) or len(shown) == 4 or not shown.strip().startswith("0")):
        return 0
    if 0 <= year <= 99:
        year += 2000 if year < 70 else 1900
    if year not in _YEARS:
        raise ValueError(value)
    return year


def _json_integer(shown: str) -> int | float:
    number = int(shown)
    return number if -(1 << 63) <= number < 1 << 64 else float(shown)


def _not_json(word: str) -> Any:
    raise ValueError(word)


def _vector(column: ColumnSpec, shown: str) -> bytes:
    """The zero value, [], fits any VECTOR(n); other values have n numbers."""
    numbers = [float(part) for part in shown.strip("[] ").split(",") if part.strip()]
    if not all(map(math.isfinite, numbers)) or (numbers and 0 <= column.flen != len(numbers)):
        raise ValueError(shown)
    return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)


def _enum(column: ColumnSpec, value: object) -> int:
    if not isinstance(value, str):
        return int(str(value))
    labels = [label.lower() for label in column.elems]
    if value in column.elems:
        return column.elems.index(value) + 1
    if value.lower() in labels:
        return labels.index(value.lower()) + 1
    return int(value) if value else 0


def _set(column: ColumnSpec, value: object) -> int:
    if not isinstance(value, str):
        return int(str(value))
    labels = [label.lower() for label in column.elems]
    mask = 0
    for label in value.split(",") if value else ():
        if label.lower() not in labels:
            return int(value)
        mask |= 1 << labels.index(label.lower())
    return mask
