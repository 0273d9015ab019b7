"""Tenants whose pushers write timestamps of the future, or against their own promise, beside one that is well, on real
processes.

Each hostile pusher does what a tenant's credentials allow: it takes an incarnation and puts files into its own folder.
The neighbour is served all the time, no process ends, a restart changes nothing, each problem names its tenant, store
and object, and when the pusher is restarted nothing of the hostile tenant is missing either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from pusher.schema_push import empty_snapshot
from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.processes import TiStreamProcess, Up, client, wait_until_ready
from tests.kit.service_cluster import ServiceCluster
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.client.core.requests import Page
from tistream.codec.segment_file import SegmentFileWriter
from tistream.codec.table_key import record_key
from tistream.errors import BeyondQuarantine
from tistream.ids import Tenant
from tistream.log.committed_log import SegmentSource
from tistream.model.change import REGIONS, ROWS, Op, RowKind
from tistream.objectstore.layout import BatchKey, SchemaSnapKey
from tistream.objectstore.local import LocalStore

NEIGHBOUR = Tenant(1, 1)
SKEW_S = 1.0
AHEAD_S = 10.0
STORE = 7


def now_ms() -> int:
    """The databases of these tests run on this machine."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Pusher:
    """A pusher of one tenant that writes what it wants."""

    tenant: Tenant
    url: str
    bucket: LocalStore
    incarnation: int = 0
    seq: int = 0
    checkpoint: int = 0
    written: list[tuple[bytes, int]] = field(default_factory=list)  #: (key, commit_ts) of every sound row

    def begin(self) -> None:
        """Register the tenant and push its schema."""
        start_ts = tso.compose(now_ms())
        with client(self.url) as c:
            c.tenant(self.tenant.cluster_id, self.tenant.tenant_id).register()
        key = SchemaSnapKey(tenant=self.tenant, ts=start_ts)
        self.bucket.put(str(key), zstandard.compress(empty_snapshot(start_ts)))
        eventually(lambda: self.summary()["state"] == "ACTIVE", f"{self.tenant} is not active")
        self.restart()

    def restart(self) -> None:
        """A new incarnation, which begins at the frontier and sends again what was committed above it."""
        base = f"/v1/clusters/{self.tenant.cluster_id}/tenants/{self.tenant.tenant_id}"
        with client(self.url) as c:
            self.incarnation = c.send("POST", f"{base}/stores/{STORE}/incarnations")["incarnation"]
            self.checkpoint = min(int(entry["durable_ts"]) for entry in c.get(f"{base}/frontier"))
        self.seq = 0

    def summary(self) -> dict[str, Any]:
        with client(self.url) as c:
            return dict(c.get(f"/v1/clusters/{self.tenant.cluster_id}/tenants/{self.tenant.tenant_id}"))

    @property
    def resolved_ts(self) -> int:
        return int(self.summary()["resolved_ts"])

    def tick(self) -> int:
        """A sound file with one more row, after all that the frontier lacks; its cut_ts."""
        commit_ts = tso.compose(now_ms())
        self.written.append((record_key(100, len(self.written)), commit_ts))
        first = self.seq == 0
        rows = [row for row in self.written if row[1] > self.checkpoint] if first else self.written[-1:]
        self.put(rows, cut_ts=commit_ts, resolved_ts=commit_ts)
        return commit_ts

    def put(self, rows: list[tuple[bytes, int]], *, cut_ts: int, resolved_ts: int) -> str:
        """A file with these timestamps, without the checks of an honest pusher; its key."""
        self.seq += 1
        key = BatchKey(tenant=self.tenant, store_id=STORE, incarnation=self.incarnation, seq=self.seq)
        head = {"file": "batch", "cluster": self.tenant.cluster_id, "tenant": self.tenant.tenant_id, "store": STORE}
        head |= {"incarnation": self.incarnation, "seq": self.seq, "cut_ts": cut_ts, "write_id": "by hand"}
        writer = SegmentFileWriter(head)
        writer.add("rows", pa.RecordBatch.from_pylist([_row(*row) for row in rows], schema=ROWS))
        mark = {"region_id": 1, "version": 1, "start_key": b"", "end_key": b"", "row_offset": 0, "row_count": len(rows)}
        mark |= dict.fromkeys(("subscription_open_ts", "subscription_ready_ts", "checkpoint_ts"), self.checkpoint)
        writer.add("regions", pa.RecordBatch.from_pylist([{**mark, "resolved_ts": resolved_ts}], schema=REGIONS))
        self.bucket.put(str(key), writer.finish())
        return str(key)


