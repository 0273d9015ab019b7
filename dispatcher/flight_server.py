"""The dispatcher's Arrow Flight server: one exchange per sorter process (wire form: `tistream.feed.wire`).

Each exchange has two threads, however many subscriptions it carries: the Flight server's own reads messages of the
sorter, the other polls the subscriptions and sends (`dispatcher.exchange`). An invalid message ends the exchange with
an error.

Every call needs a service token (`dispatcher.port_access`); with the files of [feed] both sides also have certificates.
An exchange that has outlived its token is ended, and the sorter continues with a newer one at the position that it has
reached. When the files have changed, the port is closed and opened with the new ones, which is the same for sorters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import structlog

from dispatcher.exchange import ExchangeServer, SubscriptionSource
from dispatcher.port_access import AcceptedTokens, TokenCheck, check_name
from dispatcher.worker import DispatcherWorker
from tistream.clock import Clock, SystemClock
from tistream.errors import FeedUnavailable, InvalidInput, TiStreamError
from tistream.feed.hints import Look
from tistream.feed.tls import TLS_SCHEME, FeedTls, FeedTlsFiles
from tistream.feed.wire import FEED_COMMAND, LOOK, as_flight, decode_command, decode_files
from tistream.model.change import ROWS
from tistream.model.problem import Problem
from tistream.runtime import metrics
from tistream.runtime.service import Repeating
from tistream.runtime.tls import not_after

log = structlog.get_logger(__name__)

STOP_S = 5.0
LOOK_S = 5.0  #: between checks of the accepted tokens and of the files of [feed]


class FlightFeedServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves subscriptions of a Source. Listens from construction on; set `source` to make it answer."""

    def __init__(
        self, host: str, port: int, tokens: AcceptedTokens, clock: Clock | None = None, *, tls: FeedTls | None = None
    ) -> None:
        """`port` 0 picks a free one, see `port`."""
        at = f"{'grpc://' if tls is None else TLS_SCHEME}{host}:{port}"
        check = {TokenCheck.NAME: TokenCheck(tokens)}
        super().__init__(at, middleware=check, **({} if tls is None else tls.server()))
        self.source: SubscriptionSource | None = None
        self.look: Look | None = None  #: takes notifications of new files
        self._tokens, self._tls, self._clock = tokens, tls, clock or SystemClock()
        self._lock = threading.Lock()
        self._exchanges: dict[ExchangeServer, int] = {}  # and the number of the token that each has presented
        self._stopping = False

    @property
    def subscriptions(self) -> int:
        with self._lock:
            return sum(exchange.count for exchange in self._exchanges)

    def do_exchange(self, context: Any, descriptor: fl.FlightDescriptor, reader: Any, writer: Any) -> None:
        try:
            if self._tls is not None:
                check_name(self._tls.peer_name, context.peer_identity())
            exchange = self._begin(descriptor, writer, context.get_middleware(TokenCheck.NAME).token)
        except TiStreamError as e:
            log.warning("refused a feed client", peer=context.peer(), cause=str(e))
            raise as_flight(e) from e
        try:
            serve(exchange, reader)
        finally:
            with self._lock:
                self._exchanges.pop(exchange, None)

    def do_action(self, context: Any, action: fl.Action) -> Iterator[fl.Result]:
        try:
            if action.type != LOOK:
                raise InvalidInput("unknown Flight action on the feed port", asked=str(action.type)[:100])
            if self._tls is not None:
                check_name(self._tls.peer_name, context.peer_identity())
            files = decode_files(memoryview(action.body or b""))
        except TiStreamError as e:
            log.warning("refused a notification", peer=context.peer(), cause=str(e))
            raise as_flight(e) from e
        if self.look is not None:
            self.look(files)
        return iter(())

    def end_outdated(self) -> None:
        """End the exchanges whose token is no longer accepted."""
        with self._lock:
            outdated = [exchange for exchange, token in self._exchanges.items() if not self._tokens.accepts(token)]
        for exchange in outdated:
            log.info("an exchange has outlived its service token, ending it")
            exchange.close()

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

    def _begin(self, descriptor: fl.FlightDescriptor, writer: Any, token: int) -> ExchangeServer:
        """A new exchange. InvalidInput for an unknown command, FeedUnavailable while starting or stopping."""
        if descriptor.command != FEED_COMMAND:
            raise InvalidInput("unknown Flight command on the feed port", asked=bytes(descriptor.command or b"")[:100])
        if self.source is None:
            raise FeedUnavailable("the dispatcher is starting")

        exchange = ExchangeServer(self.source, partial(send_by, writer), self._clock)
        with self._lock:
            if self._stopping:
                raise FeedUnavailable("the dispatcher is stopping")
            self._exchanges[exchange] = token
        writer.begin(ROWS)
        return exchange


