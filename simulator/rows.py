"""TiDB's rows as the workload writes them: format v2, and v1 for rows of older servers. Written from the format.

A column is its TableInfo entry (`{"id": 2, "type": {"Tp": 15, ...}, ...}`). Values are int, float, str, bytes or None;
in v2 rows also Decimal and datetime, and the label of an ENUM. Only the workloads' types are known: INT and BIGINT
(signed), DOUBLE, DECIMAL, DATETIME, ENUM, VARCHAR, TEXT, BLOB.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

INT, DOUBLE, BIGINT, DATETIME, VARCHAR, NEWDECIMAL, ENUM, MEDIUMTEXT, LONGBLOB = 3, 5, 8, 12, 15, 246, 247, 250, 251

Value = int | float | str | bytes | Decimal | datetime | None
Column = Mapping[str, Any]

_V2, _LARGE = 0x80, 1
_NIL, _COMPACT_BYTES, _FLOAT, _VARINT = b"\x00", b"\x02", b"\x05", b"\x08"
_SIGN = 1 << 63
_GROUP, _GROUP_BYTES = 9, (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # digits in a group of a decimal; bytes for 0 to 9 digits


def row_v2(values: list[tuple[Column, Value]]) -> bytes:
    """A row: version, flags, counts, ids of the values and of the NULLs, ends of the cells, the cells."""
    cells = sorted((int(c["id"]), _cell(c, v)) for c, v in values if v is not None)
    nulls = sorted(int(c["id"]) for c, v in values if v is None)
    ids = [column_id for column_id, _ in cells] + nulls
    ends, size = [], 0
    for _, cell in cells:
        size += len(cell)
        ends.append(size)
    large = size > 0xFFFF or max(ids, default=0) > 0xFF
    head = struct.pack("<BBHH", _V2, _LARGE if large else 0, len(cells), len(nulls))
    body = struct.pack(f"<{len(ids)}{'I' if large else 'B'}", *ids) + struct.pack(
        f"<{len(ends)}{'I' if large else 'H'}", *ends
    )
    return head + body + b"".join(cell for _, cell in cells)


def row_v1(values: list[tuple[Column, Value]]) -> bytes:
    """A row as pairs of datums: the column's id, its value."""
    if not values:
        return _NIL
    return b"".join(_VARINT + _varint(int(c["id"])) + _datum(c, v) for c, v in values)


def _cell(column: Column, value: Value) -> bytes:
    if isinstance(value, int):
        width = next(n for n in (1, 2, 4, 8) if -(1 << (8 * n - 1)) <= value < 1 << (8 * n - 1))
        return value.to_bytes(width, "little", signed=True)
    if isinstance(value, float):
        return _ordered(value)
    if isinstance(value, Decimal):
        return _decimal(value, column["type"]["Flen"], column["type"]["Decimal"])
    if isinstance(value, datetime):
        return _unsigned(_packed(value))
    if isinstance(value, str):
        if column["type"]["Tp"] == ENUM:
            return _unsigned(column["type"]["Elems"].index(value) + 1)
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"column {column['id']} cannot hold {value!r}")


def _datum(column: Column, value: Value) -> bytes:
    if value is None:
        return _NIL
    if isinstance(value, Decimal | datetime) or column["type"]["Tp"] == ENUM:
        raise TypeError(f"column {column['id']}: rows of format v1 cannot hold {value!r}")
    cell = _cell(column, value)
    if isinstance(value, int):
        return _VARINT + _varint(value)
    if isinstance(value, float):
        return _FLOAT + cell
    return _COMPACT_BYTES + _varint(len(cell)) + cell


def _unsigned(value: int) -> bytes:
    width = next(n for n in (1, 2, 4, 8) if value < 1 << 8 * n)
    return value.to_bytes(width, "little")


def _packed(at: datetime) -> int:
    """year * 13 + month, day, hour, minute, second, microseconds: 5, 5, 6, 6 and 24 bits after the first."""
    day = (at.year * 13 + at.month) << 5 | at.day
    return (day << 17 | at.hour << 12 | at.minute << 6 | at.second) << 24 | at.microsecond


def _decimal(value: Decimal, digits: int, fraction: int) -> bytes:
    """Two bytes of shape, then groups of nine digits from the point outwards; the sign is in the first bit, inverted,
    and a negative number has all bits inverted."""
    shown = f"{abs(int(value.scaleb(fraction))):0{digits}d}"
    point = digits - fraction
    body = bytearray(_digits(shown[:point][::-1], backwards=True) + _digits(shown[point:]))
    if value < 0:
        body = bytearray(byte ^ 0xFF for byte in body)
    body[0] ^= 0x80
    return bytes([digits, fraction]) + bytes(body)


def _digits(text: str, *, backwards: bool = False) -> bytes:
    """Groups of nine digits; `backwards`: the text is reversed, and so are the groups."""
    groups = [text[at : at + _GROUP] for at in range(0, len(text), _GROUP)]
    if backwards:
        groups = [group[::-1] for group in reversed(groups)]
    return b"".join(int(group).to_bytes(_GROUP_BYTES[len(group)], "big") for group in groups)


def _varint(value: int) -> bytes:
    left, out = (value << 1) ^ (value >> 63), bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes(out) + bytes([left])


def _ordered(value: float) -> bytes:
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    return struct.pack(">Q", bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN)
