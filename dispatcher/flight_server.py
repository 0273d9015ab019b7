"""The dispatcher's Arrow Flight server: one exchange per sorter process (wire form: `tistream.feed.wire`).

Each exchange has two threads, however many subscriptions it carries: the Flight server's own reads messages of the
sorter, the other polls the subscriptions and sends (`dispatcher.exchange`). An invalid message ends the exchange with
an error. The port speaks plain gRPC without authentication and belongs on a private network.
"""

from __future__ import annotations

import threading
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.flight as fl
import structlog

from dispatcher.exchange import Exchange, Source
from dispatcher.worker import DispatcherWorker
from tistream.clock import Clock, SystemClock
from tistream.errors import ErrorKind, FeedUnavailable, InvalidInput, TiStreamError
from tistream.feed.wire import FEED_COMMAND, decode_command, error_text
from tistream.model.change import ROWS
from tistream.runtime.service import Problem

log = structlog.get_logger(__name__)

STOP_S = 5.0


class FlightFeedServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves subscriptions of a Source. Listens from construction on; set `source` to make it answer."""

    def __init__(self, host: str, port: int = 0, clock: Clock | None = None) -> None:
        """`port` 0 picks a free one, see `port`."""
        super().__init__(f"grpc://{host}:{port}")
        self.source: Source | None = None
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._exchanges: set[Exchange] = set()
        self._stopping = False

    @property
    def subscriptions(self) -> int:
        with self._lock:
            return sum(exchange.count for exchange in self._exchanges)

    def do_exchange(self, context: Any, descriptor: fl.FlightDescriptor, reader: Any, writer: Any) -> None:
        try:
            exchange = self._begin(descriptor, writer)
        except TiStreamError as e:
            raise _as_flight(e) from e
        thread = threading.Thread(target=exchange.run, name="feed exchange", daemon=True)
        thread.start()
        try:
            while exchange.is_open:
                exchange.handle(decode_command(memoryview(reader.read_chunk().app_metadata or b"")))
        except StopIteration:
            pass  # the sorter has closed its side
        except InvalidInput as e:
            log.warning("invalid message from a feed client", error=str(e))
            raise _as_flight(e) from e
        except (pa.ArrowException, OSError) as e:
            log.info("sorter disconnected", cause=str(e).split("\n")[0])
        finally:
            exchange.close()
            thread.join()
            with self._lock:
                self._exchanges.discard(exchange)

    def shutdown(self) -> None:
        """End every exchange and stop listening. Waits no longer than STOP_S for a client that does not read."""
        with self._lock:
            self._stopping = True
            for exchange in self._exchanges:
                exchange.close()
        shutdown = threading.Thread(target=super().shutdown, name="feed stop", daemon=True)
        shutdown.start()
        shutdown.join(STOP_S)
        if shutdown.is_alive():
            log.warning("a client does not read its stream, leaving the Flight port open")

    def _begin(self, descriptor: fl.FlightDescriptor, writer: Any) -> Exchange:
        """A new exchange. InvalidInput for an unknown command, FeedUnavailable while starting or stopping."""
        if descriptor.command != FEED_COMMAND:
            raise InvalidInput("unknown Flight command on the feed port", asked=bytes(descriptor.command or b"")[:100])
        if self.source is None:
            raise FeedUnavailable("the dispatcher is starting")

        def send(rows: pa.RecordBatch | None, metadata: bytes) -> None:
            if rows is None:
                writer.write_metadata(metadata)
            else:
                writer.write_with_metadata(rows, metadata)

        exchange = Exchange(self.source, send, self._clock)
        with self._lock:
            if self._stopping:
                raise FeedUnavailable("the dispatcher is stopping")
            self._exchanges.add(exchange)
        writer.begin(ROWS)
        return exchange


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
        """Where it listens, as published in the catalog."""
        return self.worker.address

    def start(self) -> None:
        self.worker.start()
        self._server.source = self.worker

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self.worker.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """The worker first, which ends its subscriptions."""
        self.worker.stop()
        self._server.shutdown()

    def problems(self) -> list[Problem]:
        return self.worker.problems()
