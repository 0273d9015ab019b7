"""A tenant is deleted while rows flow: nothing of it goes on, late files do not count, its neighbour loses nothing.

Real pushers, a dispatcher, a sorter and a meta server over one bucket; the judge is the same for the service as it is
and for mutants of it, each of which breaks one rule.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest

from dispatcher.worker import DispatcherWorker
from metaserver import deletion as ending
from metaserver.collect import Collector
from metaserver.deletion import Deletion
from metaserver.loop import MetaWorker
from pusher.control import HttpControl
from pusher.frontier import FrontierReader
from pusher.worker import PusherWorker
from reading.log.reader import LogReader
from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Version
from simulator.push.model_source import ModelSource
from sorter.worker.worker import SorterWorker
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import HALVES, begin, new_catalog
from tests.kit.control_app import control_app
from tests.kit.waiting import WAIT_S, eventually
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.objects import live_objects
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import list_tenants, look_up_tenant
from tistream.catalog.work import deletion
from tistream.catalog.work.stores import list_stores
from tistream.catalog.work.tasks import list_tasks, served_watermark
from tistream.cli.server import HttpServer
from tistream.clock import SystemClock
from tistream.errors import InvalidInput, TenantDeleted
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import Op
from tistream.objectstore.layout import BatchKey, buffer_prefix, committed_prefix
from tistream.objectstore.memory import MemoryStore
from tistream.runtime.service import ServiceGroup

GOES, STAYS = Tenant(1, 1), Tenant(1, 2)
S = tso.compose(1_700_000_000_000)
FLUSH_S = 0.05
ROUNDS_MAX = 50  #: in which the last object of a deleted tenant goes


class Bucket(MemoryStore):
    """Holds up whoever writes or reads a committed file of the tenant that goes, where the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.hold_put, self.hold_get = threading.Event(), threading.Event()  #: set = hold
        self.held, self.go = threading.Event(), threading.Event()

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._wait(self.hold_put, key)
        super().put(key, data)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._wait(self.hold_get, key)
        return super().get_range(key, offset, length)

    def _wait(self, hold: threading.Event, key: str) -> None:
        if hold.is_set() and key.startswith(committed_prefix(GOES)):
            self.held.set()
            assert self.go.wait(WAIT_S)

    def keys(self, tenant: Tenant) -> list[str]:
        scope = f"/cluster-{tenant.cluster_id}/tenant-{tenant.tenant_id}/"
        return [info.key for info in self.list("") if scope in info.key]


class Upstream:
    """One tenant's cluster of one store, its pusher, and what was committed there."""

    def __init__(self, site: Site, tenant: Tenant) -> None:
        self.site, self.tenant, self.ts = site, tenant, S
        self.commits: list[int] = []
        self.cluster = Cluster([Region(region_id=1, version=1, store_id=1, range=KeyRange())], floor_ts=S)
        self.source = ModelSource(self.cluster, 1)
        self.control = HttpControl(site.http.url, tenant)
        self.pusher = PusherWorker(
            source=self.source,
            control=self.control,
            frontier=FrontierReader(self.control, site.clock),
            store=site.bucket,
            clock=site.clock,
        )
        self.pusher.start(threading.Event())
        self.pusher.step()

    def tick(self) -> None:
        """A row for each task, and a file."""
        for key in (b"a%06d", b"x%06d"):
            self.ts += tso.compose(1)
            version = Version(self.ts - 1, self.ts, Op.PUT, b"value", None)
            self.cluster.commit_one_phase(key % len(self.commits), version)
            self.commits.append(self.ts)
        self.ts += tso.compose(1)
        self.cluster.tick(self.ts)
        self.source.tick(self.ts)
        self.pusher.step()
        assert self.pusher.wait_until_durable(WAIT_S)

    def is_served(self) -> bool:
        return served_watermark(self.site.catalog, self.tenant) == self.ts

    def close(self) -> None:
        self.pusher.close()
        self.control.close()


