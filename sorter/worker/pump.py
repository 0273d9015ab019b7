"""One thread for all subscriptions of a sorter process: moves batches from the feed into the tasks' inboxes.

A sorter may have thousands of subscriptions, nearly all of them idle; a thread each would cost more than the work. The
thread polls a subscription when its feed signals, or when its next poll is due, and moves one batch per poll. A batch
that does not fit its inbox stays with its subscription, which is not polled until it fits: a slow task slows only its
own subscriptions, and they the dispatcher.

Errors of the feed are shown and retried at the same position; nothing is skipped. After an unexpected error the
subscription is reopened behind the last batch that went into the inbox.
"""

from __future__ import annotations

import threading
from itertools import count

from sorter.worker.inbox import Inbox
from sorter.worker.reader import Followed
from tistream.clock import Clock
from tistream.errors import ErrorKind
from tistream.feed.protocol import FeedBatch, FeedRequest, Watched, WatchedFeed
from tistream.runtime.ready_queue import ReadyQueue, Waker
from tistream.runtime.service import Backoff, Repeating

ROUND_MAX = 64  #: subscriptions polled in one round
WAIT_S = 5.0
FULL_S = 0.02  #: until a full inbox is retried


class Pump:
    def __init__(self, feed: WatchedFeed, loop: Repeating, clock: Clock) -> None:
        self.feed, self.loop, self.clock = feed, loop, clock
        self.queue = ReadyQueue(clock)
        self._readers: dict[int, PumpedReader] = {}
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

    def read(self, request: FeedRequest, inbox: Inbox) -> PumpedReader:
        """Open a subscription; it starts at once."""
        number = next(self._numbers)
        reader = self._readers[number] = PumpedReader(self, number, request, inbox)
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


class PumpedReader(Followed):
    def __init__(self, pump: Pump, number: int, request: FeedRequest, inbox: Inbox) -> None:
        super().__init__(request)
        self._pump, self._number, self._inbox = pump, number, inbox
        self._stream: Watched | None = None
        self._held: FeedBatch | None = None  # did not fit the inbox
        self._backoff = Backoff(first_s=0.05, max_s=2.0)
        self._stopping = False
        self._ended = threading.Event()

    @property
    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def ask_to_stop(self) -> None:
        self._stopping = True
        self._pump.queue.mark_ready(self._number)

    def join(self) -> None:
        self._ended.wait()

    def step(self) -> bool:
        """Move a batch if one is here and fits; False when the reader ends. Called by the pump."""
        if self._stopping:
            return False
        if self._held is not None and not self._pass_on(self._held):
            return True
        try:
            self._stream = self._stream or self._pump.feed.watch(self._request, Waker(self._pump.queue, self._number))
            found = self._stream.look()
        except Exception as e:  # noqa: BLE001 - shown, and retried at the same position
            self._note(e)
            self._close()
            self._again(self._pump.clock.monotonic() + self._backoff.next_s())
            return True
        if isinstance(found, FeedBatch):
            self._problem = None
            self._backoff.reset()
            if self._pass_on(found):
                self._pump.queue.mark_ready(self._number)
            return True
        error, until = found
        if error is None:
            self._problem = None
        else:
            self._note(error)
            if error.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                self._close()
                until = self._pump.clock.monotonic() + self._backoff.next_s()
        self._again(until)
        return True

    def end(self) -> None:
        """Close the subscription. Called by the pump."""
        self._close()
        self._ended.set()

    def _again(self, at: float) -> None:
        self._pump.queue.at(self._number, at)

    def _pass_on(self, batch: FeedBatch) -> bool:
        if not self._inbox.put(batch, 0.0):
            self._held = batch
            self._again(self._pump.clock.monotonic() + FULL_S)
            return False
        self._held = None
        self._delivered(batch)
        self._pump.loop.wake()
        return True

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._held = None  # it is sent again: the position is that of the inbox
        if stream is not None:
            stream.close()
