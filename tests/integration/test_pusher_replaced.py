"""Two pushers of one store against a real control plane over HTTP: the newer one is read, the older one ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pusher.control import HttpControl
from pusher.frontier import FrontierReader
from pusher.worker import PusherWorker
from simulator.core.cluster import Cluster, Region
from simulator.push.model_source import ModelSource
from tests.kit.catalog_cases import begin, new_catalog
from tests.kit.control_app import control_app
from tests.kit.manual_clock import ManualClock
from tests.kit.oracle import batch_files
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stores import list_stores
from tistream.cli.server import HttpServer
from tistream.errors import Fenced
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import INCARNATION_CHECK_MS
from tistream.objectstore.memory import MemoryStore

T = Tenant(1, 1)
S = 1000


class World:
    """A control plane behind a port, a bucket, a store with one region, and its pushers."""

    def __init__(self, catalog: Catalog, url: str) -> None:
        self.catalog, self.control = catalog, HttpControl(url, T)
        self.cluster = Cluster([Region(region_id=1, version=1, store_id=1, range=KeyRange())], floor_ts=S)
        self.bucket, self.clock = MemoryStore(), ManualClock()
        self.pushers: list[tuple[PusherWorker, ModelSource]] = []
        self.ts = S

    def begin(self) -> PusherWorker:
        """Another life of the pusher."""
        source = ModelSource(self.cluster, 1)
        worker = PusherWorker(
            source=source,
            control=self.control,
            frontier=FrontierReader(self.control, self.clock),
            store=self.bucket,
            clock=self.clock,
        )
        worker.start(threading.Event())
        self.pushers.append((worker, source))
        return worker

    def tick(self, worker: PusherWorker) -> None:
        """One file of this pusher."""
        self.ts += 1
        self.clock.advance(INCARNATION_CHECK_MS / 1000)
        worker.step()
        self.cluster.tick(self.ts)
        next(source for w, source in self.pushers if w is worker).tick(self.ts)
        worker.step()
        assert worker.wait_until_durable(30)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    catalog = new_catalog(tmp_path)
    begin(catalog, T, S)
    server = HttpServer(control_app(catalog, "memory://"), "127.0.0.1", 0)
    server.start()
    new_world = World(catalog, server.url)
    yield new_world
    for worker, _ in new_world.pushers:
        worker.close()
    new_world.control.close()
    server.stop()
    catalog.close()


def test_when_the_newest_pusher_dies_for_good_the_older_one_ends_and_its_next_life_is_the_newest(world: World) -> None:
    older = world.begin()
    world.tick(older)
    newer = world.begin()
    world.tick(newer)
    newer.close()  # it dies, and nobody starts it again
    with pytest.raises(Fenced) as caught:
        world.tick(older)
    assert (caught.value.facts["incarnation"], caught.value.facts["newest"]) == (1, 2)
    again = world.begin()  # the older one's supervisor
    world.tick(again)
    world.tick(again)
    assert {life: len(files) for life, files in batch_files(world.bucket).items()} == {(1, 1): 1, (1, 2): 1, (1, 3): 2}
    assert [row.incarnation for row in list_stores(world.catalog, T)] == [3]


def test_a_number_that_was_given_to_nobody_ends_the_pusher_too(world: World) -> None:
    only = world.begin()
    world.tick(only)
    world.control.issue_incarnation(1)  # its reply was lost, say
    with pytest.raises(Fenced):
        world.tick(only)
    world.tick(world.begin())
    assert [row.incarnation for row in list_stores(world.catalog, T)] == [3]
