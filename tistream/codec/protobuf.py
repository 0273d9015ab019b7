"""Reads protobuf messages: whole ones by the protobuf library, or field by field.

    parse(wire.GetRegionResponse, message)         a message of a known type
    fields(message, {1: BYTES, 2: VARINT})         the known fields, in the message's order
    b"".join([octets(1, key), uint(2, number)])    a message

Rules:

- unknown fields are skipped; a known field with another wire type is damage;
- as in proto3, a field with its default value is not written; `message` does write an empty message;
- a signed number is written as its 64-bit two's complement, and read by `signed`.

Pure; any bytes give a value or CorruptObject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tistream.codec.memcomparable import decode_uvarint, encode_uvarint
from tistream.errors import CorruptObject

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  #: wire types
REPEATED = -1  #: numbers one by one (VARINT) or packed (BYTES)
_FIELD_NUMBER_MAX = (1 << 29) - 1
_BITS = 64
M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    """The message. CorruptObject when the bytes are not one, and for a known field with another wire type."""
    try:
        out = kind.FromString(data)
    except DecodeError as e:
        raise CorruptObject("a message is damaged", type=kind.DESCRIPTOR.name, cause=str(e)) from e
    _check(out)
    return out


def _check(message: Message) -> None:
    """The library takes a field with another wire type for an unknown one."""
    known = message.DESCRIPTOR.fields_by_number
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]  # its stubs lack __iter__
        if unknown.field_number in known:
            raise CorruptObject("a field has the wrong wire type", field=known[unknown.field_number].full_name)
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                _check(inner)


def fields(message: bytes, known: Mapping[int, int]) -> Iterator[tuple[int, Any]]:
    """(number, int or bytes) of the fields in `known` (number -> wire type, or REPEATED), in the message's order.

    Several fields of one number are given one by one; for a message type they may be joined. CorruptObject for bytes
    that are not fields, and for a known field with another wire type."""
    at = 0
    while at < len(message):
        start = at
        tag, at = decode_uvarint(message, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes = 0
        if wire == VARINT:
            value, at = decode_uvarint(message, at)
        elif wire == BYTES:
            size, at = decode_uvarint(message, at)
            value, at = message[at : at + size], at + size
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
        else:
            raise CorruptObject("a field has an unknown wire type", offset=start, field=number, wire_type=wire)
        if at > len(message) or not 0 < number <= _FIELD_NUMBER_MAX:
            raise CorruptObject("a field is cut off or has an impossible number", offset=start, field=number)
        expected = known.get(number)
        if expected is None:
            continue
        if wire != expected and not (expected == REPEATED and wire in (VARINT, BYTES)):
            raise CorruptObject("a field has the wrong wire type", offset=start, field=number, wire_type=wire)
        yield number, value


def merged(message: bytes, known: Mapping[int, int]) -> dict[int, Any]:
    """The known fields by number: of a repeated number or text the last, of a repeated message all bytes joined.

    For message types whose every BYTES field is a message; a text field that occurs twice would be joined too, which no
    writer does. Errors as `fields`."""
    out: dict[int, Any] = {}
    for number, value in fields(message, known):
        out[number] = out[number] + value if isinstance(value, bytes) and number in out else value
    return out


def signed(value: int) -> int:
    return value - (1 << _BITS) if value >> (_BITS - 1) else value


def uint(number: int, value: int) -> bytes:
    """A number field; nothing for 0. Negative values as two's complement."""
    return encode_uvarint(number << 3 | VARINT) + encode_uvarint(value % (1 << _BITS)) if value else b""


def octets(number: int, value: bytes) -> bytes:
    """A bytes or text field; nothing when it is empty."""
    return message(number, value) if value else b""


def message(number: int, body: bytes) -> bytes:
    """A message field, also an empty one."""
    return encode_uvarint(number << 3 | BYTES) + encode_uvarint(len(body)) + body