def _row(key: bytes, commit_ts: int) -> dict[str, Any]:
    row = {"kind": RowKind.COMMITTED, "op": Op.PUT, "key": key, "start_ts": commit_ts - 1, "commit_ts": commit_ts}
    return row | {"generation": 0, "value": b"v", "old_value": None, "expire_ts": 0, "flags": 0}


@dataclass(frozen=True, slots=True)
class Service:
    """A running service, and its durable state."""

    url: str
    catalog: Catalog
    bucket: LocalStore
    restart: Callable[[], None]
    alive: Callable[[], bool]  #: whether no process has ended by itself

    def pusher(self, tenant_id: int) -> Pusher:
        started = Pusher(Tenant(1, tenant_id), self.url, self.bucket)
        started.begin()
        return started

    def log(self, tenant: Tenant) -> list[tuple[bytes, int]]:
        """(key, commit_ts) of every row in the log, in the order of the log's segments."""
        source, versions = SegmentSource(self.bucket), []
        for segment in find_segments(self.catalog, tenant, after_ts=0, upto_ts=tso.TSO_END - 1, limit=100_000):
            rows = source.rows(segment)
            versions += list(zip(rows["key"].to_pylist(), rows["commit_ts"].to_pylist(), strict=True))
        return versions

    def problems(self, code: str = "") -> list[dict[str, Any]]:
        """What /healthz and the workers' reports show."""
        with client(self.url) as c:
            workers = [c.get(f"/v1/workers/{w['worker_id']}") for w in c.get("/v1/workers")["items"]]
            shown = [*c.get("/healthz")["problems"], *(p for w in workers for p in w["problems"])]
        return [p for p in shown if code in ("", p["code"])]

    def quarantine(self, pusher: Pusher) -> dict[str, Any]:
        """The tenant's only quarantine."""
        with client(self.url) as c:
            tenant = f"/v1/clusters/{pusher.tenant.cluster_id}/tenants/{pusher.tenant.tenant_id}"
            quarantines = c.get(f"{tenant}/quarantines")["items"]
        return dict(quarantines[0]) if quarantines else {}

    def problem(self, key: str) -> dict[str, Any]:
        """The dispatcher's problem that names the object."""
        shown = self.problems()
        of_dispatcher = [p for p in shown if p["facts"].get("object") == key and p["source"].startswith("dispatcher")]
        return dict(of_dispatcher[0]) if of_dispatcher else {}


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Service]:
    settings = folder / "tistream.toml"
    settings.write_text(f"[catalog]\nclock_skew_max_ms = {int(SKEW_S * 1000)}\n")
    with Up(folder, "--config", str(settings)) as up:
        catalog = Catalog(f"sqlite:///{folder}/data/catalog.db")

        def restart() -> None:
            assert up.stop() == 0
            up.start()
            wait_until_ready(up)

        yield Service(up.url, catalog, LocalStore(folder / "data" / "bucket"), restart, lambda: up.alive)
        catalog.close()


@contextmanager
def on_mariadb(folder: Path) -> Iterator[Service]:
    settings = {"TISTREAM_CATALOG_CLOCK_SKEW_MAX_MS": str(int(SKEW_S * 1000))}
    with mariadb() as database, ServiceCluster(folder, new_database(database, "clock"), settings) as cluster:
        names = ("meta-1", "api-1", "dispatcher-1", "sorter-1")
        cluster.start(*names)

        def restart() -> None:
            for name in names[2:]:
                assert cluster.processes[name].stop() == 0
            cluster.start(*names[2:])

        def alive() -> bool:
            return all(cluster.processes[name].alive for name in names)

        yield Service(cluster.url, cluster.catalog, LocalStore(folder / "bucket"), restart, alive)


