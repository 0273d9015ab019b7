"""What the readers of a task have brought and its core has not taken yet: in order, bounded in batches and in bytes.

A reader waits while the inbox is full, so a slow task slows its readers and they the dispatcher. It is full once it
holds as many batches or bytes as it may; the last batch may reach beyond, so one of any size passes.
"""

from __future__ import annotations

import threading
from collections import deque

from tistream.feed import FeedBatch
from tistream.limits import FEED_QUEUE_BATCHES_MAX, INBOX_BYTES_MAX


class Inbox:
    """Put into by several threads, taken from by one."""

    def __init__(self, batches_max: int = FEED_QUEUE_BATCHES_MAX, bytes_max: int = INBOX_BYTES_MAX) -> None:
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._room = threading.Condition()
        self._batches: deque[tuple[FeedBatch, int]] = deque()
        self.bytes = 0  #: held now

    def put(self, batch: FeedBatch, timeout_s: float) -> bool:
        """Put it in; False when there was no room in time."""
        size = batch.rows.nbytes + batch.regions.nbytes
        with self._room:
            if not self._room.wait_for(self._has_room, timeout_s):
                return False
            self._batches.append((batch, size))
            self.bytes += size
            return True

    def take(self) -> FeedBatch | None:
        """The oldest batch; None when there is none."""
        with self._room:
            if not self._batches:
                return None
            batch, size = self._batches.popleft()
            self.bytes -= size
            self._room.notify()
            return batch

    def _has_room(self) -> bool:
        return len(self._batches) < self._batches_max and self.bytes < self._bytes_max
