"""The feed over Arrow Flight, for sorters: subscriptions that survive reconnects.

All subscriptions of a process to one dispatcher share one exchange (`tistream.feed.exchange`, wire form:
`tistream.feed.wire`). Errors that a subscriber may wait out (FeedGap, CorruptObject, an unavailable store) arrive typed
at their subscription, which stays open. When the dispatcher no longer serves the store, or the exchange breaks, the
subscription looks up the owner and resubscribes there, at the position of the last batch it handed out.

Connecting reads the catalog, which may take long or hang, so a thread of the feed does it: the one that looks at all
subscriptions never waits for it.
"""

from __future__ import annotations

import copy
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow.flight as fl

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.service_tokens import accepted_tokens
from tistream.catalog.work.stores import store_places
from tistream.catalog.work.workers import list_workers
from tistream.clock import Clock, SystemClock
from tistream.errors import FeedUnavailable, InvalidInput, TiStreamError, invariant
from tistream.feed.exchange import Arrived, ExchangeClient, Mailbox
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.feed.tls import FeedTls, FeedTlsFiles, connect
from tistream.feed.wire import SILENT_S, of_flight
from tistream.ids import Position, Tenant
from tistream.model.positions import position_of, without_ended
from tistream.runtime.service import Backoff

PLACES_S = 0.5
CLOSE_S = 5.0  # for all exchanges together
FORGET_S = 600.0  # a dispatcher that has been away for so long
SLOW_S = 2.0  # an attempt to connect that takes longer is shown

Locate = Callable[[Tenant, int], str | None]
Bearer = Callable[[], str]  #: the service token to present
Dial = Callable[[str, FeedTlsFiles | None], tuple[fl.FlightClient, FeedTls | None]]


def locate_by_catalog(catalog: Catalog, clock: Clock | None = None) -> Locate:
    """Looks up the address of a store's dispatcher in the catalog; None when there is none.

    Reads are cached for PLACES_S, failed ones too, because thousands of subscriptions may look at once when a
    dispatcher is gone.
    """
    time, lock = clock or SystemClock(), threading.Lock()
    places: dict[tuple[Tenant, int], str | None] = {}
    addresses: dict[str, str] = {}
    read_at = float("-inf")
    failed: TiStreamError | None = None

    def locate(tenant: Tenant, store_id: int) -> str | None:
        nonlocal places, addresses, read_at, failed
        with lock:
            if time.monotonic() - read_at > PLACES_S:
                failed = None
                try:
                    addresses = {w.worker_id: w.address for w in list_workers(catalog, WorkerKind.DISPATCHER)}
                    places = {(row.tenant, row.store_id): row.dispatcher for row in store_places(catalog)}
                except TiStreamError as e:
                    failed = e
                read_at = time.monotonic()
            if failed is not None:
                raise copy.copy(failed)
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
    tls: FeedTls | None
    exchange: ExchangeClient | None = None
    retry_at: float = 0.0  #: no new exchange before, after one that received nothing
    error: str = ""  #: why the last one ended
    used_at: float = 0.0  #: when a subscription was opened last
    pauses: Backoff = field(default_factory=lambda: Backoff(first_s=0.05, max_s=1.0, rand=random.Random()))


class Attempt:
    """One attempt to subscribe, made by another thread than the one that waits for its outcome."""

    def __init__(self, request: FeedRequest, wake: Wake, began_at: float) -> None:
        self.request, self.wake, self.began_at = request, wake, began_at
        self._lock = threading.Lock()
        self._dropped = False
        self.outcome: Mailbox | Exception | None = None  #: None while it is under way

    def run(self, subscribe: Callable[[FeedRequest, Wake], Mailbox]) -> None:
        """Make it, and wake its stream."""
        try:
            outcome: Mailbox | Exception = subscribe(self.request, self.wake)
        except Exception as e:  # noqa: BLE001 - raised where the outcome is taken
            outcome = e
        with self._lock:
            self.outcome = outcome
            dropped = self._dropped
        if dropped:
            _leave(outcome)
        self.wake.set()

    def drop(self) -> None:
        """The outcome is not wanted any more."""
        with self._lock:
            self._dropped, outcome = True, self.outcome
        _leave(outcome)


def _leave(outcome: Mailbox | Exception | None) -> None:
    if outcome is not None and not isinstance(outcome, Exception):
        outcome.close()


