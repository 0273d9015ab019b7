"""A feed in memory: batches that a test puts there, delivered to every subscriber by the rules of
tistream.feed.protocol."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tests.kit.routed import routed
from tistream.errors import StoreUnavailable
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.ids import Position
from tistream.model.positions import position_of


class MemoryFeed:
    """Batches of whole files per store, in the order in which they were put. A subscriber gets its range of them."""

    def __init__(self) -> None:
        self._batches: dict[int, list[FeedBatch]] = {}
        self._new = threading.Condition()
        self.failures_left = 0  #: so many calls of `next` fail first

    def put(self, batch: FeedBatch) -> None:
        with self._new:
            self._batches.setdefault(batch.store_id, []).append(batch)
            self._new.notify_all()

    def subscribe(self, request: FeedRequest) -> MemoryStream:
        return MemoryStream(self, request)

    def take(self, store_id: int, positions: Mapping[int, Position], timeout_s: float) -> FeedBatch | None:
        """The first batch of the store that lies behind the positions."""
        with self._new:
            if self.failures_left:
                self.failures_left -= 1
                raise StoreUnavailable("the feed fails as it was told to")
            if (found := self._first(store_id, positions)) is None:
                self._new.wait(timeout_s)
                found = self._first(store_id, positions)
            return found

    def _first(self, store_id: int, positions: Mapping[int, Position]) -> FeedBatch | None:
        for batch in self._batches.get(store_id, []):
            at = position_of(positions, batch.incarnation)
            if not at.closed and (batch.closes or batch.seq > at.seq):
                return batch
        return None


class MemoryStream:
    """A subscription to a MemoryFeed."""

    def __init__(self, feed: MemoryFeed, request: FeedRequest) -> None:
        self._feed, self._request = feed, request
        self._positions = dict(request.positions)

    def next(self, timeout_s: float) -> FeedBatch | None:
        batch = self._feed.take(self._request.store_id, self._positions, timeout_s)
        if batch is None:
            return None
        self._positions[batch.incarnation] = Position(seq=batch.seq, closed=batch.closes)
        return routed(batch, self._request.range)

    def close(self) -> None:
        self._positions.clear()
