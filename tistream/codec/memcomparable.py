"""TiDB's memcomparable encoding: values as bytes that sort as the values do, and the datums made of them.

    bytes    groups of 8, zero padded, each followed by 0xff - pad count; lengths 0, 8, 16 ... end with an empty group
    int      8 bytes big endian with the sign bit flipped
    uint     8 bytes big endian
    float    IEEE 754 bits big endian; the sign bit flipped, or all bits when it was set
    decimal  precision, fraction, then 9 digits per 4 bytes with the sign folded in
    varint   zigzag LEB128; uvarint plain LEB128 (not comparable; in values)

A datum is a flag byte and a body; keys and handles are consecutive datums. Decoders take the bytes and an offset,
return the value and the offset after it, and raise DecodeError with `offset` for invalid bytes. This is scalar code;
`tistream.codec.row` decodes rows and handles in bulk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import NamedTuple

from tistream.errors import DecodeError

GROUP = 8
SIGN = 1 << 63
_DIGITS_PER_WORD = 9
_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_PRECISION_MAX = 65
_FRACTION_MAX = 30
_EXACT = Context(prec=_PRECISION_MAX + _FRACTION_MAX)

FLAG_NULL = 0
FLAG_BYTES = 1
FLAG_COMPACT_BYTES = 2
FLAG_INT = 3
FLAG_UINT = 4
FLAG_FLOAT = 5
FLAG_DECIMAL = 6
FLAG_DURATION = 7  # nanoseconds
FLAG_VARINT = 8
FLAG_UVARINT = 9

DatumValue = None | bytes | int | float | Decimal


class Datum(NamedTuple):
    """One datum of a key: `data[start:end]` is the flag and the body."""

    flag: int
    value: DatumValue
    start: int
    end: int


def encode_bytes(data: bytes) -> bytes:
    """(len // 8 + 1) * 9 bytes."""
    out = bytearray()
    for at in range(0, len(data) + 1, GROUP):
        group = data[at : at + GROUP]
        pad = GROUP - len(group)
        out += group + bytes(pad) + bytes([0xFF - pad])
    return bytes(out)


def decode_bytes(data: bytes, at: int = 0) -> tuple[bytes, int]:
    """The bytes at `at` and the offset after them."""
    out = bytearray()
    while True:
        group = data[at : at + GROUP + 1]
        if len(group) <= GROUP:
            raise DecodeError("a group of bytes is cut off", offset=at)
        pad = 0xFF - group[GROUP]
        if pad > GROUP:
            raise DecodeError("a group of bytes has an impossible marker", offset=at + GROUP, marker=group[GROUP])
        if any(group[GROUP - pad : GROUP]):
            raise DecodeError("a group of bytes has padding other than zeros", offset=at)
        out += group[: GROUP - pad]
        at += GROUP + 1
        if pad:
            return bytes(out), at


def encode_int(value: int) -> bytes:
    """8 bytes of a signed 64-bit integer."""
    if not -SIGN <= value < SIGN:
        raise ValueError(f"{value} is not a signed 64-bit integer")
    return (value + SIGN).to_bytes(8, "big")


def decode_int(data: bytes, at: int = 0) -> tuple[int, int]:
    """The signed integer at `at` and the offset after it."""
    value, end = decode_uint(data, at)
    return value - SIGN, end


def encode_uint(value: int) -> bytes:
    """8 bytes of an unsigned 64-bit integer."""
    return value.to_bytes(8, "big")


def decode_uint(data: bytes, at: int = 0) -> tuple[int, int]:
    """The unsigned integer at `at` and the offset after it."""
    body = data[at : at + 8]
    if len(body) < 8:
        raise DecodeError("an 8-byte number is cut off", offset=at)
    return int.from_bytes(body, "big"), at + 8


def encode_float(value: float) -> bytes:
    """8 bytes of a double; -0.0 sorts before 0.0."""
    bits = int.from_bytes(struct.pack(">d", value), "big")
    return (~bits & (2 * SIGN - 1) if bits & SIGN else bits | SIGN).to_bytes(8, "big")


def decode_float(data: bytes, at: int = 0) -> tuple[float, int]:
    """The double at `at` and the offset after it."""
    code, end = decode_uint(data, at)
    bits = code ^ SIGN if code & SIGN else ~code & (2 * SIGN - 1)
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return value, end


def encode_uvarint(value: int) -> bytes:
    """1 to 10 bytes of an unsigned 64-bit integer."""
    if not 0 <= value < 2 * SIGN:
        raise ValueError(f"{value} is not an unsigned 64-bit integer")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: bytes, at: int = 0) -> tuple[int, int]:
    """The unsigned integer at `at` and the offset after it."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >= 2 * SIGN:
                break
            return value, at + i + 1
    overflows = len(data) - at >= 10 or value >= 2 * SIGN
    raise DecodeError("a varint overflows 64 bits" if overflows else "a varint is cut off", offset=at)


def encode_varint(value: int) -> bytes:
    """1 to 10 bytes of a signed 64-bit integer."""
    if not -SIGN <= value < SIGN:
        raise ValueError(f"{value} is not a signed 64-bit integer")
    return encode_uvarint(value << 1 if value >= 0 else ~(value << 1))


def decode_varint(data: bytes, at: int = 0) -> tuple[int, int]:
    """The signed integer at `at` and the offset after it."""
    value, end = decode_uvarint(data, at)
    return (value >> 1) ^ -(value & 1), end


def encode_compact_bytes(data: bytes) -> bytes:
    """The length as a varint, then the bytes."""
    return encode_varint(len(data)) + data


def decode_compact_bytes(data: bytes, at: int = 0) -> tuple[bytes, int]:
    """The bytes at `at` and the offset after them."""
    length, start = decode_varint(data, at)
    if length < 0 or length > len(data) - start:
        raise DecodeError("compact bytes have an impossible length", offset=at, length=length)
    return data[start : start + length], start + length


def encode_decimal(value: Decimal, precision: int, fraction: int) -> bytes:
    """Precision, fraction and the digits in that shape. ValueError when the value does not fit it exactly."""
    _check_shape(precision, fraction)
    scaled = Fraction(value) * 10**fraction
    if scaled.denominator != 1 or abs(scaled) >= 10**precision:
        raise ValueError(f"{value} does not fit DECIMAL({precision}, {fraction})")
    digits = f"{abs(int(scaled)):0{precision}d}"
    body = bytearray()
    at = 0
    for count in _groups(precision, fraction):
        body += int(digits[at : at + count]).to_bytes(_BYTES_OF_DIGITS[count], "big")
        at += count
    if scaled < 0:
        body = bytearray(b ^ 0xFF for b in body)
    body[0] ^= 0x80
    return bytes([precision, fraction]) + bytes(body)


def decode_decimal(data: bytes, at: int = 0) -> tuple[Decimal, int]:
    """The decimal at `at`, with as many fraction digits as its shape has, and the offset after it."""
    shape = data[at : at + 2]
    if len(shape) < 2:
        raise DecodeError("the shape of a decimal is cut off", offset=at)
    try:
        _check_shape(*shape)
    except ValueError as e:
        raise DecodeError("a decimal has an impossible shape", offset=at, cause=e) from e
    groups = _groups(*shape)
    end = at + 2 + sum(_BYTES_OF_DIGITS[count] for count in groups)
    body = bytearray(data[at + 2 : end])
    if len(body) < end - at - 2:
        raise DecodeError("a decimal is cut off", offset=at)
    body[0] ^= 0x80
    negative = body[0] >= 0x80
    if negative:
        body = bytearray(b ^ 0xFF for b in body)
    digits, place = "", 0
    for count in groups:
        size = _BYTES_OF_DIGITS[count]
        word = int.from_bytes(body[place : place + size], "big")
        if word >= 10**count:
            raise DecodeError("a word of a decimal has too many digits", offset=at + 2 + place, word=word)
        digits += f"{word:0{count}d}"
        place += size
    scaled = -int(digits) if negative else int(digits)
    return Decimal(scaled).scaleb(-shape[1], _EXACT), end


def _check_shape(precision: int, fraction: int) -> None:
    if not 0 < precision <= _PRECISION_MAX or not 0 <= fraction <= min(precision, _FRACTION_MAX):
        raise ValueError(f"no DECIMAL({precision}, {fraction})")


def _groups(precision: int, fraction: int) -> list[int]:
    """Digits per word: the leading partial one, the full ones, the trailing partial one."""
    whole = precision - fraction
    words = whole // _DIGITS_PER_WORD + fraction // _DIGITS_PER_WORD
    sizes = [whole % _DIGITS_PER_WORD, *[_DIGITS_PER_WORD] * words, fraction % _DIGITS_PER_WORD]
    return [size for size in sizes if size]


_DECODERS: dict[int, Callable[[bytes, int], tuple[DatumValue, int]]] = {
    FLAG_BYTES: decode_bytes,
    FLAG_COMPACT_BYTES: decode_compact_bytes,
    FLAG_INT: decode_int,
    FLAG_UINT: decode_uint,
    FLAG_FLOAT: decode_float,
    FLAG_DECIMAL: decode_decimal,
    FLAG_DURATION: decode_int,
    FLAG_VARINT: decode_varint,
    FLAG_UVARINT: decode_uvarint,
}


def decode_datums(data: bytes) -> list[Datum]:
    """All datums of an index key's suffix or of a list of values."""
    out: list[Datum] = []
    at = 0
    while at < len(data):
        datum = _datum(data, at)
        out.append(datum)
        at = datum.end
    return out


def decode_common_handle(handle: bytes) -> list[Datum]:
    """The datums of a clustered key that is not an integer. A handle shorter than 9 bytes was padded with zeros."""
    out: list[Datum] = []
    at = 0
    while at < len(handle):
        if handle[at] == FLAG_NULL:
            if not out or len(handle) != GROUP + 1 or any(handle[at:]):
                raise DecodeError("a NULL inside a handle", offset=at, handle=handle)
            break
        datum = _datum(handle, at)
        out.append(datum)
        at = datum.end
    if not out or len(handle) <= GROUP:
        raise DecodeError("a handle is too short", offset=0, handle=handle)
    return out


def _datum(data: bytes, at: int) -> Datum:
    flag = data[at]
    if flag == FLAG_NULL:
        return Datum(flag, None, at, at + 1)
    decoder = _DECODERS.get(flag)
    if decoder is None:
        raise DecodeError("an unknown datum flag", offset=at, flag=flag)
    value, end = decoder(data, at + 1)
    return Datum(flag, value, at, end)
