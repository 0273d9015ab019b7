"""The dispatcher's Arrow Flight end: one DoGet per subscription (wire form: `tistream.feed_flight`).

Each stream runs in a thread of the Flight server and pulls from the worker's own Feed; when the client does not read,
Flight does not ask for more, so nothing piles up here. Something is sent at least each IDLE_S: a client that has gone
is noticed then, and its subscription is closed. The port speaks plain gRPC without authentication and belongs on a
private network.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.flight as fl
import structlog

from dispatcher.worker import DispatcherWorker
from tistream.change import ROWS
from tistream.errors import ErrorKind, FeedUnavailable, TiStreamError
from tistream.feed import Feed, FeedStream
from tistream.feed_flight import IDLE_S, LOOK_S, decode_request, encode_batch, encode_error, encode_idle, error_text
from tistream.service import Problem

log = structlog.get_logger(__name__)

STOP_S = 5.0
QUIET_S = 10.0  #: a stream without a batch for so long is looked after in longer turns: there may be thousands

_Message = tuple[pa.RecordBatch, bytes]


class FlightFeedServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves a Feed. It listens from construction on; set `feed` to make it answer."""

    def __init__(self, host: str, port: int = 0) -> None:
        """`port` 0 takes a free one; `port` then tells which."""
        super().__init__(f"grpc://{host}:{port}")
        self.feed: Feed | None = None

    def do_get(self, context: Any, ticket: fl.Ticket) -> fl.GeneratorStream:
        try:
            request = decode_request(ticket.ticket)
            if self.feed is None:
                raise FeedUnavailable("the dispatcher is starting")
            stream = self.feed.subscribe(request)
        except TiStreamError as e:
            raise _as_flight(e) from e
        return fl.GeneratorStream(ROWS, _messages(context, stream))


def _messages(context: Any, stream: FeedStream) -> Iterator[_Message]:
    said = came = time.monotonic()
    try:
        while not context.is_cancelled():
            try:
                quiet = time.monotonic() - came > QUIET_S
                batch = stream.next(IDLE_S if quiet else LOOK_S)
            except TiStreamError as e:
                if isinstance(e, FeedUnavailable) or e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                    raise _as_flight(e) from e
                yield encode_error(e)
                continue
            now = time.monotonic()
            came = now if batch is not None else came
            if batch is not None or now - said > IDLE_S - LOOK_S:
                said = now
                yield encode_idle() if batch is None else encode_batch(batch)
    finally:
        stream.close()


def _as_flight(error: TiStreamError) -> fl.FlightError:
    text = orjson.dumps(error_text(error))
    kind = fl.FlightUnavailableError if error.kind is ErrorKind.RETRY else fl.FlightServerError
    return kind(str(error), text)


class FlightDispatcher:
    """A DispatcherWorker and its Flight port as one Service."""

    def __init__(
        self, worker: DispatcherWorker, *, host: str = "127.0.0.1", port: int = 0, advertise: str = ""
    ) -> None:
        """`advertise` is the host under which sorters reach this one; empty = `host`."""
        self.name = worker.name
        self.worker = worker
        self._server = FlightFeedServer(host, port)
        worker.address = f"grpc://{advertise or host}:{self._server.port}"

    @property
    def address(self) -> str:
        """Where it listens, as the catalog tells others."""
        return self.worker.address

    def start(self) -> None:
        self.worker.start()
        self._server.feed = self.worker

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self.worker.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """The worker first: its streams end by themselves, so that the server can stop. A client that does not read
        what was sent could hold the server up for ever; it is waited for no longer than STOP_S."""
        self.worker.stop()
        shutdown = threading.Thread(target=self._server.shutdown, name=f"{self.name}-flight-stop", daemon=True)
        shutdown.start()
        shutdown.join(STOP_S)
        if shutdown.is_alive():
            log.warning("a client does not read its stream; the Flight port is left to the end of the process")

    def problems(self) -> list[Problem]:
        return self.worker.problems()
