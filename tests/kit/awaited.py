"""A subscription that a test waits for. Services never do: a sorter's pump looks at thousands of them."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from tistream.clock import Clock, SystemClock
from tistream.errors import FeedUnavailable, ServiceRefused
from tistream.feed.protocol import Feed, FeedBatch, FeedRequest, FeedStream, Wake

LONG_S = 60.0
S = TypeVar("S", bound=FeedStream)


def subscribed(feed: Feed, request: FeedRequest) -> Awaited[FeedStream]:
    """A subscription to the feed, waited for in real time."""
    return Awaited(partial(feed.open, request), SystemClock())


class Awaited(Generic[S]):
    """Looks at a subscription when it is woken or due, as the pump does."""

    def __init__(self, open_: Callable[[Wake], S], clock: Clock) -> None:
        self._clock, self._woken = clock, threading.Event()
        self._shown = ""  # the error raised last, while it lasts
        self.stream = open_(self._woken)
        self.close = self.stream.close

    def next(self, timeout_s: float) -> FeedBatch | None:
        """The next batch, or None after `timeout_s`. An error is raised at once if it is new, else when the time is
        up."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._woken.clear()
            looked = self.stream.look()
            if isinstance(looked, FeedBatch):
                self._shown = ""
                return looked
            error, until = looked
            now, before = self._clock.monotonic(), self._shown
            self._shown = "" if error is None else f"{error.code} {error}"
            if error is not None and (self._shown != before or now >= deadline):
                raise copy.copy(error)  # others may be shown the same object
            if now >= deadline:
                return None
            self._clock.wait(self._woken, max(0.001, min(until, deadline) - now))


def next_batches(stream: Awaited[FeedStream], count: int) -> list[FeedBatch]:
    """The next batches; waits while the dispatcher cannot be reached."""
    batches: list[FeedBatch] = []
    deadline = time.monotonic() + LONG_S
    while len(batches) < count:
        assert time.monotonic() < deadline, f"not in time: {batches}"
        with suppress(FeedUnavailable, ServiceRefused):
            batch = stream.next(0.2)
            batches += [batch] if batch is not None else []
    return batches


def next_seqs(stream: Awaited[FeedStream], count: int) -> list[int]:
    return [batch.seq for batch in next_batches(stream, count)]
