"""An object store that seals what tenants have: put seals, get opens, ranges are read by blocks.

Objects of tenants without sealing, and those of the deployment, are left as they are. Sizes of a listing are those of
the stored objects; `size` is that of the content.

Each try of a write has another salt. Of two tries that both arrive one is there, and the other finds that its content
is: so a repeated write succeeds as in every store, and other content is an ObjectConflict.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from tistream.errors import CorruptObject, ObjectConflict
from tistream.ids import Tenant
from tistream.objectstore.keys import check_range
from tistream.objectstore.layout import FileKey, parse
from tistream.objectstore.protocol import Admit, ObjectInfo, ObjectStore
from tistream.sealing.core.derive import EpochId
from tistream.sealing.core.head import HEAD_BYTES, Buffer, SealHead, decode_head, is_sealed
from tistream.sealing.files import SealedReader, seal_own

HEADS_KEPT = 16_384


class TenantRoots(Protocol):
    """Which tenants are sealed, and their opened roots. Thread-safe."""

    def has_sealed(self, tenant: Tenant) -> bool:
        """Whether objects of the tenant may be sealed."""
        ...

    def current(self, tenant: Tenant) -> EpochId | None:
        """What services seal under now; None when they write plain objects."""
        ...

    def root(self, tenant: Tenant, root_no: int) -> bytes:
        """The opened root. KeyRefused, KmsUnavailable."""
        ...


class SealedStore:
    """An ObjectStore over another one. As thread-safe as that one."""

    def __init__(self, inner: ObjectStore, roots: TenantRoots, *, heads_kept: int = HEADS_KEPT) -> None:
        self._inner, self._roots = inner, roots
        self._heads = _Heads(heads_kept)
        self.is_s3 = getattr(inner, "is_s3", False)

    def put(self, key: str, data: bytes | memoryview) -> None:
        tenant = self._tenant_of(key)
        current = None if tenant is None else self._roots.current(tenant)
        if tenant is None or current is None:
            self._inner.put(key, data)
            return
        content = memoryview(data).cast("B")
        sealed = seal_own(content, self._roots.root(tenant, current.root_no), tenant, current, key)
        try:
            self._inner.put(key, sealed.data)
        except ObjectConflict as e:
            there = self.get(key)
            if there != content:
                raise ObjectConflict(key=key, bytes_there=len(there), bytes_mine=len(content)) from e
        else:
            self._heads.keep(key, sealed.head)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        tenant = self._tenant_of(key)
        data = self._inner.get(key, admit)
        if tenant is None or not is_sealed(data):
            return data
        head = decode_head(data, key)
        content = SealedReader(head, tenant, key).whole(data, self._roots.root)
        self._heads.keep(key, head)
        return bytes(content)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """One request where the head is known, as it is of what this process wrote or read lately; else two."""
        check_range(key, offset, length)
        tenant = self._tenant_of(key)
        head = None if tenant is None else self._head(key)
        if tenant is None or head is None:
            return self._inner.get_range(key, offset, length)
        reader = SealedReader(head, tenant, key)
        blocks = reader.blocks(offset, length)
        return bytes(reader.open(blocks, self._inner.get_range(key, blocks.offset, blocks.length), self._roots.root))

    def size(self, key: str) -> int:
        head = None if self._tenant_of(key) is None else self._head(key)
        return self._inner.size(key) if head is None else head.size

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, after)

    def delete(self, key: str) -> None:
        self._inner.delete(key)
        self._heads.forget(key)

    def _tenant_of(self, key: str) -> Tenant | None:
        """The tenant, if the object may be sealed."""
        parsed = parse(key)
        return parsed.tenant if isinstance(parsed, FileKey) and self._roots.has_sealed(parsed.tenant) else None

    def _head(self, key: str) -> SealHead | None:
        """None of a plain object."""
        head = self._heads.of(key)
        if head is not None:
            return head
        begin = self._beginning(key)
        if not is_sealed(begin):
            return None
        head = decode_head(begin, key)
        self._heads.keep(key, head)
        return head

    def _beginning(self, key: str) -> Buffer:
        try:
            return self._inner.get_range(key, 0, HEAD_BYTES)
        except CorruptObject:  # shorter than a head
            return b""


class _Heads:
    """Heads of the objects that were used last. Thread-safe."""

    def __init__(self, at_most: int) -> None:
        self._at_most, self._lock = at_most, threading.Lock()
        self._kept: OrderedDict[str, SealHead] = OrderedDict()

    def of(self, key: str) -> SealHead | None:
        with self._lock:
            head = self._kept.get(key)
            if head is not None:
                self._kept.move_to_end(key)
            return head

    def keep(self, key: str, head: SealHead) -> None:
        with self._lock:
            self._kept[key] = head
            self._kept.move_to_end(key)
            if len(self._kept) > self._at_most:
                self._kept.popitem(last=False)

    def forget(self, key: str) -> None:
        with self._lock:
            self._kept.pop(key, None)
