"""Which object keys are allowed, and what a put does when its key is taken: the same for every store.

A key is one or more segments of letters, digits and `_ . = -`, joined by single slashes; no segment begins with a dot.
So no key leaves a folder, none needs escaping anywhere, and names that begin with a dot belong to the stores.
"""

from __future__ import annotations

import re

from tistream.errors import CorruptObject, InvalidInput, ObjectConflict
from tistream.limits import FILE_BYTES_MAX

KEY_CHARS_MAX = 512  # what the catalog's columns hold

_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")


def check_key(key: str) -> None:
    """InvalidInput unless this may name an object."""
    if len(key) > KEY_CHARS_MAX or not _KEY.fullmatch(key):
        raise InvalidInput("not an object key", key=key)


def check_prefix(prefix: str) -> None:
    """InvalidInput unless keys may begin like this: a key, a key and a slash, or nothing."""
    if prefix:
        check_key(prefix.removesuffix("/"))


def check_range(key: str, offset: int, length: int) -> None:
    """InvalidInput unless the range could lie in an object."""
    check_key(key)
    if offset < 0 or length <= 0:
        raise InvalidInput("not a range of an object", key=key, offset=offset, length=length)


def settle(key: str, there: bytes, mine: bytes | memoryview) -> None:
    """Decide about a key that was taken: equal bytes are an earlier try of this write, others are somebody else's."""
    if there != memoryview(mine).cast("B"):  # views of other formats never equal bytes
        raise ObjectConflict(key=key, bytes_there=len(there), bytes_mine=len(mine))


def check_size(key: str, size: int) -> None:
    """CorruptObject when a whole object of so many bytes is not to be read into memory."""
    if size > FILE_BYTES_MAX:
        raise CorruptObject("the object is too large", object=key, segment="frame", offset=0, size=size)


def too_short(key: str, offset: int, length: int, size: int) -> CorruptObject:
    """The error of a range that ends behind the object's end."""
    return CorruptObject("the object is shorter than it should be", key=key, offset=offset, length=length, size=size)
