"""MySQL's binary decimals to Arrow decimals, exactly.

Up to 18 digits are gathered in one machine word; longer ones in eight 32-bit limbs, which hold any 77 digits.
A stored value keeps the shape it was written with: it is rescaled to the column's fraction digits, rounding half away
from zero as TiDB does when it reads, and must then fit the column's digits.
"""

from __future__ import annotations

import numpy as np

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.kernel import Number
from tistream.codec.row.locate import decimal_size
from tistream.model.arrays import I32, I64, U8, U64

LIMBS = 8
WORD_DIGITS = 18  # as many always fit 64 bits
POWERS = np.array([10**e for e in range(19)], np.uint64)


def limbs_of(value: int) -> U64:
    """A number below 2**256 as 32-bit limbs, lowest first."""
    return np.array([value >> (32 * limb) & 0xFFFFFFFF for limb in range(LIMBS)], np.uint64)


@kernel
def _multiply_add(limbs: U64, factor: Number, addend: Number) -> Number:
    """limbs = limbs * factor + addend, both below 2**32. False on overflow."""
    carry = np.uint64(addend)
    for j in range(LIMBS):
        value = limbs[j] * np.uint64(factor) + carry
        limbs[j] = value & np.uint64(0xFFFFFFFF)
        carry = value >> np.uint64(32)
    return carry == 0


@kernel
def _divide(limbs: U64, divisor: Number) -> None:
    rest = np.uint64(0)
    for j in range(LIMBS - 1, -1, -1):
        value = rest << np.uint64(32) | limbs[j]
        limbs[j] = value // np.uint64(divisor)
        rest = value % np.uint64(divisor)


@kernel
def _rescale(limbs: U64, power: Number) -> bool:
    """Multiply by 10**power; a negative power divides and rounds half up. False on overflow."""
    while power > 0:
        step = min(power, 9)
        if not _multiply_add(limbs, POWERS[step], 0):
            return False
        power -= step
    if power < 0:
        power += 1  # all but the last digit are simply cut
        while power < 0:
            step = min(-power, 9)
            _divide(limbs, POWERS[step])
            power += step
        _multiply_add(limbs, 1, 5)
        _divide(limbs, 10)
    return True


@kernel
def _group(data: U8, at: Number, size: Number, first: Number, flip: Number) -> Number:
    """One group of digits; the very first byte (position `first`) has its sign bit turned over."""
    value = np.uint64(0)
    for j in range(size):
        byte = data[at + j] ^ flip
        if at + j == first:
            byte ^= 0x80
        value = value << np.uint64(8) | np.uint64(byte & 0xFF)
    return value


@kernel
def _read(data: U8, at: Number, whole: Number, fraction: Number, flip: Number, limbs: U64) -> tuple[Number, bool]:
    """(value if it has at most 18 digits, else 0 with the value in `limbs`; whether all groups are proper)."""
    first, word = at, np.uint64(0)
    short = whole + fraction <= WORD_DIGITS
    for j in range(LIMBS):
        limbs[j] = 0
    for part in range(2):
        digits = whole if part == 0 else fraction
        groups = digits // 9 + (1 if digits % 9 else 0)
        for g in range(groups):
            # the odd group comes first before the point and last behind it
            odd = digits % 9 != 0 and g == (0 if part == 0 else groups - 1)
            count = digits % 9 if odd else 9
            size = (count + 1) // 2 if odd else 4
            value = np.uint64(_group(data, at, size, first, flip))
            if value >= POWERS[count]:
                return np.uint64(0), False
            if short:
                word = word * POWERS[count] + value
            else:
                _multiply_add(limbs, POWERS[count], value)
            at += size
    return word, True


