"""A cluster to look at and to steer, without its processes: workers that reported, holes of each cause, events.

    with operated(folder) as world:
        world.http.get("/v1/gaps")

Tenant 1/1 is the recording's with four data tasks: one goes on, one waits for a region of a silent store, one has a
part that nobody spoke of, one belongs to a sorter that is not heard of any more. Tenant 2/7 has a task that stopped,
with words that look like markup. Tenant 1/2 awaits its snapshot. Tenant 2/8 is paused. A thread beats for the living.
Maintenance jobs: 1 is done, 2 failed, 3 runs, 4 is queued and 5 is offered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.testclient import TestClient

from apiserver.app import create_app
from tests.kit.answer_judge import judged
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.assignments import assign_store, assign_task
from tests.kit.catalog_cases import elected, shift
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tistream.catalog.database import tables
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.rows.jobs import JobCounts, JobExecutor, JobKind, NewJob
from tistream.catalog.rows.reports import StoreReport, StuckReport, TaskReport, WorkerReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.tenancy.tenants import change_state, register_tenant
from tistream.catalog.work.jobs import enqueue, fail, finish, lease, renew
from tistream.catalog.work.stores import issue_incarnation, note_cut_ts
from tistream.catalog.work.tasks import list_tasks, stop_task
from tistream.catalog.work.workers import drain_worker, heartbeat, register_worker
from tistream.errors import invariant
from tistream.ids import Tenant
from tistream.limits import LEASE_MS

AWAITING, STOPPED, PAUSED = Tenant(1, 2), Tenant(2, 7), Tenant(2, 8)
HOSTILE = "the prewrite of <script>document.title='owned'</script> & \"others\" is missing"
SILENT_MS = 41_000
_BEAT_S = 1.0


@dataclass
class Operated:
    """See the module."""

    world: ApiWorld
    http: TestClient  #: of an app with the operators' routes
    leader_epoch: int
    lives: dict[str, int]  #: incarnation of each worker
    tasks: list[TaskRow]  #: the data tasks of tenant 1/1 in key order

    def beat(self, worker_id: str, report: WorkerReport | None = None) -> None:
        """A heartbeat, now."""
        heartbeat(self.world.catalog, worker_id, self.lives[worker_id], report)

    def silence(self, worker_id: str) -> None:
        """Make the worker one that is not heard of any more."""
        of = tables.workers.c
        shift(self.world.catalog, of.heartbeat_ms, -LEASE_MS - SILENT_MS, of.worker_id == worker_id)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Heartbeats of everybody who lives, from a thread, for as long as the block takes."""
        ended = threading.Event()

        def beat() -> None:
            living = tables.workers.update().where(tables.workers.c.worker_id != "sorter-3")
            while not ended.wait(_BEAT_S):
                with self.world.catalog.transaction() as conn:
                    conn.execute(living.values(heartbeat_ms=now_ms()))
                    conn.execute(tables.leader.update().values(heartbeat_ms=now_ms()))

        thread = threading.Thread(target=beat, name="heartbeats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def operated(folder: Path) -> Iterator[Operated]:
    """The cluster over a SQLite catalog in `folder`."""
    with api_world(folder) as world:
        catalog = world.catalog
        epoch = elected(catalog)
        kinds = {"sorter-1": "sorter", "sorter-2": "sorter", "sorter-3": "sorter", "sorter-4": "sorter"}
        kinds |= {"dispatcher-1": "dispatcher", "dispatcher-2": "dispatcher", "api-1": "api", "meta-1": "meta"}
        lives = {name: register_worker(catalog, name, kind, f"{name}.example:9000") for name, kind in kinds.items()}
        world.log.data_tasks = 4
        world.log.build(10, upto=world.log.cuts(3)[1])
        _give(world, epoch)
        register_tenant(catalog, AWAITING)
        LogBuilder(catalog, world.store, tenant=STOPPED).activate()
        task = list_tasks(catalog, STOPPED)[3]
        invariant(stop_task(catalog, task.task_id, epoch=task.epoch, error=HOSTILE), "the task is as it was read")
        LogBuilder(catalog, world.store, tenant=PAUSED).activate()
        change_state(catalog, PAUSED, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="upgrade", actor="ann")
        tasks = [t for t in list_tasks(catalog, TENANT) if t.kind is TaskKind.DATA]
        app = create_app(world.services)
        judge = judged(app)
        with TestClient(app, raise_server_exceptions=False) as http:
            deployment = Operated(world, http, epoch, lives, sorted(tasks, key=lambda t: t.range.start))
            _report(deployment)
            _jobs(deployment)
            drain_worker(catalog, "sorter-4", lives["sorter-4"], actor="ann")
            deployment.silence("sorter-3")
            with deployment.beating():
                yield deployment
        judge.check()


def _give(world: ApiWorld, epoch: int) -> None:
    """Tasks and stores to workers."""
    data = sorted((t for t in list_tasks(world.catalog) if t.kind is TaskKind.DATA), key=lambda t: t.range.start)
    owners = ["sorter-1", "sorter-2", "sorter-1", "sorter-3"]
    ddl = [(t, "sorter-2") for t in list_tasks(world.catalog) if t.kind is TaskKind.DDL]
    for task, worker in [*zip(data, owners, strict=True), *ddl]:
        assign_task(world.catalog, task.task_id, worker_id=worker, seen_epoch=task.epoch, leader_epoch=epoch)
    for store_id, dispatcher in ((1, "dispatcher-1"), (3, "dispatcher-1"), (4, "dispatcher-2")):
        issue_incarnation(world.catalog, TENANT, store_id)
        note_cut_ts(world.catalog, TENANT, store_id, recording_end())
        assign_store(world.catalog, TENANT, store_id, worker_id=dispatcher, seen_epoch=0, leader_epoch=epoch)


def _report(deployment: Operated) -> None:
    """What the workers say with their heartbeats."""
    well, waits, unspoken, _ = deployment.tasks
    wait = StuckReport(
        start_key=waits.range.start, end_key=waits.range.end, watermark=waits.durable_ts,
        region_id=12, version=7, store_id=3, file="1/88", reason="",
    )  # fmt: skip
    gap = StuckReport(start_key=unspoken.range.start, end_key=unspoken.range.start + b"_r", watermark=None)
    first = [
        TaskReport(task_id=well.task_id, epoch=1, rows_per_s=5200, bytes_per_s=1.9e6, open_rows=310,
                   held_bytes=9 << 20, watermark=well.durable_ts, split_key=well.range.start + b"_r"),
        TaskReport(task_id=unspoken.task_id, epoch=1, standing_s=3.0, stuck=(gap,)),
    ]  # fmt: skip
    second = TaskReport(task_id=waits.task_id, epoch=1, rows_per_s=12, bytes_per_s=4e3, watermark=waits.durable_ts,
                        standing_s=40.0, stuck=(wait,))  # fmt: skip
    stores = [
        StoreReport(tenant=TENANT, store_id=n, incarnation=1, seq=88, bytes_per_s=8e5, files_per_s=1, silent_s=silent)
        for n, silent in ((1, 0.4), (3, SILENT_MS / 1000))
    ]
    deployment.beat("sorter-1", WorkerReport(bytes_per_s=1.9e6, held_bytes=9 << 20, tasks=tuple(first)))
    deployment.beat("sorter-2", WorkerReport(bytes_per_s=4e3, held_bytes=1 << 20, tasks=(second,)))
    deployment.beat("dispatcher-1", WorkerReport(bytes_per_s=1.6e6, held_bytes=64 << 20, stores=tuple(stores)))


def _jobs(deployment: Operated) -> None:
    """One maintenance job in each state."""
    catalog, mib = deployment.world.catalog, 1 << 20
    merge = NewJob(
        tenant=TENANT, kind=JobKind.MERGE, reason="160 files of 4 tasks, 61.0 MiB: about 150 requests fewer",
        estimated_bytes=61 * mib, estimated_objects=160,
    )  # fmt: skip
    bases = NewJob(tenant=STOPPED, kind=JobKind.BASES, reason="9.0 MiB of log since the newest base")
    seeds = NewJob(
        tenant=STOPPED, kind=JobKind.RETIRE_SEEDS, reason="table shop.orders needs the log of the last 11 min 40 s"
    )
    replay = NewJob(
        tenant=PAUSED, kind=JobKind.REPLAY, executor=JobExecutor.SPARK, offered=True, estimated_bytes=2048 * mib,
        reason="1 h 6 min behind, 2.0 GiB of batch files are unread: tistream replay -c 2 -t 8",
    )  # fmt: skip
    enqueue(catalog, [merge, bases], leader_epoch=deployment.leader_epoch)
    done, failed = (lease(catalog, "maintain-1/1 0", [JobExecutor.THREADS]) for _ in range(2))
    invariant(done is not None and failed is not None, "both are taken")
    counts = JobCounts(
        bytes_read=61 * mib, bytes_written=44 * mib, objects_before=160, objects_after=5, requests_saved=151
    )
    finish(catalog, done, counts, outcome="committed")  # type: ignore[arg-type]
    fail(catalog, failed, code="TS-1020", error=HOSTILE, retryable=False)  # type: ignore[arg-type]
    enqueue(catalog, [merge, seeds, replay], leader_epoch=deployment.leader_epoch)
    running = lease(catalog, "maintain-1/1 0", [JobExecutor.THREADS])
    invariant(running is not None, "it is taken")
    renew(catalog, running, done=3, total=7)  # type: ignore[arg-type]
