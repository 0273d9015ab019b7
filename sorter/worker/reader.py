"""One subscription of one task to one store: a thread that moves batches from the feed into the task's inbox.

For feeds that can only be waited for, as in a single process; `sorter.worker.pump` serves thousands of other ones.

The inbox is bounded, so a slow task slows its readers, and they the dispatcher. Errors of the feed are shown and
retried at the same position; nothing is skipped. After an unexpected error the stream is reopened behind the last batch
that went into the inbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from sorter.worker.inbox import Inbox
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.feed.protocol import Feed, FeedBatch, FeedRequest, FeedStream
from tistream.ids import Position
from tistream.model.positions import without_ended
from tistream.runtime.service import Backoff, Problem, Repeating

NEXT_TIMEOUT_S = 0.2
IDLE_S = 10.0  #: a store that has sent nothing for so long ...
IDLE_TIMEOUT_S = 2.0  #: ... is waited for longer at a time, because each wait wakes a thread

log = structlog.get_logger(__name__)


class Reader(Protocol):
    """One subscription of one task to one store."""

    @property
    def is_alive(self) -> bool: ...

    def ask_to_stop(self) -> None:
        """Begin to stop; `join` waits for it."""
        ...

    def join(self) -> None: ...

    def problems(self) -> list[Problem]:
        """The last error of the feed, until a batch arrives."""
        ...


Read = Callable[[FeedRequest, Inbox], Reader]  #: opens a subscription


class Followed:
    """Position and current problem of a subscription, shared by both kinds of readers."""

    def __init__(self, request: FeedRequest) -> None:
        self.name = f"task {request.task_id} store {request.store_id}"
        self._request = request
        self._problem: Problem | None = None

    def problems(self) -> list[Problem]:
        """The last error of the feed, until a batch arrives."""
        problem = self._problem
        return [] if problem is None else [problem]

    def _delivered(self, batch: FeedBatch) -> None:
        """Advance the position: the batch is in the inbox."""
        at = Position(seq=batch.seq, closed=batch.closes)
        self._request = replace(
            self._request, positions=without_ended({**self._request.positions, batch.incarnation: at})
        )

    def _note(self, error: Exception) -> None:
        problem = Problem.of(self.name, error)
        if problem != self._problem:
            log.warning("feed failed, retrying", reader=self.name, error=str(error))
        self._problem = problem


class FeedReader(Followed):
    def __init__(self, feed: Feed, request: FeedRequest, inbox: Inbox, loop: Repeating, clock: Clock) -> None:
        super().__init__(request)
        self._feed = feed
        self._inbox = inbox
        self._loop = loop  # woken when batches arrive
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed {self.name}", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        stream: FeedStream | None = None
        backoff = Backoff(first_s=0.05, max_s=2.0)
        arrived_s = self._clock.monotonic()
        try:
            while not self._stop.is_set():
                try:
                    stream = stream or self._feed.subscribe(self._request)
                    idle = self._clock.monotonic() - arrived_s > IDLE_S
                    batch = stream.next(IDLE_TIMEOUT_S if idle else NEXT_TIMEOUT_S)
                except Exception as e:  # noqa: BLE001 - shown, and retried at the same position
                    self._note(e)
                    if not (isinstance(e, TiStreamError) and e.kind in (ErrorKind.RETRY, ErrorKind.CORRUPT)):
                        _close(stream)
                        stream = None
                    self._clock.wait(self._stop, backoff.next_s())
                    continue
                self._problem = None
                backoff.reset()
                if batch is not None:
                    arrived_s = self._clock.monotonic()
                    self._pass_on(batch)
        finally:
            _close(stream)

    def _pass_on(self, batch: FeedBatch) -> None:
        while not self._stop.is_set():
            if not self._inbox.put(batch, NEXT_TIMEOUT_S):
                continue
            self._delivered(batch)
            self._loop.wake()
            return


def _close(stream: FeedStream | None) -> None:
    if stream is not None:
        stream.close()
