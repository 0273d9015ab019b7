"""Counts what is asked of an object store: the one place where requests and their bytes are counted.

A request is a call of the protocol, so what a store's client tries again by itself counts once, and so does the read
back of a key that was taken. Listings count a request for each page of 1,000 that was read. The kind of an object is
the first folder of its key (`tistream.objectstore.layout`); unknown ones are "other", so a label has few values.

    outcome   ok | missing (there is no such object) | conflict | refused | failed

It costs a request about ten microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tistream.errors import ErrorKind, ObjectConflict, ObjectNotFound, TiStreamError
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectInfo, ObjectStore
from tistream.runtime import metrics

LIST_PAGE = 1000
KINDS = {
    "data_change_buffer": "batch",
    "committed": "committed",
    "snapshots": "snapshot",
    "schemas": "schema",
    "seeds": "seed",
    "compacted": "compacted",
    "bases": "base",
}
OTHER = "other"
OPERATIONS = ("put", "get", "get_range", "size", "list", "delete")


class Meter(Protocol):
    """Where it is counted."""

    def note(self, operation: str, kind: str, outcome: str, size: int, seconds: float) -> None:
        """A request: `size` in bytes, 0 where none were moved."""
        ...


class ProcessMeter:
    """The process's own metrics."""

    def note(self, operation: str, kind: str, outcome: str, size: int, seconds: float) -> None:
        metrics.STORE_REQUESTS.labels(operation, kind, outcome).inc()
        if size:
            metrics.STORE_BYTES.labels(operation, kind).inc(size)
        metrics.STORE_SECONDS.labels(operation).observe(seconds)


def requests_so_far() -> dict[str, float]:
    """Operation -> requests that this process has made, however they ended."""
    found: dict[str, float] = {}
    for family in metrics.STORE_REQUESTS.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                operation = sample.labels["operation"]
                found[operation] = found.get(operation, 0.0) + sample.value
    return found


class MeteredStore:
    """An ObjectStore that passes everything on and counts it. Thread-safe as what it stands before."""

    def __init__(self, inner: ObjectStore, meter: Meter | None = None) -> None:
        self._inner = inner
        self._meter = ProcessMeter() if meter is None else meter

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._noted("put", key) as moved:
            self._inner.put(key, data)
            moved.size = len(data)

    def get(self, key: str) -> bytes:
        with self._noted("get", key) as moved:
            data = self._inner.get(key)
            moved.size = len(data)
            return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self._noted("get_range", key) as moved:
            data = self._inner.get_range(key, offset, length)
            moved.size = len(data)
            return data

    def size(self, key: str) -> int:
        with self._noted("size", key):
            return self._inner.size(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        found = self._inner.list(prefix, after)
        while True:
            page: list[ObjectInfo] = []
            with self._noted("list", prefix):
                for info in found:
                    page.append(info)
                    if len(page) == LIST_PAGE:
                        break
            yield from page
            if len(page) < LIST_PAGE:
                return

    def delete(self, key: str) -> None:
        with self._noted("delete", key):
            self._inner.delete(key)

    @contextmanager
    def _noted(self, operation: str, key: str) -> Iterator[_Moved]:
        moved, outcome, began = _Moved(), "ok", time.perf_counter()
        try:
            yield moved
        except BaseException as e:
            outcome = _outcome(e)
            raise
        finally:
            self._meter.note(operation, kind_of(key), outcome, moved.size, time.perf_counter() - began)


class _Moved:
    """Bytes of one request."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


def open_metered(url: str) -> ObjectStore:
    """The store at this address, counted in the process's metrics."""
    return MeteredStore(open_store(url))


def kind_of(key: str) -> str:
    """The kind of an object, or of what a listing looks through."""
    return KINDS.get(key.partition("/")[0], OTHER)


def _outcome(error: BaseException) -> str:
    match error:
        case ObjectNotFound():
            return "missing"
        case ObjectConflict():
            return "conflict"
        case TiStreamError() if error.kind is not ErrorKind.RETRY:
            return "refused"
    return "failed"
