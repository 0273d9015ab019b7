"""A dispatcher's Flight port and a sorter's feed in tests: the token of both, and subscriptions of a task's owner."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dispatcher.flight_server import FlightDispatcher, FlightFeedServer
from dispatcher.port_access import AcceptedTokens
from dispatcher.worker import DispatcherWorker
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.service_tokens import ServiceToken, accepted_tokens, rotate_service_token
from tistream.catalog.work.tasks import assign_task, get_task
from tistream.clock import SystemClock
from tistream.feed.flight import FlightFeed, Locate, locate_by_catalog, token_of_catalog
from tistream.feed.protocol import FeedRequest
from tistream.feed.tls import TlsFiles
from tistream.feed.wire import call_options
from tistream.ids import Position

TOKEN = ServiceToken(number=1, secret="5e" * 32)
BEARER = call_options(TOKEN.secret)
DAY_MS = 86_400_000


def bare_server() -> FlightFeedServer:
    """A port that accepts TOKEN, without a dispatcher behind it."""
    return FlightFeedServer("127.0.0.1", 0, AcceptedTokens(lambda: (TOKEN,), SystemClock()))


def bare_feed(locate: Locate) -> FlightFeed:
    """A feed that presents TOKEN."""
    return FlightFeed(locate, lambda: TOKEN.secret)


def flight_dispatcher(catalog: Catalog, worker: DispatcherWorker, tls: TlsFiles | None = None) -> FlightDispatcher:
    """A dispatcher with its port, as the command wires it."""
    clock = SystemClock()
    return FlightDispatcher(worker, AcceptedTokens(partial(accepted_tokens, catalog), clock), clock, tls=tls)


def catalog_feed(catalog: Catalog, tls: TlsFiles | None = None) -> FlightFeed:
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
