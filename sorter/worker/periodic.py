"""What a loop does every so often, each activity contained: what one raises delays no other."""

from __future__ import annotations

from collections.abc import Callable

from tistream.clock import Clock
from tistream.runtime.containment import Containment


class Activity:
    """Something the loop does every so often; when it fails, it waits as `contained` says."""

    def __init__(
        self, contained: Containment[str], name: str, interval_s: float, clock: Clock, *, pauses: int = 0
    ) -> None:
        """`pauses`: between two of them at least so many times as long as one takes."""
        self._contained, self._name, self._pauses = contained, name, pauses
        self._interval_s = interval_s
        self._clock = clock
        self._due_s = clock.monotonic()

    def every(self, interval_s: float) -> None:
        """From now on so often, if it was less often."""
        self._interval_s = min(self._interval_s, interval_s)
        self.hurry()

    def hurry(self) -> None:
        """Do not wait for the interval."""
        self._due_s = self._clock.monotonic()

    def run_if_due(self, step: Callable[[], None]) -> None:
        """Run the step when its time has come. Raises Fenced only."""
        began_s = self._clock.monotonic()
        if began_s < self._due_s or not self._contained.run(self._name, step):
            return
        now_s = self._clock.monotonic()
        self._due_s = now_s + max(self._interval_s, self._pauses * (now_s - began_s))
