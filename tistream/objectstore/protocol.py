"""What TiStream asks of an object store, and nothing more.

Objects are write-once. The one conditional primitive is create-if-absent (`If-None-Match: *`); there is no replace, no
append, no compare-and-swap. All methods block and may be called from several threads.

`put` settles its own lost replies: when the key is already taken it reads the object back, and equal bytes mean that an
earlier try of the same write arrived. Every file we write carries a random write id in its head, so equal bytes prove
the same write; different bytes raise ObjectConflict. Nobody ever deletes its own file to undo a put.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One entry of a listing."""

    key: str
    size: int  #: bytes
    modified_ms: int  #: Unix milliseconds by the store's clock; for grace periods only


class ObjectStore(Protocol):
    """A bucket. Errors: ObjectNotFound, ObjectConflict, StoreUnavailable (`determinate`: it surely did not happen)."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Create the object. Fine when this very write had already arrived; ObjectConflict if other bytes are there."""
        ...

    def get(self, key: str) -> bytes:
        """The whole object. ObjectNotFound when there is none; CorruptObject, unread, above FILE_BYTES_MAX."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; CorruptObject when the object is shorter. One request."""
        ...

    def size(self, key: str) -> int:
        """Size in bytes. ObjectNotFound when there is none."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix` and is greater than `after`, in key order. Reconcilers and GC only."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; fine when there is none."""
        ...
