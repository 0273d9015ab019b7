"""The maintenance scheduler over real logs: what it counts, what it records, and how the log changes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.core.plan import PlanSettings
from compactor.local import LocalExecutor
from compactor.maintenance import MaintenanceWork as Doing
from compactor.maintenance import Plans
from compactor.worker import JobRun
from metaserver.core.maintenance import MaintenanceRules
from metaserver.maintenance import MaintenanceScheduler
from metaserver.retention import Retention
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.catalog_cases import elected
from tests.kit.log_builder import TENANT
from tests.kit.open_folder import OpenFolder
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.compaction import pieces
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.jobs import JobCounts, JobExecutor, JobKind, JobRow, JobState, NewJob
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant, set_retention
from tistream.catalog.work.job_rows import get_job, list_jobs, open_jobs
from tistream.catalog.work.jobs import cancel_job, enqueue, finish, lease, retry_job
from tistream.catalog.work.stopped_items import list_stopped_items
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.workers import register_worker
from tistream.clock import SystemClock
from tistream.errors import Fenced
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey

CLOCK = SystemClock()
RULES = MaintenanceRules(lag_ms=1500, pause_ms=0, tail_bytes_min=1 << 40)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, OpenFolder()) as new_world:
        yield new_world


def scheduler(world: ApiWorld, rules: MaintenanceRules = RULES) -> MaintenanceScheduler:
    return MaintenanceScheduler(
        world.catalog, world.store, world.services.registry, CLOCK, rules, default_hours=0, name="m1"
    )


def step(world: ApiWorld, rules: MaintenanceRules = RULES) -> list[JobRow]:
    """One round of a scheduler that has just started; the jobs added."""
    return [get_job(world.catalog, n) for n in scheduler(world, rules).step(elected(world.catalog))]


def work(world: ApiWorld) -> JobRow:
    """Do the next job."""
    job = lease(world.catalog, "e1", [JobExecutor.THREADS])
    assert job is not None
    doing = Doing(
        world.catalog,
        world.store,
        CLOCK,
        lambda progress: LocalExecutor(world.store),
        Plans(merge=PlanSettings(inputs_min=4)),
    )
    JobRun(world.catalog, CLOCK, job).run(doing)
    return get_job(world.catalog, job.job_id)


def test_small_files_are_merged_once_and_then_left_alone(world: ApiWorld) -> None:
    world.log.build(60)
    before = len(pieces(world.catalog, TENANT, upto_ts=tso.TS_MAX, limit=999))
    (job,) = step(world)
    assert (job.tenant, job.kind, job.executor, job.state) == (TENANT, JobKind.MERGE, "threads", JobState.QUEUED)
    assert 20 < job.estimated_objects < before
    assert step(world) == [], "it is open"
    done = work(world)
    assert (done.state, done.outcome) == (JobState.DONE, "committed")
    assert done.counts.objects_before > 20 > done.counts.objects_after
    assert step(world) == [], "what is left is not worth a job"


def test_bases_are_built_when_the_log_has_grown(world: ApiWorld) -> None:
    world.log.build(20).seed()
    rules = replace(RULES, tail_bytes_min=1000, merge_pieces_min=999)
    (job,) = step(world, rules)
    assert (job.kind, job.estimated_bytes > 1000) == (JobKind.BASES, True)
    first = work(world)
    assert first.state is JobState.DONE
    assert step(world, replace(rules, tail_bytes_min=4 * job.estimated_bytes)) == []


def test_retention_advances_by_itself_and_retires_the_seed(world: ApiWorld) -> None:
    """Every table's seed holds the floor, until the scheduler has their bases built."""
    world.log.build(40).seed()
    retention = Retention(world.catalog, world.services.registry, default_hours=0)
    set_retention(world.catalog, TENANT, 3)
    retention.step()
    held_at = get_tenant(world.catalog, TENANT).earliest_ts
    assert list_seeds(world.catalog, TENANT)
    (job,) = step(world, replace(RULES, merge_pieces_min=999))
    assert (job.kind, job.limits.due_ms) == (JobKind.RETIRE_SEEDS, 1500)
    assert "needs the log of the last" in job.reason
    assert work(world).outcome == "committed"
    assert list_bases(world.catalog, TENANT)
    set_retention(world.catalog, TENANT, 1)
    retention.step()
    assert get_tenant(world.catalog, TENANT).earliest_ts > held_at
    assert list_seeds(world.catalog, TENANT) == []