class Site:
    """The service and two tenants."""

    def __init__(self, folder: Path) -> None:
        self.bucket, self.clock = Bucket(), SystemClock()
        self.catalog = new_catalog(folder)
        for tenant in (GOES, STAYS):
            begin(self.catalog, tenant, S, *HALVES)
        self.dispatcher = DispatcherWorker(self.catalog, self.bucket, self.clock, "dispatcher-1", reclaim_s=0.2)
        self.sorter = SorterWorker(
            self.catalog,
            self.bucket,
            self.dispatcher,
            self.clock,
            worker_id="sorter-1",
            flush_interval_s=FLUSH_S,
            snapshot_interval_s=0.2,
        )
        meta = MetaWorker(self.catalog, self.bucket, self.clock, "meta-1")
        self.services = ServiceGroup("all", [meta, self.dispatcher, self.sorter], self.clock)
        self.http = HttpServer(control_app(self.catalog, "memory://", store=self.bucket), "127.0.0.1", 0)
        self.reader = LogReader(self.catalog, self.bucket, self.clock)
        collector = Collector(self.catalog, self.bucket, self.clock, grace_ms=0)
        self.deletion = Deletion(self.catalog, self.bucket, self.clock, collector, grace_ms=0)
        self.pool = ThreadPoolExecutor(1)

    def start(self) -> None:
        self.services.start()
        self.http.start()
        self.goes, self.stays = Upstream(self, GOES), Upstream(self, STAYS)

    def flow(self, ticks: int = 3) -> None:
        """Rows of both tenants, all of them served."""
        for _ in range(ticks):
            self.goes.tick()
            self.stays.tick()
        eventually(lambda: self.goes.is_served() and self.stays.is_served())

    def delete(self, **asked: str) -> httpx2.Response:
        answer = httpx2.delete(f"{self.http.url}/v1/clusters/1/tenants/1", params=asked)
        assert answer.status_code == 200, answer.text
        return answer

    def state(self) -> TenantState:
        return look_up_tenant(self.catalog, GOES).state

    def collect(self) -> None:
        """Rounds of the collector until nothing is left; what is under way shows up in one of the next ones."""
        self.deletion.step()
        eventually(lambda: self.deletion.step() == 0)

    def swept(self) -> None:
        """A round long after the last one."""
        self.deletion._due_s.clear()
        self.deletion.step()

    def is_empty(self) -> bool:
        """Whether nothing is left a moment after a round: a sorter may put its last snapshot behind any of them."""
        self.swept()
        time.sleep(0.02)
        return self.bucket.keys(GOES) == []

    def read(self, tenant: Tenant, upto: int) -> list[int]:
        """The commit_ts of everything that a reader gets."""
        found, at = [], S
        while at < upto:
            page = self.reader.page(tenant, after=at, upto=upto, rows=1000)
            found += np.asarray(page.rows["commit_ts"]).tolist()
            at = page.upto
        return found

    def judge(self) -> None:
        """Nothing of the one is left, or seen; nothing of the other is missing."""
        assert self.state() is TenantState.DELETED
        assert live_objects(self.catalog, GOES, after_key="", limit=9) == []
        assert find_segments(self.catalog, GOES, after_ts=0, upto_ts=1 << 62, limit=9) == []
        assert any(self.is_empty() for _ in range(ROUNDS_MAX))
        with pytest.raises(TenantDeleted):
            self.read(GOES, self.goes.ts)
        self.stays.tick()
        eventually(self.stays.is_served)
        assert self.read(STAYS, self.stays.ts) == self.stays.commits

    def close(self) -> None:
        self.bucket.go.set()
        self.pool.shutdown()
        for upstream in (self.goes, self.stays):
            upstream.close()
        self.services.stop()
        self.http.stop()
        self.catalog.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.start()
    yield made
    made.close()


def a_flush_is_under_way(site: Site) -> None:
    """A sorter has rows, and writes them while the tenant is deleted; its transaction comes when all is over."""
    site.flow()
    site.bucket.hold_put.set()
    site.goes.tick()
    assert site.bucket.held.wait(WAIT_S)
    site.delete()
    site.collect()
    site.bucket.go.set()
    eventually(lambda: any(key.startswith(committed_prefix(GOES)) for key in site.bucket.keys(GOES)))
    site.stays.tick()
    eventually(site.stays.is_served)  # its flush comes behind the one that was held
    assert find_segments(site.catalog, GOES, after_ts=0, upto_ts=1 << 62, limit=9) == []
    site.swept()
    site.judge()


