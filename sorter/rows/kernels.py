"""Compiled loops over rows in several Arrow columns: hash, index, probe, order and copy.

A row is (segment, number in the segment). For each segment a loop gets the address of its 32-bit offsets and of its
bytes. No address is checked here: `payload` validates every offset of a segment before it hands out addresses, keeps
the memory alive, and checks row numbers with `rows_are_inside`. Arrays are always C-contiguous and of the types named
here, so each loop is compiled once.

An index is a hash table in compressed form: the rows of bucket b (the upper bits of the hash) are
`rows[starts[b]:starts[b + 1]]`, ascending, with the lower half of their hashes in `tags`. It is built in two passes
without sorting, and is immutable. A hit counts only when timestamp and whole key are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic

from tistream.codec.compiled import copy_bytes, kernel
from tistream.model.arrays import I64, U8, U32, U64, Mask

Addresses = tuple[U64, U64, U32, U32]  #: offsets, data, segment, row

_K1, _K2, _K3 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xFF51AFD7ED558CCD)
_LOW, _U4, _U8 = np.uint64(0xFFFFFFFF), np.uint64(4), np.uint64(8)
_RADIX = 11
TIES_SMALL = 32  #: rows of one commit_ts that are sorted in place


@intrinsic  # type: ignore[untyped-decorator]
def _load32(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = context.get_value_type(types.int32).as_pointer()
        return builder.load(builder.inttoptr(args[0], kind), align=1)

    return types.int32(types.uint64), code


@intrinsic  # type: ignore[untyped-decorator]
def load64(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = context.get_value_type(types.uint64).as_pointer()
        return builder.load(builder.inttoptr(args[0], kind), align=1)

    return types.uint64(types.uint64), code


@intrinsic  # type: ignore[untyped-decorator]
def load8(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = context.get_value_type(types.uint8).as_pointer()
        return builder.load(builder.inttoptr(args[0], kind))

    return types.uint8(types.uint64), code


@kernel
def offsets_are_sound(offsets: npt.NDArray[np.int32], size: int) -> bool:
    """Whether a column's offsets never fall and stay within its `size` bytes."""
    before = offsets[0]
    if before < 0:
        return False
    for i in range(1, len(offsets)):
        if offsets[i] < before:
            return False
        before = offsets[i]
    return bool(before <= size)


@kernel
def rows_are_inside(segment: U32, row: U32, counts: I64) -> bool:
    """Whether each row exists in its segment."""
    for i in range(len(row)):  # noqa: SIM110 - a compiled loop
        if segment[i] >= len(counts) or row[i] >= counts[segment[i]]:
            return False
    return True


@kernel
def span_of(offsets: U64, data: U64, segment: Any, row: Any) -> tuple[Any, Any]:
    """(address, size) of a row's bytes."""
    at = offsets[segment] + _U4 * np.uint64(row)
    start = np.uint64(_load32(at))
    return data[segment] + start, np.uint64(_load32(at + _U4)) - start


@kernel
def is_same(a: Any, b: Any, size: Any) -> bool:
    i = np.uint64(0)
    while i + _U8 <= size:
        if load64(a + i) != load64(b + i):
            return False
        i += _U8
    while i < size:
        if load8(a + i) != load8(b + i):
            return False
        i += np.uint64(1)
    return True


@kernel
def is_less(a: Any, size_a: Any, b: Any, size_b: Any) -> bool:
    i, shorter = np.uint64(0), min(size_a, size_b)
    while i + _U8 <= shorter and load64(a + i) == load64(b + i):
        i += _U8
    while i < shorter:
        x, y = load8(a + i), load8(b + i)
        if x != y:
            return bool(x < y)
        i += np.uint64(1)
    return bool(size_a < size_b)


@kernel
def hash_keys(offsets: U64, data: U64, segment: U32, row: U32) -> U64:
    """A hash of each key, the same for the same bytes. It may change from version to version: never store it."""
    out = np.empty(len(row), np.uint64)
    for i in range(len(row)):
        at, size = span_of(offsets, data, segment[i], row[i])
        h = _K1 ^ (size * _K2)
        k = np.uint64(0)
        while k + _U8 <= size:
            h = (h ^ load64(at + k)) * _K2
            h ^= h >> np.uint64(29)
            k += _U8
        tail = np.uint64(0)
        while k < size:
            tail = (tail << _U8) | np.uint64(load8(at + k))
            k += np.uint64(1)
        h = (h ^ tail) * _K1
        out[i] = h ^ (h >> np.uint64(32))
    return out


@kernel
def mix(hashes: U64, ts: U64, mask: Any) -> U64:
    """The hash of (key, ts); tests shorten it with `mask` to get collisions."""
    out = np.empty(len(hashes), np.uint64)
    for i in range(len(hashes)):
        h = (hashes[i] ^ (ts[i] * _K1)) * _K3
        h = (h ^ (h >> np.uint64(32))) * _K2
        out[i] = (h ^ (h >> np.uint64(29))) & mask
    return out


