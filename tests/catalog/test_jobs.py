"""Maintenance jobs: one open job for each purpose, leases with epochs, and ends that take effect once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.kit.catalog_cases import OTHER, T, activate, elected, shift, together
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.rows.jobs import JobCounts, JobExecutor, JobKind, JobLimits, JobRow, JobState, NewJob
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.work.deletion import delete_tenant
from tistream.catalog.work.job_rows import get_job, job_figures, list_jobs, newest_ended, open_jobs
from tistream.catalog.work.jobs import (
    TRIES_MAX,
    cancel_job,
    enqueue,
    fail,
    finish,
    lease,
    prune_jobs,
    release,
    renew,
    retry_job,
)
from tistream.errors import CatalogUnavailable, Fenced, NotFound, StateForbids
from tistream.ids import Tenant
from tistream.limits import JOB_LEASE_MS

BOTH = (JobExecutor.SPARK, JobExecutor.THREADS)
COUNTS = JobCounts(bytes_read=1000, bytes_written=400, objects_before=20, objects_after=1, requests_saved=19)


def merge(tenant: Tenant = T, **more: Any) -> NewJob:
    limits = JobLimits(budget_bytes=1 << 30, lag_ms=5000, task_ids=(3, 9))
    return NewJob(tenant=tenant, kind=JobKind.MERGE, limits=limits, reason="20 small files ✓", **more)


def leased(catalog: Catalog, holder: str = "e1/1 0") -> JobRow:
    job = lease(catalog, holder, BOTH)
    assert job is not None
    return job


@contextmanager
def losing_replies(catalog: Catalog, *, after_commit: bool) -> Iterator[None]:
    """Each COMMIT fails, before or after it took effect."""
    whole = catalog.transaction

    @contextmanager
    def losing() -> Iterator[Connection]:
        with whole() as conn:
            yield conn
            if not after_commit:
                raise CatalogUnavailable(determinate=False)
        raise CatalogUnavailable(determinate=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "transaction", losing)
        yield


class TestEnqueue:
    def test_a_job_is_open_once_for_each_tenant_kind_and_scope(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        jobs_wanted = [merge(estimated_bytes=7, estimated_objects=20), merge(OTHER), merge(scope="task 3")]
        assert len(enqueue(catalog, jobs_wanted, leader_epoch=epoch)) == 3
        assert enqueue(catalog, [*jobs_wanted, merge(scope="task 4")], leader_epoch=epoch) != []
        jobs = open_jobs(catalog)
        assert [(j.tenant, j.scope) for j in jobs] == [(T, ""), (OTHER, ""), (T, "task 3"), (T, "task 4")]
        first = jobs[0]
        assert first.limits == JobLimits(budget_bytes=1 << 30, lag_ms=5000, task_ids=(3, 9))
        assert (first.state, first.reason, first.estimated_bytes) == (JobState.QUEUED, "20 small files ✓", 7)
        assert first.created_ms > 1_600_000_000_000

    def test_it_may_be_enqueued_again_once_it_has_ended(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        enqueue(catalog, [merge()], leader_epoch=epoch)
        finish(catalog, leased(catalog), COUNTS)
        (second,) = enqueue(catalog, [merge()], leader_epoch=epoch)
        assert [j.job_id for j in open_jobs(catalog)] == [second]
        finish(catalog, leased(catalog), COUNTS)
        assert [j.job_id for j in newest_ended(catalog)] == [second]

    def test_only_the_leader_enqueues(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        assert enqueue(catalog, [merge()], leader_epoch=epoch - 1) == []
        assert enqueue(catalog, [merge()], leader_epoch=0) == []
        assert open_jobs(catalog) == []

    def test_two_that_enqueue_together_add_one(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        added = together(4, lambda _: enqueue(catalog, [merge()], leader_epoch=epoch))
        assert sum(len(each) for each in added) == 1
        assert len(open_jobs(catalog)) == 1


class TestLeases:
    def test_the_oldest_job_of_the_executor_is_taken_once(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        new_jobs = [merge(executor=JobExecutor.SPARK), merge(OTHER), NewJob(tenant=T, kind=JobKind.REPLAY)]
        large, small, replay = enqueue(catalog, new_jobs, leader_epoch=epoch)
        job = lease(catalog, "threads", [JobExecutor.THREADS])
        assert job is not None
        assert (job.job_id, job.state, job.epoch, job.tries, job.holder) == (
            small, JobState.RUNNING, 1, 1, "threads",
        )  # fmt: skip
        assert job.started_ms
        assert job.renewed_ms
        assert leased(catalog).job_id == large
        assert lease(catalog, "e1", BOTH) is None, "a replay is taken only by those who ask for it"
        job = lease(catalog, "e1", BOTH, kinds=[JobKind.REPLAY])
        assert job is not None
        assert job.job_id == replay

    def test_executors_that_lease_together_get_different_jobs(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        enqueue(catalog, [merge(Tenant(7, n)) for n in range(3)], leader_epoch=epoch)
        leases = together(5, lambda n: lease(catalog, f"e{n}", BOTH))
        assert sorted(j.tenant.tenant_id for j in leases if j is not None) == [0, 1, 2]

    def test_a_lease_that_ran_out_is_taken_over_and_its_holder_is_fenced(self, catalog: Catalog) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        first = leased(catalog, "e1")
        renew(catalog, first, done=2, total=9)
        row = get_job(catalog, first.job_id)
        assert (row.parts_done, row.parts_total) == (2, 9)
        assert lease(catalog, "e2", BOTH) is None
        shift(catalog, tables.jobs.c.renewed_ms, -JOB_LEASE_MS - 1000, tables.jobs.c.job_id == first.job_id)
        second = leased(catalog, "e2")
        assert (second.epoch, second.tries, second.parts_total) == (2, 2, 0)
        for late in (
            lambda: renew(catalog, first),
            lambda: finish(catalog, first, COUNTS),
            lambda: fail(catalog, first, code="TS-1000", error="late", retryable=True),
            lambda: release(catalog, first),
        ):
            with pytest.raises(Fenced):
                late()
        renew(catalog, second)
        finish(catalog, second, COUNTS)
        assert get_job(catalog, second.job_id).state is JobState.DONE

    def test_a_lease_from_the_future_is_taken_over(self, catalog: Catalog) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        first = leased(catalog, "e1")
        shift(catalog, tables.jobs.c.renewed_ms, 2 * JOB_LEASE_MS, tables.jobs.c.job_id == first.job_id)
        assert leased(catalog, "e2").epoch == 2

    def test_a_job_whose_executors_die_fails_in_the_end(self, catalog: Catalog) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        for n in range(TRIES_MAX):
            job = leased(catalog, f"e{n}")
            assert job.tries == n + 1
            shift(catalog, tables.jobs.c.renewed_ms, -JOB_LEASE_MS - 1000, tables.jobs.c.job_id == job.job_id)
        assert lease(catalog, "e9", BOTH) is None
        row = get_job(catalog, job.job_id)
        assert (row.state, row.epoch, "e4" in row.error) == (JobState.FAILED, TRIES_MAX + 1, True)
        assert [e.kind for e in list_events(catalog, limit=9, kind="job")] == ["job.failed"]
        with pytest.raises(Fenced):
            finish(catalog, job, COUNTS)


class TestEnds:
    def test_a_done_job_keeps_its_counts_and_adds_to_the_totals(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        enqueue(catalog, [merge(), merge(OTHER)], leader_epoch=epoch)
        finish(catalog, leased(catalog), COUNTS, outcome="committed", code="TS-1020", error="one group is damaged")
        finish(catalog, leased(catalog), COUNTS)
        row = list_jobs(catalog, tenant=T)[0]
        assert (row.counts, row.outcome, row.code) == (COUNTS, "committed", "TS-1020")
        assert row.ended_ms >= row.started_ms
        figures = job_figures(catalog)
        assert (figures.by_state, figures.bytes_read, figures.requests_saved) == ({"done": 2}, 2000, 38)

    def test_an_error_pauses_a_job_longer_each_time_and_fails_it_in_the_end(self, catalog: Catalog) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        pauses = []
        for _ in range(TRIES_MAX - 1):
            job = leased(catalog)
            assert fail(catalog, job, code="TS-1031", error="store away", retryable=True) is JobState.QUEUED
            assert lease(catalog, "e1", BOTH) is None
            row = get_job(catalog, job.job_id)
            pauses.append(round((row.due_ms - row.read_ms) / 1000, -1))
            shift(catalog, tables.jobs.c.due_ms, -3_600_000, tables.jobs.c.job_id == job.job_id)
        assert pauses == [10, 40, 160, 600]
        assert fail(catalog, leased(catalog), code="TS-1031", error="store away", retryable=True) is JobState.FAILED
        assert get_job(catalog, job.job_id).error == "store away"
        assert open_jobs(catalog) == []

    def test_an_error_that_a_retry_cannot_help_fails_at_once(self, catalog: Catalog) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        assert fail(catalog, leased(catalog), code="TS-1020", error="damaged", retryable=False) is JobState.FAILED
        (event,) = list_events(catalog, limit=9, kind="job.failed")
        assert (event.tenant, event.detail["error"]) == (T, "TS-1020 damaged")

    def test_a_released_job_is_due_at_once_and_has_lost_no_try(self, catalog: Catalog) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        for n in range(TRIES_MAX + 1):
            job = leased(catalog)
            assert (job.epoch, job.tries) == (n + 1, 1)
            release(catalog, job)

    @pytest.mark.parametrize("end", ["finish", "fail", "give up", "release"])
    @pytest.mark.parametrize("after_commit", [True, False])
    def test_an_end_takes_effect_once_when_its_reply_is_lost(
        self, catalog: Catalog, end: str, after_commit: bool
    ) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        job = leased(catalog)

        def leave() -> None:
            match end:
                case "finish":
                    finish(catalog, job, COUNTS)
                case "release":
                    release(catalog, job)
                case _:
                    fail(catalog, job, code="TS-1031", error="away", retryable=end == "fail")

        with losing_replies(catalog, after_commit=after_commit):
            if after_commit:
                leave()  # read back
            else:
                with pytest.raises(CatalogUnavailable):
                    leave()
                assert get_job(catalog, job.job_id).state is JobState.RUNNING
        leave()
        leave()
        expected = {"finish": JobState.DONE, "give up": JobState.FAILED}.get(end, JobState.QUEUED)
        row = get_job(catalog, job.job_id)
        assert (row.state, row.tries) == (expected, 0 if end == "release" else 1)
        assert job_figures(catalog).bytes_read == (1000 if end == "finish" else 0)
        assert len(list_events(catalog, limit=9, kind="job")) == (end == "give up")

    def test_a_lease_whose_reply_is_lost_is_found_again(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        enqueue(catalog, [merge(), merge(OTHER)], leader_epoch=epoch)
        with losing_replies(catalog, after_commit=True):
            assert leased(catalog).tenant == T
        with losing_replies(catalog, after_commit=False), pytest.raises(CatalogUnavailable):
            leased(catalog)
        assert leased(catalog).tenant == OTHER
        with losing_replies(catalog, after_commit=True), pytest.raises(CatalogUnavailable):
            enqueue(catalog, [merge(scope="task 1")], leader_epoch=epoch)
        assert enqueue(catalog, [merge(scope="task 1")], leader_epoch=epoch) == [], "it is there"


class TestOperators:
    def test_a_cancelled_job_ends_at_once_and_fences_its_executor(self, catalog: Catalog) -> None:
        enqueue(catalog, [merge()], leader_epoch=elected(catalog))
        job = leased(catalog)
        cancel_job(catalog, job.job_id, actor="ann")
        with pytest.raises(Fenced):
            finish(catalog, job, COUNTS)
        assert get_job(catalog, job.job_id).state is JobState.CANCELLED
        with pytest.raises(StateForbids):
            cancel_job(catalog, job.job_id)
        assert list_events(catalog, limit=1)[0].actor == "ann"

    def test_a_failed_job_is_retried_unless_the_same_is_open(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        enqueue(catalog, [merge()], leader_epoch=epoch)
        job = leased(catalog)
        with pytest.raises(StateForbids):
            retry_job(catalog, job.job_id)
        fail(catalog, job, code="TS-1020", error="damaged", retryable=False)
        (second,) = enqueue(catalog, [merge()], leader_epoch=epoch)
        with pytest.raises(StateForbids, match=str(second)):
            retry_job(catalog, job.job_id)
        cancel_job(catalog, second)
        retry_job(catalog, job.job_id, actor="ann")
        again = leased(catalog)
        assert (again.job_id, again.tries, again.epoch) == (job.job_id, 1, 2)
        with pytest.raises(NotFound):
            retry_job(catalog, 999)

    def test_a_deleted_tenant_has_no_open_job(self, catalog: Catalog) -> None:
        activate(catalog)
        enqueue(catalog, [merge(), merge(OTHER)], leader_epoch=elected(catalog))
        job = leased(catalog)
        assert job.tenant == T
        assert delete_tenant(catalog, T, seen=TenantState.ACTIVE)
        assert [j.tenant for j in open_jobs(catalog)] == [OTHER]
        with pytest.raises(Fenced):
            renew(catalog, job)

    def test_jobs_are_listed_in_pages_newest_first(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        ids = enqueue(catalog, [merge(scope=f"task {n}") for n in range(5)], leader_epoch=epoch)
        enqueue(catalog, [NewJob(tenant=OTHER, kind=JobKind.BASES)], leader_epoch=epoch)
        assert [j.job_id for j in list_jobs(catalog, tenant=T, limit=2)] == [ids[4], ids[3]]
        assert [j.job_id for j in list_jobs(catalog, tenant=T, limit=9, below=ids[3])] == ids[2::-1]
        assert [j.tenant for j in list_jobs(catalog, kind=JobKind.BASES)] == [OTHER]
        leased(catalog)
        assert [j.job_id for j in list_jobs(catalog, states=[JobState.RUNNING])] == [ids[0]]
        figures = job_figures(catalog)
        assert figures.by_state == {"queued": 5, "running": 1}
        shift(catalog, tables.jobs.c.created_ms, -60_000, tables.jobs.c.job_id == ids[1])
        assert 60_000 <= job_figures(catalog).oldest_queued_ms < 120_000

    def test_old_and_surplus_jobs_are_pruned_and_open_ones_never(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        ids = []
        for _ in range(5):
            ids += enqueue(catalog, [merge()], leader_epoch=epoch)
            finish(catalog, leased(catalog), COUNTS)
        ids += enqueue(catalog, [merge()], leader_epoch=epoch)
        shift(catalog, tables.jobs.c.created_ms, -90 * 86_400_000, tables.jobs.c.job_id == ids[5])
        assert prune_jobs(catalog, keep=3) == 2
        shift(catalog, tables.jobs.c.ended_ms, -31 * 86_400_000, tables.jobs.c.job_id == ids[3])
        assert prune_jobs(catalog) == 1
        assert [j.job_id for j in list_jobs(catalog)] == [ids[5], ids[4], ids[2]]
        assert job_figures(catalog).requests_saved == 5 * 19
