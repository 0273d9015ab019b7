"""The generations of a bucket's catalog: `generations/{number}.json`, which a restore creates if absent.

The first generation has no object; numbers are dense from 2. Of two restores that open the same number one wins. Every
process looks for the object behind its own generation every LOOK_S, and ends when it is there. Who deletes, exports, or
writes to a destination looks first, so a process that has not seen the bucket for longer does none of these. A restored
catalog is opened for services PAUSE_S after its generation: by then the processes before it have ended, or do nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

from tistream.clock import Clock
from tistream.errors import Fenced, ObjectConflict, ObjectNotFound
from tistream.objectstore.layout import GenerationKey, generations_prefix, parse
from tistream.objectstore.protocol import Admit, ObjectInfo, ObjectStore


class CatalogReplaced(Fenced):
    """The catalog was restored, and what ran before it must end."""

    code = "TS-1058"
    hint = "Start the process again with the address of the restored catalog: docs/runbooks/catalog-lost.md."


FIRST = 1
LOOK_S = 5.0
PAUSE_S = 30.0


def newest_generation(store: ObjectStore) -> int:
    """The newest generation of the bucket's catalog."""
    keys = (parse(info.key) for info in store.list(generations_prefix()))
    return max((key.generation for key in keys if isinstance(key, GenerationKey)), default=FIRST)


def open_generation(store: ObjectStore, generation: int, **facts: object) -> None:
    """Open a generation; `facts` say by whom and from what. CatalogReplaced when another restore has opened it."""
    body = json.dumps({"format": 1, "generation": generation, **facts}, indent=1)
    try:
        store.put(str(GenerationKey(generation=generation)), body.encode("utf-8"))
    except ObjectConflict as e:
        raise CatalogReplaced(
            f"Another restore has opened generation {generation} of this bucket's catalog.", generation=generation
        ) from e


def replaced(mine: int, newest: int) -> CatalogReplaced:
    """The error of a process of generation `mine`."""
    return CatalogReplaced(
        f"This process belongs to generation {mine} of the catalog, and generation {newest} was opened by a restore.",
        generation=mine,
        newest=newest,
    )


class GenerationWatch:
    """Looks whether this process's generation is still the newest. Thread-safe."""

    def __init__(self, store: ObjectStore, generation: int, clock: Clock) -> None:
        """`store`: without this watch in front of it."""
        self._store, self._clock = store, clock
        self.generation = generation
        self._next = str(GenerationKey(generation=generation + 1))
        self._looked_s: float | None = None
        self._lock = threading.Lock()

    def look(self) -> None:
        """Look now: one request. CatalogReplaced when there is a newer generation."""
        began_s = self._clock.monotonic()  # what is seen may be as old as the request
        try:
            self._store.size(self._next)
        except ObjectNotFound:
            with self._lock:
                self._looked_s = max(began_s, self._looked_s or began_s)
            return
        raise replaced(self.generation, self.generation + 1)

    def require(self) -> None:
        """Look, unless that was done in the last LOOK_S. CatalogReplaced as `look`; StoreUnavailable when the bucket
        does not answer."""
        with self._lock:
            looked_s = self._looked_s
        if looked_s is None or self._clock.monotonic() - looked_s > LOOK_S:
            self.look()


class WatchedStore:
    """An ObjectStore that looks before it deletes. As thread-safe as the inner one."""

    def __init__(self, inner: ObjectStore, watch: GenerationWatch) -> None:
        self._inner, self.watch = inner, watch
        self.is_s3 = getattr(inner, "is_s3", False)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._inner.put(key, data)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        return self._inner.get(key, admit)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._inner.get_range(key, offset, length)

    def size(self, key: str) -> int:
        return self._inner.size(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, after)

    def delete(self, key: str) -> None:
        self.watch.require()
        self._inner.delete(key)
