"""Encodes values as rows, as TiDB would have written them (pure).

Values are in storage form: int, float, Decimal, packed time, TIME in nanoseconds, str or bytes, a Python object for
JSON (a tuple of type number and bytes for an opaque value), VECTOR as a list of floats. One value at a time: for seeds
from decoded files, not for the log. Rows are of format v2, without a checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

from tistream.codec.memcomparable import encode_bytes, encode_uvarint
from tistream.codec.row.layout import ColumnSpec

EXACT = Context(prec=200)
INTEGER_TYPES = {1: 8, 2: 16, 9: 24, 3: 32, 8: 64}
TIME_TYPES = {7, 10, 12, 14}
STRING_TYPES = {15, 253, 254, 249, 250, 251, 252}


def pack_time(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micros: int = 0) -> int:
    date = (year * 13 + month) * 32 + day
    clock = (hour * 64 + minute) * 64 + second
    return (date * 2**17 + clock) * 2**24 + micros


def least_int(value: int, signed: bool) -> bytes:
    """The shortest of 1, 2, 4, 8 bytes that hold the number."""
    for size in (1, 2, 4, 8):
        try:
            return value.to_bytes(size, "little", signed=signed)
        except OverflowError:
            continue
    raise OverflowError(value)


def ordered_float(value: float) -> bytes:
    """A double whose bytes sort as the numbers do."""
    raw = bytearray(struct.pack(">d", value))
    if raw[0] & 0x80:
        return bytes(byte ^ 0xFF for byte in raw)
    raw[0] |= 0x80
    return bytes(raw)


def binary_decimal(value: Decimal, digits: int, fraction: int) -> bytes:
    """[digits][fraction] and MySQL's binary decimal of that shape."""
    number = abs(int(value.scaleb(fraction, EXACT)))
    shown = f"{number:0{digits}d}"
    whole, rest = shown[: digits - fraction], shown[digits - fraction :]
    sizes = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    parts = []
    lead = len(whole) % 9
    if lead:
        parts.append((int(whole[:lead]), sizes[lead]))
    parts += [(int(whole[at : at + 9]), 4) for at in range(lead, len(whole), 9)]
    full = len(rest) // 9 * 9
    parts += [(int(rest[at : at + 9]), 4) for at in range(0, full, 9)]
    if rest[full:]:
        parts.append((int(rest[full:]), sizes[len(rest) - full]))
    body = int.from_bytes(b"".join(part.to_bytes(size, "big") for part, size in parts), "big")
    size = sum(size for _, size in parts)
    if value < 0 and number:
        body ^= (1 << (8 * size)) - 1
    body ^= 1 << (8 * size - 1)
    return bytes([digits, fraction]) + body.to_bytes(size, "big")


def binary_json(value: object) -> bytes:
    """Type byte and body. Tuples stand for opaque values: (type number, bytes)."""
    kind, body = _json_parts(value)
    return bytes([kind]) + body


def _json_parts(value: object) -> tuple[int, bytes]:
    match value:
        case None:
            return 4, b"\0"
        case bool():
            return 4, b"\1" if value else b"\2"
        case int():
            return (9, struct.pack("<q", value)) if value < 2**63 else (10, struct.pack("<Q", value))
        case float():
            return 11, struct.pack("<d", value)
        case str():
            raw = value.encode("utf-8", "surrogateescape")
            return 12, encode_uvarint(len(raw)) + raw
        case (int(tp), bytes(raw)):
            return 13, bytes([tp]) + encode_uvarint(len(raw)) + raw
        case list():
            return 3, _json_container([], value)
        case dict():
            pairs = sorted((key.encode(), item) for key, item in value.items())
            return 1, _json_container([key for key, _ in pairs], [item for _, item in pairs])
    raise TypeError(value)


def _json_container(keys: Sequence[bytes], items: Sequence[object]) -> bytes:
    at = 8 + 6 * len(keys) + 5 * len(items)
    key_entries, value_entries, tail = b"", b"", b""
    for key in keys:
        key_entries += struct.pack("<IH", at + len(tail), len(key))
        tail += key
    for item in items:
        kind, body = _json_parts(item)
        if kind == 4:
            value_entries += bytes([4]) + body + bytes(3)
        else:
            value_entries += bytes([kind]) + struct.pack("<I", at + len(tail))
            tail += body
    return struct.pack("<II", len(items), at + len(tail)) + key_entries + value_entries + tail


def cell(column: ColumnSpec, value: Any) -> bytes:
    """A non-null value as a v2 row holds it."""
    tp = column.tp
    if tp in INTEGER_TYPES:
        return least_int(value, signed=not column.unsigned)
    if tp in (11, 13):
        return least_int(value, signed=True)
    if tp in TIME_TYPES or tp in (16, 247, 248):
        return least_int(value, signed=False)
    if tp in (4, 5):
        return ordered_float(value)
    if tp == 246:
        return binary_decimal(value, column.flen, column.decimal)
    if tp == 245:
        return binary_json(value)
    if tp == 225:
        return struct.pack(f"<I{len(value)}f", len(value), *value)
    return value if isinstance(value, bytes) else value.encode()


def row_value(cells: Mapping[int, bytes | None]) -> bytes:
    """A row of column ids and bytes (None = NULL)."""
    filled = sorted(id_ for id_, raw in cells.items() if raw is not None)
    empty = sorted(id_ for id_, raw in cells.items() if raw is None)
    data, ends = b"", []
    for id_ in filled:
        data += cells[id_] or b""
        ends.append(len(data))
    large = len(data) > 0xFFFF or max([*filled, *empty], default=0) > 0xFF
    row = struct.pack("<BBHH", 0x80, large, len(filled), len(empty))
    row += b"".join(struct.pack("<I" if large else "<B", id_) for id_ in filled + empty)
    return row + b"".join(struct.pack("<I" if large else "<H", end) for end in ends) + data


def key_datum(column: ColumnSpec, value: Any) -> bytes:
    """A value as a record key of a clustered primary key holds it (binary collation)."""
    tp = column.tp
    if tp in STRING_TYPES:
        raw = value if isinstance(value, bytes) else value.encode()
        return b"\1" + encode_bytes(raw)
    if tp in (4, 5):
        return b"\5" + ordered_float(value)
    if tp == 246:
        return b"\6" + cell(column, value)
    if tp == 11:
        return b"\7" + struct.pack(">Q", value + 2**63)
    if tp in TIME_TYPES or tp in (16, 247, 248) or (tp in INTEGER_TYPES and column.unsigned):
        return b"\4" + struct.pack(">Q", value)
    return b"\3" + struct.pack(">Q", value + 2**63)
