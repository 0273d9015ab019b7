"""Shared by all pushes of a whole source: retries, and the waits for the frontier and for durability.

Each wait reports its reason and ends when `stop` is set.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TypeVar

from pusher.control import Control, retrying
from pusher.frontier import FrontierReader
from pusher.worker import PusherWorker
from tistream.clock import Clock
from tistream.errors import TiStreamError

T = TypeVar("T")

WAIT_S = 0.5  #: how often a wait checks the stop event
STORE_UNAVAILABLE = "the object store is slow or unavailable"
_FRONTIER_POLL_S = 0.2


class PushRun(ABC):
    """One run of a push."""

    def __init__(self, control: Control, stop: threading.Event | None, clock: Clock) -> None:
        self._stop, self._clock = stop or threading.Event(), clock
        self._frontier = FrontierReader(control, clock)

    @abstractmethod
    def _report(self, phase: str, *, problem: str = "") -> object:
        """Report the progress, and what the push waits for."""

    def _retry(self, action: Callable[[], T], phase: str = "connecting") -> T | None:
        """The result of the action, retried until it succeeds; None when stopped."""

        def notice(error: TiStreamError) -> None:
            self._report(phase, problem=str(error))

        return retrying(action, stop=self._stop, clock=self._clock, notice=notice)

    def _wait_for_frontier(self, state: str) -> bool:
        """Wait until a frontier is published; False when stopped. `state`: the tenant's last known state."""
        while not self._frontier.read():
            error = self._frontier.error
            self._report("waiting", problem=str(error) if error else f"the tenant is {state}")
            if self._clock.wait(self._stop, _FRONTIER_POLL_S):
                return False
        return not self._stop.is_set()

    def _wait_until_durable(self, workers: Iterable[PusherWorker]) -> bool:
        """Wait until all uploads are durable; False when stopped first."""
        for worker in workers:
            while not worker.wait_until_durable(WAIT_S):
                if self._stop.is_set():
                    return False
                self._report("finishing", problem=STORE_UNAVAILABLE)
        return True
