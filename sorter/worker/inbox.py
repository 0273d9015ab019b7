"""Bounded inbox of a task: batches that its readers delivered and its core has not taken yet.

A full inbox takes nothing, so a slow task slows its readers, and they the dispatcher. It is full once it holds the
maximum of batches or bytes; the last batch may exceed it, so a batch of any size passes, and a store without a batch in
it may always put one.

Batches of a store are taken in order. Among stores the one that is furthest behind goes first (the lowest cut_ts):
while one store is ahead of the others, a task that catches up can write nothing and has to hold all of it.
"""

from __future__ import annotations

import threading
from collections import deque

from tistream.feed.protocol import FeedBatch, Wake
from tistream.limits import FEED_QUEUE_BATCHES_MAX, INBOX_BYTES_MAX


class Inbox:
    """Filled by one thread, emptied by another."""

    def __init__(self, batches_max: int = FEED_QUEUE_BATCHES_MAX, bytes_max: int = INBOX_BYTES_MAX) -> None:
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._lock = threading.Lock()
        self._stores: dict[int, deque[FeedBatch]] = {}  # none of them empty
        self._refused: dict[int, Wake] = {}  # store -> whom to wake when there is room
        self.count = 0  #: batches held now
        self.bytes = 0  #: held now

    def put(self, batch: FeedBatch, room: Wake) -> bool:
        """Add a batch; False when there is no room: then `room` is set when it is worth another try."""
        with self._lock:
            if batch.store_id in self._stores and (self.count >= self._batches_max or self.bytes >= self._bytes_max):
                self._refused[batch.store_id] = room
                return False
            self._stores.setdefault(batch.store_id, deque()).append(batch)
            self.count += 1
            self.bytes += batch.nbytes
            return True

    def take(self) -> FeedBatch | None:
        with self._lock:
            if not self._stores:
                return None
            store_id = min(self._stores, key=lambda store: (self._stores[store][0].cut_ts, store))
            batch = self._stores[store_id].popleft()
            if not self._stores[store_id]:
                del self._stores[store_id]
            self.count -= 1
            self.bytes -= batch.nbytes
            self._wake(store_id)
            return batch

    def put_back(self, batch: FeedBatch) -> None:
        """Return the batch that was taken last."""
        with self._lock:
            self._stores.setdefault(batch.store_id, deque()).appendleft(batch)
            self.count += 1
            self.bytes += batch.nbytes

    def drop(self, store_id: int) -> None:
        """Drop the batches of a store: its reader has been asked to stop."""
        with self._lock:
            for batch in self._stores.pop(store_id, ()):
                self.count -= 1
                self.bytes -= batch.nbytes
            self._wake(store_id)

    def _wake(self, store_id: int) -> None:
        """Wake the refused: all once half of the inbox is free, this store's once nothing of it is here."""
        if self.count * 2 <= self._batches_max and self.bytes * 2 <= self._bytes_max:
            woken, self._refused = self._refused, {}
        elif store_id in self._refused and store_id not in self._stores:
            woken = {store_id: self._refused.pop(store_id)}
        else:
            return
        for room in woken.values():
            room.set()
