"""Compiled byte writers: one pass to measure, one to write.

They are independent of JSON and CSV: byte maps define the escapes. They release the interpreter lock.

Why no byte outside `out` is ever written: `write` makes the same choices as `measure` from the same arrays, `out` has
just the sum of what was measured, and each line begins where the lines before it end. What is read lies between two
offsets of an Arrow array, or between two of our own constants.

Places of bytes are unsigned: a signed one is asked at every byte whether it counts from the end, and then bytes are
copied one by one (ten times slower).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tistream.codec.compiled import kernel

#: kinds of a cell: nothing, null, text copied unchanged, text changed by its map, a number, a negative number
ABSENT, NULL, PLAIN, MAPPED, NUMBER, NEGATIVE = 0, 1, 2, 3, 4, 5
ENTRY_MAX = 8  #: bytes that a byte may become

_80, _A8, _A9 = 0x80, 0xA8, 0xA9
_U202 = np.frombuffer(b"\\u202", np.uint8)
# with plain numbers the sums would be floats
_0, _1, _2, _3, _4, _5, _6, _10, _100, _10000 = (np.uint64(n) for n in (0, 1, 2, 3, 4, 5, 6, 10, 100, 10000))

_jit: Any = kernel  # decorated functions take arrays without types


@_jit
def _is_break(data, j, end):  # type: ignore[no-untyped-def]
    """Whether the byte at j, which can begin U+2028 or U+2029, does."""
    return j + _2 < end and data[j + _1] == _80 and data[j + _2] in (_A8, _A9)


@_jit
def _mapped_size(data, j, end, sizes):  # type: ignore[no-untyped-def]
    """Bytes that data[j:end] becomes."""
    size = _0
    while j < end:
        n = np.uint64(sizes[data[j]])
        if n > _0:
            size += n
            j += _1
        elif _is_break(data, j, end):
            size += _6
            j += _3
        else:
            size += _1
            j += _1
    return size


@_jit
def _digits(value):  # type: ignore[no-untyped-def]
    """How many digits a number has."""
    n = _1
    while value >= _10000:
        value //= _10000
        n += _4
    while value >= _10:
        value //= _10
        n += _1
    return n


@_jit
def measure(data, ends, state, style, sizes, spans, lengths):  # type: ignore[no-untyped-def]
    """Fill `lengths` (rows) with the bytes of each line, and mark in `state` the cells that their map changes.

    data      the text of all cells
    ends      (slots, rows + 1): cell i of slot s is data[ends[s, i] : ends[s, i + 1]], or the number ends[s, i]
    state     (slots, rows): what the cell is; PLAIN may become MAPPED
    style     (slots): number of the map, or -1 for none
    sizes     (maps, 256): how many bytes a byte becomes, 1 for itself; 0 for the first of U+2028 if that is escaped
    spans     (3 * slots + 2): where the constants begin and end; of each slot what stands before a value, what stands
              instead of one and what stands after one; then what ends every line
    """
    tail = 3 * len(style)
    lengths[:] = spans[tail + 1] - spans[tail]
    for s in range(len(style)):
        around = spans[3 * s + 1] - spans[3 * s] + spans[3 * s + 3] - spans[3 * s + 2]
        instead = spans[3 * s + 2] - spans[3 * s + 1]
        for i in range(len(lengths)):
            if state[s, i] == PLAIN:
                size = ends[s, i + 1] - ends[s, i]
                if style[s] >= 0:
                    mapped = _mapped_size(data, ends[s, i], ends[s, i + 1], sizes[style[s]])
                    if mapped != size:  # a map never shortens a text; the same size means unchanged
                        state[s, i] = MAPPED
                        size = mapped
                lengths[i] += around + size
            elif state[s, i] == NULL:
                lengths[i] += instead
            elif state[s, i] == NUMBER:
                lengths[i] += around + _digits(ends[s, i])
            elif state[s, i] == NEGATIVE:
                lengths[i] += around + _digits(ends[s, i]) + _1


@_jit
def _copy(out, at, source, start, end):  # type: ignore[no-untyped-def]
    """Copy source[start:end] to out[at:]. Returns the next place."""
    for k in range(end - start):
        out[at + k] = source[start + k]
    return at + (end - start)


@_jit
def _copy_mapped(out, at, data, j, end, sizes, entries):  # type: ignore[no-untyped-def]
    """Copy data[j:end] to out[at:] with each byte replaced by its entry. Returns the next place."""
    while j < end:
        b = data[j]
        n = np.uint64(sizes[b])
        if n == _1:
            out[at] = b
        elif n > _1:
            for k in range(n):
                out[at + k] = entries[b, k]
        elif _is_break(data, j, end):
            at = _copy(out, at, _U202, _0, _5)
            out[at] = 56 if data[j + _2] == _A8 else 57
            j += _2
            n = _1
        else:
            out[at] = b
            n = _1
        at += n
        j += _1
    return at


@_jit
def _put_number(out, at, value):  # type: ignore[no-untyped-def]
    """Write the digits of a number to out[at:]. Returns the next place."""
    end = at + _digits(value)
    j = end
    while value >= _10:
        pair = value % _100
        value //= _100
        out[j - _1] = 48 + pair % _10
        out[j - _2] = 48 + pair // _10
        j -= _2
    if j > at:
        out[at] = 48 + value
    return end


@_jit
def write(  # type: ignore[no-untyped-def]
    data, ends, state, style, sizes, entries, constants, spans, starts, out
):
    """Write line i to out[starts[i]:], just the bytes that `measure` counted.

    The arguments that both have are the same; `entries` (maps, 256, ENTRY_MAX) holds what each byte becomes.
    """
    for i in range(len(starts)):
        at = starts[i]
        pending = spans[0]  # the constant after a value is written with the one before the next
        for s in range(len(style)):
            c = 3 * s
            what = state[s, i]
            if what <= NULL:
                at = _copy(out, at, constants, pending, spans[c])
                if what == NULL:
                    at = _copy(out, at, constants, spans[c + 1], spans[c + 2])
                pending = spans[c + 3]
                continue
            at = _copy(out, at, constants, pending, spans[c + 1])
            if what == PLAIN:
                at = _copy(out, at, data, ends[s, i], ends[s, i + 1])
            elif what == MAPPED:
                at = _copy_mapped(out, at, data, ends[s, i], ends[s, i + 1], sizes[style[s]], entries[style[s]])
            else:
                if what == NEGATIVE:
                    out[at] = 45
                    at += _1
                at = _put_number(out, at, ends[s, i])
            pending = spans[c + 2]
        _copy(out, at, constants, pending, spans[len(spans) - 1])


@_jit
def _rune(data, j, end):  # type: ignore[no-untyped-def]
    """(code point, width) of the UTF-8 sequence at j; width 0 when it is not one."""
    b = data[j]
    if b < 0x80:
        return np.int64(b), 1
    if 0xC2 <= b <= 0xDF:
        width, low = 2, np.int64(0x80)
        value = np.int64(b & 0x1F)
    elif 0xE0 <= b <= 0xEF:
        width, low = 3, np.int64(0x800)
        value = np.int64(b & 0x0F)
    elif 0xF0 <= b <= 0xF4:
        width, low = 4, np.int64(0x10000)
        value = np.int64(b & 0x07)
    else:
        return np.int64(0), 0
    if j + width > end:
        return np.int64(0), 0
    for k in range(1, width):
        c = data[j + k]
        if c & 0xC0 != 0x80:
            return np.int64(0), 0
        value = (value << 6) | (c & 0x3F)
    if value < low or value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
        return np.int64(0), 0
    return value, width


@_jit
def go_quoted_offsets(data, offsets, printable, sizes, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the offsets of the rows as `go_quoted_bytes` writes them."""
    total = 0
    out[0] = 0
    for i in range(len(offsets) - 1):
        j = offsets[i]
        end = offsets[i + 1]
        while j < end:
            value, width = _rune(data, j, end)
            if width <= 1:
                total += sizes[data[j]]
                j += 1
                continue
            if printable[value]:
                total += width
            else:
                total += 6 if value < 0x10000 else 10
            j += width
        out[i + 1] = total


