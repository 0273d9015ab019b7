"""Sorter side of a feed exchange with one dispatcher process, shared by all of its subscriptions there.

One thread reads messages of the dispatcher into the mailboxes of the subscriptions. It never blocks, because the
flow-control window bounds what can arrive: FEED_QUEUE_BATCHES_MAX batches and FEED_QUEUE_BYTES_MAX per subscription.
Taking from a mailbox reopens the window; a second thread sends, because a hanging dispatcher may block the sender. An
exchange that has ended is never reused: its mailboxes report why, after what had arrived before.
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
    call_options,
    decode_notification,
    encode_command,
)
from tistream.limits import FEED_QUEUE_BATCHES_MAX, FEED_QUEUE_BYTES_MAX

WINDOW_SHARE = 4  #: the window is reopened when 1 / WINDOW_SHARE of it has been taken

Arrived = FeedBatch | TiStreamError | Fine


class Mailbox:
    """What has arrived for one subscription and was not taken yet. Taken from by one thread."""

    def __init__(self, exchange: ExchangeClient, sub: int, arrived: Wake) -> None:
        self._exchange, self._sub, self._arrived = exchange, sub, arrived
        self._queue: deque[Arrived] = deque()
        self._taken = self._taken_bytes = 0  # since the window was last reopened
        self.received = False  #: whether anything but the end has arrived
        self.ended: Exception | None = None  #: why nothing more arrives

    def take(self) -> Arrived | None:
        """The next item, or None."""
        try:
            item = self._queue.popleft()
        except IndexError:
            return None
        if isinstance(item, FeedBatch):
            self._taken += 1
            self._taken_bytes += item.nbytes
            if (
                self._taken * WINDOW_SHARE >= FEED_QUEUE_BATCHES_MAX
                or self._taken_bytes * WINDOW_SHARE >= FEED_QUEUE_BYTES_MAX
            ):
                self._exchange.send(Taken(self._sub, self._taken))
                self._taken = self._taken_bytes = 0
        return item

    def fail_if_silent(self) -> None:
        """End the whole exchange when the dispatcher has been silent for too long."""
        self._exchange.fail_if_silent()

    def close(self) -> None:
        self._exchange.leave(self._sub)

    def put(self, item: Notification) -> None:
        """Add an item. Called by the exchange."""
        if isinstance(item, Over):
            self.end(item.error)
            return
        self.received = True
        self._queue.append(item)
        self._arrived.set()

    def end(self, cause: Exception) -> None:
        """Nothing more arrives. Called by the exchange."""
        self.ended = self.ended or cause
        self._arrived.set()


class ExchangeClient:
    """Thread-safe. Raises nothing once it is made: subscribers get errors from their mailboxes."""

    def __init__(self, client: fl.FlightClient, name: str, token: str, clock: Clock) -> None:
        """`token`: the service token to present."""
        self._client, self._clock = client, clock
        self._options = call_options(token)
        self._lock = threading.Lock()  # guards the mailboxes
        self._outgoing: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._mailboxes: dict[int, Mailbox] = {}
        self._last_sub = 0
        self.received = False  #: whether the dispatcher has sent anything
        self.received_at = clock.monotonic()
        self.ended: Exception | None = None
        self._reader: fl.FlightStreamReader | None = None  # None before it is connected
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def subscribe(self, request: FeedRequest, arrived: Wake) -> Mailbox:
        """Open a subscription; `arrived` is set whenever something arrives for it."""
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
        """Unsubscribe, if the dispatcher still knows the subscription. Called by a mailbox."""
        with self._lock:
            known = self._mailboxes.pop(sub, None)
        if known is not None:
            self.send(Unsubscribe(sub))

    def send(self, command: Command) -> None:
        self._outgoing.put(command)

    def fail_if_silent(self) -> None:
        """End it when the dispatcher has been silent for too long."""
        if self.ended is None and self._clock.monotonic() - self.received_at > SILENT_S:
            self.fail(TimeoutError("the dispatcher does not answer"))

    def fail(self, cause: Exception) -> None:
        """End it and report the cause to all mailboxes."""
        with self._lock:
            if self.ended is not None:
                return
            self.ended = cause
            mailboxes, self._mailboxes = list(self._mailboxes.values()), {}
            reader = self._reader
        for mailbox in mailboxes:
            mailbox.end(cause)
        self._outgoing.put(None)
        if reader is not None:
            reader.cancel()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            writer, reader = self._client.do_exchange(fl.FlightDescriptor.for_command(FEED_COMMAND), self._options)
        except Exception as e:  # noqa: BLE001 - passed to the subscribers, which reconnect
            self.fail(e)
            return
        with self._lock:
            self._reader = reader
            if self.ended is not None:
                reader.cancel()
        sender = threading.Thread(target=self._write, args=(writer,), name=f"{self._thread.name} send", daemon=True)
        sender.start()
        self._read(reader)
        sender.join()
        with suppress(pa.ArrowException, OSError):
            writer.close()

    def _read(self, reader: fl.FlightStreamReader) -> None:
        try:
            while self.ended is None:
                chunk = reader.read_chunk()
                self.received, self.received_at = True, self._clock.monotonic()
                self._deliver(decode_notification(chunk.data, chunk.app_metadata))
        except StopIteration:
            self.fail(EOFError("the dispatcher ended the exchange"))
        except Exception as e:  # noqa: BLE001 - passed to the subscribers, which reconnect
            self.fail(e)

    def _write(self, writer: fl.FlightStreamWriter) -> None:
        try:
            while (command := self._outgoing.get()) is not None:
                writer.write_metadata(encode_command(command))
        except Exception as e:  # noqa: BLE001 - passed to the subscribers, which reconnect
            self.fail(e)

    def _deliver(self, message: tuple[int, Notification] | None) -> None:
        if message is None:
            self.send(Live())
            return
        sub, item = message
        with self._lock:
            mailbox = self._mailboxes.get(sub)
            if isinstance(item, Over):
                self._mailboxes.pop(sub, None)
        if mailbox is not None:  # else it has unsubscribed
            mailbox.put(item)
