"""Maintenance jobs on their executors: done once, given back, taken over, and stopped when their lease is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.local import LocalExecutor
from compactor.maintenance import MaintenanceWork, Plans
from compactor.worker import JobDone, JobRun, MaintenanceWorker, Progress
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.catalog_cases import elected, shift
from tests.kit.log_builder import TENANT
from tests.kit.open_folder import OpenFolder
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.database import tables
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.compaction import pieces
from tistream.catalog.rows.jobs import JobExecutor, JobKind, JobLimits, JobRow, JobState, NewJob
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.work.job_rows import get_job, list_jobs
from tistream.catalog.work.jobs import cancel_job, enqueue, lease
from tistream.catalog.work.stopped_items import list_stopped_items
from tistream.catalog.work.workers import list_workers
from tistream.clock import SystemClock
from tistream.errors import CatalogUnavailable, StoreUnavailable
from tistream.limits import JOB_LEASE_MS
from tistream.ts import TS_MAX

PLANS = Plans(merge=PlanSettings(inputs_min=2), bases=BasePlanSettings(tail_bytes_min=0))
NO_LAG = JobLimits(lag_ms=0)
CLOCK = SystemClock()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, OpenFolder()) as new_world:
        new_world.log.build(20)
        yield new_world


def order(world: ApiWorld, kind: JobKind = JobKind.MERGE) -> int:
    job = NewJob(tenant=TENANT, kind=kind, limits=NO_LAG)
    (job_id,) = enqueue(world.catalog, [job], leader_epoch=elected(world.catalog))
    return job_id


def doing(world: ApiWorld) -> MaintenanceWork:
    return MaintenanceWork(world.catalog, world.store, CLOCK, lambda progress: LocalExecutor(world.store), PLANS)


def taken(world: ApiWorld, holder: str = "e1/1 0") -> JobRow:
    job = lease(world.catalog, holder, [JobExecutor.THREADS])
    assert job is not None
    return job


def expire(world: ApiWorld, job: JobRow) -> None:
    of = tables.jobs.c
    shift(world.catalog, of.renewed_ms, -JOB_LEASE_MS - 1000, of.job_id == job.job_id)


def count(world: ApiWorld) -> int:
    return len(pieces(world.catalog, TENANT, upto_ts=TS_MAX, limit=999))


@contextmanager
def working(world: ApiWorld, work: Callable[[JobRow, Progress], JobDone], **more: float) -> Iterator[MaintenanceWorker]:
    worker = MaintenanceWorker(world.catalog, CLOCK, "e1", work, poll_s=0.05, slots=2, **more)  # type: ignore[arg-type]
    worker.start()
    try:
        assert worker.wait_until_ready(20)
        yield worker
    finally:
        worker.stop()


def test_a_worker_does_the_jobs_of_the_catalog_and_says_what_it_saved(world: ApiWorld) -> None:
    before = count(world)
    merge, bases = order(world), order(world, JobKind.BASES)
    with working(world, doing(world)) as worker:
        eventually(lambda: {j.state for j in list_jobs(world.catalog)} == {JobState.DONE})
        me = next(w for w in list_workers(world.catalog) if w.worker_id == "e1")
        assert (me.kind, me.state, worker.problems()) == (WorkerKind.MAINTAIN, WorkerState.UP, [])
    done = get_job(world.catalog, merge)
    assert (done.outcome, done.tries, done.holder, done.code) == ("committed", 1, done.holder, "")
    assert done.counts.objects_before - done.counts.objects_after == before - count(world) > 10
    assert done.counts.bytes_read > 0 < done.counts.requests_saved
    assert done.parts_done == done.parts_total
    assert get_job(world.catalog, bases).outcome == "committed"
    assert list_bases(world.catalog, TENANT)
    assert next(w for w in list_workers(world.catalog) if w.worker_id == "e1").state == WorkerState.GONE
    again = order(world)
    JobRun(world.catalog, CLOCK, taken(world)).run(doing(world))
    assert (get_job(world.catalog, again).outcome, get_job(world.catalog, again).counts.bytes_read) == (
        "nothing to do",
        0,
    )


def test_an_executor_that_died_after_it_published_leaves_nothing_to_do(world: ApiWorld) -> None:
    job_id = order(world)
    doing(world)(taken(world), lambda done, total: None)
    merged = count(world)
    expire(world, get_job(world.catalog, job_id))
    JobRun(world.catalog, CLOCK, taken(world, "e2")).run(doing(world))
    row = get_job(world.catalog, job_id)
    assert (row.state, row.outcome, row.tries, count(world)) == (JobState.DONE, "nothing to do", 2, merged)


def test_two_executors_with_one_job_publish_it_once(world: ApiWorld) -> None:
    """The first one's lease runs out while its files are ready and not yet visible."""
    job_id, whole = order(world), count(world)
    ready, go = threading.Event(), threading.Event()

    def slow(job: JobRow, progress: Progress) -> JobDone:
        def stopping(done: int, total: int) -> None:
            if done == total > 0:
                ready.set()
                assert go.wait(WAIT_S)  # a pause of the machine: no renewal is seen, and none is asked for

        return doing(world)(job, stopping)

    ended: list[JobState | None] = []
    first = JobRun(world.catalog, CLOCK, taken(world), renew_s=999)
    thread = threading.Thread(target=lambda: ended.append(first.run(slow)))
    thread.start()
    assert ready.wait(WAIT_S)
    expire(world, first.job)
    assert JobRun(world.catalog, CLOCK, taken(world, "e2")).run(doing(world)) is JobState.DONE
    merged = count(world)
    assert merged < whole
    go.set()
    thread.join(WAIT_S)
    assert ended == [None], "fenced"
    row = get_job(world.catalog, job_id)
    assert (row.epoch, row.holder, count(world)) == (2, "e2", merged)
    assert row.counts.objects_before - row.counts.objects_after == whole - merged


