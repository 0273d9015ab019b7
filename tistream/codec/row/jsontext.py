"""TiDB's binary JSON to the text that TiDB prints.

A document is walked without recursion, with an explicit stack of `DEPTH_MAX` containers. Every byte it uses is charged
against its own size: in a proper document no two values share bytes, so one that refers to a part more than once (which
could grow without bound) exceeds its size and is refused. The text is therefore never longer than 6 bytes for each
stored byte plus a constant, and the time is linear.

Layout: a type byte and a body. Containers: u32 count, u32 size, then for objects 6 bytes a key (u32 offset, u16
length), then 5 bytes a value (type, u32 offset or an inline literal); offsets count from the container's first byte.

Floats take one byte in the first pass (their places and bits are listed) and are put in by `splice`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.glyphs import (
    JSON_NUMBER,
    float_chars,
    put_clock,
    put_date,
    put_duration,
    put_fraction,
    put_number,
)
from tistream.codec.row.kernel import Number
from tistream.model.arrays import I32, I64, U8, U64

DEPTH_MAX = 1000
GROWTH, GROWTH_CONSTANT = 6, 32  # characters for each stored byte, and for each document

OBJECT, ARRAY, LITERAL, INT64, UINT64, FLOAT64, STRING, OPAQUE = 0x01, 0x03, 0x04, 0x09, 0x0A, 0x0B, 0x0C, 0x0D
DATE, DATETIME, TIMESTAMP, DURATION = 0x0E, 0x0F, 0x10, 0x11

_LITERALS = np.frombuffer(b"null true false", np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_OPAQUE_PREFIX = np.frombuffer(b'"base64:type', np.uint8)
_REPLACEMENT = np.frombuffer(b"\\ufffd", np.uint8)
_SEPARATOR = np.frombuffer(b"\\u202", np.uint8)
_SHORT_ESCAPES = np.zeros(128, np.uint8)
for _byte, _letter in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
    _SHORT_ESCAPES[_byte] = _letter
_QUOTE, _BACKSLASH, _COMMA, _SPACE, _COLON = 34, 92, 44, 32, 58


@kernel
def _put(out: U8, to: Number, text: U8) -> Number:
    for j in range(len(text)):
        out[to + j] = text[j]
    return to + len(text)


@kernel
def _put_string(data: U8, at: Number, end: Number, out: U8, to: Number) -> Number:
    """A quoted, escaped string."""
    out[to] = _QUOTE
    to += 1
    while at < end:
        byte = data[at]
        if byte < 0x80:
            short = _SHORT_ESCAPES[byte]
            if short:
                out[to], out[to + 1] = _BACKSLASH, short
                to += 2
            elif byte < 0x20:
                out[to], out[to + 1], out[to + 2], out[to + 3] = _BACKSLASH, 117, 48, 48
                out[to + 4], out[to + 5] = _HEX[byte >> 4], _HEX[byte & 15]
                to += 6
            else:
                out[to] = byte
                to += 1
            at += 1
            continue
        size = k.utf8_size(data, at, end)
        if size == 0:
            to = _put(out, to, _REPLACEMENT)
            at += 1
        elif size == 3 and byte == 0xE2 and data[at + 1] == 0x80 and data[at + 2] & 0xFE == 0xA8:
            to = _put(out, to, _SEPARATOR)  # U+2028, U+2029
            out[to] = _HEX[data[at + 2] & 15]
            to += 1
            at += 3
        else:
            for j in range(size):
                out[to + j] = data[at + j]
            to += size
            at += size
    out[to] = _QUOTE
    return to + 1


@kernel
def _put_base64(data: U8, at: Number, end: Number, out: U8, to: Number) -> Number:
    while at < end:
        left = end - at
        word = np.int64(data[at]) << 16
        if left > 1:
            word |= np.int64(data[at + 1]) << 8
        if left > 2:
            word |= np.int64(data[at + 2])
        out[to] = _BASE64[word >> 18]
        out[to + 1] = _BASE64[word >> 12 & 63]
        out[to + 2] = _BASE64[word >> 6 & 63] if left > 1 else 61
        out[to + 3] = _BASE64[word & 63] if left > 2 else 61
        to += 4
        at += 3
    return to


@kernel
def _put_time(core: Number, kind: Number, out: U8, to: Number) -> Number:
    """A quoted date or datetime, with 6 fraction digits."""
    bits = np.uint64(core)
    out[to] = _QUOTE
    to = put_date(
        out, to + 1, bits >> np.uint64(50), bits >> np.uint64(46) & np.uint64(15), bits >> np.uint64(41) & np.uint64(31)
    )
    if kind != DATE:
        out[to] = _SPACE
        hours, minutes, seconds = bits >> np.uint64(36), bits >> np.uint64(30), bits >> np.uint64(24)
        to = put_clock(out, to + 1, hours & np.uint64(31), minutes & np.uint64(63), seconds & np.uint64(63))
        to = put_fraction(out, to, np.int64(bits >> np.uint64(4)) & 0xFFFFF, 6)
    out[to] = _QUOTE
    return to + 1


@kernel
def _put_literal(literal: Number, out: U8, to: Number) -> Number:
    """null, true, false; -1 for anything else."""
    if literal == 0:
        return _put(out, to, _LITERALS[:4])
    if literal == 1:
        return _put(out, to, _LITERALS[5:9])
    return _put(out, to, _LITERALS[10:]) if literal == 2 else -1


@kernel
def _put_scalar(data: U8, kind: Number, at: Number, end: Number, out: U8, to: Number) -> tuple[Number, Number]:
    """(next position in `out` or -1, bytes used) of anything but containers and floats."""
    if kind in (STRING, OPAQUE):
        skip = 1 if kind == OPAQUE else 0
        if end - at < skip:
            return -1, 0
        size, body = k.uvarint(data, at + skip, end)
        if body < 0 or size > np.uint64(end - body):
            return -1, 0
        stop = np.int64(body) + np.int64(size)
        if kind == STRING:
            return _put_string(data, body, stop, out, to), stop - at
        to = put_number(out, _put(out, to, _OPAQUE_PREFIX), np.uint64(data[at]), 1)
        out[to] = _COLON
        to = _put_base64(data, body, stop, out, to + 1)
        out[to] = _QUOTE
        return to + 1, stop - at
    if kind == LITERAL:
        return (_put_literal(np.int64(data[at]), out, to), 1) if end > at else (-1, 0)
    size_of = 12 if kind == DURATION else 8
    if end - at < size_of:
        return -1, 0
    value = np.uint64(k.little_endian(data, at, 8))
    if kind in (INT64, DURATION):
        number = np.int64(value)
        if kind == DURATION:
            out[to] = _QUOTE
            to = put_duration(out, to + 1, number, 6)
            out[to] = _QUOTE
            return to + 1, 12
        if number < 0:
            out[to] = 45
            return put_number(out, to + 1, ~value + np.uint64(1), 1), 8
        return put_number(out, to, value, 1), 8
    if kind == UINT64:
        return put_number(out, to, value, 1), 8
    if kind in (DATE, DATETIME, TIMESTAMP):
        return _put_time(value, kind, out, to), 8
    return -1, 0


@kernel
def _open(data: U8, kind: Number, at: Number, end: Number, stack: I64, depth: Number) -> Number:
    """Push a container: (start, count, next, kind, end). Bytes used, or -1."""
    if end - at < 8:
        return -1
    count, size = np.int64(k.little_endian(data, at, 4)), np.int64(k.little_endian(data, at + 4, 4))
    used = 8 + count * (11 if kind == OBJECT else 5)
    if size > end - at or used > size:
        return -1
    stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3], stack[depth, 4] = at, count, 0, kind, at + size
    return used


@kernel
def _put_key(data: U8, base: Number, end: Number, index: Number, out: U8, to: Number) -> tuple[Number, Number]:
    """The index-th key of an object with its colon. (next position or -1, bytes used)."""
    entry = base + 8 + 6 * index
    begin = base + np.int64(k.little_endian(data, entry, 4))
    size = np.int64(data[entry + 4]) | np.int64(data[entry + 5]) << 8
    if begin + size > end:
        return -1, 0
    to = _put_string(data, begin, begin + size, out, to)
    out[to], out[to + 1] = _COLON, _SPACE
    return to + 2, size


@kernel
def _advance(
    data: U8, stack: I64, depth: Number, budget: Number, out: U8, to: Number
) -> tuple[Number, Number, Number, Number, Number, Number, Number]:
    """Advance in the innermost container: closes complete ones, writes separators, keys and inline literals.

    Returns (cause, depth, budget, next position in `out`, and the kind, place and end of the value that comes next).
    The depth is 0 when the document is complete.
    """
    while depth > 0:
        base, total, index = stack[depth - 1, 0], stack[depth - 1, 1], stack[depth - 1, 2]
        is_object, stop = stack[depth - 1, 3] == OBJECT, stack[depth - 1, 4]
        if index == total:
            out[to] = 125 if is_object else 93
            to += 1
            depth -= 1
            continue
        if index:
            out[to], out[to + 1] = _COMMA, _SPACE
            to += 2
        stack[depth - 1, 2] = index + 1
        entry = base + 8 + 5 * index
        if is_object:
            entry += 6 * total
            if np.int64(data[base + 12 + 6 * index]) | np.int64(data[base + 13 + 6 * index]) << 8 > budget:
                return k.SHARED_JSON, depth, budget, to, 0, 0, 0
            to, used = _put_key(data, base, stop, index, out, to)
            if to < 0:
                return k.BAD_JSON, depth, budget, to, 0, 0, 0
            budget -= used
        kind = np.int64(data[entry])
        if kind != LITERAL:
            at = base + np.int64(k.little_endian(data, entry + 1, 4))
            return (k.BAD_JSON if at > stop else 0), depth, budget, to, kind, at, stop
        to = _put_literal(np.int64(data[entry + 1]), out, to)
        if to < 0:
            return k.BAD_JSON, depth, budget, to, 0, 0, 0
    return 0, depth, budget, to, 0, 0, 0


@kernel
def _document(
    data: U8,
    start: Number,
    end: Number,
    stack: I64,
    out: U8,
    to: Number,
    places: I64,
    bits: U64,
    count: Number,
) -> tuple[Number, Number, Number]:
    """(cause, next position in `out`, floats listed) of one document."""
    if end - start < 2:
        return k.BAD_JSON, to, count
    kind, at, limit, depth, budget = np.int64(data[start]), start + 1, end, 0, end - start - 1
    while True:
        if kind in (OBJECT, ARRAY):
            if depth == DEPTH_MAX:
                return k.DEEP_JSON, to, count
            used = _open(data, kind, at, limit, stack, depth)
            if used < 0:
                return k.BAD_JSON, to, count
            depth += 1
            out[to] = 123 if kind == OBJECT else 91
            to += 1
        elif kind == FLOAT64:
            if limit - at < 8:
                return k.BAD_JSON, to, count
            used, value = 8, np.uint64(k.little_endian(data, at, 8))
            if value >> np.uint64(52) & np.uint64(0x7FF) == 0x7FF:
                return k.INFINITE_JSON, to, count
            if budget >= used:
                places[count], bits[count] = to, value
                count += 1
                out[to] = 0
                to += 1
        else:
            if limit - at > budget:  # what is left to charge bounds what may be written
                limit = at + budget
            to, used = _put_scalar(data, kind, at, limit, out, to)
            if to < 0:
                return k.BAD_JSON, 0, count
        budget -= used
        if budget < 0:
            return k.SHARED_JSON, to, count
        cause, depth, budget, to, kind, at, limit = _advance(data, stack, depth, budget, out, to)
        if cause or depth == 0:
            return cause, to, count


@kernel
def render(
    data: U8,
    position: I32,
    length: I32,
    c: Number,
    fault: I32,
    offsets: I64,
    out: U8,
    places: I64,
    bits: U64,
) -> Number:
    """All documents of a column. `offsets` (rows + 1) is filled; returns the number of floats listed."""
    stack = np.empty((DEPTH_MAX, 5), np.int64)
    to, count = np.int64(0), np.int64(0)
    for row in range(length.shape[1]):
        offsets[row] = to
        size = np.int64(length[c, row])
        if size < 0:
            continue
        at = np.int64(position[c, row])
        cause, after, listed = _document(data, at, at + size, stack, out, to, places, bits, count)
        if cause:
            k.fail(fault, length, row, cause, c, at)
        else:
            to, count = np.int64(after), np.int64(listed)
    offsets[length.shape[1]] = to
    return count


@kernel
def splice(source: U8, offsets: I64, places: I64, ends: I64, chars: U8, out: U8) -> None:
    """Put the characters of each float in place of its one byte; `offsets` is changed to match `out`."""
    at, to, done = 0, 0, 0
    for row in range(len(offsets)):
        stop = offsets[row]
        while done < len(places) and places[done] < stop:
            while at < places[done]:
                out[to] = source[at]
                to += 1
                at += 1
            at += 1
            for j in range(ends[done], ends[done + 1]):
                out[to] = chars[j]
                to += 1
            done += 1
        while at < stop:
            out[to] = source[at]
            to += 1
            at += 1
        offsets[row] = to


def json_text(data: U8, position: I32, length: I32, c: int, stored: int, fault: I32) -> tuple[I64, U8]:
    """(offsets, characters) of a JSON column whose cells have `stored` bytes in all."""
    rows = length.shape[1]
    offsets = np.empty(rows + 1, np.int64)
    out = np.empty(GROWTH * stored + GROWTH_CONSTANT * (rows + 1), np.uint8)
    places, bits = np.empty(stored // 8 + 1, np.int64), np.empty(stored // 8 + 1, np.uint64)
    count = render(data, position, length, c, fault, offsets, out, places, bits)
    if count == 0:
        return offsets, out
    ends, chars = float_chars(pa.array(bits[:count].view(np.float64)), JSON_NUMBER)
    whole = np.empty(int(offsets[-1] + ends[-1]), np.uint8)
    splice(out, offsets, places[:count], ends, chars, whole)
    return offsets, whole
