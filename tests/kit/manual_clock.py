"""A clock that moves only when somebody waits: tests of retries and pauses take no time."""

from __future__ import annotations

import threading


class ManualClock:
    """Waiting advances it at once. Safe from several threads."""

    def __init__(self, unix_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_s = 0.0
        self._unix_ms = unix_ms
        self.waited_s: list[float] = []  #: every wait, in the order in which they began

    def monotonic(self) -> float:
        with self._lock:
            return self._now_s

    def unix_ms(self) -> int:
        with self._lock:
            return self._unix_ms + int(self._now_s * 1000)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now_s += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        with self._lock:
            self.waited_s.append(seconds)
            self._now_s += max(0.0, seconds)
        return event.is_set()