def test_work_stops_when_its_job_is_cancelled(world: ApiWorld) -> None:
    job_id, whole = order(world), count(world)
    run = JobRun(world.catalog, CLOCK, taken(world), renew_s=0.02)

    def work(job: JobRow, progress: Progress) -> JobDone:
        cancel_job(world.catalog, job_id)

        def stopped() -> bool:
            progress(1, 2)
            return False

        eventually(stopped)
        raise AssertionError("it was never stopped")

    assert run.run(work) is None
    assert (get_job(world.catalog, job_id).state, count(world)) == (JobState.CANCELLED, whole)


def test_a_job_is_given_back_when_its_executor_ends(world: ApiWorld) -> None:
    """One that stops when it is asked to, and one that does not."""
    jobs, hung = [order(world), order(world, JobKind.BASES)], threading.Event()

    def work(job: JobRow, progress: Progress) -> JobDone:
        while True:
            if job.kind is JobKind.MERGE:
                progress(0, 1)
            if hung.wait(0.01):
                return JobDone(outcome="late")

    with working(world, work, stop_s=0.3) as worker:
        eventually(lambda: len(worker.running) == 2)
    rows = [get_job(world.catalog, job_id) for job_id in jobs]
    assert [(r.state, r.tries, r.due_ms <= r.read_ms) for r in rows] == [(JobState.QUEUED, 0, True)] * 2
    hung.set()


@pytest.mark.parametrize(
    ("error", "state", "tries"),
    [(StoreUnavailable("the bucket is away"), JobState.QUEUED, 1), (RuntimeError("a defect"), JobState.QUEUED, 1)],
)
def test_an_error_is_recorded_with_its_job_and_ends_no_other(
    world: ApiWorld, error: Exception, state: JobState, tries: int
) -> None:
    bad, good = order(world), order(world, JobKind.BASES)

    def work(job: JobRow, progress: Progress) -> JobDone:
        if job.job_id == bad:
            raise error
        return doing(world)(job, progress)

    with working(world, work) as worker:
        eventually(lambda: get_job(world.catalog, good).state is JobState.DONE)
        eventually(lambda: get_job(world.catalog, bad).error != "")
        assert worker.problems() == []
    row = get_job(world.catalog, bad)
    assert (row.state, row.tries, str(error) in row.error, row.due_ms > row.read_ms) == (state, tries, True, True)


def test_a_job_of_which_all_is_damaged_fails_and_names_the_object(world: ApiWorld) -> None:
    for key in [k for k in world.store.objects if k.startswith("committed/")]:  # type: ignore[attr-defined]
        world.store.delete(key)
    job_id = order(world)
    assert JobRun(world.catalog, CLOCK, taken(world)).run(doing(world)) is JobState.FAILED
    row = get_job(world.catalog, job_id)
    assert (row.state, row.code, row.tries) == (JobState.FAILED, "TS-1031", 1)
    assert "committed/" in row.error
    assert [s.stopped.role for s in list_stopped_items(world.catalog, TENANT)] == ["compaction"]


def test_an_end_is_recorded_when_the_catalog_answers_again(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, failures = order(world), [3]
    whole = world.catalog.transaction
    run = JobRun(world.catalog, CLOCK, taken(world), renew_s=999)

    def work(job: JobRow, progress: Progress) -> JobDone:
        monkeypatch.setattr(world.catalog, "transaction", away)
        return JobDone(outcome="done")

    def away() -> object:
        failures[0] -= 1
        if failures[0] >= 0:
            raise CatalogUnavailable(determinate=True)
        return whole()

    assert run.run(work) is JobState.DONE
    assert get_job(world.catalog, job_id).outcome == "done"
