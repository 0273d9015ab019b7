"""Object store in memory, for tests, simulations and demos in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from tistream.errors import ObjectNotFound
from tistream.objectstore.keys import admit_size, check_key, check_prefix, check_range, settle, too_short
from tistream.objectstore.protocol import Admit, ObjectInfo


class MemoryStore:
    """An ObjectStore in memory. A listing is the state at its first entry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}  # key -> (bytes, Unix milliseconds)

    def put(self, key: str, data: bytes | memoryview) -> None:
        check_key(key)
        copy = bytes(data)
        with self._lock:
            there, _ = self._objects.setdefault(key, (copy, time.time_ns() // 1_000_000))
        if there is not copy:
            settle(key, there, copy)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        check_key(key)
        data = self._object(key)
        admit_size(key, len(data), admit)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        data = self._object(key)
        if offset + length > len(data):
            raise too_short(key, offset, length, len(data))
        return data[offset : offset + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            infos = [
                ObjectInfo(key=key, size=len(data), modified_ms=modified_ms)
                for key, (data, modified_ms) in self._objects.items()
                if key.startswith(prefix) and key > after
            ]
        yield from sorted(infos, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def _object(self, key: str) -> bytes:
        with self._lock:
            stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFound(key=key)
        return stored[0]
