"""Compiled loops that place keys between bounds, and that find the rows that W has reached.

Bounds and keys are given by address as in `kernels`; bounds rise strictly and the first is no larger than any key.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sorter.rows.kernels import Addresses, is_less, load8, load64, span_of
from tistream.codec.compiled import kernel
from tistream.model.arrays import I64, U32, U64, Mask


@kernel
def slots_of_keys(bounds: Addresses, keys: Addresses) -> I64:
    """For each key the number of the last bound that is no larger. Fast when adjacent keys lie in one slot."""
    b_offsets, b_data, b_segment, b_row = bounds
    offsets, data, segment, row = keys
    count = len(b_row)
    out = np.empty(len(row), np.int64)
    slot = 0
    from_at, from_size = span_of(b_offsets, b_data, b_segment[0], b_row[0])
    to_at, to_size = from_at, from_size
    if count > 1:
        to_at, to_size = span_of(b_offsets, b_data, b_segment[1], b_row[1])
    for i in range(len(row)):
        at, size = span_of(offsets, data, segment[i], row[i])
        if is_less(at, size, from_at, from_size) or (slot + 1 < count and not is_less(at, size, to_at, to_size)):
            low, high = 0, count
            while high - low > 1:
                middle = (low + high) // 2
                x, x_size = span_of(b_offsets, b_data, b_segment[middle], b_row[middle])
                if is_less(at, size, x, x_size):
                    high = middle
                else:
                    low = middle
            slot = low
            from_at, from_size = span_of(b_offsets, b_data, b_segment[slot], b_row[slot])
            if slot + 1 < count:
                to_at, to_size = span_of(b_offsets, b_data, b_segment[slot + 1], b_row[slot + 1])
        out[i] = slot
    return out


@kernel
def find_keys(bounds: Addresses, keys: Addresses) -> tuple[I64, Mask]:
    """(how many bounds are smaller than each key, whether the key is a bound)."""
    b_offsets, b_data, b_segment, b_row = bounds
    offsets, data, segment, row = keys
    count = len(b_row)
    out, there = np.empty(len(row), np.int64), np.zeros(len(row), np.bool_)
    low = 0
    for i in range(len(row)):
        at, size = span_of(offsets, data, segment[i], row[i])
        step, high = 1, count
        while low > 0:  # keys mostly rise: begin at the last one's place
            x, x_size = span_of(b_offsets, b_data, b_segment[low - 1], b_row[low - 1])
            if is_less(x, x_size, at, size):
                break
            low = 0
        while low + step < count:
            x, x_size = span_of(b_offsets, b_data, b_segment[low + step], b_row[low + step])
            if not is_less(x, x_size, at, size):
                high = low + step
                break
            low, step = low + step, 2 * step
        while low < high:
            middle = (low + high) // 2
            x, x_size = span_of(b_offsets, b_data, b_segment[middle], b_row[middle])
            if is_less(x, x_size, at, size):
                low = middle + 1
            else:
                high = middle
        out[i] = low
        if low < count:
            x, x_size = span_of(b_offsets, b_data, b_segment[low], b_row[low])
            there[i] = x_size == size and not is_less(at, size, x, x_size)
    return out, there


@kernel
def tables_of_keys(keys: Addresses) -> I64:
    """The physical table id of each key as `codec.table_key` defines it, 0 if the key belongs to no table."""
    offsets, data, segment, row = keys
    out = np.zeros(len(row), np.int64)
    for i in range(len(row)):
        at, size = span_of(offsets, data, segment[i], row[i])
        if size < 9 or load8(at) != 0x74:
            continue
        encoded, number = load64(at + np.uint64(1)), np.uint64(0)
        for _ in range(8):  # big endian
            number = (number << np.uint64(8)) | (encoded & np.uint64(0xFF))
            encoded >>= np.uint64(8)
        if number >> np.uint64(63):
            out[i] = np.int64(number & np.uint64(0x7FFFFFFFFFFFFFFF))
    return out


@kernel
def reached_rows(
    rows: I64,
    groups: tuple[I64, I64, U64, I64],
    w: U64,
    values: U64,
    value_of: U32,
    alive: Mask,
    passed: Any,
) -> I64:
    """The living rows whose threshold W of their slot has reached. They and dead rows leave their groups, in place.

    Group g is rows[first[g]:first[g] + count[g]] in slot[g]; least[g] is no larger than any of their thresholds. The
    threshold of row r is values[value_of[r]], or values[r] if `value_of` is empty; with `passed` 1 it must be passed.
    """
    first, count, least, slot = groups
    out, n = np.empty(len(rows), np.int64), 0
    direct = len(value_of) == 0
    for g in range(len(first)):
        top = w[slot[g]]
        if count[g] == 0 or top < least[g] + passed:
            continue
        kept, lowest = first[g], np.uint64(0xFFFFFFFFFFFFFFFF)
        for at in range(first[g], first[g] + count[g]):
            r = rows[at]
            if not alive[r]:
                continue
            t = values[r] if direct else values[value_of[r]]
            if t + passed <= top:
                out[n] = r
                n += 1
            else:
                rows[kept] = r
                kept += 1
                lowest = min(lowest, t)
        count[g], least[g] = kept - first[g], lowest
    return out[:n].copy()


@kernel
def raise_to(w: U64, slots: I64, resolved: U64) -> bool:
    """Raise each slot that is below its resolved value; whether any was. Slots may repeat."""
    moved = False
    for i in range(len(slots)):
        if resolved[i] > w[slots[i]]:
            w[slots[i]] = resolved[i]
            moved = True
    return moved
