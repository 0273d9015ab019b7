"""An object store whose objects a test may replace, hide and count: what real ones forbid and faults do anyway."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from tistream.errors import ObjectNotFound, StoreUnavailable
from tistream.objectstore.protocol import Admit, ObjectInfo


class OpenFolder:
    """Implements ObjectStore over a dict that is open to the test."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.gets: Counter[str] = Counter()  #: key -> how often it was asked for
        self.listed: Counter[str] = Counter()  #: prefix -> how often it was listed
        self.away = False  #: nothing is answered while it is set
        self._lock = threading.Lock()

    @property
    def lists(self) -> int:
        """How often anything was listed."""
        return self.listed.total()

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._lock:
            self.objects[key] = bytes(data)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        with self._lock:
            self.gets[key] += 1
            data = self.objects.get(key)
        if self.away:
            raise StoreUnavailable(object=key)
        if data is None:
            raise ObjectNotFound(object=key)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.get(key)[offset : offset + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        if self.away:
            raise StoreUnavailable(prefix=prefix)
        with self._lock:
            self.listed[prefix] += 1
            objects = sorted(self.objects.items())
        for key, data in objects:
            if key.startswith(prefix) and key > after:
                yield ObjectInfo(key=key, size=len(data), modified_ms=0)

    def delete(self, key: str) -> None:
        if self.away:
            raise StoreUnavailable(object=key)
        with self._lock:
            self.objects.pop(key, None)
