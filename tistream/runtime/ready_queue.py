"""Whose turn it is, among very many that mostly wait: one thread serves them all instead of a thread for each.

Each has a number. It is due when somebody hurries it, or when the time has come that it named last. Who is due comes in
the order in which it became due, a bounded number at once, so that nobody is passed over.
"""

from __future__ import annotations

import heapq
import threading
from itertools import islice

from tistream.clock import Clock


class Waker:
    """Hurries one of them: who is told of news needs to know no more (`tistream.feed.protocol.Wake`)."""

    __slots__ = ("_number", "_queue")

    def __init__(self, turns: ReadyQueue, number: int) -> None:
        self._queue, self._number = turns, number

    def set(self) -> None:
        self._queue.mark_ready(self._number)


class ReadyQueue:
    """`take` is for one thread, everything else for any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[int, None] = {}
        self._times: list[tuple[float, int]] = []  # stale ones are passed over
        self._named: dict[int, float] = {}  # number -> the time that counts
        self._woken = False

    def mark_ready(self, number: int) -> None:
        """It is due now."""
        with self._changed:
            self._due[number] = None
            self._changed.notify()

    def at(self, number: int, when: float) -> None:
        """It is due at this time (monotonic seconds), instead of any that it named before."""
        with self._changed:
            self._named[number] = when
            heapq.heappush(self._times, (when, number))
            if self._times[0][1] == number:
                self._changed.notify()

    def forget(self, number: int) -> None:
        """It is not due any more."""
        with self._changed:
            self._due.pop(number, None)
            self._named.pop(number, None)

    def wake(self) -> None:
        """Have `take` return."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def take(self, until: float, limit: int) -> list[int]:
        """Those that are due, at most so many; waits for the first of them, but not beyond `until`."""
        with self._changed:
            now = self._clock.monotonic()
            if not self._due and not self._woken:
                at = min(self._times[0][0], until) if self._times else until
                if at > now:
                    self._changed.wait(at - now)
                    now = self._clock.monotonic()
            self._woken = False
            while self._times and self._times[0][0] <= now:
                at, number = heapq.heappop(self._times)
                if self._named.get(number) == at:
                    del self._named[number]
                    self._due[number] = None
            turn = list(islice(self._due, limit))
            for number in turn:
                del self._due[number]
            return turn
