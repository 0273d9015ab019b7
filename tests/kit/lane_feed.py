"""Changefeeds over a log of a test, the workers that write them, and clusters to write to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from apiserver.control.changefeed_control import ChangefeedControl, ChangefeedSettings
from destinations.letters.place import open_letters
from destinations.opening import open_destination
from destinations.protocol import DeadLetters, Destination
from reading.served.services import Services
from replicator.lane_run import LaneRun
from schemas.registry.schema_registry import SchemaRegistry
from simulator.raw_workload import RawProfile, raw_cluster
from simulator.serve.served import CLUSTER_ID, ServedCluster
from tests.kit.catalog_cases import elected
from tests.kit.log_builder import LogBuilder
from tests.kit.manual_clock import ManualClock
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.lanes import LaneAssignment, LaneJob, assign_lanes, lane_places, lanes_of, list_lanes
from tistream.catalog.work.workers import register_worker
from tistream.clock import Clock, SystemClock
from tistream.ids import Tenant
from tistream.limits import LANE_LEASE_MS
from tistream.objectstore.protocol import ObjectStore
from tistream.outbound.policy import NO_TERMS, OPERATED
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient

T = Tenant(1, 1)
FEED = "dr"


def letters_of_operators(job: LaneJob, uri: str, clock: Clock) -> DeadLetters:
    """The place of a lane's dead letters, as an operator may name it."""
    return open_letters(uri, clock, OPERATED)


def control_of(catalog: Catalog, store: ObjectStore, clock: Clock | None = None) -> ChangefeedControl:
    """The control plane of changefeeds."""
    clock = clock or SystemClock()
    return ChangefeedControl(catalog=catalog, clock=clock, registry=SchemaRegistry(catalog, store), outbound=NO_TERMS)


def open_operated(catalog: Catalog, job: LaneJob, clock: Clock | None = None) -> Destination:
    """The destination of a lane, as an operator may name it."""
    lane, row = job.lane, get_tenant(catalog, job.lane.tenant)
    where = lane.tenant, lane.changefeed_id, lane.number, job.lanes
    return open_destination(job.sink_uri, row, *where, clock or SystemClock(), OPERATED)


def give_lanes(catalog: Catalog, worker: str) -> None:
    """All lanes to this worker."""
    given = [LaneAssignment(place.lane_id, worker, place.epoch, place.tenant) for place in lane_places(catalog)]
    assign_lanes(catalog, given, leader_epoch=elected(catalog))


class Feed:
    """A changefeed with one lane over a log, and its workers, one after the other."""

    def __init__(self, catalog: Catalog, log: LogBuilder, wanted: ChangefeedSettings | None) -> None:
        """`wanted`: None if the catalog has the changefeed already."""
        self.catalog, self.clock = catalog, ManualClock(tso.physical_ms(tso.compose(SystemClock().unix_ms())))
        self.services = Services.create(catalog, log.store, self.clock)
        self.control = control_of(catalog, log.store, self.clock)
        self.look_first: Callable[[], None] = lambda: None  #: of the workers
        if wanted is not None:
            assert self.control.create(T, FEED, None, wanted, lanes=1, actor="")[0]
        self.incarnations = {name: register_worker(catalog, name, "replicate", "") for name in ("a", "b")}

    def run(self, worker: str, number: int = 0) -> LaneRun:
        """The lane is this worker's, and the one before can no longer write."""
        give_lanes(self.catalog, worker)
        job = next(
            job for job in lanes_of(self.catalog, worker, self.incarnations[worker]) if job.lane.number == number
        )
        made = LaneRun(
            self.services, self.clock, job, self._open, letters_of_operators, random.Random(1), self.look_first
        )
        now_s = self.clock.monotonic()
        assert made.seen(job, now_s, now_s)
        self.clock.advance(LANE_LEASE_MS / 1000)
        assert made.seen(job, self.clock.monotonic(), self.clock.monotonic())
        return made

    def write(self, run: LaneRun, turns: int = 60) -> None:
        """As far as the log is there."""
        with closing(run):
            for _ in range(turns):
                if run.core.checkpoint_ts >= self.services.served(T).resolved:
                    break
                run.core.confirmed(self.clock.monotonic())
                self.clock.advance(run.turn(lambda: self.services.served(T)))

    @property
    def lane(self) -> Any:
        (lane,) = list_lanes(self.catalog, T, FEED)
        return lane

    @property
    def dead_letters(self) -> int:
        return CHANGEFEEDS.get(self.catalog, T, FEED).dead_letters

    @property
    def is_done(self) -> bool:
        return bool(CHANGEFEEDS.get(self.catalog, T, FEED).checkpoint_ts == self.services.served(T).resolved)

    def _open(self, job: LaneJob) -> Destination:
        return open_operated(self.catalog, job, self.clock)


@contextmanager
def keyspaces(cluster_id: int = CLUSTER_ID, *, api: Api = Api.V2, **ids: int) -> Iterator[ServedCluster]:
    """A cluster with these keyspaces; one of API V1 has none."""
    profile = RawProfile(keyspaces=tuple(ids.values()))
    model = raw_cluster(profile, floor_ts=tso.compose(SystemClock().unix_ms()), regions=3)
    named = ids if api is Api.V2 else None
    with ServedCluster(model, api=api, keyspaces=named, cluster_id=cluster_id) as served:
        yield served


@contextmanager
def raw_client(served: ServedCluster, space: RawSpace) -> Iterator[RawClient]:
    """A client of a cluster's RawKV."""
    clock = SystemClock()
    with closing(PdClient([served.pd_address])) as pd, closing(RawClient(pd, space, clock=clock)) as client:
        yield client


def scanned(client: RawClient) -> dict[bytes, bytes]:
    """All entries."""
    pages = list(client.scan())
    return {k: v for page in pages for k, v in zip(page.keys.to_pylist(), page.values.to_pylist(), strict=True)}


@contextmanager
def recovery() -> Iterator[ServedCluster]:
    """A cluster whose stores have no expiry."""
    model = raw_cluster(RawProfile(keyspaces=(1,)), floor_ts=tso.compose(SystemClock().unix_ms()), regions=2)
    with ServedCluster(model, api=Api.V1, plain_boundaries=True, steps_per_s=0, seed=9) as served:
        yield served
