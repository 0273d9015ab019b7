"""TiDB's rows as the workload writes them: format v2, and v1 for rows of older servers. Written from the format.

A column is its TableInfo entry (`{"id": 2, "type": {"Tp": 15, ...}, ...}`). Values are int, float, str, bytes or None.
Only the workload's types are known: INT and BIGINT (signed), DOUBLE, VARCHAR, TEXT, BLOB.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

INT, DOUBLE, BIGINT, VARCHAR, MEDIUMTEXT, LONGBLOB = 3, 5, 8, 15, 250, 251

Value = int | float | str | bytes | None
Column = Mapping[str, Any]

_V2, _LARGE = 0x80, 1
_NIL, _COMPACT_BYTES, _FLOAT, _VARINT = b"\x00", b"\x02", b"\x05", b"\x08"
_SIGN = 1 << 63


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
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"column {column['id']} cannot hold {value!r}")


def _datum(column: Column, value: Value) -> bytes:
    if value is None:
        return _NIL
    cell = _cell(column, value)
    if isinstance(value, int):
        return _VARINT + _varint(value)
    if isinstance(value, float):
        return _FLOAT + cell
    return _COMPACT_BYTES + _varint(len(cell)) + cell


def _varint(value: int) -> bytes:
    left, out = (value << 1) ^ (value >> 63), bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes(out) + bytes([left])


def _ordered(value: float) -> bytes:
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    return struct.pack(">Q", bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN)
