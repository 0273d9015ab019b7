"""Pieces of lines: constants, and slots, which have a value per row.

A slot is a column of text with the constants around a value and the text for null. `lines` writes them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from reading.formats import kernels
from tistream.codec.compiled import view
from tistream.errors import invariant

LARGE = pa.large_binary()


@dataclass(frozen=True, slots=True, eq=False)
class ByteMap:
    """Maps each byte to itself or to several bytes; may also escape U+2028 and U+2029."""

    sizes: npt.NDArray[np.uint8]  # (256); 0 for the first byte of U+2028 and U+2029
    entries: npt.NDArray[np.uint8]  # (256, ENTRY_MAX)


def byte_map(changed: dict[int, bytes], breaks: bool = False) -> ByteMap:
    """A map that replaces the given bytes and keeps the others; `breaks` also escapes U+2028 and U+2029."""
    sizes = np.ones(256, np.uint8)
    entries = np.zeros((256, kernels.ENTRY_MAX), np.uint8)
    entries[:, 0] = np.arange(256)
    for byte, entry in changed.items():
        # the kernels copy a text that does not grow unchanged
        invariant(1 < len(entry) <= kernels.ENTRY_MAX, "a mapped byte becomes several", byte=byte, entry=entry)
        sizes[byte] = len(entry)
        entries[byte, : len(entry)] = np.frombuffer(entry, np.uint8)
    if breaks:
        sizes[_BREAK] = 0
    return ByteMap(sizes=sizes, entries=entries)


_BREAK = "\u2028".encode()[0]
_SHORT = {0x22: b'\\"', 0x5C: b"\\\\", 0x0A: b"\\n", 0x0D: b"\\r", 0x09: b"\\t"}
_JSON = {b: b"\\u%04x" % b for b in range(32)} | _SHORT
_HTML = {b: b"\\u%04x" % b for b in b"<>&"}
_LATIN1 = {b: bytes([b]).decode("latin-1").encode() for b in range(128, 256)}

JSON = byte_map(_JSON)
JSON_ONE_LINE = byte_map(_JSON, breaks=True)  #: no line break of any kind is left
JSON_HTML = byte_map(_JSON | _HTML, breaks=True)  #: and no <, > and &
JSON_LATIN1_HTML = byte_map(_JSON | _HTML | _LATIN1)  #: bytes read as ISO-8859-1
HEX = byte_map({b: b"%02x" % b for b in range(256)})
_GO_SHORT = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r"} | {
    b: bytes([0x5C, b]) for b in b'"\\'
}
_GO = byte_map({b: b"\\x%02x" % b for b in (*range(32), *range(127, 256))} | _GO_SHORT)


class Texts(NamedTuple):
    """Byte strings in one buffer."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]  #: rows + 1


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A value per row: `instead` where not `valid`, nothing where not `present`."""

    values: Texts | npt.NDArray[np.integer]  #: integers are written in decimal
    valid: npt.NDArray[np.bool_] | None = None  #: None: in all rows
    present: npt.NDArray[np.bool_] | None = None  #: None: in all rows
    style: ByteMap | None = None  #: None: unchanged
    before: bytes = b""
    after: bytes = b""
    instead: bytes = b"null"

    def __len__(self) -> int:
        return len(self.values.offsets) - 1 if isinstance(self.values, Texts) else len(self.values)

    def within(self, lead: bytes, tail: bytes = b"") -> Slot:
        """The slot between two constants, also around null."""
        return replace(self, before=lead + self.before, after=self.after + tail, instead=lead + self.instead + tail)


Piece: TypeAlias = bytes | Slot


def slot(
    values: pa.Array, style: ByteMap | None = None, *, before: bytes = b"", after: bytes = b"", null: bytes = b"null"
) -> Slot:
    """A slot of text or binary values (bytes mapped by `style`) or integers, between two constants."""
    texts: Texts | npt.NDArray[np.integer]
    if pa.types.is_integer(values.type):
        texts, valid = integers(values), validity(values)
    else:
        data, offsets, valid = buffers(values)
        texts = Texts(data, offsets)
    return Slot(values=texts, valid=valid, style=style, before=before, after=after, instead=null)


def quoted(values: pa.Array, style: ByteMap = JSON) -> Slot:
    """JSON strings, or null."""
    return slot(values, style, before=b'"', after=b'"')


def bare(values: pa.Array, *, quote: bool = False, null: bytes = b"null") -> Slot:
    """Text that needs no escaping (numbers, base64), optionally in quotes."""
    mark = b'"' if quote else b""
    return slot(values, before=mark, after=mark, null=null)


def choice(mask: npt.NDArray[np.bool_], chosen: bytes, other: bytes) -> Slot:
    """`chosen` where the mask holds, else `other`."""
    return replace(constant(chosen, len(mask)), valid=mask, instead=other)


def constant(value: bytes, rows: int) -> Slot:
    """The same bytes in each row."""
    return Slot(values=Texts(view(None, np.uint8), np.zeros(rows + 1, np.int64)), before=value)


def only(mask: npt.NDArray[np.bool_], base: Slot) -> Slot:
    """The slot where the mask holds, else nothing at all."""
    return replace(base, present=mask)


def base64_text(values: pa.Array) -> pa.Array:
    """Standard base64 with padding; nulls stay."""
    series = pl.Series("", values.cast(LARGE), dtype=pl.Binary)
    return series.bin.encode("base64").to_arrow().cast(pa.large_string())


def go_quoted(values: pa.Array) -> pa.Array:
    """Go's quoted text of bytes, without the surrounding quotes; nulls stay."""
    data, offsets, valid = buffers(values)
    printable = _printable()
    out_offsets = np.empty(len(values) + 1, np.int64)
    kernels.go_quoted_offsets(data, offsets, printable, _GO.sizes, out_offsets)
    out = np.empty(int(out_offsets[-1]), np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    kernels.go_quoted_bytes(data, offsets, printable, _GO.sizes, _GO.entries, digits, out)
    return large_binary(out_offsets, out, valid)


def styled_floats(plain: pa.Array, *, low: int, high: int) -> pa.Array:
    """Plain decimal texts, with an exponent of two or three digits where it is outside [low, high); nulls stay."""
    data, offsets, valid = buffers(plain)
    out = np.empty(int(offsets[-1] - offsets[0]) + 32 * len(plain), np.uint8)
    out_offsets = np.empty(len(plain) + 1, np.int64)
    used = kernels.styled_floats(data, offsets, low, high, out, out_offsets)
    return large_binary(out_offsets, out[:used], valid)


def buffers(values: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """(data, offsets, validity or None) of a text or binary array. Offsets count from the start of the data buffer."""
    if not len(values):
        return view(None, np.uint8), view(bytes(8), np.int64), None
    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, offset_buffer, data_buffer = values.buffers()
    whole = view(offset_buffer, np.int64 if large else np.int32)
    offsets = whole[values.offset : values.offset + len(values) + 1].astype(np.int64, copy=False)
    offsets.flags.writeable = False
    return view(data_buffer, np.uint8), offsets, validity(values)


def validity(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which values are not null; None when none is null."""
    valid: npt.NDArray[np.bool_] = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return valid if values.null_count else None


def integers(values: pa.Array) -> npt.NDArray[np.integer]:
    """The values of an integer array; values at nulls are arbitrary."""
    whole = view(values.buffers()[1] if len(values) else None, values.type.to_pandas_dtype())
    return whole[values.offset : values.offset + len(values)]


def large_binary(
    offsets: npt.NDArray[np.integer], data: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_] | None = None
) -> pa.LargeBinaryArray:
    """An array over the two buffers; null where `valid` does not hold."""
    parts = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    whole = pa.LargeBinaryArray.from_buffers(LARGE, len(offsets) - 1, parts)
    return whole if valid is None else pc.if_else(pa.array(valid), whole, pa.scalar(None, LARGE))


@functools.cache
def _printable() -> npt.NDArray[np.bool_]:
    """Which code points above ASCII Go prints unescaped: letters, marks, numbers, punctuation and symbols."""
    return np.array([chr(c).isprintable() for c in range(0x110000)], np.bool_)
