"""Limits the bytes a second of several threads together."""

from __future__ import annotations

import threading
from math import inf

from tistream.clock import Clock
from tistream.errors import StoreUnavailable


class RateLimiter:
    """Call `take` with the size of each piece of work; it waits until the rate has room for it. Thread-safe."""

    def __init__(self, bytes_s: float, clock: Clock, stop: threading.Event) -> None:
        self._bytes_s, self._clock, self._stop = bytes_s, clock, stop
        self._lock = threading.Lock()
        self._free_at = clock.monotonic()

    def take(self, size: int, longest_s: float = inf) -> None:
        """Wait, for `longest_s` at most. StoreUnavailable when stopped."""
        now = self._clock.monotonic()
        with self._lock:
            due = max(self._free_at, now)
            self._free_at = due + size / self._bytes_s
        if self._clock.wait(self._stop, max(min(due - now, longest_s), 0.0)):
            raise StoreUnavailable("stopped")
