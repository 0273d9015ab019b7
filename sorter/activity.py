"""What a loop does every so often, each activity failing by itself."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from tistream.clock import Clock
from tistream.errors import CorruptObject, ErrorKind, TiStreamError
from tistream.service import Backoff, Problem

log = structlog.get_logger(__name__)


class Activity:
    """Something the loop does every so often; when it fails, the problem is shown and the pause grows."""

    def __init__(self, name: str, interval_s: float, clock: Clock, *, pauses: int = 0) -> None:
        """`pauses`: between two of them at least so many times as long as one takes."""
        self._pauses = pauses
        self.name = name
        self._interval_s = interval_s
        self._clock = clock
        self._backoff = Backoff(first_s=min(interval_s, 0.2), max_s=max(interval_s, 5.0))
        self._due_s = clock.monotonic()
        self._problem: Problem | None = None

    def every(self, interval_s: float) -> None:
        """From now on so often, if it was less often."""
        self._interval_s = min(self._interval_s, interval_s)
        self.hurry()

    def hurry(self) -> None:
        """Do not wait for the interval, unless the last try failed."""
        if self._problem is None:
            self._due_s = self._clock.monotonic()

    def run_if_due(self, step: Callable[[], None]) -> None:
        """Run the step when its time has come. Errors that may pass, or concern one object, stay here."""
        began_s = self._clock.monotonic()
        if began_s < self._due_s:
            return
        try:
            step()
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY and not isinstance(e, CorruptObject):
                raise
            problem = Problem.of(self.name, e)
            if problem != self._problem:
                log.warning("will try again", activity=self.name, error=str(e))
            self._problem = problem
            self._due_s = self._clock.monotonic() + self._backoff.next_s()
            return
        self._problem = None
        self._backoff.reset()
        now_s = self._clock.monotonic()
        self._due_s = now_s + max(self._interval_s, self._pauses * (now_s - began_s))

    def problems(self) -> list[Problem]:
        problem = self._problem
        return [] if problem is None else [problem]
