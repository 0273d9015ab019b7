"""Maintenance jobs as the catalog has them: their rows, lists and counts. `tistream.catalog.work.jobs` changes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import orjson
from sqlalchemy import and_, bindparam, case, func, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import counters, jobs, of_tenant, tenant_of
from tistream.errors import NotFound
from tistream.ids import Tenant

JOBS_LISTED_MAX = 1000  #: in one listing
TOTALS = {"job bytes": "bytes_read", "job requests saved": "requests_saved"}  #: counter -> the count that it sums


class JobKind(StrEnum):
    """What is done."""

    MERGE = "merge"  #: small files of the log become larger ones
    BASES = "bases"  #: table snapshots, from which reads as of a timestamp start
    RETIRE_SEEDS = "retire_seeds"  #: seeds and bases that no read needs any more
    REPLAY = "replay"  #: a backlog is matched in bulk
    OTHER = "other"  #: from a newer version, unknown to this one; never leased


class JobExecutor(StrEnum):
    """The least executor that a job needs."""

    THREADS = "threads"  #: any executor
    SPARK = "spark"  #: too large for threads of one process


class JobState(StrEnum):
    """Where a job stands."""

    OFFERED = "offered"  #: an operator may start it
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (JobState.OFFERED, JobState.QUEUED, JobState.RUNNING)
ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """How much a job may do."""

    budget_bytes: int = 0  #: stored input that it reads at most; 0 = what its kind has by itself
    lag_ms: int = 60_000  #: the log within this time of its end is left alone
    due_ms: int = 0  #: bases: a table whose base is older gets a new one in any case; 0 = never
    window_ms: int = 0  #: bases within this time of the watermark are kept; 0 = what the kind has by itself
    task_ids: tuple[int, ...] = ()  #: merge: only these tasks; empty = all of the tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to enqueue."""

    tenant: Tenant
    kind: JobKind
    scope: str = ""  #: a part of the tenant, at most 128 printable ASCII characters; empty = the tenant
    executor: JobExecutor = JobExecutor.THREADS
    limits: JobLimits = field(default_factory=JobLimits)
    reason: str = ""  #: why it is worth its cost, for operators
    estimated_bytes: int = 0  #: that it will read
    estimated_objects: int = 0
    offered: bool = False  #: it waits for an operator to start it

    @property
    def open_key(self) -> str:
        """Unique among open jobs."""
        return f"{self.tenant} {self.kind} {self.scope}".rstrip(" ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """What a job did."""

    bytes_read: int = 0
    bytes_written: int = 0
    objects_before: int = 0
    objects_after: int = 0
    requests_saved: int = 0  #: fewer for a reader of the whole stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as the catalog has it. Times are Unix milliseconds by the database's clock; 0 = not yet."""

    job_id: int  #: rises in the order of enqueuing
    tenant: Tenant
    kind: JobKind
    scope: str
    executor: str
    state: JobState
    epoch: int  #: of its newest lease
    holder: str | None  #: of its newest lease
    tries: int
    limits: JobLimits
    reason: str
    estimated_bytes: int
    estimated_objects: int
    parts_done: int
    parts_total: int
    created_ms: int
    due_ms: int  #: not leased before
    started_ms: int  #: of its newest lease
    renewed_ms: int
    ended_ms: int
    outcome: str  #: how it ended, in the words of its kind
    code: str  #: of the newest error; empty without one
    error: str
    counts: JobCounts
    read_ms: int  #: the database's time when this row was read

    @property
    def key(self) -> tuple[Tenant, JobKind, str]:
        """What is unique among open jobs."""
        return self.tenant, self.kind, self.scope


_j = jobs.c
_KINDS = {str(kind): kind for kind in JobKind}
_STATES = {str(state): state for state in JobState}
_LIMITS = {each.name for each in fields(JobLimits)}
_ALL = select(jobs, now_ms().label("read_ms"))
ONE_JOB = _ALL.where(_j.job_id == bindparam("asked_job"))


def get_job(catalog: Catalog, job_id: int) -> JobRow:
    """The job. NotFound when it never existed or was pruned."""
    with catalog.reading() as conn:
        row = conn.execute(ONE_JOB, {"asked_job": job_id}).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return job_row(row)


def list_jobs(
    catalog: Catalog,
    *,
    limit: int = JOBS_LISTED_MAX,
    below: int | None = None,
    tenant: Tenant | None = None,
    states: Collection[JobState] = (),
    kind: JobKind | None = None,
) -> list[JobRow]:
    """Jobs, newest first, optionally of one tenant, in some states or of one kind."""
    query = _ALL
    if below is not None:
        query = query.where(_j.job_id < below)
    if tenant is not None:
        query = query.where(of_tenant(jobs, tenant))
    if states:
        query = query.where(_j.state.in_([str(state) for state in states]))
    if kind is not None:
        query = query.where(_j.kind == kind)
    with catalog.reading() as conn:
        return [job_row(row) for row in conn.execute(query.order_by(_j.job_id.desc()).limit(limit))]


def open_jobs(catalog: Catalog) -> list[JobRow]:
    """All offered, queued and running jobs, oldest first. They are few: the scheduler bounds them."""
    with catalog.reading() as conn:
        return [job_row(row) for row in conn.execute(_ALL.where(_j.open_key.is_not(None)).order_by(_j.job_id))]


def newest_ended(catalog: Catalog) -> list[JobRow]:
    """The newest ended job of each (tenant, kind, scope)."""
    newest = (
        select(func.max(_j.job_id).label("newest"))
        .where(_j.open_key.is_(None))
        .group_by(_j.cluster_id, _j.tenant_id, _j.kind, _j.scope)
        .subquery()
    )
    with catalog.reading() as conn:
        return [job_row(row) for row in conn.execute(_ALL.join(newest, newest.c.newest == _j.job_id))]


def spent_bytes(catalog: Catalog, *, window_ms: int) -> int:
    """Bytes that compaction's jobs have read which ended within `window_ms`, and that the open ones may read."""
    ours = _j.kind.in_([str(kind) for kind in (JobKind.MERGE, JobKind.BASES, JobKind.RETIRE_SEEDS)])
    lately = or_(_j.open_key.is_not(None), _j.ended_ms > now_ms() - window_ms)
    read = case((_j.open_key.is_not(None), _j.estimated_bytes), else_=_j.bytes_read)
    with catalog.reading() as conn:
        return int(conn.execute(select(func.sum(read)).where(ours, lately)).scalar() or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Counts of all jobs, for metrics and screens."""

    by_state: Mapping[str, int]  #: open ones, and ended ones that are the newest of their tenant, kind and scope
    oldest_queued_ms: int  #: age of the oldest job that is due and not leased; 0 without one
    bytes_read: int  #: since the catalog was made
    requests_saved: int


def job_figures(catalog: Catalog) -> JobFigures:
    """Count the jobs. A failure counts until the same is done, or cancelled."""
    newest = select(func.max(_j.job_id)).group_by(_j.cluster_id, _j.tenant_id, _j.kind, _j.scope)
    since = case((_j.due_ms > _j.created_ms, _j.due_ms), else_=_j.created_ms)
    waiting = case((and_(_j.state == JobState.QUEUED, _j.due_ms <= now_ms()), since))
    counted = or_(_j.open_key.is_not(None), _j.job_id.in_(newest))
    with catalog.reading() as conn:
        counts = conn.execute(
            select(_j.state, func.count(), func.min(waiting), now_ms()).where(counted).group_by(_j.state)
        ).all()
    with catalog.reading() as conn:
        found = conn.execute(select(counters.c.name, counters.c.value).where(counters.c.name.in_(list(TOTALS))))
        totals = {TOTALS[name]: int(value) for name, value in found}
    return JobFigures(
        by_state={str(state): int(number) for state, number, *_ in counts},
        oldest_queued_ms=max((int(now) - int(since) for *_, since, now in counts if since is not None), default=0),
        bytes_read=totals.get("bytes_read", 0),
        requests_saved=totals.get("requests_saved", 0),
    )


def unknown_job(job_id: int) -> NotFound:
    """The error for an id without a row."""
    return NotFound(f"Job {job_id} not found: it never existed, or ended long ago.", job_id=job_id)


def job_row(row: Any) -> JobRow:
    """A row of `jobs`."""
    known = {name: value for name, value in orjson.loads(row.limits).items() if name in _LIMITS}
    return JobRow(
        job_id=int(row.job_id),
        tenant=tenant_of(row),
        kind=_KINDS.get(row.kind, JobKind.OTHER),
        scope=row.scope,
        executor=row.executor,
        state=_STATES[row.state],
        epoch=int(row.epoch),
        holder=row.holder,
        tries=int(row.tries),
        limits=JobLimits(**{**known, "task_ids": tuple(known.get("task_ids", ()))}),
        reason=row.reason,
        estimated_bytes=int(row.estimated_bytes),
        estimated_objects=int(row.estimated_objects),
        parts_done=int(row.parts_done),
        parts_total=int(row.parts_total),
        created_ms=int(row.created_ms),
        due_ms=int(row.due_ms),
        started_ms=int(row.started_ms),
        renewed_ms=int(row.renewed_ms),
        ended_ms=int(row.ended_ms),
        outcome=row.outcome,
        code=row.code,
        error=row.error,
        counts=JobCounts(**{each.name: int(getattr(row, each.name)) for each in fields(JobCounts)}),
        read_ms=int(row.read_ms),
    )