class FlightFeed:
    """A Feed whose dispatchers are reached over Flight. Thread-safe; streams are not."""

    def __init__(
        self,
        locate: Locate,
        bearer: Bearer,
        clock: Clock | None = None,
        *,
        tls: FeedTlsFiles | None = None,
        dial: Dial = connect,
    ) -> None:
        """`locate` returns the address (`grpc://host:port`, with TLS `grpc+tls://host:port`) of a store's dispatcher,
        or None. `dial` makes a client of it."""
        self._locate, self._bearer, self._clock = locate, bearer, clock or SystemClock()
        self._tls, self._dial = tls, dial
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._attempts: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._connector: threading.Thread | None = None
        self._closed = False

    def open(self, request: FeedRequest, wake: Wake) -> FlightStream:
        """A stream that connects when it is first looked at, and reconnects when necessary. Does not wait."""
        return FlightStream(self, request, wake, self._clock)

    def close(self) -> None:
        """Close the connections, and wait for those that can be reached."""
        with self._lock:
            self._closed = True
            peers, self._peers = list(self._peers.values()), {}
            connector, self._connector = self._connector, None
        if connector is not None:
            self._attempts.put(None)  # it may hang in the catalog: it is not waited for
        exchanges = [peer.exchange for peer in peers if peer.exchange is not None]
        for exchange in exchanges:
            exchange.fail(EOFError("the feed was closed"))
        until = self._clock.monotonic() + CLOSE_S
        for exchange in exchanges:
            exchange.join(max(0.0, until - self._clock.monotonic()))
        for peer in peers:
            peer.client.close()

    def begin(self, request: FeedRequest, wake: Wake) -> Attempt:
        """Subscribe in the feed's own thread. Nothing comes of it when the feed was closed."""
        attempt = Attempt(request, wake, self._clock.monotonic())
        with self._lock:
            if self._connector is None and not self._closed:
                self._connector = threading.Thread(target=self._connect, name="feed connect", daemon=True)
                self._connector.start()
        self._attempts.put(attempt)
        return attempt

    def _connect(self) -> None:
        while (attempt := self._attempts.get()) is not None:
            attempt.run(self.subscribe)

    def subscribe(self, request: FeedRequest, arrived: Wake) -> Mailbox:
        """A subscription at the store's current owner; waits for the catalog. FeedUnavailable when there is none, or it
        cannot be reached."""
        address = self._locate(request.tenant, request.store_id)
        if address is None:
            raise FeedUnavailable(store=request.store_id, tenant=str(request.tenant))
        try:
            exchange = self._exchange(address)
        except ConnectionError as e:
            raise _unavailable(request, e, address) from e
        return exchange.subscribe(request, arrived)

    def _exchange(self, address: str) -> ExchangeClient:
        """The exchange with this dispatcher, a new one if needed. ConnectionError while it is too early for one."""
        now, unused = self._clock.monotonic(), list[_Peer]()
        with self._lock:
            if self._closed:
                raise ConnectionError("the feed was closed")
            peer = self._peers.get(address)
            if peer is None:
                unused = self._forget(now)
                peer = self._peers[address] = _Peer(*self._dial(address, self._tls))
            last, peer.used_at = peer.exchange, now
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
        for other in unused:
            other.client.close()
        token = self._bearer()  # may wait for the catalog, and `close` must not
        with self._lock:
            if self._peers.get(address) is not peer:
                raise ConnectionError("the feed was closed")
            if self._tls is not None and self._tls.read() != peer.tls:  # renewed
                peer.client.close()
                peer.client, peer.tls = self._dial(address, self._tls)
            if peer.exchange is None:
                peer.exchange = ExchangeClient(peer.client, f"feed {address}", token, self._clock)
            return peer.exchange

    def _forget(self, now: float) -> list[_Peer]:
        """Take out the peers that have been away for long: a dispatcher that is replaced gets another address."""
        away = [
            address
            for address, peer in self._peers.items()
            if (peer.exchange is None or peer.exchange.ended is not None) and now - peer.used_at >= FORGET_S
        ]
        return [self._peers.pop(address) for address in away]


class FlightStream:
    """A FeedStream that survives reconnects."""

    def __init__(self, feed: FlightFeed, request: FeedRequest, wake: Wake, clock: Clock) -> None:
        self._feed, self._request, self._wake, self._clock = feed, request, wake, clock
        self._positions = dict(request.positions)
        self._mailbox: Mailbox | None = None
        self._attempt: Attempt | None = None
        self._backoff = Backoff(first_s=0.05, max_s=2.0, rand=random.Random())
        self._connect_at = 0.0
        self._error: TiStreamError | None = None  # the current error

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
                return self._error, now + SILENT_S
            if self._attempt is not None:
                if self._error is None and now - self._attempt.began_at >= SLOW_S:
                    self._error = _unavailable(self._request, TimeoutError("looking up the dispatcher takes long"))
                return self._error, now + SLOW_S
            if now < self._connect_at:
                return self._error, self._connect_at

    def close(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.drop()
        self._disconnect()

    def _step(self) -> Arrived | None:
        """A batch, an error (also of connecting), FINE, or None."""
        mailbox = self._mailbox or self._connected()
        if mailbox is None or isinstance(mailbox, TiStreamError):
            return mailbox
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

    def _connected(self) -> Mailbox | TiStreamError | None:
        """The outcome of the attempt to connect; None while it is under way, or too early for one."""
        attempt = self._attempt
        if attempt is None:
            if self._clock.monotonic() >= self._connect_at:
                request = replace(self._request, positions=dict(self._positions))
                self._attempt = self._feed.begin(request, self._wake)
            return None
        outcome = attempt.outcome
        if outcome is None:
            return None
        self._attempt = None
        if not isinstance(outcome, Exception):
            self._mailbox = outcome
            return outcome
        self._connect_at = self._clock.monotonic() + self._backoff.next_s()
        if not isinstance(outcome, TiStreamError):
            raise outcome
        return outcome

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
