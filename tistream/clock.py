"""Clocks and timers. Shells get a Clock as an argument; cores get plain numbers."""

from __future__ import annotations

import sys
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for waiting and for leases, Unix milliseconds for display.

    Monotonic seconds go on while the machine is suspended: who wakes up knows that its leases have ended."""

    def monotonic(self) -> float: ...

    def unix_ms(self) -> int: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the time has passed; whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        # CLOCK_MONOTONIC of Linux stops while a machine is suspended; elsewhere it does not
        return time.clock_gettime(time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


class Due:
    """A timer of something that is due at once, and then once in a period."""

    def __init__(self, period_s: float, *, next_s: float = 0.0) -> None:
        self._period_s, self._next_s = period_s, next_s

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._next_s

    def take(self, now_s: float) -> bool:
        """Whether it is due; if so, the next period begins."""
        is_due = self.is_due(now_s)
        if is_due:
            self.restart(now_s)
        return is_due

    def restart(self, now_s: float, at_least_s: float = 0.0) -> None:
        """Begin a period, which lasts `at_least_s`."""
        self._next_s = now_s + max(self._period_s, at_least_s)

    def make_due(self) -> None:
        self._next_s = 0.0
