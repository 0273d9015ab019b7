"""Reads typed fields of TiDB's JSON. A field of another type is an error that names it.

A missing field and null are the zero value, as in TiDB. Numbers may be written as decimal text, which is how 64-bit
ones travel. Every error is a WrongField: a ValueError whose text begins with the path of the field.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Mapping
from typing import Any

import orjson

from tistream.limits import JOB_BYTES_MAX, JOB_VALUES_MAX

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
NUMBER_END = 1 << 64
LIST_MAX = 65_535  #: labels of an ENUM; TiDB has no longer list in a definition

Json = Mapping[str, Any]


class WrongField(ValueError):
    """A field of the wrong type."""

    def inside(self, place: str) -> WrongField:
        """The same error with `place` before the field's name."""
        return WrongField(f"{place}.{self}")


def parsed(text: bytes | None) -> Any:
    """The JSON in a value of the log. ValueError when it is none, or takes too much: its commas and brackets, which
    bound the number of its values, are counted before any of them exists."""
    data = text or b""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if len(data) > JOB_BYTES_MAX or values > JOB_VALUES_MAX:
        raise WrongField(f"{len(data)} bytes of JSON with up to {values} values are too many")
    return orjson.loads(data)


def integer(info: Json, name: str, *, least: int = INT_MIN, needed: bool = False) -> int:
    """A whole number of at least `least` that fits 64 bits; 0 when it is missing and not `needed`."""
    value = info.get(name)
    if value is None and not needed:
        return 0
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongField(f"{name}: {_shown(value)} is not a whole number")
    if not least <= value <= INT_MAX:
        raise WrongField(f"{name}: {value} is not between {least} and {INT_MAX}")
    return value


def integers(info: Json, name: str) -> tuple[int, ...]:
    """A list of whole numbers; empty when it is missing."""
    return tuple(integer({name: value}, name, needed=True) for value in _list(info, name))


def text(info: Json, name: str) -> str:
    """A text; empty when it is missing."""
    value = info.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WrongField(f"{name}: {_shown(value)} is not a text")
    return sys.intern(value)  # character sets and names of columns are the same in most tables


def flag(info: Json, name: str, *, missing: bool = False) -> bool:
    """True or false; `missing` when there is none."""
    value = info.get(name)
    if value is None:
        return missing
    if not isinstance(value, bool):
        raise WrongField(f"{name}: {_shown(value)} is neither true nor false")
    return value


def original_name(info: Json, name: str) -> str:
    """The spelling that the user chose, of a `{"O": ..., "L": ...}` pair or of a plain text."""
    value = info.get(name)
    if not isinstance(value, Mapping):
        return text(info, name)
    try:
        return text(value, "O")
    except WrongField as error:
        raise error.inside(name) from error


def mapping(info: Json, name: str) -> Json:
    """An object; an empty one when it is missing."""
    value = info.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise WrongField(f"{name}: {_shown(value)} is not an object")
    return value


def mappings(info: Json, name: str) -> list[Json]:
    """A list of objects; empty when it is missing."""
    for n, value in enumerate(listed := _list(info, name)):
        if not isinstance(value, Mapping):
            raise WrongField(f"{name}[{n}]: {_shown(value)} is not an object")
    return listed


def texts(info: Json, name: str) -> tuple[str, ...]:
    """A list of texts; empty when it is missing."""
    for n, value in enumerate(listed := _list(info, name)):
        if not isinstance(value, str):
            raise WrongField(f"{name}[{n}]: {_shown(value)} is not a text")
    return tuple(listed)


def scalar(info: Json, name: str) -> object:
    """A text, a number or None: a default value."""
    value = info.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise WrongField(f"{name}: {_shown(value)} is neither a text nor a number")
    if isinstance(value, int) and not INT_MIN <= value < NUMBER_END:
        raise WrongField(f"{name}: the number does not fit 64 bits")
    return value


def bits(info: Json, name: str) -> bytes | None:
    """Bytes in base64; None when they are missing."""
    if info.get(name) is None:
        return None
    try:
        return base64.b64decode(text(info, name), validate=True)
    except binascii.Error as error:
        raise WrongField(f"{name}: it is not base64 ({error})") from error


def _list(info: Json, name: str) -> list[Any]:
    value = info.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise WrongField(f"{name}: {_shown(value)} is not a list")
    if len(value) > LIST_MAX:
        raise WrongField(f"{name}: {len(value)} entries, more than {LIST_MAX}")
    return value


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