@kernel
def decimals(data: U8, position: I32, length: I32, c: Number, scale: Number, bound: U64, fault: I32, out: U64) -> None:
    """Decimals of a column with `scale` fraction digits, below `bound` (limbs). `out` is (rows, 2 or 4) words."""
    limbs = np.zeros(LIMBS, np.uint64)
    words = out.shape[1]
    word_bound = bound[0] | bound[1] << np.uint64(32)
    for j in range(2, LIMBS):
        if bound[j]:
            word_bound = np.uint64(0xFFFFFFFFFFFFFFFF)
    for row in range(out.shape[0]):
        for j in range(words):
            out[row, j] = 0
        size = np.int64(length[c, row])
        if size < 0:
            continue
        at = np.int64(position[c, row])
        digits, fraction = np.int64(0), np.int64(0)
        if size >= 3:
            digits, fraction = np.int64(data[at]), np.int64(data[at + 1])
        if decimal_size(digits, fraction) + 2 != size or size < 3:
            k.fail(fault, length, row, k.DECIMAL_SHAPE, c, at)
            continue
        negative = data[at + 2] & 0x80 == 0
        value, proper = _read(data, at + 2, digits - fraction, fraction, 0xFF if negative else 0, limbs)
        if not proper:
            k.fail(fault, length, row, k.DECIMAL_DIGITS, c, at)
            continue
        word, grown = np.uint64(value), scale - fraction
        if grown >= 0 and digits + grown <= WORD_DIGITS:
            word *= POWERS[grown]
            fits = word < word_bound
            out[row, 0] = word
        else:
            if digits <= WORD_DIGITS:
                limbs[0] = word & np.uint64(0xFFFFFFFF)
                limbs[1] = word >> np.uint64(32)
            fits = _rescale(limbs, grown)
            if fits:
                fits = _below(limbs, bound)
            for j in range(words):
                out[row, j] = limbs[2 * j] | limbs[2 * j + 1] << np.uint64(32)
        if not fits:
            k.fail(fault, length, row, k.OUT_OF_RANGE, c, at)
        elif negative:
            _negate(out, row)


@kernel
def _below(limbs: U64, bound: U64) -> Number:
    for j in range(LIMBS - 1, -1, -1):
        if limbs[j] != bound[j]:
            return limbs[j] < bound[j]
    return False


@kernel
def _negate(out: U64, row: Number) -> None:
    """Two's complement of a row of words."""
    carry = np.uint64(1)
    for j in range(out.shape[1]):
        flipped = ~out[row, j]
        out[row, j] = flipped + carry
        carry = np.uint64(1) if carry and out[row, j] == 0 else np.uint64(0)


@kernel
def write_decimals(words: U64, scale: Number, offsets: I64, out: U8) -> None:
    """Two's complement words (rows, 2 or 4) as text with `scale` fraction digits; `out` holds 84 bytes a value."""
    limbs = np.zeros(LIMBS, np.uint64)
    digits = np.empty(90, np.uint8)
    to = 0
    for row in range(words.shape[0]):
        offsets[row] = to
        negative = words[row, words.shape[1] - 1] >> np.uint64(63) == 1
        carry = np.uint64(1)
        for j in range(words.shape[1]):
            word = words[row, j]
            if negative:
                word = ~word + carry
                carry = np.uint64(1) if carry and word == 0 else np.uint64(0)
            limbs[2 * j] = word & np.uint64(0xFFFFFFFF)
            limbs[2 * j + 1] = word >> np.uint64(32)
        count = _digits(limbs, scale + 1, digits)
        if negative:
            out[to] = 45
            to += 1
        for j in range(count):
            if scale and j == count - scale:
                out[to] = 46
                to += 1
            out[to] = digits[count - 1 - j]
            to += 1
    offsets[words.shape[0]] = to


@kernel
def _digits(limbs: U64, least: Number, digits: U8) -> Number:
    """Decimal digits, lowest first, at least `least` of them. `limbs` is used up."""
    count = 0
    while True:
        top = LIMBS - 1
        while top >= 0 and limbs[top] == 0:
            top -= 1
        if top < 0 and count >= least:
            return count
        rest = np.uint64(0)
        for j in range(top, -1, -1):
            value = rest << np.uint64(32) | limbs[j]
            limbs[j] = value // np.uint64(1_000_000_000)
            rest = value % np.uint64(1_000_000_000)
        last = True
        for j in range(top + 1):
            last = last and limbs[j] == 0
        for _ in range(9):
            if last and rest == 0 and count >= least:
                break
            digits[count] = 48 + np.int64(rest % np.uint64(10))
            rest //= np.uint64(10)
            count += 1
