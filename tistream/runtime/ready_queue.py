"""Ready queue: one thread serves many mostly idle items.

Each item has a number. It becomes ready when another thread marks it, or at the time scheduled last. Ready items are
taken in the order in which they became ready, a bounded number at once, so none is starved.
"""

from __future__ import annotations

import heapq
import threading
from itertools import islice

from tistream.clock import Clock


class ItemWaker:
    """Marks one item ready; the event that producers set (`tistream.feed.protocol.Wake`)."""

    __slots__ = ("_number", "_queue")

    def __init__(self, queue: ReadyQueue, number: int) -> None:
        self._queue, self._number = queue, number

    def set(self) -> None:
        self._queue.mark_ready(self._number)


class ReadyQueue:
    """`take` is for one thread, everything else for any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._ready: dict[int, None] = {}
        self._times: list[tuple[float, int]] = []  # a heap; outdated entries are skipped
        self._scheduled: dict[int, float] = {}  # number -> its current time
        self._woken = False

    def mark_ready(self, number: int) -> None:
        """Make the item ready now."""
        with self._changed:
            self._ready[number] = None
            self._changed.notify()

    def at(self, number: int, when: float) -> None:
        """Make the item ready at this time (monotonic seconds), instead of any scheduled before."""
        with self._changed:
            self._scheduled[number] = when
            heapq.heappush(self._times, (when, number))
            if self._times[0][1] == number:
                self._changed.notify()

    def forget(self, number: int) -> None:
        """Remove the item from the queue and the schedule."""
        with self._changed:
            self._ready.pop(number, None)
            self._scheduled.pop(number, None)

    def wake(self) -> None:
        """Make `take` return."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def take(self, until: float, limit: int) -> list[int]:
        """At most `limit` ready items; waits for the first, but not beyond `until` (monotonic seconds)."""
        with self._changed:
            now = self._clock.monotonic()
            if not self._ready and not self._woken:
                at = min(self._times[0][0], until) if self._times else until
                if at > now:
                    self._changed.wait(at - now)
                    now = self._clock.monotonic()
            self._woken = False
            while self._times and self._times[0][0] <= now:
                at, number = heapq.heappop(self._times)
                if self._scheduled.get(number) == at:
                    del self._scheduled[number]
                    self._ready[number] = None
            taken = list(islice(self._ready, limit))
            for number in taken:
                del self._ready[number]
            return taken