def files_come_late(site: Site) -> None:
    """A pusher that does not know yet, or one whose network was away: files before and after everything was removed."""
    site.flow()
    site.delete()
    late = [BatchKey(tenant=GOES, store_id=1, incarnation=1, seq=seq) for seq in (50, 51)]
    site.bucket.put(str(late[0]), batch_bytes(late[0], [(b"", b"", [b"late"])]))
    site.collect()
    assert site.state() is TenantState.DELETED
    site.bucket.put(str(late[1]), batch_bytes(late[1], [(b"", b"", [b"later"])]))
    site.swept()
    site.judge()


def a_reader_was_there(site: Site) -> None:
    """A reader has listed what it wants, and fetches it while the tenant goes."""
    site.flow()
    commits, upto = list(site.goes.commits), site.goes.ts
    site.bucket.hold_get.set()
    read = site.pool.submit(site.read, GOES, upto)
    assert site.bucket.held.wait(WAIT_S)
    site.delete()
    site.collect()
    site.bucket.hold_get.clear()
    site.bucket.go.set()
    assert read.result(WAIT_S) == commits
    with site.catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())
    site.collect()
    site.deletion.step()
    site.judge()


@pytest.mark.parametrize("story", [a_flush_is_under_way, files_come_late, a_reader_was_there])
def test_a_tenant_ends_and_its_neighbour_goes_on(site: Site, story: Callable[[Site], None]) -> None:
    story(site)


#: Name -> its patches, and the story that shows it.
MUTANTS: dict[str, tuple[list[tuple[object, str, object]], Callable[[Site], None]]] = {
    "the tasks of a deleted tenant stay": ([(deletion, "_end_tasks", lambda *_: 0)], a_flush_is_under_way),
    "nobody looks at a tenant that is DELETED": ([(ending, "every_tenant", list_tenants)], files_come_late),
    "no read lease holds its objects": (
        [(deletion, "next_numbers", lambda *_: [0])],
        a_reader_was_there,
    ),
    "it is over while there are files": (
        [
            (Deletion, "_delete_objects", lambda *_: 0),
            (Deletion, "_is_empty", lambda *_: True),
            (deletion, "_LEFT", deletion._LEFT.where(tables.objects.c.object_key == "")),
        ],
        files_come_late,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_judge_finds_each_mutant(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    patches, story = MUTANTS[name]
    for owner, attribute, value in patches:
        monkeypatch.setattr(owner, attribute, value)
    with pytest.raises((AssertionError, TenantDeleted)):
        story(site)


def test_everybody_is_told(site: Site) -> None:
    site.flow(1)
    seen = site.delete(dry_run="true").json()
    assert (seen["done"], seen["state"], seen["tasks"], site.state()) == (False, "DELETING", 2, TenantState.ACTIVE)
    assert seen["objects"] > 0 < seen["bytes"]
    assert site.delete(reason="moved away").json()["done"]
    eventually(lambda: {tenant for tenant, _ in site.dispatcher._owned} == {STAYS})
    assert [row.dispatcher for row in list_stores(site.catalog, GOES)] == [None]
    assert list_tasks(site.catalog, GOES) == []
    for method, path in (
        ("GET", "/push"), ("GET", "/frontier"), ("POST", "/stores/1/incarnations"), ("GET", "/stores/1/incarnations"),
        ("GET", "/seeds"), ("GET", "/changefeeds"), ("GET", "/consumers"), ("GET", "/safe-point"), ("POST", ":pause"),
    ):  # fmt: skip
        answer = httpx2.request(method, f"{site.http.url}/v1/clusters/1/tenants/1{path}")
        assert (answer.status_code, answer.json()["code"]) == (410, "TS-1016"), (path, answer.text)
    again = httpx2.post(f"{site.http.url}/v1/tenants", json={"cluster_id": 1, "tenant_id": 1})
    assert (again.status_code, again.json()["code"]) == (409, "TS-1014")
    assert site.delete().json()["words"] == "Tenant 1/1 is being deleted already: there is nothing to do."
    with pytest.raises(InvalidInput, match="was deleted"):
        site.goes.control.frontier()
    site.collect()
    assert any(key.startswith(committed_prefix(STAYS)) for key in site.bucket.keys(STAYS))
    assert list(site.bucket.list(buffer_prefix(GOES))) == []
    events = httpx2.get(f"{site.http.url}/v1/events", params={"kind": "tenant"}).json()["items"]
    assert [e["kind"] for e in events[:2]] == ["tenant.deleted", "tenant.deleting"]
    assert "moved away" in events[1]["words"]
    assert "was deleted already" in site.delete().json()["words"]
    site.judge()
