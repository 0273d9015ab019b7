"""The processes of a run: their parts, and what a process does when one of its parts has stopped.

They are wired as `tistream.cli.assembly` wires them, over the simulated store, catalog and network. A process
whose part has ended by an error ends, as the command line's does; the supervisor in `world` restarts it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from compactor.core.plan import PlanRow, PlanSettings
from compactor.job import Executor, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from compactor.task import Failed, RangeResult
from dispatcher.tail import TailTiming
from dispatcher.worker import DispatcherWorker
from metaserver.loop import MetaWorker
from pusher.control import ControlUnavailable, IncarnationGrant, PushBundle
from pusher.frontier import FrontierEntry, FrontierReader
from pusher.worker import PusherWorker
from reading import position
from reading.deps import Services
from reading.pull import PullRequest, pull
from reading.reader import LogReader
from reading.scope import Scope
from replicator.worker import ReplicationWorker
from simulator.dst import future, threads
from simulator.dst.database import SimCatalog
from simulator.dst.job_rules import LEASE_MS
from simulator.dst.members import consume
from simulator.dst.network import SimFeed
from simulator.dst.raw_floors import give_up
from simulator.dst.raw_reading import feed_of, read_at_random
from simulator.dst.replication import control
from simulator.dst.scheduler import Process
from simulator.dst.shaping import shape
from simulator.dst.store import SimStore
from simulator.dst.upstream import SimSource
from sorter.worker.spill import Spill
from sorter.worker.worker import SorterWorker
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work import jobs
from tistream.catalog.work.drain import drain
from tistream.catalog.work.job_rows import JobCounts, JobExecutor, JobKind, NewJob
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation
from tistream.catalog.work.tasks import frontier
from tistream.errors import BeyondQuarantine, CatalogUnavailable, ErrorKind, Fenced, LogAmended, TiStreamError
from tistream.ids import Tenant
from tistream.objectstore.protocol import Admit
from tistream.runtime.service import Problem, Service

TENANT = Tenant(1, 1)
_SCOPE = Scope(tenant=TENANT)
_LOOK_EVERY_S = 0.5
_DRAIN_S = 5.0


class SimClock:
    """The clock of one process."""

    def __init__(self, process: Process, unix_ms: Callable[[], int], skew_ms: int) -> None:
        self._scheduler, self._unix_ms, self._skew_ms = process.scheduler, unix_ms, skew_ms

    def monotonic(self) -> float:
        return self._scheduler.now

    def unix_ms(self) -> int:
        return self._unix_ms() + self._skew_ms

    def wait(self, event: Any, seconds: float) -> bool:
        return bool(event.wait(seconds))


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


class Hosts(Protocol):
    """The parts of the world that a process needs."""

    profile: Any
    network: Any
    cluster: Any
    oracle: Any
    bucket: Any
    database: Any
    scheduler: Any
    resting: bool
    neighbours: Any
    lies: Any
    follower: Any
    members: Any
    raw: Any
    replication: Any

    def tso(self) -> int: ...
    def unix_ms(self) -> int: ...
    def tell(self, text: str) -> None: ...
    def ended(self, process: Process, error: BaseException | None) -> None: ...


@dataclass(slots=True)
class Running:
    """A process that was started."""

    process: Process
    number: int
    role: str
    name: str
    stopping: Any
    service: Service | None = None


def run_role(world: Hosts, running: Running) -> None:
    """The first thread of a process."""
    process = running.process
    catalog, store = SimCatalog(world.database), SimStore(world.bucket)
    rand = random.Random(world.scheduler.rand.random())
    clock = SimClock(process, world.unix_ms, rand.randrange(-2000, 2001))
    try:
        if running.role == "pusher":
            _push(world, running, catalog, store, clock, rand)
        elif running.role == "reader":
            _read(world, running, catalog, store, clock, rand)
        elif running.role == "follower":
            _follow(world, running, catalog, store, clock)
        elif running.role == "neighbour":
            world.neighbours.push(catalog, store, running.stopping)
        elif running.role == "future":
            future.push(TENANT, catalog, store, running.stopping, rand, world.unix_ms(), world.tell)
        elif running.role == "compactor":
            _compact(world, running, catalog, store, clock, rand)
        elif running.role == "retainer":
            give_up(world, running.stopping, TENANT, catalog, store, clock, rand)
        elif running.role == "member":
            consume(world, running, TENANT, catalog, store, clock, rand)
        elif running.role == "shaper":
            shape(world, running.stopping, catalog, TENANT, rand)
        elif running.role == "controller":
            control(world, running, TENANT, catalog, clock, rand)
        else:
            _serve(world, running, catalog, store, clock)
    except TiStreamError as e:
        world.ended(process, e)
    else:
        world.ended(process, None)


def _service(world: Hosts, running: Running, catalog: SimCatalog, store: SimStore, clock: SimClock) -> Service:
    profile = world.profile
    if running.role == "meta":
        return MetaWorker(
            catalog,
            store,
            clock,
            f"{running.name}-{running.number}",
            profile.data_tasks,
            interval_s=0.6,
            collect_interval_s=profile.collect_s,
            grace_ms=profile.grace_ms,
            skew_max_ms=profile.skew_ms,
        )
    if running.role == "dispatcher":
        worker = DispatcherWorker(
            catalog,
            store,
            clock,
            running.name,
            timing=TailTiming(poll_s=0.2, gap_after_s=1.0, list_every_s=4.0, retry_s=0.5),
            cache_bytes=40_000,
            reclaim_s=1.0,
            skew_max_ms=profile.skew_ms,
        )
        world.network.dispatchers[running.process] = worker
        return worker
    if running.role == "replicator":
        seed = world.scheduler.rand.random()
        replicating: Service = world.replication.worker(running.name, catalog, store, clock, random.Random(seed))
        return replicating
    return SorterWorker(
        catalog,
        store,
        SimFeed(world.network, catalog),
        clock,
        worker_id=running.name,
        flush_interval_s=profile.flush_s,
        snapshot_interval_s=profile.snapshot_s,
        spill=None if profile.memory_bytes is None else Spill(profile.memory_bytes),
    )


def _serve(world: Hosts, running: Running, catalog: SimCatalog, store: SimStore, clock: SimClock) -> None:
    service = running.service = _service(world, running, catalog, store, clock)
    service.start()
    while not running.stopping.wait(_LOOK_EVERY_S):
        fatal = next((p for p in service.problems() if _ends(p)), None)
        if fatal is not None:
            service.stop()
            raise _error_of(fatal)
    if isinstance(
        service, DispatcherWorker | SorterWorker | ReplicationWorker
    ):  # as the command line does after SIGTERM
        never: Any = threads.Event()
        drain(catalog, service, clock, _DRAIN_S, never)
    service.stop()


def _ends(problem: Problem) -> bool:
    """Whether a process with this problem ends, as the command line's does."""
    return problem.fatal and not getattr(problem, "contained", False)


