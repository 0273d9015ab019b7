"""Reads of objects that pushers wrote, with a size limit: larger objects are refused unread."""

from __future__ import annotations

import hashlib

from tistream.errors import TooLarge
from tistream.objectstore.protocol import ObjectStore

_PART_BYTES = 8 << 20


def small_object(store: ObjectStore, key: str, limit: int) -> bytes:
    """The object. TooLarge above `limit` bytes; ObjectNotFound."""
    return store.get(key, lambda size: check_size(key, size, limit))


def check_size(key: str, size: int, limit: int) -> None:
    """Raise TooLarge above the limit."""
    if size > limit:
        raise TooLarge(f"The object {key} has {size} bytes; {limit} are allowed.", object=key, bytes=size, limit=limit)


def sha256_of(store: ObjectStore, key: str, size: int) -> str:
    """The SHA-256 of an object of this size, read in parts of bounded size."""
    digest = hashlib.sha256()
    for at in range(0, size, _PART_BYTES):
        digest.update(store.get_range(key, at, min(_PART_BYTES, size - at)))
    return digest.hexdigest()
