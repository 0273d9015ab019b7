"""Byte writers: one pass to measure, one to write. Everything else about text is built from these.

All kernels take the data and offsets buffers of a (large) binary column and know nothing about JSON or CSV; tables made
once at import say what each byte becomes. They release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tistream.codec.compiled import kernel

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

_E2, _80, _A8, _A9 = 0xE2, 0x80, 0xA8, 0xA9


_jit: Any = kernel  # what is decorated is called with arrays that mypy need not know


@_jit
def mapped_offsets(  # type: ignore[no-untyped-def]
    data, offsets, valid, cost, extra, null_len, breaks, out
):
    """Fill `out` (rows + 1) with offsets of the mapped rows: `extra` bytes around each, `null_len` for a null."""
    total = 0
    out[0] = 0
    for i in range(len(offsets) - 1):
        if valid[i]:
            n = extra
            j = offsets[i]
            end = offsets[i + 1]
            while j < end:
                b = data[j]
                if breaks and b == _E2 and j + 2 < end and data[j + 1] == _80 and data[j + 2] in (_A8, _A9):
                    n += 6
                    j += 3
                else:
                    n += cost[b]
                    j += 1
            total += n
        else:
            total += null_len
        out[i + 1] = total


@_jit
def mapped_bytes(  # type: ignore[no-untyped-def]
    data, offsets, valid, start, table, prefix, suffix, null, breaks, out
):
    """Write the rows that `mapped_offsets` measured: prefix, every byte replaced by its entry of the table, suffix."""
    at = 0
    for i in range(len(offsets) - 1):
        if not valid[i]:
            for b in null:
                out[at] = b
                at += 1
            continue
        for b in prefix:
            out[at] = b
            at += 1
        j = offsets[i]
        end = offsets[i + 1]
        while j < end:
            b = data[j]
            if breaks and b == _E2 and j + 2 < end and data[j + 1] == _80 and data[j + 2] in (_A8, _A9):
                out[at] = 92  # \u2028 or \u2029
                out[at + 1] = 117
                out[at + 2] = 50
                out[at + 3] = 48
                out[at + 4] = 50
                out[at + 5] = 56 if data[j + 2] == _A8 else 57
                at += 6
                j += 3
                continue
            k = start[b]
            out[at] = table[k]  # most bytes are one byte, and none is nothing
            at += 1
            for more in range(k + 1, start[b + 1]):
                out[at] = table[more]
                at += 1
            j += 1
        for b in suffix:
            out[at] = b
            at += 1


@_jit
def wrapped_bytes(data, offsets, valid, prefix, suffix, null, out):  # type: ignore[no-untyped-def]
    """Write rows as they are, inside prefix and suffix; `null` for nulls. `out` has just the room."""
    at = 0
    for i in range(len(offsets) - 1):
        if not valid[i]:
            for b in null:
                out[at] = b
                at += 1
            continue
        for b in prefix:
            out[at] = b
            at += 1
        start, size = offsets[i], offsets[i + 1] - offsets[i]
        for k in range(size):
            out[at + k] = data[start + k]
        at += size
        for b in suffix:
            out[at] = b
            at += 1


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
def go_quoted_offsets(data, offsets, printable, cost, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the offsets of the rows as `go_quoted_bytes` writes them."""
    total = 0
    out[0] = 0
    for i in range(len(offsets) - 1):
        j = offsets[i]
        end = offsets[i + 1]
        while j < end:
            value, width = _rune(data, j, end)
            if width <= 1:
                total += cost[data[j]]
                j += 1
                continue
            if printable[value]:
                total += width
            else:
                total += 6 if value < 0x10000 else 10
            j += width
        out[i + 1] = total


@_jit
def go_quoted_bytes(data, offsets, printable, start, table, digits, out):  # type: ignore[no-untyped-def]
    """Go's quoted form without the quotes: printable text as it is, other code points and bad bytes as escapes."""
    at = 0
    for i in range(len(offsets) - 1):
        j = offsets[i]
        end = offsets[i + 1]
        while j < end:
            value, width = _rune(data, j, end)
            if width <= 1:
                b = data[j]
                for k in range(start[b], start[b + 1]):
                    out[at] = table[k]
                    at += 1
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
