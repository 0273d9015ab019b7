"""The value of a column in rows that were written before the column existed.

It is given in the bytes a v2 row would hold, so that decoding treats it like any other cell. `origin_default` is frozen
when the column is added; the current default plays no part. Without one the value is NULL, or the type's zero value for
NOT NULL columns: 0, "", the first ENUM member, the zero time, JSON null.
"""

from __future__ import annotations

import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

from tistream.codec.row.layout import STRING, ColumnSpec, Kind, decimal_shape, kind_of
from tistream.errors import InvalidInput

_EXACT = Context(prec=100)
_TIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?)?")
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?")


def stored_default(column: ColumnSpec) -> bytes | None:
    """None stands for NULL. Raises InvalidInput if the default is not one of the column's type."""
    value = column.origin_default
    kind = kind_of(column)
    if kind is Kind.BIT and column.origin_default_bit is not None:
        return int.from_bytes(column.origin_default_bit, "big").to_bytes(8, "little")
    if value is None:
        return _zero(column, kind) if column.not_null else None
    try:
        return _encode(column, kind, value)
    except (ValueError, InvalidOperation, OverflowError, struct.error) as error:
        raise InvalidInput("an origin default that does not fit its column", column=column.name, value=value) from error


def _zero(column: ColumnSpec, kind: Kind) -> bytes:
    if kind is Kind.TEXT:
        return b""
    if kind is Kind.BINARY:
        return _padded(column, b"")
    if kind is Kind.JSON:
        return b"\x04\x00"
    if kind is Kind.VECTOR:
        return bytes(4)
    if kind is Kind.ENUM:
        return (1 if column.elems else 0).to_bytes(8, "little")
    if kind in (Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL):
        return _encode(column, kind, 0)
    return bytes(8)


def _encode(column: ColumnSpec, kind: Kind, value: object) -> bytes:
    shown = str(value)
    match kind:
        case Kind.TEXT:
            return shown.encode()
        case Kind.BINARY:
            return _padded(column, shown.encode())
        case Kind.FLOAT | Kind.DOUBLE:
            (bits,) = struct.unpack(">Q", struct.pack(">d", float(shown)))
            return struct.pack(">Q", bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63)
        case Kind.DECIMAL:
            return _decimal(column, Decimal(shown))
        case Kind.TIME:
            return _packed_time(shown).to_bytes(8, "little")
        case Kind.DURATION:
            return _nanos(shown).to_bytes(8, "little", signed=True)
        case Kind.ENUM:
            return _enum(column, value).to_bytes(8, "little")
        case Kind.SET:
            return _set(column, value).to_bytes(8, "little")
        case Kind.BIT if isinstance(value, str):
            return int.from_bytes(value.encode("latin-1"), "big").to_bytes(8, "little")
        case Kind.JSON:
            raise ValueError("JSON columns have no literal defaults")
        case Kind.VECTOR:
            numbers = [float(part) for part in shown.strip("[] ").split(",") if part.strip()]
            return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)
        case _:
            number = int(Decimal(shown).to_integral_value(ROUND_HALF_UP))
            return number.to_bytes(8, "little", signed=kind is Kind.SIGNED)


def _padded(column: ColumnSpec, value: bytes) -> bytes:
    """BINARY(n) holds n bytes."""
    return value.ljust(column.flen, b"\0") if column.tp == STRING and column.flen > 0 else value


def _decimal(column: ColumnSpec, value: Decimal) -> bytes:
    digits, scale = decimal_shape(column)
    number = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    shown = str(abs(int(number.scaleb(scale, _EXACT)))).rjust(digits, "0")
    if len(shown) > digits:
        raise ValueError("too many digits")
    whole, fraction = shown[: digits - scale], shown[digits - scale :]
    odd = len(whole) % 9
    groups = [whole[:odd]] + [whole[at : at + 9] for at in range(odd, len(whole), 9)]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    body = bytearray(
        b"".join(
            int(group).to_bytes((len(group) + 1) // 2 if len(group) < 9 else 4, "big") for group in groups if group
        )
    )
    if number < 0:
        body = bytearray(byte ^ 0xFF for byte in body)
    body[0] ^= 0x80
    return bytes([digits, scale]) + bytes(body)


def _packed_time(shown: str) -> int:
    found = _TIME.fullmatch(shown.strip())
    if found is None:
        raise ValueError(shown)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    micros = int((found[7] or "").ljust(6, "0"))
    clock = hour << 12 | minute << 6 | second
    return (((year * 13 + month) << 5 | day) << 17 | clock) << 24 | micros


def _nanos(shown: str) -> int:
    found = _DURATION.fullmatch(shown.strip())
    if found is None:
        raise ValueError(shown)
    seconds = int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4] or 0)
    nanos = seconds * 10**9 + int((found[5] or "").ljust(6, "0")) * 1000
    return -nanos if found[1] else nanos


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
