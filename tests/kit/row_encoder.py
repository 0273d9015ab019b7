"""Rows and record keys as only older or differently set up servers write them, made from the format's description."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from tistream.codec.memcomparable import encode_uvarint
from tistream.codec.row.encode import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, cell, ordered_float
from tistream.codec.row.layout import ColumnSpec


def zigzag(value: int) -> int:
    """0, -1, 1, -2 ... as 0, 1, 2, 3 ..."""
    return 2 * value if value >= 0 else -2 * value - 1


def encode_v2(
    cells: Mapping[int, bytes | None],
    checksum: int | None = None,
    key: bytes = b"",
    extra: bool = False,
    large: bool = False,
    sums: Sequence[int] = (),
) -> bytes:
    """A v2 row of ids and bytes (None = NULL), with a checksum trailer if asked for.

    Version 1 or 2 is over `key`; version 0 has the one or two checksums of `sums`, made by the caller.
    """
    filled = sorted(id_ for id_, raw in cells.items() if raw is not None)
    empty = sorted(id_ for id_, raw in cells.items() if raw is None)
    data, ends = b"", []
    for id_ in filled:
        data += cells[id_] or b""
        ends.append(len(data))
    large = large or len(data) > 0xFFFF or max([*filled, *empty], default=0) > 0xFF
    flags = (1 if large else 0) | (0 if checksum is None else 2)
    row = struct.pack("<BBHH", 0x80, flags, len(filled), len(empty))
    row += b"".join(struct.pack("<I" if large else "<B", id_) for id_ in filled + empty)
    row += b"".join(struct.pack("<I" if large else "<H", end) for end in ends) + data
    if checksum == 0:
        row += bytes([8 if len(sums) == 2 else 0]) + struct.pack(f"<{len(sums)}I", *sums)
    elif checksum is not None:
        row += bytes([checksum | (8 if extra else 0)])
        covered = key if checksum == 1 else key[11:]
        row += struct.pack("<I", zlib.crc32(row + covered)) + (bytes(4) if extra else b"")
    return row


def old_datum(column: ColumnSpec, value: Any) -> bytes:
    """A value as a v1 row holds it."""
    tp = column.tp
    if value is None:
        return b"\0"
    if tp in STRING_TYPES:
        raw = value if isinstance(value, bytes) else value.encode()
        return b"\2" + encode_uvarint(zigzag(len(raw))) + raw
    if tp in (4, 5):
        return b"\5" + ordered_float(value)
    if tp in (246, 245, 225):
        return {246: b"\6", 245: b"\x0a", 225: b"\x14"}[tp] + cell(column, value)
    if tp in TIME_TYPES or tp in (16, 247, 248) or (tp in INTEGER_TYPES and column.unsigned):
        return b"\x09" + encode_uvarint(value)
    return b"\x08" + encode_uvarint(zigzag(value))


def encode_v1(columns: Sequence[ColumnSpec], values: Sequence[Any]) -> bytes:
    """A v1 row with the columns in the given order."""
    pairs = (
        b"\x08" + encode_uvarint(zigzag(c.id)) + old_datum(c, value) for c, value in zip(columns, values, strict=True)
    )
    return b"".join(pairs) or b"\0"


def record_key(table_id: int, handle: int | bytes) -> bytes:
    """A record key of an integer handle (64 bits, either sign) or of the bytes of a clustered primary key."""
    suffix = struct.pack(">Q", handle % 2**64 ^ 2**63) if isinstance(handle, int) else handle.ljust(9, b"\0")
    return b"t" + struct.pack(">Q", table_id + 2**63) + b"_r" + suffix
