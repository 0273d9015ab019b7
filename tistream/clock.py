"""Clocks. Shells get a Clock as an argument; cores get plain numbers."""

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