@contextmanager
def ticking(pusher: Pusher) -> Iterator[None]:
    """Meanwhile a sound file every 0.3 s."""
    over = threading.Event()

    def push() -> None:
        while not over.wait(0.3):
            pusher.tick()

    thread = threading.Thread(target=push)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("service", [on_sqlite, on_mariadb])
def test_timestamps_of_the_future_harm_no_neighbour_and_lose_nothing(
    tmp_path: Path, service: Callable[[Path], Any]
) -> None:
    with service(tmp_path) as here:
        neighbour, near, hostile = here.pusher(1), here.pusher(2), [here.pusher(n) for n in range(3, 8)]
        everyone = (neighbour, near, *hostile)
        for pusher in everyone:
            pusher.tick()
        eventually(lambda: all(p.resolved_ts >= p.written[0][1] for p in everyone), "a first file is not served")
        with ticking(neighbour):
            attacked = attacks(hostile)
            count_when_due(here, near)
            assert_named(here, attacked)
            assert_served(here, neighbour)
            restart(here, neighbour)
            assert_served(here, neighbour)
            assert_named(here, attacked)
            for pusher in hostile:
                assert pusher.resolved_ts == pusher.written[0][1], "later files of the store wait behind the bad one"
                pusher.restart()
            for pusher in (near, *hostile):
                pusher.tick()
            eventually(lambda: all(is_served(p) for p in (near, *hostile)), "a restarted pusher is not served")
            assert_served(here, neighbour)
        eventually(lambda: is_served(neighbour), "the neighbour's last file is not served")
        for pusher in everyone:
            assert sorted(here.log(pusher.tenant)) == sorted(pusher.written), "lost, or twice"
        commits = [commit_ts for _, commit_ts in here.log(NEIGHBOUR)]
        assert commits == sorted(commits)
        assert here.alive()


def test_a_store_against_its_own_promise_is_held_until_it_is_rejected(tmp_path: Path) -> None:
    with on_mariadb(tmp_path) as here:
        neighbour, hostile = here.pusher(1), here.pusher(2)
        neighbour.tick()
        for _ in range(2):
            served_ts = hostile.tick()
            eventually(lambda: is_served(hostile), "a sound file is not served")
        beyond = page_of(here, hostile).next_cursor
        good_ts = served_ts - 2
        with ticking(neighbour):
            key = hostile.put([(record_key(100, 50), good_ts + 1)], cut_ts=served_ts + 1, resolved_ts=served_ts + 1)
            eventually(lambda: here.quarantine(hostile).get("object") == key, f"no quarantine names {key}")
            quarantine = assert_held(here, hostile, key, good_ts, beyond)
            assert_served(here, neighbour)
            restart(here, neighbour)
            assert assert_held(here, hostile, key, good_ts, beyond) == quarantine
            assert_served(here, neighbour)
            where = ("-c", "1", "-t", "2", "--url", here.url)
            with TiStreamProcess("store", "quarantine", "reject", f"{STORE}", *where, log=tmp_path / "cli.log") as cli:
                assert cli.wait(60) == 0, cli.output()
            eventually(lambda: here.quarantine(hostile)["state"] == "rejected", "it is not decided")
            hostile.restart()
            hostile.tick()
            eventually(lambda: is_served(hostile), "the restarted pusher is not served")
            eventually(lambda: not here.problems("TS-1068"), "its problem stays")
            assert page_of(here, hostile, cursor=beyond).resolved_ts >= hostile.written[-1][1]
        eventually(lambda: is_served(neighbour), "the neighbour's last file is not served")
        for pusher in (neighbour, hostile):
            assert sorted(here.log(pusher.tenant)) == sorted(pusher.written), "lost, or twice"
        assert here.alive()


def page_of(here: Service, pusher: Pusher, cursor: str | None = None) -> Page:
    """A page of the tenant, from the beginning or from a cursor."""
    with client(here.url) as c:
        return c.tenant(pusher.tenant.cluster_id, pusher.tenant.tenant_id).page(format="raw-arrow", cursor=cursor)


