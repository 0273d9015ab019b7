"""Metrics of object store requests and their bytes.

A request is one call of the protocol: retries of the store's client and the read back of an existing key are not
counted. Listings count one request per page of 1,000. The kind of an object is the first folder of its key
(`tistream.objectstore.layout`); unknown ones are "other", so the label has few values.

    outcome   ok | missing (no such object) | conflict | refused | failed

The overhead is about ten microseconds per request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tistream.errors import ErrorKind, ObjectConflict, ObjectNotFound, TiStreamError
from tistream.objectstore.factory import open_store, s3_place
from tistream.objectstore.protocol import Admit, ObjectInfo, ObjectStore
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
    "exports": "export",
    "generations": "generation",
    "journal": "journal",
    "keys": "key",
}
OTHER = "other"


class Meter(Protocol):
    """A sink of request counts."""

    def note(self, operation: str, kind: str, outcome: str, size: int, seconds: float) -> None:
        """Count a request; `size` in bytes, 0 where none were transferred."""
        ...


class ProcessMeter:
    """Counts in the process's metrics."""

    def note(self, operation: str, kind: str, outcome: str, size: int, seconds: float) -> None:
        metrics.STORE_REQUESTS.labels(operation, kind, outcome).inc()
        if size:
            metrics.STORE_BYTES.labels(operation, kind).inc(size)
        metrics.STORE_SECONDS.labels(operation).observe(seconds)


def requests_so_far() -> dict[str, float]:
    """Operation -> requests of this process, with any outcome."""
    counts: dict[str, float] = {}
    for family in metrics.STORE_REQUESTS.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                operation = sample.labels["operation"]
                counts[operation] = counts.get(operation, 0.0) + sample.value
    return counts


class MeteredStore:
    """An ObjectStore that delegates to another and counts. As thread-safe as that one."""

    def __init__(self, inner: ObjectStore, meter: Meter | None = None, *, is_s3: bool = False) -> None:
        self._inner = inner
        self.is_s3 = is_s3  #: its requests have a price
        self._meter = ProcessMeter() if meter is None else meter

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._noted("put", key) as moved:
            self._inner.put(key, data)
            moved.size = len(data)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        with self._noted("get", key) as moved:
            data = self._inner.get(key, admit)
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
        listed = self._inner.list(prefix, after)
        while True:
            page: list[ObjectInfo] = []
            with self._noted("list", prefix):
                for info in listed:
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
    """The bytes of one request."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


def open_metered(url: str) -> ObjectStore:
    """Open the store at this address, counted in the process's metrics."""
    return MeteredStore(open_store(url), is_s3=s3_place(url) is not None)


def kind_of(key: str) -> str:
    """The kind of an object, or of a listing's prefix."""
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
