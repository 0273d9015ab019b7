"""TiDB's memcomparable encoding: values as bytes that sort as the values do.

    bytes    groups of 8, zero padded, each followed by 0xff - pad count; lengths 0, 8, 16 ... end with an empty group
    int      8 bytes big endian with the sign bit flipped
    uint     8 bytes big endian
    uvarint  LEB128 (not comparable; in values)

Decoders take the bytes and an offset, return the value and the offset after it, and raise DecodeError with `offset` for
invalid bytes. `tistream.codec.row` decodes the datums of rows and handles.
"""

from __future__ import annotations

from tistream.errors import DecodeError

GROUP = 8
SIGN = 1 << 63


def encode_bytes(data: bytes) -> bytes:
    """(len // 8 + 1) * 9 bytes."""
    out = bytearray()
    for at in range(0, len(data) + 1, GROUP):
        group = data[at : at + GROUP]
        pad = GROUP - len(group)
        out += group + bytes(pad) + bytes([0xFF - pad])
    return bytes(out)


def decode_bytes(data: bytes, at: int = 0) -> tuple[bytes, int]:
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
    if not -SIGN <= value < SIGN:
        raise ValueError(f"{value} is not a signed 64-bit integer")
    return (value + SIGN).to_bytes(8, "big")


def decode_int(data: bytes, at: int = 0) -> tuple[int, int]:
    value, end = decode_uint(data, at)
    return value - SIGN, end


def decode_uint(data: bytes, at: int = 0) -> tuple[int, int]:
    body = data[at : at + 8]
    if len(body) < 8:
        raise DecodeError("an 8-byte number is cut off", offset=at)
    return int.from_bytes(body, "big"), at + 8


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
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >= 2 * SIGN:
                break
            return value, at + i + 1
    overflows = len(data) - at >= 10 or value >= 2 * SIGN
    raise DecodeError("a varint overflows 64 bits" if overflows else "a varint is cut off", offset=at)
