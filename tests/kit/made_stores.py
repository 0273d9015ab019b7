"""Stores without files: a Source, and a Feed, whose batches are made as they are asked for."""

from __future__ import annotations

import pyarrow as pa

from tests.kit.batch_files import subscriptions_of
from tistream.errors import FeedUnavailable, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.ids import Position
from tistream.model.change import ROWS


class MadeStore:
    """A store whose files are made up as they are asked for, up to `last`."""

    def __init__(self, store_id: int, last: int = 0, value_bytes: int = 0) -> None:
        self.store_id, self.last = store_id, last
        self.value = pa.array([bytes(value_bytes)], pa.binary())
        self.sent: list[int] = []
        self.starts: list[int] = []
        self.trouble: TiStreamError | None = None
        self.raises: Exception | None = None  #: by the next look
        self.close_raises: Exception | None = None
        self.looks = 0
        self.served = True
        self.wakes: set[Wake] = set()

    def grow(self, last: int) -> None:
        """More files; who listens is woken."""
        self.last = last
        for wake in list(self.wakes):
            wake.set()

    def batch(self, seq: int) -> FeedBatch:
        rows, regions = subscriptions_of([(b"a", b"z", [b"b"])])
        rows = rows.set_column(rows.schema.get_field_index("value"), ROWS.field("value"), self.value)
        return FeedBatch(store_id=self.store_id, incarnation=1, seq=seq, cut_ts=1000 + seq, rows=rows, regions=regions)


class View:
    """A subscription to a MadeStore."""

    def __init__(self, store: MadeStore, request: FeedRequest, wake: Wake) -> None:
        self._store, self._wake = store, wake
        self._seq = request.positions.get(1, Position(seq=0)).seq
        store.starts.append(self._seq)
        store.wakes.add(wake)

    def check(self) -> None:
        if not self._store.served:
            raise FeedUnavailable(store=self._store.store_id)

    def look(self) -> FeedBatch | NoBatch:
        self.check()
        self._store.looks += 1
        if (error := self._store.raises) is not None:
            self._store.raises = None
            raise error
        if self._store.trouble is not None:
            return self._store.trouble, float("inf")
        if self._seq >= self._store.last:
            return None, float("inf")
        self._seq += 1
        self._store.sent.append(self._seq)
        return self._store.batch(self._seq)

    def close(self) -> None:
        self._store.wakes.discard(self._wake)
        if self._store.close_raises is not None:
            raise self._store.close_raises


class MadeStores:
    """A Source of several."""

    def __init__(self, *stores: MadeStore) -> None:
        self.stores = {store.store_id: store for store in stores}

    def open(self, request: FeedRequest, wake: Wake) -> View:
        store = self.stores.get(request.store_id)
        if store is None or not store.served:
            raise FeedUnavailable(store=request.store_id)
        return View(store, request, wake)
