"""Converts decoded values back to storage form (pure).

Accepted are the values of `tistream snapshot` and of common tools: native Arrow values, or those of NDJSON, where bytes
are base64 and all but numbers is text. A value that the column cannot hold exactly, such as one digit too many, is
refused, not rounded.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
from decimal import Decimal
from typing import Any

from tistream.codec.row.encode import EXACT, pack_time
from tistream.codec.row.layout import DATE, NEWDATE, ColumnSpec, ValueKind, decimal_shape, fsp_of, integer_bits, kind_of

_DATETIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_DURATION_MAX = (838 * 3600 + 59 * 60 + 59) * 1_000_000  # microseconds


def stored(spec: ColumnSpec, value: Any, *, in_text: bool) -> Any:
    """The value in storage form, for `codec.row.encode` (None is the null of JSON). `in_text`: from NDJSON. ValueError
    describes an invalid value."""
    match kind_of(spec):
        case ValueKind.SIGNED | ValueKind.UNSIGNED | ValueKind.YEAR:
            return _integer(spec, value)
        case ValueKind.BIT:
            return _bits(spec, value)
        case ValueKind.ENUM:
            return _label(spec, value)
        case ValueKind.SET:
            return _labels(spec, value)
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return float(_a(value, (int, float, Decimal), "a number"))
        case ValueKind.DECIMAL:
            return _decimal(spec, value)
        case ValueKind.TIME:
            return _time(spec, value)
        case ValueKind.DURATION:
            return _duration(spec, value)
        case ValueKind.BINARY:
            if in_text:
                return base64.b64decode(_a(value, (str,), "base64 text"), validate=True)
            return _a(value, (bytes,), "bytes")
        case ValueKind.JSON:
            return _json(_a(value, (str,), "the text of a JSON value"))
        case ValueKind.VECTOR:
            return [float(_a(item, (int, float), "a number")) for item in _a(value, (list,), "a list of numbers")]
    return _a(value, (str,), "text")


def _a(value: Any, types: tuple[type, ...], wanted: str) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(f"{_short(value)} is not {wanted}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(spec: ColumnSpec, value: Any) -> int:
    number = int(_a(value, (int, str, bool), "an integer"))
    if kind_of(spec) is ValueKind.YEAR:
        low, high = 0, 2155
    else:
        bits = 24 if spec.tp == 9 else integer_bits(spec)
        low, high = (0, (1 << bits) - 1) if spec.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= number <= high:
        raise ValueError(f"{number} is out of range")
    return number


def _bits(spec: ColumnSpec, value: Any) -> int:
    if isinstance(value, str):
        value = base64.b64decode(value, validate=True)
    number = int.from_bytes(value, "big") if isinstance(value, bytes) else int(_a(value, (int,), "bits"))
    if not 0 <= number < 1 << max(spec.flen, 1):
        raise ValueError(f"{number} has more bits than the column")
    return number


def _label(spec: ColumnSpec, value: Any) -> int:
    label = _a(value, (str,), "a label")
    if label in spec.elems:
        return spec.elems.index(label) + 1
    if label == "":
        return 0
    raise ValueError(f"{_short(label)} is none of the column's labels")


def _labels(spec: ColumnSpec, value: Any) -> int:
    if isinstance(value, str):
        value = value.split(",") if value else []
    mask = 0
    for label in _a(value, (list,), "labels"):
        if label not in spec.elems:
            raise ValueError(f"{_short(label)} is none of the column's labels")
        mask |= 1 << spec.elems.index(label)
    return mask


def _decimal(spec: ColumnSpec, value: Any) -> Decimal:
    try:
        number = Decimal(_a(value, (int, str, Decimal), "a decimal number"))
    except ArithmeticError as e:
        raise ValueError(f"{_short(value)} is not a decimal number") from e
    digits, scale = decimal_shape(spec)
    if number.is_finite():
        _, shown, exponent = number.normalize(EXACT).as_tuple()
        if isinstance(exponent, int) and -exponent <= scale and len(shown) + exponent <= digits - scale:
            return number
    raise ValueError(f"{number} is no DECIMAL({digits},{scale})")


def _time(spec: ColumnSpec, value: Any) -> int:
    if isinstance(value, datetime.datetime):
        at = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        parts = (at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond)
    elif isinstance(value, datetime.date):
        parts = (value.year, value.month, value.day, 0, 0, 0, 0)
    else:
        match = _DATETIME.fullmatch(_a(value, (str,), "a time"))
        if match is None:
            raise ValueError(f"{_short(value)} is not YYYY-MM-DD HH:MM:SS")
        *fields, fraction = match.groups(default="0")
        year, month, day, hour, minute, second = map(int, fields)
        parts = (year, month, day, hour, minute, second, int(fraction.ljust(6, "0")))
    is_date = spec.tp in (DATE, NEWDATE)
    if (is_date and any(parts[3:])) or parts[6] % 10 ** (6 - (0 if is_date else fsp_of(spec))):
        raise ValueError(f"{_short(value)} has digits that the column has not")
    if parts[1] > 12 or parts[2] > 31 or parts[3] > 23 or parts[4] > 59 or parts[5] > 59:
        raise ValueError(f"{_short(value)} is not a time")
    return pack_time(*parts)


def _duration(spec: ColumnSpec, value: Any) -> int:
    if isinstance(value, datetime.timedelta):
        micros = value // datetime.timedelta(microseconds=1)
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError(f"{_short(value)} is not HH:MM:SS")
        sign, hours, minutes, seconds, fraction = match.groups(default="0")
        clock = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
        micros = clock * 1_000_000 + int(fraction.ljust(6, "0"))
        micros = -micros if sign == "-" else micros
    else:
        micros = _a(value, (int,), "a TIME, or its microseconds")
    if abs(micros) > _DURATION_MAX or micros % 10 ** (6 - fsp_of(spec)):
        raise ValueError(f"{_short(value)} is no TIME({fsp_of(spec)})")
    return micros * 1000


def _json(text: str) -> object:
    def refused(word: str) -> object:
        raise ValueError(f"{word} is not JSON")

    return _numbers(json.loads(text, parse_constant=refused))


def _numbers(value: object) -> object:
    """Integers beyond 64 bits are doubles in a stored JSON value."""
    match value:
        case bool():
            return value
        case int() if not -(1 << 63) <= value < 1 << 64:
            return float(value)
        case list():
            return [_numbers(item) for item in value]
        case dict():
            return {key: _numbers(item) for key, item in value.items()}
    return value
