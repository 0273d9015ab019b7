"""Maintenance jobs as the catalog has them: their rows, lists and counts. `tistream.catalog.work.jobs` changes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import orjson
from sqlalchemy import and_, bindparam, case, func, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import counters, jobs, of_tenant, tenant_of
from tistream.catalog.rows.jobs import JobCounts, JobFigures, JobKind, JobLimits, JobRow, JobState
from tistream.errors import NotFound
from tistream.ids import Tenant

JOBS_LISTED_MAX = 1000  #: in one listing
TOTALS = {"job bytes": "bytes_read", "job requests saved": "requests_saved"}  #: counter -> the count that it sums


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
        rows = conn.execute(select(counters.c.name, counters.c.value).where(counters.c.name.in_(list(TOTALS))))
        totals = {TOTALS[name]: int(value) for name, value in rows}
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
    return record_of(
        JobRow,
        row,
        tenant=tenant_of(row),
        kind=_KINDS.get(row.kind, JobKind.OTHER),
        state=_STATES[row.state],
        limits=JobLimits(**{**known, "task_ids": tuple(known.get("task_ids", ()))}),
        counts=JobCounts(**{each.name: int(getattr(row, each.name)) for each in fields(JobCounts)}),
    )
