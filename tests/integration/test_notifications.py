"""Notifications that a real S3 server sends, by a queue and as a webhook, to dispatchers and to the meta server."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import zstandard

from dispatcher.flight_server import FlightDispatcher
from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from metaserver.activation import Activation
from schemas.snapshot import parse_pushed
from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.s3server import S3Server
from tests.kit.assignments import assign_store
from tests.kit.awaited import subscribed
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import begin, elected, new_catalog
from tests.kit.feed_port import catalog_feed, flight_dispatcher, make_token, owned, request_of
from tests.kit.log_builder import LogBuilder
from tests.kit.request_tally import RequestTally
from tests.kit.waiting import WAIT_S, eventually
from tistream import config
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.cli import assembly
from tistream.clock import SystemClock
from tistream.errors import NotificationsUnavailable
from tistream.feed.flight import locate_by_catalog, token_of_catalog
from tistream.feed.hints import LookByFlight, Notifications
from tistream.feed.queue_reader import QueueReader
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.factory import open_store
from tistream.objectstore.layout import BatchKey, SchemaSnapKey, schema_snap_prefix, store_prefix
from tistream.objectstore.metered import MeteredStore

T, WAITING = Tenant(1, 1), Tenant(1, 2)
TOLD, SILENT = 7, 8  # stores: the server sends events of the first alone
PREFIX = "log/of=this"
# the product's own, some thirty times as fast; a store whose files are announced is not polled while a test waits
FAST = TailTiming(
    poll_s=0.05, idle_after_s=0.4, idle_poll_max_s=0.8, announced_poll_max_s=600.0, announced_list_max_s=600.0,
    gap_after_s=0.2, list_every_s=0.5, list_every_max_s=1.0,
)  # fmt: skip
FILES, EVERY_S = 4, 1.6
TOKEN = "a-token-of-the-webhook"

_bucket = itertools.count(1)
pytestmark = pytest.mark.usefixtures("server")


class World:
    """Two dispatchers, each with one store of a rarely writing tenant, and a tenant that waits for its snapshot."""

    def __init__(self, path: Path, server: S3Server) -> None:
        self.bucket = f"changes-{next(_bucket)}"
        server.create_bucket(self.bucket)
        self.catalog, self.clock = new_catalog(path), SystemClock()
        begin(self.catalog, T, 1, KeyRange(b"a", b"z"))
        register_tenant(self.catalog, WAITING)
        epoch = elected(self.catalog)
        owned(self.catalog, 1, epoch)
        make_token(self.catalog, epoch)
        self.url = server.url(self.bucket, PREFIX)
        self.store = open_store(self.url)
        self.tallies = {store_id: RequestTally() for store_id in (TOLD, SILENT)}
        self.dispatchers: list[FlightDispatcher] = []
        for store_id, tally in self.tallies.items():
            issue_incarnation(self.catalog, T, store_id)
            name, metered = f"d{store_id}", MeteredStore(self.store, tally)
            worker = DispatcherWorker(self.catalog, metered, self.clock, name, timing=FAST, reclaim_s=3600)
            self.dispatchers.append(flight_dispatcher(self.catalog, worker))
            self.dispatchers[-1].start()
            assert assign_store(self.catalog, T, store_id, worker_id=name, seen_epoch=0, leader_epoch=epoch)
        self.feed = catalog_feed(self.catalog)
        self.streams = {s: subscribed(self.feed, request_of(self.catalog, 1, s)) for s in self.tallies}
        self.look = LookByFlight(locate_by_catalog(self.catalog), token_of_catalog(self.catalog))
        self.notifications = Notifications(self.catalog, self.look, self.bucket, PREFIX)

    def put(self, store_id: int, seq: int) -> None:
        key = BatchKey(tenant=T, store_id=store_id, incarnation=1, seq=seq)
        self.store.put(str(key), batch_bytes(key, [(b"a", b"z", [b"b%d" % seq])]))

    def arrive(self, store_id: int, seq: int) -> None:
        """Put the next file and wait until the sorter has it."""
        self.put(store_id, seq)
        for _ in range(int(WAIT_S * 10)):
            batch = self.streams[store_id].next(0.1)
            if batch is not None:
                assert batch.seq == seq
                return
        raise AssertionError(f"file {seq} was not found")

    def until_announced(self, *stores: int) -> int:
        """Put files until one of TOLD is found because of a notification, which a look at the right moment can
        forestall, from the third on, when the interval between them is known. Its number."""
        for seq in range(1, 20):
            time.sleep(EVERY_S)
            for store_id in stores:
                self.arrive(store_id, seq)
            if seq >= 3 and self.dispatchers[0].worker._tails[T, TOLD]._announced == {1}:
                return seq
        raise AssertionError("no file was found because of a notification")

    def requests(self, store_id: int) -> int:
        return self.tallies[store_id].of("get") + self.tallies[store_id].of("list")

    def close(self) -> None:
        self.look.close()
        self.feed.close()
        for dispatcher in self.dispatchers:
            dispatcher.stop()
        self.catalog.close()


@pytest.fixture
def world(tmp_path: Path, server: S3Server) -> Iterator[World]:
    new_world = World(tmp_path, server)
    yield new_world
    new_world.close()


def below(prefix: str) -> str:
    return f"{PREFIX}/{prefix}"


def test_a_store_that_seldom_writes_is_read_at_a_notification_and_asked_for_less_often(
    world: World, server: S3Server
) -> None:
    queue = server.notify(world.bucket, below(store_prefix(T, TOLD)))
    reader = QueueReader("m", world.notifications, world.clock, queue_url=queue, endpoint=server.endpoint)
    reader.start()
    try:
        seq = world.until_announced(TOLD, SILENT)
        before = {s: world.requests(s) for s in world.tallies}
        for later in range(seq + 1, seq + 1 + FILES):
            time.sleep(EVERY_S)
            world.arrive(SILENT, later)
            world.arrive(TOLD, later)  # nothing but a notification has it looked for now
        requests_made = {s: world.requests(s) - before[s] for s in world.tallies}
    finally:
        reader.stop()
    assert 2 * requests_made[TOLD] <= requests_made[SILENT], requests_made  # 4 and 23 on a quiet machine
    assert reader.problems() == []


def test_a_waiting_tenant_is_activated_at_once(world: World, server: S3Server) -> None:
    queue = server.notify(world.bucket, below(schema_snap_prefix(WAITING)))
    activation = Activation(world.catalog, world.store, world.clock, 2, pause_max_s=3600.0)
    for _ in range(20):  # it has looked in vain for long
        for waiting in activation._waiting.values():
            waiting.due_s = 0.0
        activation.step()
    schema = LogBuilder(world.catalog, world.store).schema
    ts = parse_pushed(json.loads(schema)).snapshot.ts
    world.store.put(str(SchemaSnapKey(tenant=WAITING, ts=ts)), zstandard.compress(schema))
    activation.step()
    assert get_tenant(world.catalog, WAITING).state is TenantState.AWAITING_SNAPSHOT, "not due for an hour"

    def active() -> bool:
        activation.step()
        return get_tenant(world.catalog, WAITING).state is TenantState.ACTIVE

    reader = QueueReader("m", world.notifications, world.clock, queue_url=queue, endpoint=server.endpoint)
    reader.start()
    try:
        eventually(active)
    finally:
        reader.stop()


def test_a_queue_that_is_not_there_is_a_problem_and_stops_nothing(world: World, server: S3Server) -> None:
    reader = QueueReader(
        "m", world.notifications, world.clock, queue_url=f"{server.endpoint}/1/none", endpoint=server.endpoint
    )
    reader.start()
    try:
        eventually(lambda: [p.code for p in reader.problems()] == [NotificationsUnavailable.code])
        world.arrive(TOLD, 1)
    finally:
        reader.stop()


def test_the_webhook_of_a_server_is_taken_by_the_api_and_anything_else_refused(
    world: World, server: S3Server, tmp_path: Path
) -> None:
    settings = config.load(
        None,
        {},
        {
            "catalog.url": f"sqlite:///{tmp_path}/catalog.db",
            "object_store.url": world.url,
            "server.port": free_port(),
            "server.auth": "keys",
            "notifications.webhook_token": TOKEN,
        },
    )
    api = assembly.api_server(assembly.open_parts(settings))
    api.start()
    try:
        host = api.url.removeprefix("http://")
        server.notify_over_http(
            world.bucket, f"http://s3:{TOKEN}@{host}/v1/notifications", below(store_prefix(T, TOLD))
        )
        world.until_announced(TOLD)
        answers = [
            httpx2.post(f"{api.url}/v1/notifications", content=body, headers=headers).status_code
            for body, headers in (
                (b'{"Records": []}', {"Authorization": f"Bearer {TOKEN}"}),
                (b'{"Records": []}', {}),
                (b'{"Records": []}', {"Authorization": "Bearer another-token-of-it"}),
                (b'{"Records": []}', {"Authorization": "Basic " + base64.b64encode(b"s3:x").decode()}),
                (b'{"Records": []}', {"Authorization": "Basic !"}),
                (b"nonsense", {"Authorization": f"Bearer {TOKEN}"}),
                (b" " * (2 << 20), {"Authorization": f"Bearer {TOKEN}"}),
            )
        ]
        assert answers == [204, 401, 401, 401, 401, 400, 413]
    finally:
        api.close()
