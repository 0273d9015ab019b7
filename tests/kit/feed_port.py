"""A dispatcher's Flight port and a sorter's feed in tests: the token of both, and subscriptions of a task's owner."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dispatcher.flight_server import FlightDispatcher, FlightFeedServer
from dispatcher.port_access import AcceptedTokens
from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from tests.kit.assignments import assign_store, assign_task
from tests.kit.awaited import Awaited, subscribed
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import begin, elected, new_catalog
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.service_tokens import ServiceToken, accepted_tokens, rotate_service_token
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import get_task
from tistream.clock import SystemClock
from tistream.feed.flight import FlightFeed, Locate, locate_by_catalog, token_of_catalog
from tistream.feed.protocol import Feed, FeedRequest, FeedStream
from tistream.feed.tls import FeedTlsFiles
from tistream.feed.wire import call_options
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.protocol import ObjectStore

TOKEN = ServiceToken(number=1, secret="5e" * 32)
BEARER = call_options(TOKEN.secret)
DAY_MS = 86_400_000


def bare_server() -> FlightFeedServer:
    """A port that accepts TOKEN, without a dispatcher behind it."""
    return FlightFeedServer("127.0.0.1", 0, AcceptedTokens(lambda: (TOKEN,), SystemClock()))


def bare_feed(locate: Locate) -> FlightFeed:
    """A feed that presents TOKEN."""
    return FlightFeed(locate, lambda: TOKEN.secret)


def flight_dispatcher(catalog: Catalog, worker: DispatcherWorker, tls: FeedTlsFiles | None = None) -> FlightDispatcher:
    """A dispatcher with its port, as the command wires it."""
    clock = SystemClock()
    return FlightDispatcher(worker, AcceptedTokens(partial(accepted_tokens, catalog), clock), clock, tls=tls)


def catalog_feed(catalog: Catalog, tls: FeedTlsFiles | None = None) -> FlightFeed:
    """A sorter's feed, as the command wires it."""
    return FlightFeed(locate_by_catalog(catalog), token_of_catalog(catalog), tls=tls)


def make_token(catalog: Catalog, leader_epoch: int) -> None:
    """The meta server's first token."""
    assert rotate_service_token(catalog, rotate_ms=DAY_MS, leader_epoch=leader_epoch) is not None


def owned(catalog: Catalog, task_id: int, leader_epoch: int, worker_id: str = "s1") -> None:
    """Assign the task to this worker."""
    seen = get_task(catalog, task_id).epoch
    assert assign_task(catalog, task_id, worker_id=worker_id, seen_epoch=seen, leader_epoch=leader_epoch) is not None


def request_of(
    catalog: Catalog, task_id: int, store_id: int, positions: Mapping[int, Position] | None = None
) -> FeedRequest:
    """The subscription of the task's present owner."""
    row = get_task(catalog, task_id)
    return FeedRequest(
        tenant=row.tenant,
        store_id=store_id,
        task_id=task_id,
        epoch=row.epoch,
        worker_id=row.owner or "",
        range=row.range,
        positions=positions or {},
    )


class DispatchedStore:
    """Store 7 of a tenant with one task, which a sorter owns; its dispatchers, and subscriptions to it."""

    tenant, store_id = Tenant(1, 1), 7

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self.catalog, self.store = new_catalog(folder), store
        begin(self.catalog, self.tenant, 1, KeyRange(b"a", b"z"))
        self.leader_epoch = elected(self.catalog)
        issue_incarnation(self.catalog, self.tenant, self.store_id)
        make_token(self.catalog, self.leader_epoch)
        owned(self.catalog, 1, self.leader_epoch)
        self.feed = catalog_feed(self.catalog)
        self.dispatchers: list[FlightDispatcher] = []
        self.streams: list[Awaited[FeedStream]] = []

    def dispatcher(self, name: str = "d1", seen_epoch: int = 0, cache_bytes: int = 64 << 20) -> FlightDispatcher:
        """A running dispatcher that owns the store."""
        timing = TailTiming(poll_s=0.02, retry_s=0.1)
        worker = DispatcherWorker(self.catalog, self.store, SystemClock(), name, timing=timing, cache_bytes=cache_bytes)
        started = flight_dispatcher(self.catalog, worker)
        self.dispatchers.append(started)
        started.start()
        assert started.wait_until_ready(10)
        store = (self.tenant, self.store_id)
        assert assign_store(self.catalog, *store, worker_id=name, seen_epoch=seen_epoch, leader_epoch=self.leader_epoch)
        return started

    def key(self, seq: int, incarnation: int = 1) -> BatchKey:
        return BatchKey(tenant=self.tenant, store_id=self.store_id, incarnation=incarnation, seq=seq)

    def put(self, seq: int, incarnation: int = 1) -> None:
        key = self.key(seq, incarnation)
        self.store.put(str(key), batch_bytes(key, [(b"a", b"z", [b"b%d" % seq])]))

    def subscribe(self, *, to: Feed | None = None) -> Awaited[FeedStream]:
        """Over Flight, unless to another feed."""
        self.streams.append(subscribed(to or self.feed, request_of(self.catalog, 1, self.store_id)))
        return self.streams[-1]

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self.feed.close()
        for dispatcher in self.dispatchers:
            dispatcher.stop()
        self.catalog.close()
