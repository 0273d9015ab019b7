"""The object store protocol: the few operations that TiStream needs.

Objects are write-once. The one conditional primitive is create-if-absent (`If-None-Match: *`); there is no replace, no
append, no compare-and-swap. All methods block and may be called from several threads.

`put` resolves its own lost replies: when the key exists it reads the object back, and equal bytes mean that an earlier
try of the same write arrived. Every file carries a random write id, so equal bytes prove the same write; different
bytes raise ObjectConflict. A writer never deletes its file to undo a put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

#: called with the size of an object before its bytes are read: waits until there is room, or raises
Admit = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One entry of a listing."""

    key: str
    size: int  #: bytes
    modified_ms: int  #: Unix milliseconds by the store's clock; for grace periods only


class ObjectStore(Protocol):
    """A bucket. Errors: ObjectNotFound, ObjectConflict, StoreUnavailable (`determinate`: it did not happen)."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Create the object; succeeds if this same write arrived before. ObjectConflict if the key has other bytes."""
        ...

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        """The whole object. ObjectNotFound when missing; CorruptObject, unread, above FILE_BYTES_MAX, or what `admit`
        raises."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; CorruptObject when the object is shorter. One request."""
        ...

    def size(self, key: str) -> int:
        """Size in bytes. ObjectNotFound when missing."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Objects with this key prefix and a key greater than `after`, in key order. For reconciliation and GC only."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object; succeeds when it is missing."""
        ...
