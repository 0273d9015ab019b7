"""The sorter's end of one exchange with one dispatcher process, shared by all of its subscriptions there.

One thread reads what the dispatcher sends and lays it in the mailbox of its subscription; it never waits for anybody,
because credit bounds what can come: FEED_QUEUE_BATCHES_MAX batches and FEED_QUEUE_BYTES_MAX for each subscription.
Whoever takes from a mailbox gives the credit back; another thread says so, because a dispatcher that hangs may hold up
who writes. An exchange that has ended, for whatever reason, is never used
again: its mailboxes say why, once what had come before has been taken.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from contextlib import suppress

import pyarrow as pa
import pyarrow.flight as fl

from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest, Wake
from tistream.feed.wire import (
    FEED_COMMAND,
    SILENT_S,
    Command,
    Fine,
    Live,
    Notification,
    Over,
    Subscribe,
    Taken,
    Unsubscribe,
    decode_notification,
    encode_command,
)
from tistream.limits import FEED_QUEUE_BATCHES_MAX, FEED_QUEUE_BYTES_MAX

CREDIT_SHARE = 4  #: credit is given back when so large a part of it (a quarter) has been taken

Arrived = FeedBatch | TiStreamError | Fine


class Mailbox:
    """What has come for one subscription and was not taken yet. Taken from by one thread."""

    def __init__(self, exchange: Exchange, sub: int, arrived: Wake) -> None:
        self._exchange, self._sub, self._arrived = exchange, sub, arrived
        self._queue: deque[Arrived] = deque()
        self._taken = self._taken_bytes = 0  # without the credit given back
        self.heard = False  #: whether anything has come but the end
        self.ended: Exception | None = None  #: why nothing more comes

    def take(self) -> Arrived | None:
        """The next that has come, if there is any."""
        try:
            news = self._queue.popleft()
        except IndexError:
            return None
        if isinstance(news, FeedBatch):
            self._taken += 1
            self._taken_bytes += news.nbytes
            if (
                self._taken * CREDIT_SHARE >= FEED_QUEUE_BATCHES_MAX
                or self._taken_bytes * CREDIT_SHARE >= FEED_QUEUE_BYTES_MAX
            ):
                self._exchange.send(Taken(self._sub, self._taken))
                self._taken = self._taken_bytes = 0
        return news

    def fail_if_silent(self) -> None:
        """End the whole exchange when the dispatcher has said nothing for too long."""
        self._exchange.fail_if_silent()

    def close(self) -> None:
        """Nothing more is wanted."""
        self._exchange.leave(self._sub)

    def put(self, news: Notification) -> None:
        """For the exchange: this has come."""
        if isinstance(news, Over):
            self.end(news.error)
            return
        self.heard = True
        self._queue.append(news)
        self._arrived.set()

    def end(self, cause: Exception) -> None:
        """For the exchange: nothing more comes."""
        self.ended = self.ended or cause
        self._arrived.set()


class Exchange:
    """Safe to use from several threads. Raises nothing once it is made: who subscribes learns from the mailbox."""

    def __init__(self, client: fl.FlightClient, name: str, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._lock = threading.Lock()  # of the mailboxes
        self._to_say: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._mailboxes: dict[int, Mailbox] = {}
        self._last_sub = 0
        self.heard = False  #: whether the dispatcher has said anything
        self.heard_at = clock.monotonic()
        self.ended: Exception | None = None
        self._reader: fl.FlightStreamReader | None = None  # not before it is connected
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def subscribe(self, request: FeedRequest, arrived: Wake) -> Mailbox:
        """Ask for a subscription; `arrived` is set whenever something has come for it."""
        with self._lock:
            self._last_sub += 1
            sub = self._last_sub
            mailbox = Mailbox(self, sub, arrived)
            if self.ended is not None:
                mailbox.end(self.ended)
                return mailbox
            self._mailboxes[sub] = mailbox
        self.send(Subscribe(sub=sub, request=request, batches=FEED_QUEUE_BATCHES_MAX, nbytes=FEED_QUEUE_BYTES_MAX))
        return mailbox

    def leave(self, sub: int) -> None:
        """For a mailbox: unsubscribe, if the dispatcher still knows of it."""
        with self._lock:
            known = self._mailboxes.pop(sub, None)
        if known is not None:
            self.send(Unsubscribe(sub))

    def send(self, command: Command) -> None:
        """Have something said."""
        self._to_say.put(command)

    def fail_if_silent(self) -> None:
        """End it when the dispatcher has said nothing for too long."""
        if self.ended is None and self._clock.monotonic() - self.heard_at > SILENT_S:
            self.fail(TimeoutError("the dispatcher is silent"))

    def fail(self, cause: Exception) -> None:
        """End it: all of its mailboxes hear why."""
        with self._lock:
            if self.ended is not None:
                return
            self.ended = cause
            mailboxes, self._mailboxes = list(self._mailboxes.values()), {}
            reader = self._reader
        for mailbox in mailboxes:
            mailbox.end(cause)
        self._to_say.put(None)
        if reader is not None:
            reader.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            writer, reader = self._client.do_exchange(fl.FlightDescriptor.for_command(FEED_COMMAND))
        except Exception as e:  # noqa: BLE001 - handed to the subscribers, who connect again
            self.fail(e)
            return
        with self._lock:
            self._reader = reader
            if self.ended is not None:
                reader.cancel()
        saying = threading.Thread(target=self._write, args=(writer,), name=f"{self._thread.name} says", daemon=True)
        saying.start()
        self._read(reader)
        saying.join()
        with suppress(pa.ArrowException, OSError):
            writer.close()

    def _read(self, reader: fl.FlightStreamReader) -> None:
        try:
            while self.ended is None:
                chunk = reader.read_chunk()
                self.heard, self.heard_at = True, self._clock.monotonic()
                self._deliver(decode_notification(chunk.data, chunk.app_metadata))
        except StopIteration:
            self.fail(EOFError("the dispatcher ended the exchange"))
        except Exception as e:  # noqa: BLE001 - handed to the subscribers, who connect again
            self.fail(e)

    def _write(self, writer: fl.FlightStreamWriter) -> None:
        try:
            while (command := self._to_say.get()) is not None:
                writer.write_metadata(encode_command(command))
        except Exception as e:  # noqa: BLE001 - handed to the subscribers, who connect again
            self.fail(e)

    def _deliver(self, told: tuple[int, Notification] | None) -> None:
        if told is None:
            self.send(Live())
            return
        sub, news = told
        with self._lock:
            mailbox = self._mailboxes.get(sub)
            if isinstance(news, Over):
                self._mailboxes.pop(sub, None)
        if mailbox is not None:  # else it has left
            mailbox.put(news)
