"""Lines out of pieces: constants and null-free columns of bytes, joined row by row.

A piece never holds a null. Arrow's join gives null for a row with any null piece, which would make the row vanish, so
`join` refuses one. All arrays are large_binary: a page of lines may pass 2 GiB.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from apiserver.formats import kernels
from tistream.codec.compiled import view
from tistream.errors import invariant

Piece: TypeAlias = bytes | pa.LargeBinaryArray

LARGE = pa.large_binary()


@dataclass(frozen=True, slots=True, eq=False)
class ByteMap:
    """What each of the 256 bytes becomes; `breaks` also escapes U+2028 and U+2029."""

    start: npt.NDArray[np.int64]  # 257
    table: npt.NDArray[np.uint8]
    cost: npt.NDArray[np.int64]  # 256
    breaks: bool


def byte_map(changed: dict[int, bytes], breaks: bool = False) -> ByteMap:
    """A map that replaces the given bytes and keeps the others."""
    entries = [changed.get(b, bytes([b])) for b in range(256)]
    cost = np.array([len(e) for e in entries], np.int64)
    start = np.concatenate([[0], np.cumsum(cost)]).astype(np.int64)
    return ByteMap(start=start, table=np.frombuffer(b"".join(entries), np.uint8), cost=cost, breaks=breaks)


_SHORT = {0x22: b'\\"', 0x5C: b"\\\\", 0x0A: b"\\n", 0x0D: b"\\r", 0x09: b"\\t"}
_JSON = {b: b"\\u%04x" % b for b in range(32)} | _SHORT
_HTML = {b: b"\\u%04x" % b for b in b"<>&"}
_LATIN1 = {b: bytes([b]).decode("latin-1").encode() for b in range(128, 256)}

JSON = byte_map(_JSON)
JSON_ONE_LINE = byte_map(_JSON, breaks=True)  #: no line break of any kind is left
JSON_HTML = byte_map(_JSON | _HTML, breaks=True)  #: and no <, > and &
JSON_LATIN1_HTML = byte_map(_JSON | _HTML | _LATIN1)  #: bytes read as ISO-8859-1
HEX = byte_map({b: b"%02x" % b for b in range(256)})
PLAIN = byte_map({})
_GO_SHORT = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r"} | {
    b: bytes([0x5C, b]) for b in b'"\\'
}
_GO = byte_map({b: b"\\x%02x" % b for b in (*range(32), *range(127, 256))} | _GO_SHORT)


def join(pieces: Sequence[Piece], rows: int) -> pa.LargeBinaryArray:
    """`rows` byte strings: the pieces one after another."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    if not any(isinstance(p, pa.Array) for p in merged):
        return constant(b"".join(p for p in merged if isinstance(p, bytes)), rows)
    for piece in merged:
        if isinstance(piece, pa.Array):
            invariant(piece.null_count == 0 and len(piece) == rows, "a piece of a line is whole", rows=rows)
    scalars = [pa.scalar(p, LARGE) if isinstance(p, bytes) else p for p in merged]
    return pc.binary_join_element_wise(*scalars, pa.scalar(b"", LARGE))


def constant(value: bytes, rows: int) -> pa.LargeBinaryArray:
    """The same bytes in each row."""
    return pa.repeat(pa.scalar(value, LARGE), rows)


def mapped(
    values: pa.Array, table: ByteMap, *, prefix: bytes = b"", suffix: bytes = b"", null: bytes = b"null"
) -> pa.LargeBinaryArray:
    """Text or binary values with every byte mapped, inside prefix and suffix; `null` for nulls."""
    data, offsets, valid = buffers(values)
    rows = len(values)
    out_offsets = np.empty(rows + 1, np.int64)
    extra = len(prefix) + len(suffix)
    kernels.mapped_offsets(data, offsets, valid, table.cost, extra, len(null), table.breaks, out_offsets)
    out = np.empty(int(out_offsets[-1]), np.uint8)
    kernels.mapped_bytes(
        data, offsets, valid, table.start, table.table, _u8(prefix), _u8(suffix), _u8(null), table.breaks, out
    )
    return _array(out_offsets, out)


