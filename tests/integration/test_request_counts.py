"""The requests that a known load makes of the object store, each component counted by itself, against the formula."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dispatcher.worker import DispatcherWorker
from metaserver.loop import MetaWorker
from pusher.control import HttpControl
from pusher.frontier import FrontierReader
from pusher.worker import PusherWorker
from reading.log.reader import LogReader
from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Version
from simulator.push.model_source import ModelSource
from sorter.worker.worker import SorterWorker
from tests.kit.catalog_cases import HALVES, begin, new_catalog
from tests.kit.control_app import control_app
from tests.kit.request_tally import RequestTally
from tests.kit.waiting import WAIT_S, eventually
from tistream import ts as tso
from tistream.admin.core import cost
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.work.tasks import list_tasks, served_watermark
from tistream.cli.server import HttpServer
from tistream.clock import SystemClock
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import Op
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.metered import MeteredStore
from tistream.runtime.service import Service, ServiceGroup

T = Tenant(1, 1)
S = tso.compose(1_700_000_000_000)
STORES = (1, 2, 3)
BUSY, IDLE = 12, 6  # ticks
FLUSH_S = 0.1
SNAPSHOT_S = 0.5


class Counted:
    """A whole service over one bucket, which every component reaches through a counter of its own."""

    def __init__(self, folder: Path) -> None:
        self.bucket, self.clock = MemoryStore(), SystemClock()
        self.tallies = {name: RequestTally() for name in ("pusher", "dispatcher", "sorter", "meta", "api")}
        self.catalog = new_catalog(folder)
        begin(self.catalog, T, S, *HALVES)
        follow = DispatcherWorker(self.catalog, self.store("dispatcher"), self.clock, "dispatcher-1", reclaim_s=3600)
        sorter = SorterWorker(
            self.catalog,
            self.store("sorter"),
            follow,
            self.clock,
            worker_id="sorter-1",
            flush_interval_s=FLUSH_S,
            snapshot_interval_s=SNAPSHOT_S,
        )
        meta = MetaWorker(self.catalog, self.store("meta"), self.clock, "meta-1")
        members: list[Service] = [meta, follow, sorter]
        self.services = ServiceGroup("all", members, self.clock)
        self.http = HttpServer(control_app(self.catalog, "memory://"), "127.0.0.1", 0)
        bounds = (b"", b"h", b"q", b"")
        regions = [Region(region_id=n, version=1, store_id=n, range=KeyRange(bounds[n - 1], bounds[n])) for n in STORES]
        self.cluster = Cluster(regions, floor_ts=S)
        self.ts = S
        self.rows = 0

    def store(self, component: str) -> MeteredStore:
        return MeteredStore(self.bucket, self.tallies[component])

    def start(self) -> None:
        self.services.start()
        self.http.start()
        self.control = HttpControl(self.http.url, T)
        self.sources = [ModelSource(self.cluster, store_id) for store_id in STORES]
        self.pushers = [
            PusherWorker(
                source=source,
                control=self.control,
                frontier=FrontierReader(self.control, self.clock),
                store=self.store("pusher"),
                clock=self.clock,
            )
            for source in self.sources
        ]
        for pusher in self.pushers:
            pusher.start(threading.Event())
            pusher.step()  # its regions are registered before the first tick

    def tick(self, *, busy: bool) -> None:
        """One file of each store; when busy, a row in each region before it."""
        for key in (b"a%06d", b"k%06d", b"x%06d") if busy else ():
            self.ts += tso.compose(1)
            self.cluster.commit_one_phase(key % self.rows, Version(self.ts - 1, self.ts, Op.PUT, b"value", None))
            self.rows += 1
        self.ts += tso.compose(1)
        self.cluster.tick(self.ts)
        for source, pusher in zip(self.sources, self.pushers, strict=True):
            source.tick(self.ts)
            pusher.step()
            assert pusher.wait_until_durable(WAIT_S)

    def run(self, ticks: int, *, busy: bool) -> float:
        """So many ticks, and wait until everything of them is served; how long it took."""
        began = time.monotonic()
        for _ in range(ticks):
            self.tick(busy=busy)
            time.sleep(FLUSH_S)
        eventually(lambda: served_watermark(self.catalog, T) == self.ts)
        return time.monotonic() - began

    def close(self) -> None:
        for pusher in self.pushers:
            pusher.close()
        self.control.close()
        self.services.stop()
        self.http.stop()
        self.catalog.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Counted]:
    new_service = Counted(tmp_path)
    new_service.start()
    yield new_service
    new_service.close()


def test_requests_of_a_known_load_are_those_of_the_formula(service: Counted) -> None:
    pusher, dispatcher, sorter = (service.tallies[name] for name in ("pusher", "dispatcher", "sorter"))
    busy_s = service.run(BUSY, busy=True)
    load = cost.Load(stores=len(STORES), mb_per_s=0, tasks=2, tasks_per_file=2, commit_s=FLUSH_S, snapshot_s=SNAPSHOT_S)

    # a PUT for each store and tick, neither more nor less; a GET for each of them, besides looks that came too early
    files = round(cost.batch_files_per_s(load) * BUSY)
    assert pusher.seen() == {("put", "batch", "ok"): files}
    assert dispatcher.of("get", "batch", "ok") == files
    assert dispatcher.of("put") == dispatcher.of("get_range") == dispatcher.of("delete") == 0
    assert dispatcher.of("list") <= 2 * len(STORES)  # when it takes a store over; never to find work

    # at most one committed file for a flush of a tenant, whose tasks share it, and none that is not in the log
    committed = sorter.of("put", "committed", "ok")
    assert 1 <= committed <= cost.committed_files_per_s(load) * busy_s + 1
    segments = segments_of(service)
    assert len({segment.object_key for segment in segments}) == committed
    assert sum(segment.rows for segment in segments) == service.rows == 3 * BUSY

    # two tasks of which each saves its state at most once an interval; rows that are written lie in committed files
    assert sorter.of("put", "snapshot") <= 2 * (busy_s / SNAPSHOT_S + 1) * 2
    assert sorter.of("put") == committed + sorter.of("put", "snapshot")
    assert sorter.of("get", "batch") == sorter.of("list") == 0

    # a consumer fetches every segment once
    reader = LogReader(service.catalog, service.store("api"), service.clock)
    assert pulled(reader, service.ts).num_rows == service.rows
    assert service.tallies["api"].seen() == {("get_range", "committed", "ok"): len(segments)}
    assert all(op in ("list", "get") for op, _, _ in service.tallies["meta"].seen())


def test_an_idle_tenant_is_complete_without_a_committed_file(service: Counted) -> None:
    service.run(2, busy=True)
    sorter, pusher = service.tallies["sorter"], service.tallies["pusher"]
    before = sorter.of("put", "committed"), pusher.of("put"), sorter.of("put", "snapshot")
    seconds = service.run(IDLE, busy=False)
    assert sorter.of("put", "committed") == before[0]
    assert pusher.of("put") - before[1] == IDLE * len(STORES)
    assert sorter.of("put", "snapshot") - before[2] <= 2 * (seconds / SNAPSHOT_S + 1) * 2
    assert {task.durable_ts for task in list_tasks(service.catalog, T)} == {service.ts}


def segments_of(service: Counted) -> list[SegmentRow]:
    """All visible ones."""
    return find_segments(service.catalog, T, after_ts=S, upto_ts=service.ts, limit=10_000)


def pulled(reader: LogReader, upto: int) -> pa.Table:
    pages, at = [], S
    while at < upto:
        page = reader.page(T, after=at, upto=upto, rows=1000)
        pages.append(page.rows)
        at = page.upto
    return pa.concat_tables(pages)
