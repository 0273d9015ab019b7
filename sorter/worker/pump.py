"""All subscriptions of a sorter process in one thread: moves batches from the feed into the tasks' inboxes.

A sorter may have thousands of subscriptions, nearly all of them idle; a thread for each costs more than what it moves.
The thread looks at a subscription when its feed says that something has come, or when it is time to look again, and
moves one batch with each look. A batch that finds no room in its inbox stays with its subscription, which is not looked
at until there is: a slow task slows its own subscriptions only, and they the dispatcher.

What the feed raises is shown and tried again at the same place; nothing is skipped. A subscription that failed in an
unforeseen way is opened anew, behind the last batch that went into the inbox.
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

TURN = 64  #: subscriptions that are looked at, at most, before others may come
WAIT_S = 5.0
FULL_S = 0.02  #: until an inbox without room is tried again


class Pump:
    """The thread."""

    def __init__(self, feed: WatchedFeed, loop: Repeating, clock: Clock) -> None:
        """`loop` is woken when there is something new."""
        self.feed, self.loop, self.clock = feed, loop, clock
        self.queue = ReadyQueue(clock)
        self._readers: dict[int, PumpedReader] = {}
        self._numbers = count(1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeds", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for it. Readers that have not ended end now."""
        self._stop.set()
        self.queue.wake()
        if self._thread.is_alive():
            self._thread.join()
        for reader in list(self._readers.values()):
            reader.end()

    def read(self, request: FeedRequest, inbox: Inbox) -> PumpedReader:
        """A new subscription; it begins at once."""
        number = next(self._numbers)
        reader = self._readers[number] = PumpedReader(self, number, request, inbox)
        self.queue.mark_ready(number)
        return reader

    def _run(self) -> None:
        while not self._stop.is_set():
            for number in self.queue.take(self.clock.monotonic() + WAIT_S, TURN):
                reader = self._readers.get(number)
                if reader is not None and not reader.step():
                    reader.end()
                    del self._readers[number]
                    self.queue.forget(number)


class PumpedReader(Followed):
    """One subscription of one task to one store."""

    def __init__(self, pump: Pump, number: int, request: FeedRequest, inbox: Inbox) -> None:
        super().__init__(request)
        self._pump, self._number, self._inbox = pump, number, inbox
        self._stream: Watched | None = None
        self._held: FeedBatch | None = None  # it found no room
        self._backoff = Backoff(first_s=0.05, max_s=2.0)
        self._stopping = False
        self._ended = threading.Event()

    @property
    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def ask_to_stop(self) -> None:
        """Begin to stop; `join` waits for it."""
        self._stopping = True
        self._pump.queue.mark_ready(self._number)

    def join(self) -> None:
        self._ended.wait()

    def step(self) -> bool:
        """For the pump: move a batch, if one is here and there is room; False when it is to end."""
        if self._stopping:
            return False
        if self._held is not None and not self._pass_on(self._held):
            return True
        try:
            self._stream = self._stream or self._pump.feed.watch(self._request, Waker(self._pump.queue, self._number))
            found = self._stream.look()
        except Exception as e:  # noqa: BLE001 - whatever it is: shown, and tried again at the same place
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
        """For the pump: it has ended."""
        self._close()
        self._ended.set()

    def _again(self, at: float) -> None:
        self._pump.queue.at(self._number, at)

    def _pass_on(self, batch: FeedBatch) -> bool:
        """Whether there was room for it."""
        if not self._inbox.put(batch, 0.0):
            self._held = batch
            self._again(self._pump.clock.monotonic() + FULL_S)
            return False
        self._held = None
        self._went_in(batch)
        self._pump.loop.wake()
        return True

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._held = None  # it comes again: the position is behind the last one that went in
        if stream is not None:
            stream.close()