def _error_of(problem: Problem) -> TiStreamError:
    if problem.code == Fenced.code:
        return Fenced(problem.message)
    return TiStreamError(f"{problem.source}: {problem.message}", **{"code": problem.code})


def _push(
    world: Hosts, running: Running, catalog: SimCatalog, store: SimStore, clock: SimClock, rand: random.Random
) -> None:
    control = SimControl(catalog)
    source = SimSource(
        world.cluster,
        int(running.name.rpartition("-")[2]),
        world.scheduler,
        world.tso,
        tick_s=world.profile.tick_s,
        scan_rows=rand.choice(world.profile.scan_rows),
        habits=world.profile.habits,
        lies=world.lies,
        **feed_of(world),
    )
    worker = PusherWorker(
        source=source,
        control=control,
        frontier=FrontierReader(control, clock),
        store=store,
        clock=clock,
        rand=rand,
        queue_bytes_max=world.profile.queue_bytes,
    )
    try:
        worker.start(running.stopping)
        while not running.stopping.is_set():
            worker.step(0.2)
    finally:
        worker.close()


def _compact(
    world: Hosts, running: Running, catalog: SimCatalog, store: SimStore, clock: SimClock, rand: random.Random
) -> None:
    """Compactions, one after the other, as Spark would run them: some parts twice, concurrently. A job that fails is
    dropped; the next one plans again."""
    once = LocalExecutor(store)

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
                _do_job(running, catalog, executor, settings, clock)
            else:
                compact_tenant(catalog, TENANT, executor, settings, clock)
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT, ErrorKind.NOT_FOUND, ErrorKind.FENCED):
                raise


def _do_job(running: Running, catalog: SimCatalog, executor: Executor, settings: JobSettings, clock: SimClock) -> None:
    """Record a job as the leader would, lease one, do it, and end it. An error leaves it to the next lease."""
    leader = get_leader(catalog)
    if leader is not None:
        jobs.enqueue(catalog, [NewJob(tenant=TENANT, kind=JobKind.MERGE)], leader_epoch=leader.epoch)
    job = jobs.lease(catalog, running.process.name, [JobExecutor.THREADS], lease_ms=LEASE_MS)
    if job is not None:

        def progress(done: int, total: int) -> None:
            jobs.renew(catalog, job, done=done, total=total)

        report = compact_tenant(catalog, TENANT, executor, settings, clock, progress=progress)
        jobs.finish(catalog, job, JobCounts(bytes_read=report.bytes_before), outcome=str(job.epoch))