@_jit
def go_quoted_bytes(data, offsets, printable, sizes, entries, digits, out):  # type: ignore[no-untyped-def]
    """Go's quoted form without the quotes: printable text as it is, other code points and bad bytes as escapes."""
    at = 0
    for i in range(len(offsets) - 1):
        j = offsets[i]
        end = offsets[i + 1]
        while j < end:
            value, width = _rune(data, j, end)
            if width <= 1:
                b = data[j]
                for k in range(sizes[b]):
                    out[at + k] = entries[b, k]
                at += sizes[b]
                j += 1
                continue
            if printable[value]:
                for k in range(width):
                    out[at] = data[j + k]
                    at += 1
            else:
                count = 4 if value < 0x10000 else 8
                out[at] = 92
                out[at + 1] = 117 if count == 4 else 85
                at += 2
                for k in range(count):
                    out[at] = digits[(value >> (4 * (count - 1 - k))) & 15]
                    at += 1
            j += width


@_jit
def float_shape(data, begin, end):  # type: ignore[no-untyped-def]
    """Of a plain decimal text: (negative, index of the first digit that counts, of the last, decimal exponent)."""
    j = begin
    negative = j < end and data[j] == 45
    if negative:
        j += 1
    point = end
    first = -1
    last = -1
    for k in range(j, end):
        if data[k] == 46:
            point = k
        elif data[k] != 48:
            if first < 0:
                first = k
            last = k
    if first < 0:
        return negative, -1, -1, 0
    exponent = point - first - 1 if first < point else point - first
    return negative, first, last, exponent


@_jit
def styled_floats(data, offsets, low, high, out, out_offsets):  # type: ignore[no-untyped-def]
    """Rewrite plain decimal texts whose exponent is below `low` or at least `high` as digits and exponent.

    `out` has room for 32 bytes a rewritten row and the plain text of the others. Returns the bytes written.
    """
    at = 0
    out_offsets[0] = 0
    for i in range(len(offsets) - 1):
        begin = offsets[i]
        end = offsets[i + 1]
        negative, first, last, exponent = float_shape(data, begin, end)
        if first < 0 or low <= exponent < high:
            for k in range(begin, end):
                out[at] = data[k]
                at += 1
        else:
            if negative:
                out[at] = 45
                at += 1
            out[at] = data[first]
            at += 1
            if last > first:
                out[at] = 46
                at += 1
                for k in range(first + 1, last + 1):
                    if data[k] != 46:
                        out[at] = data[k]
                        at += 1
                if out[at - 1] == 46:
                    at -= 1
            out[at] = 101
            out[at + 1] = 45 if exponent < 0 else 43
            at += 2
            magnitude = -exponent if exponent < 0 else exponent
            if magnitude >= 100:
                out[at] = 48 + magnitude // 100
                at += 1
            out[at] = 48 + magnitude // 10 % 10
            out[at + 1] = 48 + magnitude % 10
            at += 2
        out_offsets[i + 1] = at
    return at