def test_jobs_that_wait_for_a_spark_that_left_are_withdrawn_and_stop_nothing(world: ApiWorld) -> None:
    """Eight queued or dead jobs for Spark are as many as may be open."""
    world.log.build(60)
    epoch = elected(world.catalog)
    others = [Tenant(1, n) for n in range(10, 18)]
    for tenant in others:
        register_tenant(world.catalog, tenant)
    new = [NewJob(tenant=t, kind=JobKind.BASES, executor=JobExecutor.SPARK, estimated_bytes=4 << 30) for t in others]
    waiting = enqueue(world.catalog, new, leader_epoch=epoch)
    dead = lease(world.catalog, "spark-1", list(JobExecutor))
    assert dead is not None
    assert dead.job_id == waiting[0]
    assert step(world, replace(RULES, jobs_max=1)) == [], "its lease is alive, and it is the one that may be open"
    _aged(world, 3_600_000)
    (job,) = step(world)
    assert (job.tenant, job.kind) == (TENANT, JobKind.MERGE)
    assert {get_job(world.catalog, n).state for n in waiting} == {JobState.CANCELLED}
    with pytest.raises(Fenced):
        finish(world.catalog, dead, JobCounts())


def _aged(world: ApiWorld, ms: int) -> None:
    """As if all jobs had been recorded and renewed so much earlier."""
    names = ("created_ms", "due_ms", "renewed_ms")
    with world.catalog.transaction() as conn:
        conn.execute(tables.jobs.update().values({name: tables.jobs.c[name] - ms for name in names}))


def test_only_the_elected_leader_records_jobs(world: ApiWorld) -> None:
    world.log.build(60)
    epoch = elected(world.catalog)
    assert scheduler(world).step(epoch - 1) == []
    assert open_jobs(world.catalog) == []
    assert len(scheduler(world).step(epoch)) == 1


def test_a_tenant_that_cannot_be_counted_delays_no_other(world: ApiWorld) -> None:
    world.log.build(60)
    planner = scheduler(world)
    counting, broken = planner._needs.of, Tenant(1, 0)
    register_tenant(world.catalog, broken)

    def of(row: object) -> object:
        if row.tenant == TENANT:  # type: ignore[attr-defined]
            raise KeyError("a defect")
        return counting(row)  # type: ignore[arg-type]

    planner._needs.of = of  # type: ignore[assignment,method-assign]
    assert planner.step(elected(world.catalog)) == []
    (stop,) = list_stopped_items(world.catalog, TENANT)
    assert (stop.stopped.role, stop.stopped.tenant) == ("maintenance", TENANT)
    assert len(planner.problems()) == 1


def test_a_replay_is_offered_where_much_is_unread_and_withdrawn_when_it_is_read(world: ApiWorld) -> None:
    """The recording's log ended long ago: it lags. Only unread batch files are a backlog."""
    world.log.build(4)
    rules = replace(RULES, merge_pieces_min=999, replay_bytes_min=5000)
    assert step(world, rules) == [], "it lags, and nothing is unread"
    incarnation, _ = issue_incarnation(world.catalog, TENANT, 4)
    keys = [str(BatchKey(tenant=TENANT, store_id=4, incarnation=incarnation, seq=n)) for n in (1, 2, 3)]
    for key in keys:
        world.store.put(key, bytes(2000))
    register_worker(world.catalog, "spark-1", WorkerKind.SPARK, "")
    (offer,) = step(world, rules)
    assert (offer.kind, offer.state, offer.executor) == (JobKind.REPLAY, JobState.OFFERED, "spark")
    assert offer.reason.endswith("tistream replay -c 1 -t 1")
    assert lease(world.catalog, "e1", list(JobExecutor), kinds=list(JobKind)) is None, "an operator starts it"
    for key in keys[1:]:
        world.store.delete(key)
    assert step(world, rules) == []
    assert get_job(world.catalog, offer.job_id).state is JobState.CANCELLED
    for key in keys[1:]:
        world.store.put(key, bytes(2000))
    assert step(world, rules) == [], "a withdrawn offer rests"
    retry_job(world.catalog, offer.job_id)
    assert list_jobs(world.catalog)[0].state is JobState.QUEUED
    cancel_job(world.catalog, offer.job_id)
