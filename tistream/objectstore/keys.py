"""Validation of object keys, and resolution of puts to existing keys, for all stores.

A key is one or more segments of letters, digits and `_ . = -`, joined by single slashes; no segment begins with a dot.
So no key leaves a folder or needs escaping, and names with a leading dot are free for the stores.
"""

from __future__ import annotations

import re

from tistream.errors import CorruptObject, InvalidInput, ObjectConflict
from tistream.limits import FILE_BYTES_MAX
from tistream.objectstore.protocol import Admit

KEY_CHARS_MAX = 512  # the width of the catalog's columns

_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")


def check_key(key: str) -> None:
    """InvalidInput unless this is a valid object key."""
    if len(key) > KEY_CHARS_MAX or not _KEY.fullmatch(key):
        raise InvalidInput("not an object key", key=key)


def check_prefix(prefix: str) -> None:
    """InvalidInput unless this is a valid prefix: a key, a key and a slash, or empty."""
    if prefix:
        check_key(prefix.removesuffix("/"))


def check_range(key: str, offset: int, length: int) -> None:
    """InvalidInput unless the range is valid."""
    check_key(key)
    if offset < 0 or length <= 0:
        raise InvalidInput("not a range of an object", key=key, offset=offset, length=length)


def settle(key: str, there: bytes, mine: bytes | memoryview) -> None:
    """Resolve a put to an existing key: equal bytes are an earlier try of this write, others raise ObjectConflict."""
    if there != memoryview(mine).cast("B"):  # views of other formats never equal bytes
        raise ObjectConflict(key=key, bytes_there=len(there), bytes_mine=len(mine))


def admit_size(key: str, size: int, admit: Admit | None) -> None:
    """CorruptObject when the object is too large to be read into memory, or what `admit` raises."""
    check_size(key, size, FILE_BYTES_MAX)
    if admit is not None:
        admit(size)


def check_size(key: str, size: int, bytes_max: int) -> None:
    """CorruptObject when the object has more bytes than allowed."""
    if size > bytes_max:
        raise CorruptObject("the object is too large", object=key, segment="frame", offset=0, size=size)


def at_most(key: str, bytes_max: int) -> Admit:
    """Refuses an object of more bytes."""
    return lambda size: check_size(key, size, bytes_max)


def too_short(key: str, offset: int, length: int, size: int) -> CorruptObject:
    """The error of a range that ends after the object's end."""
    return CorruptObject("the object is shorter than it should be", key=key, offset=offset, length=length, size=size)
