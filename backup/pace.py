"""Limits the bytes a second of several threads together."""

from __future__ import annotations

import threading
from math import inf

from tistream.clock import Clock
from tistream.errors import StoreUnavailable


class Pace:
    """Call `take` after each piece of work; it waits until the next one fits the rate."""

    def __init__(self, bytes_s: float, clock: Clock, stop: threading.Event) -> None:
        self._bytes_s, self._clock, self._stop = bytes_s, clock, stop
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.taken = 0

    def take(self, size: int) -> None:
        """Wait. StoreUnavailable when stopped."""
        now = self._clock.monotonic()
        with self._lock:
            self.taken += size
            self._free_at = max(self._free_at, now) + (size / self._bytes_s if self._bytes_s != inf else 0.0)
            wait_s = self._free_at - now
        if self._clock.wait(self._stop, max(wait_s, 0.0)):
            raise StoreUnavailable("stopped")
