"""The feed over Arrow Flight, for sorters: subscriptions that survive reconnects.

All subscriptions of a process to one dispatcher share one exchange (`tistream.feed.exchange`, wire form:
`tistream.feed.wire`). Errors that a subscriber may wait out (FeedGap, CorruptObject, an unavailable store) arrive typed
at their subscription, which stays open. When the dispatcher no longer serves the store, or the exchange breaks, the
subscription looks up the owner and resubscribes there, at the position of the last batch it handed out.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow.flight as fl

from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.service_tokens import accepted_tokens
from tistream.catalog.work.stores import store_places
from tistream.catalog.work.workers import WorkerKind, list_workers
from tistream.clock import Clock, SystemClock
from tistream.errors import FeedUnavailable, InvalidInput, TiStreamError, invariant
from tistream.feed.exchange import Arrived, Exchange, Mailbox
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.feed.tls import Tls, TlsFiles, connect
from tistream.feed.wire import of_flight
from tistream.ids import Position, Tenant
from tistream.model.positions import position_of, without_ended
from tistream.runtime.service import Backoff

WAIT_S = 10.0  # between checks that the dispatcher is not silent
PLACES_S = 0.5
CLOSE_S = 5.0  # for all exchanges together

Locate = Callable[[Tenant, int], str | None]
Bearer = Callable[[], str]  #: the service token to present


def locate_by_catalog(catalog: Catalog, clock: Clock | None = None) -> Locate:
    """Looks up the address of a store's dispatcher in the catalog; None when there is none.

    Reads are cached for PLACES_S, because thousands of subscriptions may look at once when a dispatcher is gone.
    """
    time, lock = clock or SystemClock(), threading.Lock()
    places: dict[tuple[Tenant, int], str | None] = {}
    addresses: dict[str, str] = {}
    read_at = float("-inf")

    def locate(tenant: Tenant, store_id: int) -> str | None:
        nonlocal places, addresses, read_at
        with lock:
            if time.monotonic() - read_at > PLACES_S:
                addresses = {w.worker_id: w.address for w in list_workers(catalog, WorkerKind.DISPATCHER)}
                places = {(row.tenant, row.store_id): row.dispatcher for row in store_places(catalog)}
                read_at = time.monotonic()
            return addresses.get(places.get((tenant, store_id)) or "") or None

    return locate


def token_of_catalog(catalog: Catalog) -> Bearer:
    """Reads the newest service token, for each new exchange."""

    def newest() -> str:
        tokens = accepted_tokens(catalog)
        if not tokens:
            raise FeedUnavailable("there is no service token yet: no meta server has been elected")
        return tokens[0].secret

    return newest


@dataclass(slots=True)
class _Peer:
    client: fl.FlightClient
    tls: Tls | None
    exchange: Exchange | None = None
    retry_at: float = 0.0  #: no new exchange before, after one that received nothing
    error: str = ""  #: why the last one ended
    pauses: Backoff = field(default_factory=lambda: Backoff(first_s=0.05, max_s=1.0, rand=random.Random()))


class FlightFeed:
    """A Feed whose dispatchers are reached over Flight. Thread-safe; streams are not."""

    def __init__(
        self, locate: Locate, bearer: Bearer, clock: Clock | None = None, *, tls: TlsFiles | None = None
    ) -> None:
        """`locate` returns the address (`grpc://host:port`, with TLS `grpc+tls://host:port`) of a store's dispatcher,
        or None."""
        self._locate, self._bearer, self._clock, self._tls = locate, bearer, clock or SystemClock(), tls
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}

    def subscribe(self, request: FeedRequest) -> FlightStream:
        """A stream that connects when first read, and reconnects when necessary."""
        return FlightStream(self, request, self._clock)

    def watch(self, request: FeedRequest, wake: Wake) -> FlightStream:
        """The same for callers of `look`, woken by `wake`."""
        return FlightStream(self, request, self._clock, wake)

    def close(self) -> None:
        """Close the connections, and wait for those that can be reached."""
        with self._lock:
            peers, self._peers = list(self._peers.values()), {}
        exchanges = [peer.exchange for peer in peers if peer.exchange is not None]
        for exchange in exchanges:
            exchange.fail(EOFError("the feed was closed"))
        until = self._clock.monotonic() + CLOSE_S
        for exchange in exchanges:
            exchange.join(max(0.0, until - self._clock.monotonic()))
        for peer in peers:
            peer.client.close()

    def open(self, request: FeedRequest, arrived: Wake) -> Mailbox:
        """A subscription at the store's current owner. FeedUnavailable when there is none, or it cannot be reached."""
        address = self._locate(request.tenant, request.store_id)
        if address is None:
            raise FeedUnavailable(store=request.store_id, tenant=str(request.tenant))
        try:
            exchange = self._exchange(address)
        except ConnectionError as e:
            raise _unavailable(request, e, address) from e
        return exchange.subscribe(request, arrived)

    def _exchange(self, address: str) -> Exchange:
        """The exchange with this dispatcher, a new one if needed. ConnectionError while it is too early for one."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                peer = self._peers[address] = _Peer(*connect(address, self._tls))
            now, last = self._clock.monotonic(), peer.exchange
            if last is not None and last.ended is None:
                return last
            if last is not None:
                peer.exchange, peer.error = None, str(last.ended)
                if last.received:
                    peer.pauses.reset()
                else:
                    peer.retry_at = now + peer.pauses.next_s()
            if now < peer.retry_at:
                raise ConnectionError(peer.error)
            if self._tls is not None and self._tls.read() != peer.tls:  # renewed
                peer.client.close()
                peer.client, peer.tls = connect(address, self._tls)
            peer.exchange = Exchange(peer.client, f"feed {address}", self._bearer(), self._clock)
            return peer.exchange


class FlightStream:
    """A FeedStream that survives reconnects. `look` never waits, `next` does."""

    def __init__(self, feed: FlightFeed, request: FeedRequest, clock: Clock, wake: Wake | None = None) -> None:
        self._feed, self._request, self._clock = feed, request, clock
        self._positions = dict(request.positions)
        self._mailbox: Mailbox | None = None
        self._arrived = threading.Event()
        self._wake = wake or self._arrived
        self._backoff = Backoff(first_s=0.05, max_s=2.0, rand=random.Random())
        self._connect_at = 0.0
        self._error: TiStreamError | None = None  # the current error

    def next(self, timeout_s: float) -> FeedBatch | None:
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._arrived.clear()
            known, found = str(self._error), self.look()
            if isinstance(found, FeedBatch):
                return found
            error, until = found
            now = self._clock.monotonic()
            if error is not None and (str(error) != known or now >= deadline):
                raise copy.copy(error)
            if now >= deadline:
                return None
            self._clock.wait(self._arrived, min(max(min(until, deadline) - now, 0.001), WAIT_S))

    def look(self) -> FeedBatch | NoBatch:
        """The next batch if it is here, else what is in the way and when to look again."""
        while True:
            item = self._step()
            if isinstance(item, FeedBatch):
                self._error = None
                return item
            if item is not None:
                self._error = item if isinstance(item, TiStreamError) else None
                continue
            now = self._clock.monotonic()
            if self._mailbox is not None:
                return self._error, now + WAIT_S
            if now < self._connect_at:
                return self._error, self._connect_at

    def close(self) -> None:
        self._disconnect()

    def _step(self) -> Arrived | None:
        """A batch, an error (also of connecting), FINE, or None."""
        if self._mailbox is None:
            now = self._clock.monotonic()
            if now < self._connect_at:
                return None
            try:
                self._mailbox = self._connect()
            except TiStreamError as e:
                self._connect_at = now + self._backoff.next_s()
                return e
        mailbox = self._mailbox
        ended = mailbox.ended  # read before `take`: items may arrive just before the end
        item = mailbox.take()
        if item is None and ended is not None:
            return self._lost(mailbox, ended)
        if item is None:
            mailbox.fail_if_silent()
        return self._deliver(item) if isinstance(item, FeedBatch) else item

    def _deliver(self, batch: FeedBatch) -> FeedBatch:
        before = position_of(self._positions, batch.incarnation)
        expected = before.seq if batch.closes else before.seq + 1
        invariant(
            not before.closed and batch.seq == expected and batch.store_id == self._request.store_id,
            "the feed skipped or repeated a batch",
            incarnation=batch.incarnation,
            seq=batch.seq,
            position=before,
        )
        at = Position(seq=batch.seq, closed=batch.closes)
        self._positions = without_ended({**self._positions, batch.incarnation: at})
        return batch

    def _connect(self) -> Mailbox:
        return self._feed.open(replace(self._request, positions=dict(self._positions)), self._wake)

    def _lost(self, mailbox: Mailbox, cause: Exception) -> TiStreamError | None:
        """The subscription is gone. One that had worked is renewed silently; else return the error."""
        self._disconnect()
        if mailbox.received:
            self._backoff.reset()
            self._connect_at = 0.0
            return None
        self._connect_at = self._clock.monotonic() + self._backoff.next_s()
        return _lost_error(self._request, cause)

    def _disconnect(self) -> None:
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()


def _lost_error(request: FeedRequest, cause: Exception) -> TiStreamError:
    if isinstance(cause, TiStreamError) and not isinstance(cause, InvalidInput):
        return cause
    return of_flight(cause) or _unavailable(request, cause)


def _unavailable(request: FeedRequest, cause: Exception, address: str = "") -> FeedUnavailable:
    facts = {"address": address} if address else {}
    return FeedUnavailable(store=request.store_id, tenant=str(request.tenant), cause=str(cause).split("\n")[0], **facts)
