"""The processes of a run: their parts, and what a process does when one of its parts has stopped.

They are wired as `tistream.cli.assembly` wires them, over the simulated store, catalog and network. A process
whose part has ended by an error ends, as the command line's does; the supervisor in `world` restarts it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from compactor.core.plan import PlanRow, PlanSettings
from compactor.core.results import RangeResult
from compactor.job import Executor, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from compactor.task import Failed
from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from metaserver.loop import MetaOptions, MetaWorker
from pusher.control import ControlUnavailable, IncarnationGrant, PushBundle
from pusher.frontier import FrontierEntry, FrontierReader
from pusher.worker import PusherWorker
from simulator.dst.database import SimCatalog
from simulator.dst.job_rules import LEASE_MS
from simulator.dst.raw_floors import raise_floors
from simulator.dst.running import TENANT, Running, SimClock, serve
from simulator.dst.shaping import shape
from simulator.dst.upstream import SimSource
from sorter.worker.spill import Spill
from sorter.worker.worker import SorterWorker
from tistream.catalog.rows.jobs import JobCounts, JobExecutor, JobKind, NewJob
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work import jobs
from tistream.catalog.work.features import FEATURES
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation
from tistream.catalog.work.tasks import frontier
from tistream.errors import CatalogUnavailable, ErrorKind, TiStreamError
from tistream.feed.flight import FlightFeed, locate_by_catalog, token_of_catalog
from tistream.ids import Tenant

if TYPE_CHECKING:
    from simulator.dst.world import World


class SimControl:
    """The control plane's answers, made from the catalog as its routes make them; any request may fail."""

    def __init__(self, catalog: SimCatalog) -> None:
        self._catalog = catalog

    @property
    def tenant(self) -> Tenant:
        return TENANT

    def issue_incarnation(self, store_id: int) -> IncarnationGrant:
        incarnation, max_cut_ts = self._ask(lambda: issue_incarnation(self._catalog, TENANT, store_id))
        return IncarnationGrant(incarnation=incarnation, max_cut_ts=max_cut_ts)

    def newest_incarnation(self, store_id: int) -> int:
        return int(self._ask(lambda: newest_incarnation(self._catalog, TENANT, store_id)))

    def frontier(self) -> Sequence[FrontierEntry]:
        rows = self._ask(lambda: frontier(self._catalog, TENANT))
        return [FrontierEntry(range=r.range, durable_ts=r.durable_ts, resubscribe_id=r.resubscribe_id) for r in rows]

    def push_bundle(self) -> PushBundle:
        return PushBundle(object_store="", state=self._ask(lambda: get_tenant(self._catalog, TENANT)).state)

    def _ask(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except CatalogUnavailable as e:
            raise ControlUnavailable(cause=str(e)) from e


def run_role(world: World, running: Running) -> None:
    """The first thread of a process."""
    running.rand = random.Random(world.scheduler.rand.random())
    running.clock = SimClock(running.process, world.unix_ms, running.rand.randrange(-2000, 2001))
    try:
        for aspect in world.aspects:
            aspect.enter(running)
        world.roles[running.role](running)
    except TiStreamError as e:
        world.ended(running.process, e)
    else:
        world.ended(running.process, None)


def roles_of(world: World) -> Mapping[str, Callable[[Running], None]]:
    """The first threads of the processes that any scenario may have."""
    roles: dict[str, Callable[[World, Running], None]] = {
        "meta": _meta,
        "dispatcher": _dispatcher,
        "sorter": _sorter,
        "pusher": _push,
        "compactor": _compact,
        "retainer": raise_floors,
        "shaper": shape,
    }
    return {"reader": world.log.read, **{role: partial(run, world) for role, run in roles.items()}}


def _meta(world: World, running: Running) -> None:
    profile = world.profile
    options = MetaOptions(
        interval_s=0.6,
        data_tasks=profile.data_tasks,
        collect_interval_s=profile.collect_s,
        grace_ms=profile.grace_ms,
        skew_max_ms=profile.skew_ms,
        features=[*FEATURES, *(f for a in world.aspects for f in a.features if f.since <= running.catalog.release)],
        **{name: value for aspect in world.aspects for name, value in aspect.meta(running).items()},
    )
    name = f"{running.name}-{running.number}"
    serve(running, MetaWorker(running.catalog, running.store, running.clock, name, options))


def _dispatcher(world: World, running: Running) -> None:
    worker = DispatcherWorker(
        running.catalog,
        running.store,
        running.clock,
        running.name,
        running.name,
        timing=TailTiming(poll_s=0.2, gap_after_s=1.0, list_every_s=4.0, retry_s=0.5),
        cache_bytes=40_000,
        reclaim_s=1.0,
        skew_max_ms=world.profile.skew_ms,
    )
    world.network.dispatchers[running.process] = worker, running.clock
    serve(running, worker)


def _sorter(world: World, running: Running) -> None:
    profile, catalog, clock = world.profile, running.catalog, running.clock
    worker = SorterWorker(
        catalog,
        running.store,
        FlightFeed(locate_by_catalog(catalog, clock), token_of_catalog(catalog), clock, dial=world.network.dial),
        clock,
        worker_id=running.name,
        flush_interval_s=profile.flush_s,
        snapshot_interval_s=profile.snapshot_s,
        spill=None if profile.memory_bytes is None else Spill(profile.memory_bytes),
    )
    serve(running, worker)


def _push(world: World, running: Running) -> None:
    control, rand = SimControl(running.catalog), running.rand
    source = SimSource(world, int(running.name.rpartition("-")[2]), rand.choice(world.profile.scan_rows))
    worker = PusherWorker(
        source=source,
        control=control,
        frontier=FrontierReader(control, running.clock),
        store=running.store,
        clock=running.clock,
        rand=rand,
        queue_bytes_max=world.profile.queue_bytes,
    )
    try:
        worker.start(running.stopping)
        while not running.stopping.is_set():
            worker.step(0.2)
    finally:
        worker.close()


def _compact(world: World, running: Running) -> None:
    """Compactions, one after the other, as Spark would run them: some parts twice, concurrently. A job that fails is
    dropped; the next one plans again."""
    once, rand = LocalExecutor(running.store), running.rand

    def executor(rows: Sequence[PlanRow]) -> Iterator[RangeResult | Failed]:
        for result in once([*rows, *(row for row in rows if rand.random() < 0.2)]):
            if isinstance(result, Failed) and result.code == TiStreamError.code:  # a defect, no fault of the world
                raise TiStreamError(result.message)
            yield result

    while not running.stopping.wait(world.profile.compact_s * (0.3 + rand.random())):
        settings = JobSettings(
            lag_ms=rand.choice((0, 0, 500)),
            plan=PlanSettings(target_bytes=rand.choice((8_000, 40_000)), inputs_min=rand.choice((2, 2, 3))),
        )
        try:
            if world.profile.jobs:
                _do_job(running, executor, settings)
            else:
                compact_tenant(running.catalog, TENANT, executor, settings, running.clock)
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT, ErrorKind.NOT_FOUND, ErrorKind.FENCED):
                raise


def _do_job(running: Running, executor: Executor, settings: JobSettings) -> None:
    """Record a job as the leader would, lease one, do it, and end it. An error leaves it to the next lease."""
    catalog = running.catalog
    leader = get_leader(catalog)
    if leader is not None:
        jobs.enqueue(catalog, [NewJob(tenant=TENANT, kind=JobKind.MERGE)], leader_epoch=leader.epoch)
    job = jobs.lease(catalog, running.process.name, [JobExecutor.THREADS], lease_ms=LEASE_MS)
    if job is not None:

        def progress(done: int, total: int) -> None:
            jobs.renew(catalog, job, done=done, total=total)

        report = compact_tenant(catalog, TENANT, executor, settings, running.clock, progress=progress)
        jobs.finish(catalog, job, JobCounts(bytes_read=report.bytes_before), outcome=str(job.epoch))