@kernel
def build_index(hashes: U64, bits: Any) -> tuple[U32, U32, U32]:
    """(starts, tags, rows) over 2**bits buckets."""
    shift = np.uint64(64 - bits)
    starts = np.zeros((1 << bits) + 1, np.uint32)
    for h in hashes:
        starts[np.int64(h >> shift) + 1] += np.uint32(1)
    for b in range(1 << bits):
        starts[b + 1] += starts[b]
    tags, rows = np.empty(len(hashes), np.uint32), np.empty(len(hashes), np.uint32)
    for i in range(len(hashes)):
        bucket = np.int64(hashes[i] >> shift)
        at = np.int64(starts[bucket])
        tags[at], rows[at] = np.uint32(hashes[i] & _LOW), np.uint32(i)
        starts[bucket] = np.uint32(at + 1)
    for b in range(1 << bits, 0, -1):
        starts[b] = starts[b - 1]
    starts[0] = np.uint32(0)
    return starts, tags, rows


@kernel
def _bits_of(h: Any) -> Any:
    """The three filter bits of a hash in its word."""
    one = np.uint64(1)
    bits = one << (h & np.uint64(63))
    bits |= one << ((h >> np.uint64(6)) & np.uint64(63))
    return bits | (one << ((h >> np.uint64(12)) & np.uint64(63)))


@kernel
def hash_filter(hashes: U64, size: int) -> U64:
    """A Bloom filter of the hashes, of `size` words (a power of two); the bits of a hash lie in one word."""
    words = np.zeros(size, np.uint64)
    last = np.uint64(size - 1)
    for h in hashes:
        words[(h >> np.uint64(20)) & last] |= _bits_of(h)
    return words


@kernel
def probe(
    index: tuple[U32, U32, U32, U64, U64],
    alive: Mask,
    ts: U64,
    refs: Addresses,
    hashes: U64,
    wanted_ts: U64,
    wanted_refs: Addresses,
    capacity: int,
) -> tuple[int, I64, I64]:
    """All pairs (lookup key, row) that are equal in (key, ts), the row alive: how many, and the first `capacity`.

    `index` is (starts, tags, rows, filter, [lowest, highest ts]); references are (offsets, data, segment, row).
    """
    starts, tags, rows, words, span = index
    offsets, data, segment, number = refs
    n_offsets, n_data, n_segment, n_number = wanted_refs
    lookups, hits = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    last = np.uint64(len(words) - 1)
    buckets, shift = len(starts) - 1, np.uint64(64)
    while buckets > 1:
        buckets, shift = buckets >> 1, shift - np.uint64(1)
    count = 0
    for i in range(len(hashes)):
        t = wanted_ts[i]
        if t < span[0] or t > span[1]:
            continue
        bits = _bits_of(hashes[i])
        if words[(hashes[i] >> np.uint64(20)) & last] & bits != bits:
            continue
        bucket, tag = np.int64(hashes[i] >> shift), np.uint32(hashes[i] & _LOW)
        for at in range(starts[bucket], starts[bucket + 1]):
            r = rows[at]
            if tags[at] != tag or not alive[r] or ts[r] != t:
                continue
            x, size = span_of(n_offsets, n_data, n_segment[i], n_number[i])
            y, other = span_of(offsets, data, segment[r], number[r])
            if size == other and is_same(x, y, size):
                if count < capacity:
                    lookups[count], hits[count] = i, r
                count += 1
    return count, lookups, hits


@kernel
def first_equals(index: tuple[U32, U32, U32, U64, U64], ts: U64, refs: Addresses) -> I64:
    """For each row the first one that is equal to it in (key, ts), possibly itself."""
    starts, tags, rows, _words, _span_ts = index
    offsets, data, segment, number = refs
    out = np.arange(len(ts))
    for b in range(len(starts) - 1):
        for j in range(np.int64(starts[b]) + 1, np.int64(starts[b + 1])):
            y = rows[j]
            for i in range(np.int64(starts[b]), j):
                x = rows[i]
                if tags[i] != tags[j] or ts[x] != ts[y] or out[x] != x:
                    continue
                p, size = span_of(offsets, data, segment[x], number[x])
                q, other = span_of(offsets, data, segment[y], number[y])
                if size == other and is_same(p, q, size):
                    out[y] = x
                    break
    return out


@kernel
def kill(alive: Mask, rows: I64) -> int:
    """Clear these flags; how many were set."""
    count = 0
    for r in rows:
        if alive[r]:
            alive[r] = False
            count += 1
    return count


