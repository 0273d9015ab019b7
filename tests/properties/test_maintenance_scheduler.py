"""The maintenance scheduler: no tenant starves, the budget is kept, and nothing is done for nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from metaserver.core import maintenance
from metaserver.core.maintenance import JobsNow, MaintenanceRules, ReplayMode, TaskPieces, TenantNeed, decide
from tests.kit.maintenance_model import Growth, Model, job_row
from tistream.catalog.rows.jobs import JobCounts, JobExecutor, JobKind, JobRow, JobState, NewJob
from tistream.ids import Tenant

MIB = 1 << 20
T, OTHER = Tenant(1, 1), Tenant(1, 2)
USUAL = MaintenanceRules(bytes_per_s=MIB // 2, window_ms=600_000, threads_job_bytes=64 * MIB)
NOW = 10_000_000
MERGE_T = (T, JobKind.MERGE, "")


def small(pieces: int, size: int = 20_000, task: int = 1) -> TaskPieces:
    return TaskPieces(task_id=task, pieces=pieces, stored_bytes=pieces * size)


def ended(kind: JobKind = JobKind.MERGE, tenant: Tenant = T, **more: Any) -> JobRow:
    row = job_row(1, NewJob(tenant=tenant, kind=kind), NOW - 3_000_000)
    facts: dict[str, Any] = {"state": JobState.DONE, "ended_ms": NOW - 2_000_000, "outcome": "nothing to do"}
    return replace(row, **(facts | more))


def one(need: TenantNeed, *jobs: JobRow, **more: Any) -> NewJob:
    """The only job that is wanted."""
    job = job_or_none(need, *jobs, **more)
    assert job is not None
    return job


def job_or_none(need: TenantNeed, *jobs: JobRow, settings: MaintenanceRules = USUAL, **more: object) -> NewJob | None:
    opened = [job for job in jobs if not job.ended_ms]
    decision = decide([need], JobsNow(now_ms=NOW, open=opened, ended=[j for j in jobs if j.ended_ms], **more), settings)  # type: ignore[arg-type]
    assert len(decision.enqueue) <= 1
    return decision.enqueue[0] if decision.enqueue else None


class TestNeed:
    def test_many_small_files_are_merged_and_the_reason_says_what_it_saves(self) -> None:
        need = TenantNeed(tenant=T, tasks=(small(40), small(3, task=2), small(10, task=3)))
        job = one(need)
        assert (job.kind, job.limits.task_ids, job.estimated_objects) == (JobKind.MERGE, (1, 3), 53)
        assert job.estimated_bytes == job.limits.budget_bytes == 50 * 20_000
        assert job.reason == "50 files of 2 tasks, 976.6 KiB: about 48 requests fewer"

    @pytest.mark.parametrize(
        "tasks",
        [
            (),
            (small(15),),
            tuple(small(3, task=n) for n in range(20)),  # too few of each task
            (small(16, 7 * MIB),),  # 112 MiB for 9 requests
        ],
    )
    def test_nothing_is_merged_that_saves_too_little(self, tasks: tuple[TaskPieces, ...]) -> None:
        assert job_or_none(TenantNeed(tenant=T, tasks=tasks)) is None

    def test_what_a_merge_left_alone_counts_only_when_as_many_have_come(self) -> None:
        def after(last: JobRow, pieces: int) -> bool:
            return job_or_none(TenantNeed(tenant=T, tasks=(small(pieces),)), last) is not None

        nothing = ended(estimated_objects=40)
        assert not after(nothing, 40)
        assert not after(nothing, 55)
        assert after(nothing, 56)
        assert after(replace(nothing, ended_ms=NOW - 25 * 3_600_000), 40), "looked at again after a day"
        counts = JobCounts(bytes_read=MIB, objects_before=30, objects_after=2)
        done = ended(estimated_objects=40, outcome="committed", counts=counts)
        whole = replace(done, limits=replace(done.limits, budget_bytes=64 * MIB))
        assert not after(whole, 27)
        assert after(whole, 28)
        assert after(replace(done, limits=replace(done.limits, budget_bytes=MIB)), 16), "its budget was the limit"

    def test_bases_follow_the_growth_of_the_log(self) -> None:
        need = TenantNeed(tenant=T, tail_bytes=10 * MIB, base_bytes=9 * MIB)
        job = one(need)
        assert (job.kind, job.limits.due_ms) == (JobKind.BASES, 0)
        assert job_or_none(replace(need, base_bytes=11 * MIB)) is None
        assert job_or_none(replace(need, tail_bytes=3 * MIB, base_bytes=0)) is None
        nothing = ended(JobKind.BASES, estimated_bytes=6 * MIB)
        assert job_or_none(need, nothing) is None
        assert job_or_none(replace(need, tail_bytes=12 * MIB), nothing) is not None

    def test_a_table_that_holds_the_floor_gets_a_base_before_the_retention_is_over(self) -> None:
        need = TenantNeed(tenant=T, kept_ms=300_000, held_ms=160_000, held_by="table d.t (physical id 7)", tail_bytes=5)
        job = one(need)
        assert (job.kind, job.limits.due_ms, job.limits.lag_ms) == (JobKind.RETIRE_SEEDS, 150_000, 60_000)
        assert "table d.t (physical id 7) needs the log of the last 2 min 40 s" in job.reason
        assert job_or_none(replace(need, held_ms=150_000)) is None
        assert job_or_none(replace(need, kept_ms=0)) is None, "all is kept"
        again = ended(JobKind.RETIRE_SEEDS, outcome="committed", ended_ms=NOW - 74_000)
        assert job_or_none(need, again) is None
        assert job_or_none(need, replace(again, ended_ms=NOW - 76_000)) is not None
        assert job_or_none(need, replace(again, ended_ms=NOW - 76_000, outcome="nothing to do")) is None

    def test_a_replay_is_offered_once_and_withdrawn_when_the_tenant_has_caught_up(self) -> None:
        need = TenantNeed(tenant=T, behind_ms=700_000, backlog_bytes=2048 * MIB)
        job = one(need, spark=True)
        assert (job.kind, job.offered, job.executor) == (JobKind.REPLAY, True, JobExecutor.SPARK)
        assert job.reason == "11 min 40 s behind, 2.0 GiB of batch files are unread: tistream replay -c 1 -t 1"
        offered = job_row(5, job, NOW)
        assert job_or_none(need, offered) is None
        for caught_up in (replace(need, behind_ms=299_000), replace(need, backlog_bytes=MIB)):
            assert decide([caught_up], JobsNow(now_ms=NOW, open=[offered]), USUAL).withdraw == (5,)
        half = replace(need, behind_ms=400_000, backlog_bytes=600 * MIB)
        assert decide([half], JobsNow(now_ms=NOW, open=[offered]), USUAL) == maintenance.Decision()
        started = replace(offered, state=JobState.QUEUED)
        assert decide([caught_up], JobsNow(now_ms=NOW, open=[started]), USUAL).withdraw == ()
        assert job_or_none(need, settings=replace(USUAL, replay=ReplayMode.OFF)) is None
        run = one(need, settings=replace(USUAL, replay=ReplayMode.RUN))
        assert not run.offered
        assert job_or_none(replace(need, backlog_bytes=0)) is None, "it lags for another reason"

    def test_an_offer_takes_no_slot_and_delays_no_merge(self) -> None:
        offered = job_row(5, NewJob(tenant=T, kind=JobKind.REPLAY, offered=True), NOW)
        assert (
            job_or_none(TenantNeed(tenant=T, tasks=(small(40),)), offered, settings=replace(USUAL, jobs_max=1))
            is not None
        )


class TestExecutors:
    def test_large_jobs_are_for_spark_where_there_is_one(self) -> None:
        need = TenantNeed(tenant=T, tasks=(small(40_000),))  # 763 MiB
        wide = replace(USUAL, bytes_per_s=100 * MIB)
        large, slices = one(need, settings=wide, spark=True), one(need, settings=wide)
        assert (large.executor, large.limits.budget_bytes) == (JobExecutor.SPARK, 40_000 * 20_000)
        assert (slices.executor, slices.limits.budget_bytes) == (JobExecutor.THREADS, 64 * MIB)
        few = one(TenantNeed(tenant=T, tasks=(small(40),)), settings=wide, spark=True)
        assert few.executor is JobExecutor.THREADS

    def test_a_job_fits_the_budget_of_a_window(self) -> None:
        need = TenantNeed(tenant=T, tasks=(small(40_000),))
        narrow = replace(USUAL, bytes_per_s=MIB, window_ms=10_000)
        job = one(need, settings=narrow)
        assert job.limits.budget_bytes == 10 * MIB
        assert job_or_none(need, settings=narrow, spent_bytes=MIB) is None


class TestNobodyThere:
    """What waits for an executor that is not there stops nothing else."""

    NEED = TenantNeed(tenant=T, tasks=(small(40),))

    @staticmethod
    def of_spark(number: int, tenant: Tenant, since_ms: int = NOW, kind: JobKind = JobKind.BASES) -> JobRow:
        new = NewJob(tenant=tenant, kind=kind, executor=JobExecutor.SPARK, estimated_bytes=1000 * MIB)
        return job_row(number, new, since_ms)

    @pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
    def test_jobs_for_spark_hold_neither_places_nor_budget_without_one(self, state: JobState) -> None:
        waiting = [replace(self.of_spark(n, Tenant(2, n)), state=state) for n in range(8)]
        spent = sum(job.estimated_bytes for job in waiting)
        assert job_or_none(self.NEED, *waiting, spent_bytes=spent) is not None
        assert job_or_none(self.NEED, *waiting, spent_bytes=spent, spark=True) is None
        alive = [replace(job, state=JobState.RUNNING, renewed_ms=NOW - 1000) for job in waiting]
        assert job_or_none(self.NEED, *alive, spent_bytes=spent) is None, "they are executed"

    def test_jobs_of_paused_tenants_hold_no_places(self) -> None:
        waiting = [job_row(n, NewJob(tenant=Tenant(2, n), kind=JobKind.MERGE), NOW) for n in range(8)]
        assert job_or_none(self.NEED, *waiting) is None
        assert job_or_none(self.NEED, *waiting, paused=frozenset(job.tenant for job in waiting)) is not None

    def test_a_tenant_whose_job_waits_for_spark_gets_those_of_other_kinds(self) -> None:
        bases, merge = (self.of_spark(1, T, kind=kind) for kind in (JobKind.BASES, JobKind.MERGE))
        job = one(self.NEED, bases)
        assert job.kind is JobKind.MERGE
        assert job_or_none(self.NEED, merge) is None, "it is open already"
        assert job_or_none(self.NEED, bases, spark=True) is None

    def test_who_waits_in_vain_is_withdrawn_and_done_by_threads(self) -> None:
        old = NOW - USUAL.hold_off_ms - 1
        waiting = [self.of_spark(1, T, old), self.of_spark(2, OTHER), self.of_spark(3, OTHER, old, JobKind.REPLAY)]
        waiting.append(job_row(4, NewJob(tenant=Tenant(1, 3), kind=JobKind.MERGE), old))
        assert decide([], JobsNow(now_ms=NOW, open=waiting), USUAL).withdraw == (1,)
        assert decide([], JobsNow(now_ms=NOW, open=waiting, spark=True), USUAL).withdraw == ()
        withdrawn = replace(waiting[0], state=JobState.CANCELLED, ended_ms=NOW)
        need = TenantNeed(tenant=T, tail_bytes=10 * MIB)
        assert job_or_none(need, withdrawn) is None, "it rests"
        again = one(need, replace(withdrawn, ended_ms=NOW - USUAL.hold_off_ms))
        assert again.executor is JobExecutor.THREADS


def many(seed: int, **more: object) -> Model:
    """Twenty tenants: some write much, most a little, one fails, and one never needs anything."""
    rand = random.Random(seed)
    growth = {
        Tenant(1, n): Growth(
            rand.choice([1, 2, 6]), rand.choice([2_000, 30_000, 400_000]), tasks=rand.choice([1, 2, 4])
        )
        for n in range(18)
    }
    growth[Tenant(1, 18)] = Growth(6, 30_000, fails=True)
    growth[Tenant(1, 19)] = Growth(0, 1)
    return Model(growth, USUAL, rand=rand, **more)  # type: ignore[arg-type]


def test_no_tenant_starves_when_all_need_more_than_the_budget() -> None:
    model = many(1)
    model.run(360)  # an hour
    waits = {tenant: model.longest_wait_ms(tenant) for tenant, growth in model.growth.items() if growth.files_per_step}
    del waits[Tenant(1, 18)]
    assert max(waits.values()) <= 1_800_000, waits


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_budget_amplification_and_effort_are_bounded(seed: int) -> None:
    model = many(seed)
    model.run(360)
    bound = model.settings.bytes_per_s * model.settings.window_ms // 1000
    assert bound // 2 < model.most_read() <= bound + model.slots * 16 * MIB
    assert model.worst_amplification() <= 1
    failing = [job for job in model.jobs if job.tenant == Tenant(1, 18)]
    rests = [after.created_ms - before.ended_ms for before, after in pairwise(failing)]
    assert rests
    assert min(rests) >= model.settings.hold_off_ms
    assert not [job for job in model.jobs if job.tenant == Tenant(1, 19)]
    done = [job for job in model.jobs if job.state is JobState.DONE]
    idle = [job for job in done if job.outcome == "nothing to do"]
    assert len(idle) <= len(done) // 20


def test_a_log_that_does_not_grow_has_no_job() -> None:
    model = many(4)
    model.run(120)
    model.grows = False
    model.run(600)
    before = len(model.jobs)
    model.run(600)
    assert [j for j in model.jobs[before:] if j.tenant != Tenant(1, 18)] == []


def test_a_decision_that_is_repeated_names_the_same_jobs() -> None:
    model = many(5, decide=lambda *_: maintenance.Decision())
    model.run(5)
    needs, facts = model.needs(), model.known()
    first = decide(needs, facts, USUAL)
    assert len(first.enqueue) > 3
    assert decide(list(reversed(needs)), facts, USUAL) == first
    opened = [job_row(99 + n, new, NOW) for n, new in enumerate(first.enqueue)]
    again = decide(needs, replace(facts, open=[*facts.open, *opened]), USUAL)
    assert not {new.tenant for new in again.enqueue} & {new.tenant for new in first.enqueue}


def test_one_tenant_that_fails_takes_nothing_from_the_others() -> None:
    failing, working = many(6), many(6)
    working.growth[Tenant(1, 18)].fails = False
    done = []
    for model in (failing, working):
        model.run(180)
        done.append(sum(j.state is JobState.DONE and j.tenant != Tenant(1, 18) for j in model.jobs))
    assert done[0] >= done[1]


class TestMutants:
    """Each property is broken by the change that it forbids."""

    @pytest.mark.parametrize(
        ("name", "mutant", "judge"),
        [
            ("_last_ended", lambda tenant, ended: 0, test_no_tenant_starves_when_all_need_more_than_the_budget),
            (
                "_left_alone",
                lambda last, now_ms, counted: 0,
                TestNeed().test_what_a_merge_left_alone_counts_only_when_as_many_have_come,
            ),
            (
                "_rests",
                lambda last, now_ms, settings: False,
                partial(test_budget_amplification_and_effort_are_bounded, 1),
            ),
        ],
    )
    def test_it_is_caught(
        self, name: str, mutant: Callable[..., object], judge: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(maintenance, name, mutant)
        with pytest.raises(AssertionError):
            judge()

    def test_a_scheduler_that_ignores_what_was_spent_is_caught(self) -> None:
        def spendthrift(needs: list[TenantNeed], facts: JobsNow, settings: MaintenanceRules) -> maintenance.Decision:
            return decide(needs, replace(facts, spent_bytes=0), settings)

        model = many(1, decide=spendthrift)
        model.run(360)
        assert model.most_read() > 2 * model.settings.bytes_per_s * model.settings.window_ms // 1000
