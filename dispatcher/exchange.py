"""Dispatcher side of a feed exchange: one thread serves all subscriptions of one sorter process.

    handle(command)  applies a message of the sorter; called by the reading thread
    run()            polls subscriptions and sends, until the exchange is closed

A subscription is polled when its tail signals, when its next poll is due, and when its flow-control window opens; one
batch per poll, so that all are served in turn. A subscription with a full window is not polled: nothing is cut or read
for a sorter that does not take it. Errors of one store are sent only to its subscriptions.

The sorter answers the `idle` that is sent every IDLE_S. When it has not answered for SILENT_S, or sending fails, every
subscription is closed: nothing of a lost client stays behind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import structlog

from tistream.clock import Clock
from tistream.errors import ErrorKind, FeedUnavailable, InvalidInput, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest, FeedStream, Wake
from tistream.feed.wire import (
    IDLE_S,
    SILENT_S,
    Command,
    Live,
    Subscribe,
    Taken,
    Unsubscribe,
    encode_batch,
    encode_bye,
    encode_error,
    encode_fine,
    encode_idle,
)
from tistream.runtime.ready_queue import ItemWaker, ReadyQueue

log = structlog.get_logger(__name__)

CHECK_S = 1.0  #: between checks that the stores are still served here
POLL_S = 5.0  #: a subscription with an open window is polled at least this often

ROUND_MAX = 64  #: subscriptions polled in one round

Send = Callable[[pa.RecordBatch | None, bytes], None]


class Served(FeedStream, Protocol):
    """A subscription to a store that may move."""

    def check(self) -> None:
        """FeedUnavailable when the store is no longer served here."""
        ...


class SubscriptionSource(Protocol):
    """Where subscriptions are opened."""

    def open(self, request: FeedRequest, wake: Wake) -> Served:
        """FeedUnavailable when the store is not served here."""
        ...


@dataclass(slots=True)
class _Sub:
    number: int
    batches_max: int
    bytes_max: int
    stream: Served | None = None
    refused: TiStreamError | None = None
    unsubscribed: bool = False
    sent: deque[int] = field(default_factory=deque)  #: sizes of the batches sent and not taken
    sent_bytes: int = 0
    error_text: str | None = None  #: the error last sent; "" = none

    @property
    def window_open(self) -> bool:
        return len(self.sent) < self.batches_max and self.sent_bytes < self.bytes_max


class ExchangeServer:
    """The state of one exchange. `run` has a thread of its own."""

    def __init__(self, source: SubscriptionSource, send: Send, clock: Clock) -> None:
        """`send(rows, metadata)` may block; it raises ArrowException or OSError when the sorter is gone."""
        self._source, self._send, self._clock = source, send, clock
        self._lock = threading.Lock()  # guards the subscriptions and their windows
        self._subs: dict[int, _Sub] = {}
        self._last = 0  # the largest subscription number so far
        self._queue = ReadyQueue(clock)
        self._closed = False
        self._unanswered_since: float | None = None  # time of the first unanswered `idle`

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def count(self) -> int:
        return len(self._subs)

    def handle(self, command: Command) -> None:
        """Apply a message of the sorter. InvalidInput when it makes no sense."""
        self._unanswered_since = None
        match command:
            case Subscribe():
                self._subscribe(command)
            case Taken(sub=number, batches=batches):
                self._return_window(number, batches)
            case Unsubscribe(sub=number):
                with self._lock:
                    sub = self._subs.get(number)
                    if sub is not None:
                        sub.unsubscribed = True
                self._queue.mark_ready(number)
            case Live():
                pass

    def close(self) -> None:
        """Make `run` return."""
        self._closed = True
        self._queue.wake()

    def run(self) -> None:
        """Serve until closed, or until the sorter is gone."""
        try:
            self._serve()
        except (pa.ArrowException, OSError) as e:
            log.info("sorter disconnected", cause=str(e).split("\n")[0])
        finally:
            with self._lock:
                self._closed = True
                subs, self._subs = list(self._subs.values()), {}
            for sub in subs:
                _close(sub)

    def _serve(self) -> None:
        now = self._clock.monotonic()
        check_at = idle_at = now
        while not self._closed:
            if now >= check_at:
                self._check()
                check_at = now + CHECK_S
            if now >= idle_at:
                since = self._unanswered_since
                if since is not None and now - since > SILENT_S:
                    log.warning("sorter does not answer, closing its subscriptions", count=len(self._subs))
                    return
                self._unanswered_since = now if since is None else since
                self._send(None, encode_idle())
                idle_at = now + IDLE_S
            for number in self._queue.take(min(check_at, idle_at), ROUND_MAX):
                sub = self._subs.get(number)
                if sub is not None:
                    self._poll(sub)
            now = self._clock.monotonic()
        self._send(None, encode_bye())

    def _poll(self, sub: _Sub) -> None:
        """Send one batch or the current error, if the window allows."""
        if sub.unsubscribed or sub.stream is None or sub.refused is not None:
            if sub.unsubscribed or sub.refused is not None:
                self._end(sub, sub.refused)
            return
        if not sub.window_open:
            return  # polled again when the window opens
        try:
            answer = sub.stream.look()
        except Exception as e:  # noqa: BLE001 - sent to this subscription only
            self._end(sub, _as_error(e))
            return
        if isinstance(answer, FeedBatch):
            self._send_batch(sub, answer)
            self._queue.mark_ready(sub.number)
            return
        error, until = answer
        self._send_error(sub, error)
        if sub.number in self._subs:
            self._queue.at(sub.number, min(until, self._clock.monotonic() + POLL_S))

    def _send_batch(self, sub: _Sub, batch: FeedBatch) -> None:
        with self._lock:
            sub.sent.append(batch.nbytes)
            sub.sent_bytes += batch.nbytes
        sub.error_text = ""
        self._send(batch.rows, encode_batch(sub.number, batch))

    def _send_error(self, sub: _Sub, error: TiStreamError | None) -> None:
        error_text = "" if error is None else f"{error.code} {error}"
        if error_text == sub.error_text:
            return
        sub.error_text = error_text
        if error is None:
            self._send(None, encode_fine(sub.number))
        elif isinstance(error, FeedUnavailable) or error.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
            self._end(sub, error)
        else:
            self._send(None, encode_error(sub.number, error, over=False))

    def _check(self) -> None:
        """End the subscriptions of stores that are no longer served here."""
        with self._lock:
            subs = list(self._subs.values())
        for sub in subs:
            if sub.stream is not None and not sub.unsubscribed:
                try:
                    sub.stream.check()
                except TiStreamError as e:
                    self._end(sub, e)

    def _end(self, sub: _Sub, error: TiStreamError | None) -> None:
        with self._lock:
            self._subs.pop(sub.number, None)
        self._queue.forget(sub.number)
        _close(sub)
        if error is not None and not sub.unsubscribed:
            self._send(None, encode_error(sub.number, error, over=True))

    def _subscribe(self, command: Subscribe) -> None:
        if command.sub <= self._last:
            raise InvalidInput("subscription number already used", sub=command.sub)
        if command.batches < 1 or command.nbytes < 1:
            raise InvalidInput("the window of a subscription must allow a batch", sub=command.sub)
        self._last = command.sub
        sub = _Sub(command.sub, command.batches, command.nbytes)
        with self._lock:
            self._subs[command.sub] = sub
        try:
            stream = self._source.open(command.request, ItemWaker(self._queue, command.sub))
        except Exception as e:  # noqa: BLE001 - sent to this subscription only
            sub.refused = _as_error(e)
        else:
            with self._lock:
                sub.stream = stream
                gone = self._closed
            if gone:
                stream.close()
        self._queue.mark_ready(command.sub)

    def _return_window(self, number: int, batches: int) -> None:
        with self._lock:
            sub = self._subs.get(number)
            if sub is None:
                return  # ended meanwhile
            if batches > len(sub.sent):
                raise InvalidInput("more batches taken than sent", sub=number, taken=batches, sent=len(sub.sent))
            for _ in range(batches):
                sub.sent_bytes -= sub.sent.popleft()
        self._queue.mark_ready(number)


def _close(sub: _Sub) -> None:
    if sub.stream is not None:
        sub.stream.close()


def _as_error(error: Exception) -> TiStreamError:
    return error if isinstance(error, TiStreamError) else TiStreamError(f"{type(error).__name__}: {error}")