@kernel
def sizes_of(offsets: U64, data: U64, valid: U64, segment: U32, row: U32, nulls: Mask) -> tuple[I64, U8]:
    """(offsets of the concatenated rows, validity). `valid` is the address of a byte per row, or 0. A row is null
    where `nulls` is true or its segment has a null; a null takes no bytes."""
    ends, present = np.empty(len(row) + 1, np.int64), np.ones(len(row), np.uint8)
    total = 0
    for i in range(len(row)):
        ends[i] = total
        s = segment[i]
        if nulls[i] or (valid[s] != 0 and load8(valid[s] + np.uint64(row[i])) == 0):
            present[i] = 0
        else:
            _at, size = span_of(offsets, data, s, row[i])
            total += int(size)
    ends[len(row)] = total
    return ends, present


@kernel
def add_sizes(offsets: U64, data: U64, valid: U64, segment: U32, row: U32, nulls: Mask, sizes: I64) -> None:
    """Add the bytes of each row to `sizes`; none where it is null, `nulls` is true or its segment lacks the column."""
    for i in range(len(row)):
        s = segment[i]
        if nulls[i] or offsets[s] == 0:
            continue
        if valid[s] == 0 or load8(valid[s] + np.uint64(row[i])) != 0:
            _at, size = span_of(offsets, data, s, row[i])
            sizes[i] += np.int64(size)


@kernel
def copy_rows(offsets: U64, data: U64, segment: U32, row: U32, ends: I64, out: U8) -> None:
    """The rows' bytes, concatenated as `sizes_of` laid them out."""
    base = np.uint64(out.ctypes.data)
    for i in range(len(row)):
        size = ends[i + 1] - ends[i]
        if size > 0 and ends[i + 1] <= len(out):
            at, _size = span_of(offsets, data, segment[i], row[i])
            copy_bytes(base + np.uint64(ends[i]), at, np.uint64(size))


@kernel
def radix_order(values: U64) -> I64:
    """The stable order of the values; digits in which all agree cost one pass."""
    n = len(values)
    order, other = np.arange(n), np.empty(n, np.int64)
    if n == 0:
        return order
    differ = np.uint64(0)
    for v in values:
        differ |= v ^ values[0]
    shift = np.uint64(0)
    while shift < np.uint64(64) and (differ >> shift) != 0:
        digit = np.uint64((1 << _RADIX) - 1)
        if (differ >> shift) & digit:
            counts = np.zeros((1 << _RADIX) + 1, np.int64)
            for v in values:
                counts[np.int64((v >> shift) & digit) + 1] += 1
            for d in range(1 << _RADIX):
                counts[d + 1] += counts[d]
            for k in range(n):
                value = np.int64((values[order[k]] >> shift) & digit)
                other[counts[value]] = order[k]
                counts[value] += 1
            order, other = other, order
        shift += np.uint64(_RADIX)
    return order


@kernel
def fix_ties(order: I64, first: U64, start_ts: U64, refs: Addresses) -> tuple[int, I64]:
    """`order` sorts by `first`; put small groups of equal ones in the order of (start_ts, key), in place. Returns the
    bounds [from, to, from, to, ...] of the groups that are too large for it, and how many numbers that is."""
    offsets, data, segment, number = refs
    n, i, large = len(order), 0, 0
    bounds = np.empty(2 * (n // TIES_SMALL + 1), np.int64)
    while i < n:
        j = i + 1
        while j < n and first[order[j]] == first[order[i]]:
            j += 1
        if j - i > TIES_SMALL:
            bounds[large], bounds[large + 1] = i, j
            large += 2
        else:
            for a in range(i + 1, j):
                x = order[a]
                p, size = span_of(offsets, data, segment[x], number[x])
                b = a - 1
                while b >= i:
                    y = order[b]
                    if start_ts[y] < start_ts[x]:
                        break
                    if start_ts[y] == start_ts[x]:
                        q, other = span_of(offsets, data, segment[y], number[y])
                        if not is_less(p, size, q, other):
                            break
                    order[b + 1] = y
                    b -= 1
                order[b + 1] = x
        i = j
    return large, bounds


@kernel
def lower_bounds(
    rows: U32,
    own: tuple[I64, U64, U64],
    own_place: tuple[U64, U64, U32, U32],
    wanted: tuple[I64, U64, U64],
    wanted_refs: tuple[U64, U64, U32, U32],
) -> I64:
    """For each wanted (table, commit_ts, start_ts, key) how many of `rows`, which are in that order, lie before it."""
    offsets, data, segment, number = own_place
    w_offsets, w_data, w_segment, w_number = wanted_refs
    out = np.empty(len(w_segment), np.int64)
    for i in range(len(w_segment)):
        q, other = span_of(w_offsets, w_data, w_segment[i], w_number[i])
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) // 2
            r = rows[middle]
            if own[0][r] != wanted[0][i]:
                before = own[0][r] < wanted[0][i]
            elif own[1][r] != wanted[1][i]:
                before = own[1][r] < wanted[1][i]
            elif own[2][r] != wanted[2][i]:
                before = own[2][r] < wanted[2][i]
            else:
                p, size = span_of(offsets, data, segment[r], number[r])
                before = is_less(p, size, q, other)
            if before:
                low = middle + 1
            else:
                high = middle
        out[i] = low
    return out