def serve(exchange: ExchangeServer, reader: fl.MetadataRecordBatchReader) -> None:
    """Run an exchange until either side ends it."""
    thread = threading.Thread(target=exchange.run, name="feed exchange", daemon=True)
    thread.start()
    try:
        while exchange.is_open:
            exchange.handle(decode_command(memoryview(reader.read_chunk().app_metadata or b"")))
    except StopIteration:
        pass  # the sorter has closed its side
    except InvalidInput as e:
        log.warning("invalid message from a feed client", error=str(e))
        raise as_flight(e) from e
    except (pa.ArrowException, OSError) as e:
        log.info("sorter disconnected", cause=str(e).split("\n")[0])
    finally:
        exchange.close()
        thread.join()


def send_by(writer: fl.MetadataRecordBatchWriter, rows: pa.RecordBatch | None, metadata: bytes) -> None:
    """Send a message of an exchange."""
    if rows is None:
        writer.write_metadata(metadata)
    else:
        writer.write_with_metadata(rows, metadata)


class FlightDispatcher:
    """A DispatcherWorker and its Flight port as one Service."""

    def __init__(
        self,
        worker: DispatcherWorker,
        tokens: AcceptedTokens,
        clock: Clock,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str = "",
        tls: FeedTlsFiles | None = None,
    ) -> None:
        """`advertise` is the host under which sorters reach this one; empty = `host`. ConfigError when the files of
        `tls` cannot be used."""
        self.name = worker.name
        self.worker = worker
        self._tokens, self._clock, self._host, self._files = tokens, clock, host, tls
        self._tls = None if tls is None else tls.read()
        self._show_end()
        self._server = FlightFeedServer(host, port, tokens, clock, tls=self._tls)
        self._port = self._server.port
        worker.address = f"{'grpc://' if tls is None else TLS_SCHEME}{advertise or host}:{self._port}"
        self._looks = Repeating(f"{self.name}/port", self._look, interval_s=LOOK_S, clock=clock, lasting=True)

    @property
    def address(self) -> str:
        """Where it listens, as published in the catalog."""
        return self.worker.address

    def start(self) -> None:
        self.worker.start()
        self._server.source, self._server.look = self.worker, self.worker.look
        self._looks.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self.worker.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """The worker first, which ends its subscriptions."""
        self._looks.stop()
        self.worker.stop()
        self._server.shutdown()

    def problems(self) -> list[Problem]:
        return self.worker.problems() + self._looks.problems()

    def _look(self) -> None:
        """Follow the tokens of the catalog and the files of [feed]."""
        self._tokens.refresh()
        self._server.end_outdated()
        if self._files is not None:
            tls = self._files.read()
            if tls != self._tls:
                self._reopen(tls)

    def _show_end(self) -> None:
        if self._tls is not None:
            metrics.CERTIFICATE_NOT_AFTER.labels("flight").set(not_after(self._tls.certificate))

    def _reopen(self, tls: FeedTls) -> None:
        """Listen on the same port with other certificates: a server keeps those that it was made with."""
        log.info("the files of [feed] have changed, reopening the Flight port", port=self._port)
        self._server.shutdown()
        try:
            self._server = FlightFeedServer(self._host, self._port, self._tokens, self._clock, tls=tls)
        except (pa.ArrowException, OSError) as e:
            raise FeedUnavailable("the Flight port cannot be reopened", port=self._port, cause=str(e)) from e
        self._server.source, self._server.look, self._tls = self.worker, self.worker.look, tls
        self._show_end()