class _FarStore(SimStore):
    """The bucket as a reader has it: its requests take `slow_s` longer, at most."""

    def __init__(self, bucket: Any, slow_s: float, rand: random.Random) -> None:
        super().__init__(bucket)
        self._slow_s, self._rand = slow_s, rand

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        if self._slow_s:
            self._bucket.scheduler.sleep(self._slow_s * self._rand.random())
        return super().get(key, admit)


def _read(
    world: Hosts, running: Running, catalog: SimCatalog, store: SimStore, clock: SimClock, rand: random.Random
) -> None:
    """Pulls: continues at its cursor, or restarts at an old one or from the beginning."""
    if world.raw is not None:
        reader = LogReader(catalog, _FarStore(world.bucket, world.profile.reader_slow_s, rand), clock)
        read_at_random(world, running.stopping, running.name, TENANT, catalog, reader, rand)
        return
    services = Services.create(catalog, _FarStore(world.bucket, world.profile.reader_slow_s, rand), clock)
    cursors: list[str] = []
    while not running.stopping.wait(0.3 + rand.random() * 2):
        start = rand.choice([cursors[-1], rand.choice(cursors), None]) if cursors else None
        try:
            found = read_once(world, services, running.name, start, rand.choice([1, 3, 10_000]))
        except BeyondQuarantine:
            if world.lies.late is None:
                cursors.clear()  # the reader waits at the beginning until an operator has decided
            continue
        except LogAmended as e:
            _check_refusal(world, running.name, str(start), e)
            cursors.clear()
            continue
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                raise
            continue
        if found is not None:
            cursors.append(found[2])


def _follow(world: Hosts, running: Running, catalog: SimCatalog, store: SimStore, clock: SimClock) -> None:
    """Pulls page after page, keeps all rows, and reads again from where a refusal says."""
    services, kept = Services.create(catalog, store, clock), world.follower
    while not running.stopping.wait(0.4):
        try:
            row = get_tenant(catalog, TENANT)
            if not row.start_ts:
                continue
            kept.start_ts = row.start_ts
            kept.at = max(kept.at, row.start_ts)
            seen, good_ts = world.oracle.served_max, world.oracle.good_ts()
            answer = pull(services, _request(kept.cursor, str(kept.at), 5))
        except BeyondQuarantine:
            continue  # its cursor is above what is good: it waits until an operator has decided
        except LogAmended as e:
            _check_refusal(world, running.name, str(kept.cursor), e)
            kept.rewind(int(str(e.facts["from_ts"])))
            world.tell(f"{running.name} reads again from {kept.at}")
            continue
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                raise
            continue
        kept.pages.append(pa.ipc.open_stream(answer.content).read_all())
        kept.cursor = answer.next_cursor
        kept.at, kept.amended = position.read_cursor(answer.next_cursor, _SCOPE)
        rows = pa.concat_tables(kept.pages)
        world.oracle.pulled(running.name, rows, kept.start_ts, kept.at, answer.resolved_ts, seen, kept.amended)
        world.oracle.held(running.name, max(kept.at, answer.resolved_ts), good_ts)


def _check_refusal(world: Hosts, who: str, cursor: str, error: LogAmended) -> None:
    """A cursor is refused only if its reader may lack a row."""
    at, from_ts = position.decode_cursor(cursor, _SCOPE), int(str(error.facts["from_ts"]))
    if not world.lies.late.refuses_rightly(from_ts, at):
        world.oracle.violated(f"late: the cursor of {who} at {at} is refused, but lacks nothing: {error}")


def _request(cursor: str | None, start_ts: str, limit: int) -> PullRequest:
    start = None if cursor else start_ts
    return PullRequest(scope=_SCOPE, start_ts=start, cursor=cursor, format="arrow", options={}, limit=limit)


def read_once(
    world: Hosts, services: Services, who: str, start: str | None, limit: int
) -> tuple[pa.Table, int, str] | None:
    """One pull, handed to the oracle; (rows, up to where, the next cursor), None before the tenant has begun."""
    row = get_tenant(services.catalog, TENANT)
    if not row.start_ts:
        return None
    after = row.start_ts if start is None else position.decode_cursor(start, _SCOPE)
    seen, good_ts = world.oracle.served_max, world.oracle.good_ts()
    answer = pull(services, _request(start, "earliest", limit))
    rows = pa.ipc.open_stream(answer.content).read_all()
    upto, amended = position.read_cursor(answer.next_cursor, _SCOPE)
    world.oracle.pulled(who, rows, after, upto, answer.resolved_ts, seen, amended)
    world.oracle.held(who, max(upto, answer.resolved_ts), good_ts)
    return rows, upto, answer.next_cursor