def assert_held(here: Service, hostile: Pusher, key: str, good_ts: int, beyond: str) -> dict[str, Any]:
    """The problem names tenant, store and object; pulls end at `good_ts`, and a cursor beyond is refused."""
    eventually(lambda: here.problems("TS-1068"), "no problem is shown")
    for problem in here.problems("TS-1068"):
        named = {name: problem["facts"][name] for name in ("tenant", "store", "object")}
        assert named == {"tenant": str(hostile.tenant), "store": f"{STORE}", "object": key}
    assert page_of(here, hostile).resolved_ts == hostile.resolved_ts == good_ts
    with pytest.raises(BeyondQuarantine) as refused:
        page_of(here, hostile, cursor=beyond)
    assert refused.value.code == "TS-1017"
    return here.quarantine(hostile)


def attacks(hostile: list[Pusher]) -> list[tuple[Pusher, str, str]]:
    """Each pusher writes a bad file and a good one behind it: (pusher, bad object, code of its problem)."""
    now, hour_ahead = tso.compose(now_ms()), tso.compose(now_ms() + 3_600_000)
    timestamps = [  # cut_ts, resolved_ts, code
        (now, 2**64 - 1, "TS-1020"),
        (2**64 - 1, now, "TS-1020"),
        (now, hour_ahead, "TS-1020"),
        (2**63 - 1, 2**63 - 1, "TS-1067"),
        (hour_ahead, hour_ahead, "TS-1067"),
    ]
    attacked = []
    for pusher, (cut_ts, resolved_ts, code) in zip(hostile, timestamps, strict=True):
        attacked.append((pusher, pusher.put([], cut_ts=cut_ts, resolved_ts=resolved_ts), code))
        pusher.tick()
    return attacked


def count_when_due(here: Service, near: Pusher) -> None:
    """A file a few seconds ahead waits, and counts once its time has come."""
    due_ts = tso.compose(now_ms() + int(AHEAD_S * 1000))
    row = record_key(100, 99), due_ts - 1
    key = near.put([row], cut_ts=due_ts, resolved_ts=due_ts)
    eventually(lambda: here.problem(key).get("code") == "TS-1067", f"{key} is not named")
    assert near.resolved_ts == near.written[0][1]
    eventually(lambda: near.resolved_ts == due_ts, "the file does not count")
    assert tso.physical_ms(due_ts) - SKEW_S * 1000 <= now_ms()
    eventually(lambda: not here.problem(key), "its problem stays")
    near.written.append(row)


def assert_named(here: Service, attacked: list[tuple[Pusher, str, str]]) -> None:
    """The problem of each bad file names tenant, store and object, and what is wrong."""
    for pusher, key, code in attacked:
        eventually(lambda: here.problem(key).get("code") == code, f"no problem {code} names {key}")  # noqa: B023
        problem = here.problem(key)
        assert problem["source"] == f"dispatcher-1/{pusher.tenant}/store-{STORE}"
        if code == "TS-1067":
            assert problem["facts"]["tenant"] == str(pusher.tenant)
            assert problem["facts"]["time"] > problem["facts"]["counts_at"]


def is_served(pusher: Pusher) -> bool:
    return pusher.resolved_ts >= pusher.written[-1][1]


def restart(here: Service, neighbour: Pusher) -> None:
    """Restart the processes, and wait until they serve the neighbour: how long a start takes depends on the machine."""
    before = neighbour.written[-1][1]
    here.restart()
    eventually(lambda: neighbour.resolved_ts > before, "the restarted processes serve nothing")


def assert_served(here: Service, neighbour: Pusher) -> None:
    """The neighbour advances: what is committed now is served, and it has no lag but its own."""
    committed = neighbour.written[-1][1]
    eventually(lambda: neighbour.resolved_ts > committed, "the neighbour is stalled")
    eventually(lambda: neighbour.summary()["lag_s"] < 10, "the neighbour's lag has grown")
    assert here.alive()