def quoted(values: pa.Array, table: ByteMap = JSON, *, lead: bytes = b"") -> pa.LargeBinaryArray:
    """JSON strings, or null, behind `lead`."""
    return mapped(values, table, prefix=lead + b'"', suffix=b'"', null=lead + b"null")


def bare(values: pa.Array, *, quote: bool = False, null: bytes = b"null", lead: bytes = b"") -> pa.LargeBinaryArray:
    """Text that needs no escaping (numbers, base64): as it is, or with quotes around it and behind `lead`."""
    if not quote:
        values = values.cast(LARGE)
        return pc.fill_null(values, pa.scalar(null, LARGE)) if values.null_count else values
    data, offsets, valid = buffers(values)
    out_offsets = np.zeros(len(values) + 1, np.int64)
    null = lead + null
    np.cumsum(np.where(valid, np.diff(offsets) + len(lead) + 2, len(null)), out=out_offsets[1:])
    out = np.empty(int(out_offsets[-1]), np.uint8)
    kernels.wrapped_bytes(data, offsets, valid, _u8(lead + b'"'), _u8(b'"'), _u8(null), out)
    return _array(out_offsets, out)


def integer_text(values: pa.Array) -> pa.Array:
    """Decimal text of integers; nulls stay."""
    return values.cast(pa.large_string())


def base64_text(values: pa.Array) -> pa.Array:
    """Standard base64 with padding; nulls stay."""
    series = pl.Series("", values.cast(LARGE), dtype=pl.Binary)
    return series.bin.encode("base64").to_arrow().cast(pa.large_string())


def go_quoted(values: pa.Array) -> pa.Array:
    """Go's quoted text of bytes, without the surrounding quotes; nulls stay."""
    data, offsets, valid = buffers(values)
    printable = _printable()
    out_offsets = np.empty(len(values) + 1, np.int64)
    kernels.go_quoted_offsets(data, offsets, printable, _GO.cost, out_offsets)
    out = np.empty(int(out_offsets[-1]), np.uint8)
    kernels.go_quoted_bytes(data, offsets, printable, _GO.start, _GO.table, _u8(b"0123456789abcdef"), out)
    return pc.if_else(pa.array(valid), _array(out_offsets, out), pa.scalar(None, LARGE))


def styled_floats(plain: pa.Array, *, low: int, high: int) -> pa.Array:
    """Plain decimal texts, with an exponent of two or three digits where it is outside [low, high); nulls stay."""
    data, offsets, valid = buffers(plain)
    out = np.empty(int(offsets[-1] - offsets[0]) + 32 * len(plain), np.uint8)
    out_offsets = np.empty(len(plain) + 1, np.int64)
    used = kernels.styled_floats(data, offsets, low, high, out, out_offsets)
    return pc.if_else(pa.array(valid), _array(out_offsets, out[:used]), pa.scalar(None, LARGE))


def select(mask: npt.NDArray[np.bool_], chosen: Piece, other: Piece) -> pa.LargeBinaryArray:
    """`chosen` where the mask holds, else `other`."""
    sides = [pa.scalar(p, LARGE) if isinstance(p, bytes) else p for p in (chosen, other)]
    return pc.if_else(pa.array(mask), *sides)


def buffers(values: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(data, offsets, validity) of a text or binary array. Offsets count from the start of the data buffer."""
    if not len(values):
        return view(None, np.uint8), view(bytes(8), np.int64), np.zeros(0, np.bool_)
    values = values.cast(LARGE)
    _, offset_buffer, data_buffer = values.buffers()
    offsets = view(offset_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data = view(data_buffer, np.uint8)
    return data, offsets, np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), np.bool_)


def _array(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    return pa.LargeBinaryArray.from_buffers(LARGE, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _u8(value: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(value, np.uint8)


@functools.cache
def _printable() -> npt.NDArray[np.bool_]:
    """Which code points above ASCII Go prints as they are: letters, marks, numbers, punctuation and symbols."""
    return np.array([chr(c).isprintable() for c in range(0x110000)], np.bool_)
