"""The upkeep of logs: the scheduler's jobs, whose work takes long, and an operator who pauses tenants and cancels jobs.

the tenant   RawKV, with a retention of some seconds: bases of its keys, a floor that follows them, merges
a neighbour  its log has lost a part as large as what one job may read; the rest of it can be merged
a job        its files lie in the bucket for longer than the collector's grace before they are published
at rest      what is due gets done: a base and the floor pass the moment when faults ended, the neighbour's files are
             merged but for those around the lost ones, and no job of before is open. `job_rules` sees the rest: jobs
             of paused tenants, and work that is thrown away
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import compactor.worker
import metaserver.core.maintenance
import metaserver.needs
import tistream.catalog.work.jobs
from backfill.core.plan import ReplayPlanRow
from backfill.job import ReplayWork
from backfill.replay import PartitionResult, replay_partition
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.local import LocalExecutor
from compactor.maintenance import MaintenanceWork, Plans
from compactor.worker import ALL_KINDS, JobDone, JobRun, MaintenanceWorker, Progress
from metaserver.core.maintenance import MaintenanceRules, ReplayMode
from simulator.dst.aspect import Aspect
from simulator.dst.bounds import patched
from simulator.dst.catalog_rules import BEFORE
from simulator.dst.database import SimCatalog
from simulator.dst.harm import HarmKind
from simulator.dst.job_rules import LEASE_MS
from simulator.dst.running import TENANT, Running, serve
from tistream import ts as tso
from tistream.catalog.log.committed import TaskAdvance, commit_flush
from tistream.catalog.rows.jobs import JobKind, JobRow
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.rows.segments import segment_in
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import change_state, register_tenant, set_retention
from tistream.catalog.work.jobs import cancel_job, lease
from tistream.catalog.work.tasks import list_tasks
from tistream.codec.committed_file import build_committed_file
from tistream.errors import ErrorKind, StateForbids, TiStreamError
from tistream.ids import Tenant
from tistream.model import change
from tistream.objectstore.layout import CommittedKey
from tistream.objectstore.protocol import ObjectStore

if TYPE_CHECKING:
    from simulator.dst.world import World

LOSER = Tenant(1, 6)  #: the neighbour with a lost part
KEPT_S = 3
FILES, LOST = 44, 16  # of the neighbour's log, and those of them that are lost, oldest first
_TARGET = 12_000  # bytes of a merged file
_PIECES_MIN = 4
_PREFIX = b"r\0\0\6"

RULES = MaintenanceRules(
    lag_ms=100,
    pause_ms=200,
    hold_off_ms=400,
    threads_job_bytes=10_000,
    merge_pieces_min=2 * _PIECES_MIN,
    task_pieces_min=_PIECES_MIN,
    tail_bytes_min=1,
    tail_ratio=0.2,
    base_window_ms=1000,
    replay=ReplayMode.RUN,
    replay_lag_ms=1200,
    replay_bytes_min=1,
)
_PLANS = Plans(
    merge=PlanSettings(target_bytes=_TARGET, inputs_min=_PIECES_MIN), bases=BasePlanSettings(tail_bytes_min=0)
)


class _Slow(LocalExecutor):
    """Threads whose files lie about for a while before the driver receives them."""

    def __init__(self, store: ObjectStore, wait: Callable[[], None]) -> None:
        super().__init__(store)
        self._wait = wait

    def __call__(self, rows: Sequence[Any]) -> Iterator[Any]:
        return self._late(super().__call__(rows))

    def bases(self, rows: Sequence[Any]) -> Iterator[Any]:
        return self._late(super().bases(rows))

    def _late(self, results: Iterable[Any]) -> Iterator[Any]:
        ready = list(results)
        self._wait()
        yield from ready


class Upkeep(Aspect):
    """What the rules of one run know."""

    def __init__(self, world: World) -> None:
        self._world, rand = world, random.Random(f"{world.seed}/upkeep")
        grace_s = world.profile.grace_ms / 1000
        self._pauses = rand.choice(((1.3 * grace_s,), (0.1, 0.6), (0.1, 0.6, 1.3 * grace_s)))
        self._pausing = rand.random() < 0.5
        self._rest_ts = 0
        self._lost: set[str] = set()

    def meta(self, running: Running) -> Mapping[str, Any]:
        del running
        return {
            "maintenance": RULES,
            "maintenance_interval_s": 0.4,
            "retention_hours": 24,
            "retention_interval_s": 0.4,
        }

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"maintainer": self._maintain, "keeper": self._operate}

    def processes(self) -> Iterable[tuple[str, str]]:
        executors = [("maintainer", f"maintainer-{i + 1}") for i in range(self._world.profile.maintainers)]
        return [*executors, ("keeper", "keeper-1")]

    def patched(self) -> AbstractContextManager[None]:
        """Leases of jobs and pauses between them as short as those of the run's processes."""
        return patched(
            (
                (compactor.worker, "JOB_LEASE_MS", LEASE_MS),
                (compactor.worker, "lease", partial(lease, lease_ms=LEASE_MS)),
                (compactor.worker, "JobRun", partial(JobRun, renew_s=LEASE_MS / 4000)),
                (metaserver.core.maintenance, "_HELD_MS_MIN", 600),
                (metaserver.needs, "_HELD_S_MIN", 0.3),
                (tistream.catalog.work.jobs, "_PAUSE_MS", 300),
            )
        )

    def rest(self) -> None:
        self._rest_ts = tso.compose(self._world.unix_ms())

    def settle(self) -> None:
        self._world.until(lambda: not self.due(), "rest: what is due is not done")

    def begin(self, catalog: SimCatalog) -> None:
        """The retention of the tenant, and the neighbour with its log."""
        set_retention(catalog, TENANT, KEPT_S)
        register_tenant(catalog, LOSER, kind=TenantKind.RAW, keyspace=Keyspace(id=6))
        (task,) = (row for row in list_tasks(catalog, LOSER) if row.range.start.startswith(b"r"))
        rand, bucket = random.Random(6), self._world.bucket
        first_ts = tso.compose(self._world.unix_ms() - 60_000)
        seen = task.durable_ts
        for n in range(1, FILES + 1):
            upto = first_ts + n * tso.compose(1000)
            key = CommittedKey(tenant=LOSER, sorter=BEFORE, incarnation=1, seq=n)
            data, segments = build_committed_file(key, [(task.task_id, _rows(upto, rand))], f"past-{n}")
            bucket.objects[str(key)] = (bytes(data), self._world.unix_ms())
            advance = TaskAdvance(
                task_id=task.task_id,
                epoch=task.epoch,
                seen_durable_ts=seen,
                new_durable_ts=upto,
                segments=tuple(segment_in(str(key), info) for info in segments[task.task_id]),
            )
            commit_flush(catalog, tenant=LOSER, objects={str(key): len(data)}, advances=[advance])
            seen = upto
            if n <= LOST:
                self._lost.add(str(key))
        bucket.harms.kinds |= dict.fromkeys(self._lost, HarmKind.MISSING)

    def _maintain(self, running: Running) -> None:
        """A process that does jobs."""
        world, rand = self._world, random.Random(running.number)
        catalog, store, clock = running.catalog, running.store, running.clock

        def wait() -> None:
            world.scheduler.sleep(rand.choice(self._pauses))

        def partitions(rows: Sequence[ReplayPlanRow], progress: Progress) -> Iterator[PartitionResult]:
            for n, row in enumerate(rows, 1):
                result = replay_partition(store, row, f"{rand.getrandbits(64):016x}")
                wait()
                yield result
                progress(n, len(rows))

        compacting = MaintenanceWork(catalog, store, clock, lambda _: _Slow(store, wait), _PLANS)
        replaying = ReplayWork(catalog, store, clock, partitions, 2)

        def work(job: JobRow, progress: Progress) -> JobDone:
            return (replaying if job.kind is JobKind.REPLAY else compacting)(job, progress)

        worker = MaintenanceWorker(catalog, clock, running.name, work, kinds=ALL_KINDS, slots=2, poll_s=0.2, stop_s=1.0)
        serve(running, worker)

    def _operate(self, running: Running) -> None:
        """Pause the tenant at times, and cancel jobs."""
        world, stopping, catalog, rand = self._world, running.stopping, running.catalog, running.rand
        while not stopping.wait(0.5 + rand.random() * 2) and not world.resting:
            if self._pausing and rand.random() < 0.6:
                self._move(catalog, TenantState.ACTIVE, TenantState.PAUSED)
                stopping.wait(1.0 + rand.random() * 3)
                self._resume(catalog)
                continue
            for (job_id,) in world.database.query("SELECT job_id FROM jobs WHERE state = 'running' LIMIT 1"):
                try:
                    cancel_job(catalog, job_id)
                    world.tell(f"an operator cancels job {job_id}")
                except StateForbids:
                    pass  # it has just ended
                except TiStreamError as e:
                    if e.kind is not ErrorKind.RETRY:
                        raise
        self._resume(catalog)
        while not stopping.wait(60):
            pass

    def _resume(self, catalog: SimCatalog) -> None:
        while self._world.database.query("SELECT 1 FROM tenants WHERE tenant_id = 1 AND state = 'PAUSED'"):
            self._move(catalog, TenantState.PAUSED, TenantState.ACTIVE)

    def _move(self, catalog: SimCatalog, seen: TenantState, to: TenantState) -> None:
        try:
            change_state(catalog, TENANT, seen=seen, to=to, reason="an operator")
            self._world.tell(f"an operator moves the tenant to {to}")
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise

    def due(self) -> list[str]:
        """At rest: what is not done yet."""
        query = self._world.database.query
        missing: list[str] = []
        ((base_ts,),) = query("SELECT coalesce(max(ts), 0) FROM bases WHERE tenant_id = 1")
        if base_ts < self._rest_ts:
            missing.append(f"the newest base is {self._age(base_ts)} older than the rest")
        ((floor_ts,),) = query("SELECT floor_ts FROM tenants WHERE tenant_id = 1")
        if floor_ts < self._rest_ts:
            missing.append(f"the floor is {self._age(floor_ts)} below the rest")
        for stretch in self._small():
            if len(stretch) >= RULES.merge_pieces_min + _PIECES_MIN:
                missing.append(f"{len(stretch)} small files of {LOSER} are not merged, from {stretch[0]} on")
        rest_ms = tso.physical_ms(self._rest_ts)
        for job_id, kind, state, error in query(
            "SELECT job_id, kind, state, error FROM jobs WHERE open_key IS NOT NULL AND created_ms < ?", rest_ms
        ):
            missing.append(f"job {job_id} of kind {kind} is {state} {error}")
        return missing

    def _age(self, ts: int) -> str:
        return f"{tso.physical_ms(self._rest_ts) - tso.physical_ms(ts)} ms"

    def _small(self) -> list[list[str]]:
        """Small adjacent files of the lossy log that can be read, between those that cannot or are full."""
        stretches: list[list[str]] = [[]]
        for key, nbytes in self._world.database.query(
            "SELECT object_key, bytes FROM objects WHERE tenant_id = 6 AND state = 'live' AND kind IN "
            "('committed', 'compacted') ORDER BY (SELECT min(lo_ts) FROM segments s WHERE s.object_key = "
            "objects.object_key)"
        ):
            if key in self._lost or 2 * nbytes >= _TARGET:
                stretches.append([])
            else:
                stretches[-1].append(key)
        return stretches


def _rows(upto: int, rand: random.Random) -> pa.Table:
    """One write just below `upto`, of a kilobyte that does not shrink."""
    row = {
        "table_id": 0,
        "op": 1,
        "key": _PREFIX + rand.randbytes(4).hex().encode(),
        "start_ts": upto - 1,
        "commit_ts": upto - 1,
        "value": rand.randbytes(900),
        "old_value": None,
        "expire_ts": 0,
        "flags": change.FLAG_OLD_VALUE_UNKNOWN,
    }
    return pa.Table.from_pylist([row], schema=change.COMMITTED)
