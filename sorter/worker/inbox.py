"""What the readers of a task have brought and its core has not taken yet, bounded in batches and in bytes.

A reader waits while the inbox is full, so a slow task slows its readers and they the dispatcher. It is full once it
holds as many batches or bytes as it may; the last batch may reach beyond, so one of any size passes, and a store of
which nothing is here may always put one batch in.

Batches of a store are taken in their order. Of several stores the one that is furthest behind goes first (the lowest
cut_ts): while one store runs ahead of the others, a task that catches up can write nothing and has to hold it all.
"""

from __future__ import annotations

import threading
from collections import deque

from tistream.feed.protocol import FeedBatch
from tistream.limits import FEED_QUEUE_BATCHES_MAX, INBOX_BYTES_MAX


class Inbox:
    """Put into by several threads, taken from by one."""

    def __init__(self, batches_max: int = FEED_QUEUE_BATCHES_MAX, bytes_max: int = INBOX_BYTES_MAX) -> None:
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._room = threading.Condition()
        self._stores: dict[int, deque[FeedBatch]] = {}  # none of them empty
        self.count = 0  #: batches held now
        self.bytes = 0  #: held now

    def put(self, batch: FeedBatch, timeout_s: float) -> bool:
        """Put it in; False when there was no room in time."""
        with self._room:
            if not self._room.wait_for(lambda: self._has_room(batch.store_id), timeout_s):
                return False
            self._stores.setdefault(batch.store_id, deque()).append(batch)
            self.count += 1
            self.bytes += batch.nbytes
            return True

    def take(self) -> FeedBatch | None:
        """The next batch; None when there is none."""
        with self._room:
            if not self._stores:
                return None
            store_id = min(self._stores, key=lambda store: (self._stores[store][0].cut_ts, store))
            batch = self._stores[store_id].popleft()
            if not self._stores[store_id]:
                del self._stores[store_id]
            self.count -= 1
            self.bytes -= batch.nbytes
            self._room.notify_all()
            return batch

    def _has_room(self, store_id: int) -> bool:
        return store_id not in self._stores or (self.count < self._batches_max and self.bytes < self._bytes_max)
