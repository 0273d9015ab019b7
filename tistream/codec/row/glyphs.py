"""Numbers and times as characters: compiled loops for `text` and the JSON renderer.

Floats are not turned into digits here: Arrow's cast gives the fewest digits that read back as the same float (32 or 64
bits), and `restyle` lays those digits out as TiDB does.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tistream.codec.compiled import kernel, view
from tistream.codec.row.kernel import Number
from tistream.model.arrays import I64, U8, U64

PLAIN, MYSQL, JSON_NUMBER = 0, 1, 2  # never an exponent; below 1e-15 and from 1e15 on; the same with ".0" kept
FLOAT_CHARS_MAX = 350  # sign, "0.", 323 zeros, 17 digits

_MINUS, _POINT, _ZERO, _E, _PLUS = 45, 46, 48, 101, 43


@kernel
def put_number(out: U8, to: Number, value: Number, width: Number) -> Number:
    """Write an unsigned number with at least `width` digits. Returns the next position."""
    rest, size = np.uint64(value), 0
    while size < width or rest > 0:
        rest //= np.uint64(10)
        size += 1
    rest = np.uint64(value)
    for j in range(size):
        out[to + size - 1 - j] = _ZERO + np.int64(rest % np.uint64(10))
        rest //= np.uint64(10)
    return to + size


@kernel
def put_pair(out: U8, to: Number, value: Number) -> Number:
    """Two digits of a number below 100. Returns the next position."""
    at, number = np.uint64(to), np.uint8(value)
    out[at] = _ZERO + number // 10
    out[at + np.uint64(1)] = _ZERO + number % 10
    return to + 2


@kernel
def put_fraction(out: U8, to: Number, micros: Number, digits: Number) -> Number:
    """Write "." and the first `digits` of six fraction digits; nothing for 0."""
    if digits == 0:
        return to
    out[to] = _POINT
    scaled = np.int64(micros)
    for _ in range(6 - digits):
        scaled //= 10
    return put_number(out, to + 1, np.uint64(scaled), digits)


@kernel
def put_date(out: U8, to: Number, year: Number, month: Number, day: Number) -> Number:
    """YYYY-MM-DD."""
    to = put_number(out, to, np.uint64(year), 4)
    out[to] = _MINUS
    to = put_pair(out, to + 1, month)
    out[to] = _MINUS
    return put_pair(out, to + 1, day)


@kernel
def put_clock(out: U8, to: Number, hours: Number, minutes: Number, seconds: Number) -> Number:
    """HH:MM:SS; more digits for more than 99 hours."""
    to = put_pair(out, to, hours) if hours < 100 else put_number(out, to, np.uint64(hours), 2)
    out[to] = 58
    to = put_pair(out, to + 1, minutes)
    out[to] = 58
    return put_pair(out, to + 1, seconds)


@kernel
def put_duration(out: U8, to: Number, nanos: Number, fsp: Number) -> Number:
    """[-]HH:MM:SS[.f...]."""
    size = np.uint64(nanos)
    if nanos < 0:
        out[to] = _MINUS
        to += 1
        size = ~size + np.uint64(1)
    micros = np.int64(size // np.uint64(1000))
    seconds = micros // 1_000_000
    to = put_clock(out, to, seconds // 3600, seconds // 60 % 60, seconds % 60)
    return put_fraction(out, to, micros % 1_000_000, fsp)


@kernel
def write_times(values: U64, date_only: bool, fsp: Number, offsets: I64, out: U8) -> None:
    """Packed times as text; `out` holds 32 bytes a value, `offsets` (values + 1) is filled."""
    to = 0
    for row in range(len(values)):
        offsets[row] = to
        value = values[row]
        months = np.int64(value >> np.uint64(46))
        clock = np.int64(value >> np.uint64(24)) & 0x1FFFF
        to = put_date(out, to, months // 13, months % 13, np.int64(value >> np.uint64(41)) & 31)
        if not date_only:
            out[to] = 32
            to = put_clock(out, to + 1, clock >> 12, clock >> 6 & 63, clock & 63)
            to = put_fraction(out, to, np.int64(value & np.uint64(0xFFFFFF)), fsp)
    offsets[len(values)] = to


@kernel
def write_durations(values: I64, fsp: Number, offsets: I64, out: U8) -> None:
    """Nanoseconds as text; `out` holds 32 bytes a value."""
    to = 0
    for row in range(len(values)):
        offsets[row] = to
        to = put_duration(out, to, values[row], fsp)
    offsets[len(values)] = to


@kernel
def _scan(source: U8, at: Number, end: Number, digits: U8) -> tuple[Number, Number]:
    """(number of significant digits, E) so that the number is 0.DIGITS * 10**E."""
    seen_point, count, point, trailing, exponent = False, 0, 0, 0, np.int64(0)
    while at < end and source[at] != _E:
        byte = source[at]
        at += 1
        if byte == _POINT:
            seen_point = True
            continue
        if not seen_point:
            point += 1 if count or byte != _ZERO else 0
        elif count == 0 and byte == _ZERO:
            point -= 1
        if count or byte != _ZERO:
            digits[count] = byte
            count += 1
            trailing = trailing + 1 if byte == _ZERO else 0
    if at < end:
        at += 1
        minus = source[at] == _MINUS
        if minus or source[at] == _PLUS:
            at += 1
        while at < end:
            exponent = exponent * 10 + np.int64(source[at]) - _ZERO
            at += 1
        if minus:
            exponent = -exponent
    return count - trailing, point + exponent


@kernel
def _put_plain(digits: U8, count: Number, power: Number, keep_fraction: bool, out: U8, to: Number) -> Number:
    if power <= 0:
        out[to] = _ZERO
        to += 1
        if count:
            out[to] = _POINT
            to += 1
        for _ in range(-power if count else 0):
            out[to] = _ZERO
            to += 1
    for j in range(max(count, power if count else 0)):
        if j == power and power > 0:
            out[to] = _POINT
            to += 1
        out[to] = digits[j] if j < count else _ZERO
        to += 1
    if keep_fraction and count <= max(power, 0):
        out[to], out[to + 1] = _POINT, _ZERO
        to += 2
    return to


@kernel
def _put_exponent(digits: U8, count: Number, power: Number, out: U8, to: Number) -> Number:
    out[to] = digits[0]
    to += 1
    if count > 1:
        out[to] = _POINT
        to += 1
        for j in range(1, count):
            out[to] = digits[j]
            to += 1
    out[to] = _E
    to += 1
    if power < 1:
        out[to] = _MINUS
        return put_number(out, to + 1, np.uint64(1 - power), 1)
    return put_number(out, to, np.uint64(power - 1), 1)


@kernel
def restyle(source: U8, ends: I64, style: Number, offsets: I64, out: U8) -> None:
    """Lay out the digits of floats in a style. `ends` (values + 1) delimits each in `source`; `offsets` is filled."""
    digits = np.empty(800, np.uint8)
    to = 0
    for row in range(len(ends) - 1):
        offsets[row] = to
        at, end = ends[row], ends[row + 1]
        if at < end and source[at] == _MINUS:
            out[to] = _MINUS
            to += 1
            at += 1
        if at < end and (source[at] < _ZERO or source[at] > _ZERO + 9):  # nan, inf
            for j in range(at, end):
                out[to] = source[j]
                to += 1
            continue
        count, power = _scan(source, at, end, digits)
        if style != PLAIN and count and (power >= 16 or power <= -15):
            to = _put_exponent(digits, count, power, out, to)
        elif at < end:
            to = _put_plain(digits, count, power, style == JSON_NUMBER, out, to)
    offsets[len(ends) - 1] = to


def float_chars(values: pa.Array, style: int) -> tuple[I64, U8]:
    """(offsets, characters) of floats, float32 with the fewest digits of a float32. NULLs give nothing."""
    shown = values.cast(pa.large_string())
    source = view(shown.buffers()[2], np.uint8)
    ends = view(shown.buffers()[1], np.int64)[shown.offset : shown.offset + len(shown) + 1]
    if style == PLAIN and not (source == _E).any():  # without an exponent they are plain already
        return ends, source
    offsets = np.empty(len(shown) + 1, np.int64)
    out = np.empty(FLOAT_CHARS_MAX * len(shown), np.uint8)
    restyle(source, ends, style, offsets, out)
    offsets.flags.writeable = out.flags.writeable = False  # as above: kernels are compiled for one of the two
    return offsets, out
