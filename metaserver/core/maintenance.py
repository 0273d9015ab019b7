"""Decides which maintenance jobs are worth their cost now (pure).

    merge         the small files of tasks, when enough requests are saved for each MiB that is rewritten
    bases         when the log since the newest base has grown to the size of a base
    retire_seeds  bases of tables whose newest base, seed or creation keeps the floor from following the retention
    replay        when a tenant lags and its backlog is large: offered to an operator, or enqueued

- **Need**: a merge counts the pieces that `compactor.core.plan` may merge. What the last merge left alone, because its
  neighbours are full or it is larger than they, counts only when as many again have come. A round of bases that found
  nothing is repeated when the tail has doubled. So there is no job without something to gain, except the one that finds
  that out.
- **Budget**: the jobs of a window read at most `bytes_per_s` times its length, by what ended ones have read and open
  ones may read. A job gets no more than is left; the first in line waits until it fits, so that small jobs do not pass
  large ones for ever.
- **Fairness**: one open job for each tenant, and the tenant whose last job ended longest ago is first. So a tenant in
  need waits for at most one job of each other one.
- **Failures**: a kind that has failed, or was cancelled, rests `hold_off_ms` for that tenant. No other is affected.
- **No executor**: a job that needs Spark where no executor has it, or whose tenant is paused, holds neither a place
  nor a share of the budget, and its tenant gets jobs of other kinds. For Spark it waits `hold_off_ms`; then it is
  withdrawn, and threads do the work in smaller pieces.

Everything is decided from rows of the catalog: a decision that is repeated after a crash, or made by two leaders, names
the same jobs, and each of them is open once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tistream.admin.core.units import bytes_text, duration_text
from tistream.catalog.rows.jobs import JobExecutor, JobKind, JobLimits, JobRow, JobState, NewJob
from tistream.ids import Tenant
from tistream.limits import COMPACTED_FILE_BYTES_TARGET, JOB_LEASE_MS

_MIB = 1 << 20
_TASKS_MAX = 200  # named by one job
_RECHECK_MS = 24 * 3_600_000  # what a job left alone is looked at again
_HELD_MS_MIN, _HELD_MS_MAX = 30_000, 6 * 3_600_000  # between two jobs that let retention advance
_NOTHING = "nothing to do"  # how a job ends that found nothing


class ReplayMode(StrEnum):
    """What happens when a tenant is far behind."""

    OFF = "off"
    OFFER = "offer"  #: a job that an operator starts
    RUN = "run"  #: a job


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRules:
    """When a job is worth its cost, and what all of them may cost."""

    lag_ms: int = 60_000  #: the log within this time of its end is left alone
    jobs_max: int = 8  #: open at once
    bytes_per_s: int = 32 * _MIB  #: read by all jobs, on average over `window_ms`
    window_ms: int = 600_000
    threads_job_bytes: int = 256 * _MIB  #: what one job without Spark reads at most; larger ones are for Spark
    spark_job_bytes: int = 8192 * _MIB
    pause_ms: int = 60_000  #: between two jobs of one kind of a tenant
    hold_off_ms: int = 600_000  #: after a failure
    merge_pieces_min: int = 16  #: of a tenant
    task_pieces_min: int = 4  #: of a task; fewer are left alone
    saved_per_mib_min: float = 0.25  #: requests of a reader of the whole stretch
    tail_bytes_min: int = 4 * _MIB
    tail_ratio: float = 1.0  #: tail / base
    base_window_ms: int = 168 * 3_600_000
    replay: ReplayMode = ReplayMode.OFFER
    replay_lag_ms: int = 600_000
    replay_bytes_min: int = 1024 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPieces:
    """The pieces of a task that may be merged: none of them is full."""

    task_id: int
    pieces: int
    stored_bytes: int

    @property
    def saved(self) -> int:
        """Requests that merging them all saves."""
        return max(0, self.pieces - max(1, -(-self.stored_bytes // COMPACTED_FILE_BYTES_TARGET)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantNeed:
    """A tenant's log, counted."""

    tenant: Tenant
    tasks: tuple[TaskPieces, ...] = ()
    tail_bytes: int = 0  #: of the log above the newest base
    base_bytes: int = 0  #: of an average base
    bases_bytes: int = 0  #: of all tables' newest bases, about
    kept_ms: int = 0  #: retention; 0 = all
    held_ms: int = 0  #: age of what holds the floor for a table, behind the served watermark; 0 = nothing does
    held_by: str = ""
    behind_ms: int = 0  #: lag of the served watermark
    backlog_bytes: int = 0  #: batch files that no task has consumed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsNow:
    """The jobs of the catalog, and the executors that are there."""

    now_ms: int  #: the database's
    open: Sequence[JobRow] = ()
    ended: Sequence[JobRow] = ()  #: the newest of each (tenant, kind, scope)
    spent_bytes: int = 0  #: read by the jobs of the window, those that are open as estimated
    spark: bool = False  #: whether an executor with Spark is alive
    paused: frozenset[Tenant] = frozenset()

    def is_idle(self, job: JobRow) -> bool:
        """Whether the job has no executor, and none can take it now."""
        if job.state is JobState.OFFERED:
            return True
        if job.state is JobState.RUNNING and self.now_ms - job.renewed_ms <= JOB_LEASE_MS:
            return False
        return job.tenant in self.paused or self._lacks_spark(job)

    def waits_in_vain(self, job: JobRow, wait_ms: int) -> bool:
        """Whether a job of the scheduler has waited so long for an executor with Spark."""
        since_ms = max(job.created_ms, job.due_ms, job.renewed_ms)
        long = self.now_ms - since_ms > wait_ms
        return long and job.kind in _MAKERS and self._lacks_spark(job) and self.is_idle(job)

    @property
    def busy(self) -> set[Tenant]:
        """The tenants with a job that is executed or will be."""
        return {job.tenant for job in self.open if not self.is_idle(job)}

    def _lacks_spark(self, job: JobRow) -> bool:
        return not self.spark and job.executor == JobExecutor.SPARK


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the leader records."""

    enqueue: tuple[NewJob, ...] = ()
    withdraw: tuple[int, ...] = ()  #: jobs that are offered and not needed any more, or wait for Spark in vain


def decide(needs: Sequence[TenantNeed], jobs: JobsNow, settings: MaintenanceRules) -> Decision:
    """The jobs to add, first in line first. `needs`: the tenants that were counted just now."""
    ended = {job.key: job for job in jobs.ended}
    busy = jobs.busy
    slots = settings.jobs_max - sum(not jobs.is_idle(job) for job in jobs.open)
    unspent = sum(job.estimated_bytes for job in jobs.open if job.kind in _MAKERS and jobs.is_idle(job))
    left = settings.bytes_per_s * settings.window_ms // 1000 - jobs.spent_bytes + unspent
    chosen: list[NewJob] = []
    for need in sorted(needs, key=lambda n: (_last_ended(n.tenant, jobs.ended), n.tenant)):
        if slots <= len(chosen):
            break
        if need.tenant in busy:
            continue
        job = _wanted(need, ended, jobs, settings)
        if job is None:
            continue
        if job.estimated_bytes > left:
            break
        chosen.append(job)
        left -= job.estimated_bytes
    replays = [_replay(need, ended, jobs, settings) for need in needs]
    caught_up = {need.tenant for need in needs if not _is_behind(need, settings, share=2)}
    withdrawn = [
        job.job_id
        for job in jobs.open
        if (job.state is JobState.OFFERED and job.tenant in caught_up) or jobs.waits_in_vain(job, settings.hold_off_ms)
    ]
    return Decision(enqueue=(*chosen, *(job for job in replays if job is not None)), withdraw=tuple(sorted(withdrawn)))


def _last_ended(tenant: Tenant, ended: Iterable[JobRow]) -> int:
    return max((job.ended_ms for job in ended if job.tenant == tenant), default=0)


def _wanted(
    need: TenantNeed, ended: Mapping[tuple[Tenant, JobKind, str], JobRow], known: JobsNow, settings: MaintenanceRules
) -> NewJob | None:
    """The job of a tenant: of those that it needs, the one of the kind that ran longest ago."""
    jobs: list[tuple[int, NewJob]] = []
    waiting = {job.kind for job in known.open if job.tenant == need.tenant}
    for kind, make in _MAKERS.items():
        last = ended.get((need.tenant, kind, ""))
        if kind not in waiting and not _rests(last, known.now_ms, settings):
            job = make(need, last, known, settings)
            if job is not None:
                jobs.append((0 if last is None else last.ended_ms, job))
    return min(jobs, key=lambda each: each[0])[1] if jobs else None


def _rests(last: JobRow | None, now_ms: int, settings: MaintenanceRules) -> bool:
    if last is None:
        return False
    pause_ms = settings.pause_ms if last.state is JobState.DONE else settings.hold_off_ms
    return 0 <= now_ms - last.ended_ms < pause_ms


def _merge(need: TenantNeed, last: JobRow | None, jobs: JobsNow, settings: MaintenanceRules) -> NewJob | None:
    counted = sum(task.pieces for task in need.tasks)
    if counted - _left_alone(last, jobs.now_ms, counted) < settings.merge_pieces_min:
        return None
    worthy = [
        task
        for task in need.tasks
        if task.pieces >= settings.task_pieces_min
        and task.saved * _MIB >= settings.saved_per_mib_min * task.stored_bytes
    ]
    worthy.sort(key=lambda task: (-task.saved * _MIB / max(1, task.stored_bytes), task.task_id))
    saved, task_ids, total = 0, list[int](), 0
    for task in worthy[:_TASKS_MAX]:
        saved, total = saved + task.saved, total + task.stored_bytes
        task_ids.append(task.task_id)
    if not saved:
        return None
    number = sum(task.pieces for task in worthy[:_TASKS_MAX])
    reason = f"{number} files of {len(task_ids)} tasks, {bytes_text(total)}: about {saved} requests fewer"
    return _sized(need, JobKind.MERGE, total, reason, jobs, settings, objects=counted, task_ids=tuple(sorted(task_ids)))


def _left_alone(last: JobRow | None, now_ms: int, counted: int) -> int:
    """How many of the pieces the last merge left alone. Those that its budget excluded were not."""
    if last is None or last.state is not JobState.DONE or now_ms - last.ended_ms >= _RECHECK_MS:
        return 0
    if last.outcome == _NOTHING:
        return min(counted, last.estimated_objects)
    if not last.counts.objects_before or 2 * last.counts.bytes_read > last.limits.budget_bytes:
        return 0
    return max(0, min(counted, last.estimated_objects - last.counts.objects_before + last.counts.objects_after))


def _bases(need: TenantNeed, last: JobRow | None, jobs: JobsNow, settings: MaintenanceRules) -> NewJob | None:
    wanted = max(settings.tail_bytes_min, int(settings.tail_ratio * need.base_bytes))
    if last is not None and last.state is JobState.DONE and last.outcome == _NOTHING:
        wanted = max(wanted, 2 * last.estimated_bytes if need.tail_bytes >= last.estimated_bytes else 0)
    if need.tail_bytes < wanted:
        return None
    reason = (
        f"{bytes_text(need.tail_bytes)} of log since the newest base, an average base has {bytes_text(need.base_bytes)}"
    )
    return _sized(need, JobKind.BASES, need.tail_bytes, reason, jobs, settings, due_ms=need.kept_ms // 2)


def _retirement(need: TenantNeed, last: JobRow | None, jobs: JobsNow, settings: MaintenanceRules) -> NewJob | None:
    """Half of the retention is left for the job: then the floor never waits for it."""
    if not need.kept_ms or need.held_ms <= need.kept_ms // 2:
        return None
    pause_ms = min(max(need.kept_ms // 4, _HELD_MS_MIN), _HELD_MS_MAX)
    if last is not None and last.outcome == _NOTHING:
        pause_ms *= 4
    if last is not None and 0 <= jobs.now_ms - last.ended_ms < pause_ms:
        return None
    held, kept = duration_text(need.held_ms), duration_text(need.kept_ms)
    reason = f"{need.held_by} needs the log of the last {held}, retention is {kept}"
    total = need.tail_bytes + need.bases_bytes
    return _sized(need, JobKind.RETIRE_SEEDS, total, reason, jobs, settings, due_ms=need.kept_ms // 2)


def _replay(
    need: TenantNeed, ended: Mapping[tuple[Tenant, JobKind, str], JobRow], jobs: JobsNow, settings: MaintenanceRules
) -> NewJob | None:
    """A replay takes the tasks from their sorters, which deliver nothing until a batch of it is handed over."""
    is_open = any(job.tenant == need.tenant and job.kind is JobKind.REPLAY for job in jobs.open)
    last = ended.get((need.tenant, JobKind.REPLAY, ""))
    if settings.replay is ReplayMode.OFF or is_open or not _is_behind(need, settings, share=1):
        return None
    if _rests(last, jobs.now_ms, settings):
        return None
    command = f"tistream replay -c {need.tenant.cluster_id} -t {need.tenant.tenant_id}"
    reason = (
        f"{duration_text(need.behind_ms)} behind, {bytes_text(need.backlog_bytes)} of batch files are unread: {command}"
    )
    return NewJob(
        tenant=need.tenant,
        kind=JobKind.REPLAY,
        executor=JobExecutor.SPARK if jobs.spark else JobExecutor.THREADS,
        reason=reason,
        estimated_bytes=need.backlog_bytes,
        offered=settings.replay is ReplayMode.OFFER,
    )


def _is_behind(need: TenantNeed, settings: MaintenanceRules, *, share: int) -> bool:
    """Whether lag and backlog are at least this share (1 = all, 2 = half) of what the settings call far behind."""
    lags = need.behind_ms * share >= settings.replay_lag_ms
    return lags and need.backlog_bytes * share >= settings.replay_bytes_min


def _sized(
    need: TenantNeed,
    kind: JobKind,
    total: int,
    reason: str,
    jobs: JobsNow,
    settings: MaintenanceRules,
    *,
    objects: int = 0,
    task_ids: tuple[int, ...] = (),
    due_ms: int = 0,
) -> NewJob:
    """A job that reads at most what one job, and a whole window, may read."""
    large = jobs.spark and total > settings.threads_job_bytes
    most = settings.spark_job_bytes if large else settings.threads_job_bytes
    nbytes = max(1, min(total, most, settings.bytes_per_s * settings.window_ms // 1000))
    limits = JobLimits(
        budget_bytes=nbytes,
        lag_ms=settings.lag_ms,
        due_ms=due_ms,
        window_ms=max(settings.base_window_ms, need.kept_ms),
        task_ids=task_ids,
    )
    return NewJob(
        tenant=need.tenant,
        kind=kind,
        executor=JobExecutor.SPARK if large else JobExecutor.THREADS,
        limits=limits,
        reason=reason,
        estimated_bytes=nbytes,
        estimated_objects=objects,
    )


#: what makes a job of each kind of compaction
_MAKERS = {JobKind.RETIRE_SEEDS: _retirement, JobKind.MERGE: _merge, JobKind.BASES: _bases}
