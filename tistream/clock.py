"""Clocks. Shells get a Clock as an argument; cores get plain numbers."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for waiting, Unix milliseconds for display."""

    def monotonic(self) -> float: ...

    def unix_ms(self) -> int: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the time has passed; whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)
