"""Periodic activities of a loop, each contained: an error in one delays no other."""

from __future__ import annotations

from collections.abc import Callable

from tistream.clock import Clock
from tistream.runtime.containment import Containment


class Activity:
    """Something the loop does at an interval; after a failure it waits as `contained` says."""

    def __init__(
        self, contained: Containment[str], name: str, interval_s: float, clock: Clock, *, pauses: int = 0
    ) -> None:
        """`pauses`: minimum pause between two runs, as a multiple of the duration of a run."""
        self._contained, self._name, self._pauses = contained, name, pauses
        self._interval_s = interval_s
        self._clock = clock
        self._due_s = clock.monotonic()

    def every(self, interval_s: float) -> None:
        """Shorten the interval to `interval_s`, if it was longer."""
        self._interval_s = min(self._interval_s, interval_s)
        self.run_soon()

    def run_soon(self) -> None:
        self._due_s = self._clock.monotonic()

    def run_if_due(self, step: Callable[[], None]) -> None:
        """Run the step if it is due. Raises Fenced only."""
        began_s = self._clock.monotonic()
        if began_s < self._due_s or not self._contained.run(self._name, step):
            return
        now_s = self._clock.monotonic()
        self._due_s = now_s + max(self._interval_s, self._pauses * (now_s - began_s))
