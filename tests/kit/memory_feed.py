"""A feed in memory: batches that a test puts there, delivered to every subscriber by the rules of
tistream.feed.protocol."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from tests.kit.routed import routed
from tistream.errors import StoreUnavailable
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.ids import Position
from tistream.model.positions import position_of


class MemoryFeed:
    """Batches of whole files per store, in the order in which they were put. A subscriber gets its range of them."""

    def __init__(self) -> None:
        self._batches: dict[int, list[FeedBatch]] = {}
        self._lock = threading.Lock()
        self._wakes: set[Wake] = set()
        self.failures_left = 0  #: so many looks fail first

    def put(self, batch: FeedBatch) -> None:
        with self._lock:
            self._batches.setdefault(batch.store_id, []).append(batch)
            wakes = list(self._wakes)
        for wake in wakes:
            wake.set()

    def open(self, request: FeedRequest, wake: Wake) -> MemoryStream:
        with self._lock:
            self._wakes.add(wake)
        return MemoryStream(self, request, wake)

    def leave(self, wake: Wake) -> None:
        with self._lock:
            self._wakes.discard(wake)

    def first(self, store_id: int, positions: Mapping[int, Position]) -> FeedBatch | None:
        """The first batch of the store that lies behind the positions."""
        with self._lock:
            if self.failures_left:
                self.failures_left -= 1
                raise StoreUnavailable("the feed fails as it was told to")
            for batch in self._batches.get(store_id, []):
                at = position_of(positions, batch.incarnation)
                if not at.closed and (batch.closes or batch.seq > at.seq):
                    return batch
        return None


class MemoryStream:
    """A subscription to a MemoryFeed."""

    def __init__(self, feed: MemoryFeed, request: FeedRequest, wake: Wake) -> None:
        self._feed, self._request, self._wake = feed, request, wake
        self._positions = dict(request.positions)

    def look(self) -> FeedBatch | NoBatch:
        batch = self._feed.first(self._request.store_id, self._positions)
        if batch is None:
            return None, math.inf
        self._positions[batch.incarnation] = Position(seq=batch.seq, closed=batch.closes)
        return routed(batch, self._request.range)

    def close(self) -> None:
        self._feed.leave(self._wake)
