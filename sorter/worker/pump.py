"""One thread for all subscriptions of a sorter process: moves batches from the feed into the tasks' inboxes.

A sorter may have thousands of subscriptions, nearly all of them idle; a thread each would cost more than the work. The
thread polls a subscription when its feed signals, or when its next poll is due, and moves one batch per poll. A batch
that does not fit its inbox stays with its subscription, which is not polled until the inbox has room: a slow task slows
only its own subscriptions, and they the dispatcher.

Errors of the feed are shown and retried at the same position; nothing is skipped. After an unexpected error the
subscription is reopened behind the last batch that went into the inbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import structlog

from sorter.worker.inbox import Inbox
from tistream.clock import Clock
from tistream.errors import ErrorKind
from tistream.feed.protocol import Feed, FeedBatch, FeedRequest, FeedStream
from tistream.ids import Position
from tistream.model.positions import without_ended
from tistream.model.problem import Problem
from tistream.runtime.ready_queue import ItemWaker, ReadyQueue
from tistream.runtime.service import Backoff

ROUND_MAX = 64  #: subscriptions polled in one round
WAIT_S = 5.0
POLL_S = 10.0  #: a subscription is polled at least this often: its store may be served elsewhere by now

log = structlog.get_logger(__name__)


class Pump:
    def __init__(self, feed: Feed, arrived: Callable[[], None], clock: Clock) -> None:
        """`arrived` is called for each batch that went into an inbox."""
        self.feed, self.arrived, self.clock = feed, arrived, clock
        self.queue = ReadyQueue(clock)
        self._readers: dict[int, Reader] = {}
        self._numbers = count(1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeds", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait for the thread, and end all readers."""
        self._stop.set()
        self.queue.wake()
        if self._thread.is_alive():
            self._thread.join()
        for reader in list(self._readers.values()):
            reader.end()

    def read(self, request: FeedRequest, inbox: Inbox) -> Reader:
        """Open a subscription; it starts at once."""
        number = next(self._numbers)
        reader = self._readers[number] = Reader(self, number, request, inbox)
        self.queue.mark_ready(number)
        return reader

    def _run(self) -> None:
        while not self._stop.is_set():
            for number in self.queue.take(self.clock.monotonic() + WAIT_S, ROUND_MAX):
                reader = self._readers.get(number)
                if reader is not None and not reader.step():
                    reader.end()
                    del self._readers[number]
                    self.queue.forget(number)


Read = Callable[[FeedRequest, Inbox], "Reader"]  #: `Pump.read`


class Reader:
    """One subscription of one task to one store."""

    def __init__(self, pump: Pump, number: int, request: FeedRequest, inbox: Inbox) -> None:
        self.name = f"task {request.task_id} store {request.store_id}"
        self._pump, self._number, self._request, self._inbox = pump, number, request, inbox
        self._wake = ItemWaker(pump.queue, number)
        self._stream: FeedStream | None = None
        self._held: FeedBatch | None = None  # did not fit the inbox
        self._problem: Problem | None = None
        self._backoff = Backoff(first_s=0.05, max_s=2.0)
        self._stopping = False
        self._ended = threading.Event()

    @property
    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def ask_to_stop(self) -> None:
        """Begin to stop; `join` waits for it."""
        self._stopping = True
        self._wake.set()

    def join(self) -> None:
        self._ended.wait()

    def problems(self) -> list[Problem]:
        """The last error of the feed, until a batch arrives."""
        problem = self._problem
        return [] if problem is None else [problem]

    def step(self) -> bool:
        """Move a batch if one is here and fits; False when the reader ends. Called by the pump."""
        if self._stopping:
            return False
        try:
            self._move()
        except Exception as e:  # noqa: BLE001 - shown, and retried at the same position
            self._note(e)
            self._close()
            self._again(self._pump.clock.monotonic() + self._backoff.next_s())
        return True

    def _move(self) -> None:
        if self._held is not None and not self._pass_on(self._held):
            return
        self._stream = self._stream or self._pump.feed.open(self._request, self._wake)
        looked = self._stream.look()
        if isinstance(looked, FeedBatch):
            self._problem = None
            self._backoff.reset()
            if self._pass_on(looked):
                self._wake.set()
            return
        now_s = self._pump.clock.monotonic()
        error, until = looked
        if error is None:
            self._problem = None
        else:
            self._note(error)
            if error.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                self._close()
                until = now_s + self._backoff.next_s()
        self._again(min(until, now_s + POLL_S))

    def end(self) -> None:
        """Close the subscription. Called by the pump."""
        self._close()
        self._ended.set()

    def _again(self, at: float) -> None:
        self._pump.queue.at(self._number, at)

    def _pass_on(self, batch: FeedBatch) -> bool:
        """Put the batch into the inbox and advance the position; False when it has to wait."""
        if not self._inbox.put(batch, self._wake):
            self._held = batch
            return False
        self._held = None
        at = Position(seq=batch.seq, closed=batch.closes)
        positions = without_ended({**self._request.positions, batch.incarnation: at})
        self._request = replace(self._request, positions=positions)
        self._pump.arrived()
        return True

    def _note(self, error: Exception) -> None:
        problem = Problem.of(self.name, error)
        if problem != self._problem:
            log.warning("feed failed, retrying", reader=self.name, error=str(error))
        self._problem = problem

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._held = None  # it is sent again: the position is that of the inbox
        if stream is None:
            return
        try:
            stream.close()
        except Exception:  # one subscription must not end the thread of all
            log.exception("a subscription could not be closed", reader=self.name)
