"""The dispatcher's end of one exchange: all subscriptions of one sorter process, served by one thread.

    obey(command)   what the sorter said; from the thread that reads
    run()           looks at the subscriptions whose time has come, and sends; until the exchange is closed

A subscription is looked at when its tail says that something has become known, when the time that it named has come,
and when credit came; one batch with each look, so that all have their turn. One without credit is not looked at:
nothing is cut or read for a sorter that does not take. What is wrong with one store is told to its subscriptions only.

The sorter hears `idle` each IDLE_S and answers it. When it has been silent for SILENT_S, or sending fails, every
subscription is closed: nothing stays behind of a client that has gone.
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
from tistream.feed.protocol import FeedBatch, FeedRequest, Wake, Watched
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
from tistream.runtime.ready_queue import ReadyQueue, Waker

log = structlog.get_logger(__name__)

CHECK_S = 1.0  #: between two looks whether the stores are still served here
LOOK_S = 5.0  #: a subscription that may be sent to is looked at this often whatever its tail says

TURN = 64  #: subscriptions that are looked at before anything else is thought of

Send = Callable[[pa.RecordBatch | None, bytes], None]


class Served(Watched, Protocol):
    """A subscription to a store that may go elsewhere."""

    def check(self) -> None:
        """FeedUnavailable when the store is no longer served here."""
        ...


class Source(Protocol):
    """Where subscriptions are opened."""

    def open(self, request: FeedRequest, wake: Wake) -> Served:
        """FeedUnavailable when the store is not served here."""
        ...


@dataclass(slots=True)
class _Sub:
    """One subscription."""

    number: int
    batches_max: int
    bytes_max: int
    stream: Served | None = None
    refused: TiStreamError | None = None
    left: bool = False
    sent: deque[int] = field(default_factory=deque)  #: the bytes of each batch that is sent and not taken
    sent_bytes: int = 0
    told: str | None = None  #: the error that the sorter knows; "" = that nothing is in the way

    @property
    def has_credit(self) -> bool:
        return len(self.sent) < self.batches_max and self.sent_bytes < self.bytes_max


class Exchange:
    """The state of one exchange. `run` has a thread of its own."""

    def __init__(self, source: Source, send: Send, clock: Clock) -> None:
        """`send(rows, metadata)` raises ArrowException or OSError when the sorter has gone. It may wait."""
        self._source, self._send, self._clock = source, send, clock
        self._lock = threading.Lock()  # of the subscriptions and their credit
        self._subs: dict[int, _Sub] = {}
        self._last = 0  # the largest number so far
        self._queue = ReadyQueue(clock)
        self._closed = False
        self._unanswered_since: float | None = None  # the first `idle` that was not answered yet

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def count(self) -> int:
        """Subscriptions now."""
        return len(self._subs)

    def obey(self, command: Command) -> None:
        """Do what the sorter says. InvalidInput when it makes no sense."""
        self._unanswered_since = None
        match command:
            case Subscribe():
                self._subscribe(command)
            case Taken(sub=number, batches=batches):
                self._credit(number, batches)
            case Unsubscribe(sub=number):
                with self._lock:
                    sub = self._subs.get(number)
                    if sub is not None:
                        sub.left = True
                self._queue.mark_ready(number)
            case Live():
                pass

    def close(self) -> None:
        """Have `run` end."""
        self._closed = True
        self._queue.wake()

    def run(self) -> None:
        """Serve until it is closed, or the sorter has gone."""
        try:
            self._serve()
        except (pa.ArrowException, OSError) as e:
            log.info("a sorter has gone", cause=str(e).split("\n")[0])
        finally:
            with self._lock:
                self._closed = True
                subs, self._subs = list(self._subs.values()), {}
            for sub in subs:
                _close(sub)

    # -- inside ----------------------------------------------------------------------------------------------------

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
                    log.warning("a sorter is silent; its subscriptions are closed", count=len(self._subs))
                    return
                self._unanswered_since = now if since is None else since
                self._send(None, encode_idle())
                idle_at = now + IDLE_S
            for number in self._queue.take(min(check_at, idle_at), TURN):
                sub = self._subs.get(number)
                if sub is not None:
                    self._look(sub)
            now = self._clock.monotonic()
        self._send(None, encode_bye())

    def _look(self, sub: _Sub) -> None:
        """One batch of it, or what is in the way, if it may be sent to."""
        if sub.left or sub.stream is None or sub.refused is not None:
            if sub.left or sub.refused is not None:
                self._end(sub, sub.refused)
            return
        if not sub.has_credit:
            return  # looked at again when credit comes
        try:
            found = sub.stream.look()
        except Exception as e:  # noqa: BLE001 - of this subscription only: its sorter hears of it
            self._end(sub, _told(e))
            return
        if isinstance(found, FeedBatch):
            self._send_batch(sub, found)
            self._queue.mark_ready(sub.number)
            return
        error, until = found
        self._tell(sub, error)
        if sub.number in self._subs:
            self._queue.at(sub.number, min(until, self._clock.monotonic() + LOOK_S))

    def _send_batch(self, sub: _Sub, batch: FeedBatch) -> None:
        with self._lock:
            sub.sent.append(batch.nbytes)
            sub.sent_bytes += batch.nbytes
        sub.told = ""
        self._send(batch.rows, encode_batch(sub.number, batch))

    def _tell(self, sub: _Sub, error: TiStreamError | None) -> None:
        """What is in the way, when that is news."""
        told = "" if error is None else f"{error.code} {error}"
        if told == sub.told:
            return
        sub.told = told
        if error is None:
            self._send(None, encode_fine(sub.number))
        elif isinstance(error, FeedUnavailable) or error.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
            self._end(sub, error)
        else:
            self._send(None, encode_error(sub.number, error, over=False))

    def _check(self) -> None:
        """End the subscriptions of stores that are not served here any more."""
        with self._lock:
            subs = list(self._subs.values())
        for sub in subs:
            if sub.stream is not None and not sub.left:
                try:
                    sub.stream.check()
                except TiStreamError as e:
                    self._end(sub, e)

    def _end(self, sub: _Sub, error: TiStreamError | None) -> None:
        with self._lock:
            self._subs.pop(sub.number, None)
        self._queue.forget(sub.number)
        _close(sub)
        if error is not None and not sub.left:
            self._send(None, encode_error(sub.number, error, over=True))

    def _subscribe(self, asked: Subscribe) -> None:
        if asked.sub <= self._last:
            raise InvalidInput("the number of a subscription was used before", sub=asked.sub)
        if asked.batches < 1 or asked.nbytes < 1:
            raise InvalidInput("a subscription without room for a batch", sub=asked.sub)
        self._last = asked.sub
        sub = _Sub(asked.sub, asked.batches, asked.nbytes)
        with self._lock:
            self._subs[asked.sub] = sub
        try:
            stream = self._source.open(asked.request, Waker(self._queue, asked.sub))
        except Exception as e:  # noqa: BLE001 - of this subscription only: its sorter hears of it
            sub.refused = _told(e)
        else:
            with self._lock:
                sub.stream = stream
                gone = self._closed
            if gone:
                stream.close()
        self._queue.mark_ready(asked.sub)

    def _credit(self, number: int, batches: int) -> None:
        with self._lock:
            sub = self._subs.get(number)
            if sub is None:
                return  # it has ended meanwhile
            if batches > len(sub.sent):
                raise InvalidInput("more batches were taken than sent", sub=number, taken=batches, sent=len(sub.sent))
            for _ in range(batches):
                sub.sent_bytes -= sub.sent.popleft()
        self._queue.mark_ready(number)


def _close(sub: _Sub) -> None:
    if sub.stream is not None:
        sub.stream.close()


def _told(error: Exception) -> TiStreamError:
    return error if isinstance(error, TiStreamError) else TiStreamError(f"{type(error).__name__}: {error}")
