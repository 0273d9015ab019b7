"""Maintenance jobs: what the elected meta server wants done to a tenant's log, and which executor does it.

    enqueue   by the leader, under its epoch; one open job per (tenant, kind, scope)
    lease     an executor takes a queued job, or a running one whose lease ran out: epoch + 1
    renew     the executor is alive, and how far it is. Fenced: stop, the job belongs to another
    finish | fail | release                 only under the current epoch

    offered -> queued -> running -> done
                 ^         |  '---> failed         tries used up, or a retry cannot help
                 '---------'        cancelled      by an operator, with its tenant, or an offer that is not needed

A job of a paused tenant is not leased, and pausing gives its running jobs back: they are queued until it is resumed.

A lease decides who works, not what counts: each kind of job publishes in a guarded transaction of its own (a compaction
commit, new bases, a hand-over), so a job that two executors run takes effect once or not at all. Leases and pauses are
measured by the database's clock. Calls whose reply was lost may be repeated: a repeat of `finish`, `fail` or `release`
finds its own end and returns.

`open_key` is unique while a job is open, and NULL afterwards, which no unique index counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, fields
from typing import Any

import orjson
from sqlalchemy import Connection, and_, bindparam, literal_column, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.database.tables import (
    counters,
    ensure_row,
    jobs,
    next_numbers,
    of_asked_tenant,
    of_tenant,
    tenant_ids,
    tenants,
)
from tistream.catalog.rows.jobs import OPEN, JobCounts, JobExecutor, JobKind, JobRow, JobState, NewJob
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.work.job_rows import ONE_JOB, TOTALS, get_job, job_row, unknown_job
from tistream.catalog.work.tasks import holds_leadership
from tistream.errors import Fenced, StateForbids
from tistream.ids import Tenant
from tistream.limits import JOB_LEASE_MS

TRIES_MAX = 5  #: leases of a job before it fails
KEEP_JOBS = 20_000  #: ended ones
KEEP_DAYS = 30
_PAUSE_MS, _PAUSE_MS_MAX = 10_000, 600_000  #: before the second try; four times as long before each further one
_TEXT_MAX = 8000  #: a TEXT column holds 64 KiB of UTF-8
_CANDIDATES_MAX = 16
_PRUNED_AT_ONCE = 2000
_DAY_MS = 86_400_000

_j = jobs.c
_HELD = and_(
    _j.job_id == bindparam("asked_job"), _j.epoch == bindparam("my_epoch"), _j.state == literal_column("'running'")
)
_RENEW = (
    jobs.update().where(_HELD).values(renewed_ms=now_ms(), parts_done=bindparam("done"), parts_total=bindparam("total"))
)
_EXPIRED = or_(
    _j.renewed_ms + bindparam("lease_ms") < now_ms(),
    _j.renewed_ms > now_ms() + bindparam("lease_ms"),  # the database's clock was set back since
)
_FREE = or_(
    and_(_j.state == literal_column("'queued'"), _j.due_ms <= now_ms()),
    and_(_j.state == literal_column("'running'"), _EXPIRED),
)
_PAUSED = (
    select(tenants.c.tenant_id)
    .where(
        tenants.c.cluster_id == _j.cluster_id,
        tenants.c.tenant_id == _j.tenant_id,
        tenants.c.state == TenantState.PAUSED,
    )
    .exists()
)
_STATE = select(tenants.c.state).where(of_asked_tenant(tenants)).with_for_update(read=True)
_CANDIDATES = (
    select(_j.job_id, _j.epoch, _j.tries, _j.cluster_id, _j.tenant_id)
    .where(
        _FREE,
        ~_PAUSED,
        _j.executor.in_(bindparam("asked_executors", expanding=True)),
        _j.kind.in_(bindparam("asked_kinds", expanding=True)),
    )
    .order_by(_j.job_id)
    .limit(_CANDIDATES_MAX)
)
_SEEN = and_(_j.job_id == bindparam("asked_job"), _j.epoch == bindparam("seen_epoch"), _FREE)
_TAKE = (
    jobs.update()
    .where(_SEEN)
    .values(
        state=JobState.RUNNING,
        epoch=_j.epoch + 1,
        tries=_j.tries + 1,
        holder=bindparam("me"),
        started_ms=now_ms(),
        renewed_ms=now_ms(),
        parts_done=0,
        parts_total=0,
    )
)
_END: dict[str, Any] = {"open_key": None, "ended_ms": now_ms()}
_FAIL = jobs.update().where(_SEEN).values(state=JobState.FAILED, epoch=_j.epoch + 1, **_END)


def enqueue(catalog: Catalog, new_jobs: Sequence[NewJob], *, leader_epoch: int) -> list[int]:
    """Add the jobs that are not open yet; the ids of those added. None is added when `leader_epoch` is not the
    leader's."""
    if not new_jobs:
        return []
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            return []
        numbers = next_numbers(conn, "job", len(new_jobs))
        for number, job in zip(numbers, new_jobs, strict=True):
            ensure_row(conn, jobs, timed="created_ms", **_values(number, job))
        added = select(_j.job_id).where(_j.job_id.in_(list(numbers))).order_by(_j.job_id)
        return [int(number) for number in conn.execute(added).scalars()]


def lease(
    catalog: Catalog,
    holder: str,
    executors: Collection[JobExecutor],
    *,
    kinds: Collection[JobKind] = (JobKind.MERGE, JobKind.BASES, JobKind.RETIRE_SEEDS),
    lease_ms: int = JOB_LEASE_MS,
) -> JobRow | None:
    """Take the oldest job that is due, or whose lease ran out, of a tenant that is not paused; None without one.

    `holder` names one thread of one process, and no other ever: after a lost reply it finds its job by it. A job that
    was leased TRIES_MAX times without an end fails instead: whatever runs it dies."""
    asked = {
        "asked_executors": [str(executor) for executor in executors],
        "asked_kinds": [str(kind) for kind in kinds],
        "lease_ms": lease_ms,
    }
    tried: list[tuple[int, int]] = []

    def take() -> list[JobRow]:
        with catalog.transaction() as conn:
            for row in conn.execute(_CANDIDATES, asked).all():
                of = tenant_ids(Tenant(row.cluster_id, row.tenant_id))
                if conn.execute(_STATE, of).scalar() == TenantState.PAUSED:  # since; now it can be no more
                    continue
                seen = {"asked_job": row.job_id, "seen_epoch": row.epoch, "lease_ms": lease_ms}
                if row.tries >= TRIES_MAX:
                    _fail(conn, seen)
                elif conn.execute(_TAKE, {**seen, "me": holder}).rowcount:
                    tried.append((row.job_id, row.epoch + 1))
                    return [job_row(conn.execute(ONE_JOB, {"asked_job": row.job_id}).one())]
        return []

    def taken() -> list[JobRow] | None:
        if not tried:
            return None
        job_id, epoch = tried[-1]
        row = get_job(catalog, job_id)
        return [row] if (row.epoch, row.holder, row.state) == (epoch, holder, JobState.RUNNING) else None

    leased = commit_or_read_back(take, taken)
    return leased[0] if leased else None


def renew(catalog: Catalog, job: JobRow, *, done: int = 0, total: int = 0) -> None:
    """Renew the lease, and record the progress. Fenced when the job is no longer this lease's."""
    with catalog.transaction() as conn:
        parameters = {"asked_job": job.job_id, "my_epoch": job.epoch, "done": done, "total": total}
        if conn.execute(_RENEW, parameters).rowcount != 1:
            raise _fenced(job)


def finish(
    catalog: Catalog, job: JobRow, counts: JobCounts, *, outcome: str = "", code: str = "", error: str = ""
) -> None:
    """End the job as done. `code` and `error`: what it left out. Fenced when it is no longer this lease's."""
    values = {**asdict(counts), "outcome": outcome[:32], "code": code[:32], "error": error[:_TEXT_MAX]}

    def note(conn: Connection) -> None:
        for name, count in TOTALS.items():
            if amount := getattr(counts, count):
                conn.execute(counters.update().where(counters.c.name == name).values(value=counters.c.value + amount))

    _leave(catalog, job, {"state": JobState.DONE, **values, **_END}, note)


def fail(catalog: Catalog, job: JobRow, *, code: str, error: str, retryable: bool) -> JobState:
    """Record an error: the job is queued again after a pause, or fails when its tries are used up or a retry cannot
    help. Fenced when it is no longer this lease's."""
    values: dict[str, Any] = {"outcome": "", "code": code[:32], "error": error[:_TEXT_MAX]}
    if retryable and job.tries < TRIES_MAX:
        pause_ms = min(_PAUSE_MS * 4 ** (job.tries - 1), _PAUSE_MS_MAX)
        _leave(catalog, job, {"state": JobState.QUEUED, "due_ms": now_ms() + pause_ms, **values})
        return JobState.QUEUED

    def note(conn: Connection) -> None:
        _record(conn, EventKind.JOB_FAILED, job, error=f"{code} {error}"[:1000])

    _leave(catalog, job, {"state": JobState.FAILED, **values, **_END}, note)
    return JobState.FAILED


def release(catalog: Catalog, job: JobRow) -> None:
    """Give the job back unfinished: its executor ends. The lease counts as no try. Fenced when it is no longer this
    lease's."""
    _leave(catalog, job, {"state": JobState.QUEUED, "due_ms": now_ms(), "tries": _j.tries - 1})


def retry_job(catalog: Catalog, job_id: int, *, actor: str = "") -> None:
    """Queue a job at once that is offered, pauses, failed or was cancelled. StateForbids for another, and when the same
    is open under another id."""
    with catalog.transaction() as conn:
        job = _locked(conn, job_id)
        if job.state in (JobState.RUNNING, JobState.DONE):
            raise StateForbids(
                f"Job {job_id} is {job.state}: only an offered, queued, failed or cancelled one is started."
            )
        key = NewJob(tenant=job.tenant, kind=job.kind, scope=job.scope).open_key
        other = conn.execute(select(_j.job_id).where(_j.open_key == key, _j.job_id != job_id)).scalar()
        if other is not None:
            raise StateForbids(f"Job {other} does the same and is open already.", job_id=other)
        again = {"state": JobState.QUEUED, "open_key": key, "tries": 0, "due_ms": now_ms(), "ended_ms": 0}
        conn.execute(jobs.update().where(_j.job_id == job_id).values(**again))
        _record(conn, EventKind.JOB_RETRIED, job, actor=actor)


def cancel_job(catalog: Catalog, job_id: int, *, actor: str = "") -> None:
    """End an open job; a running one is stopped at its next renewal. What it has published stays. StateForbids when it
    has ended."""
    with catalog.transaction() as conn:
        job = _locked(conn, job_id)
        if job.state not in OPEN:
            raise StateForbids(f"Job {job_id} is {job.state} already.")
        _cancel(conn, _j.job_id == job_id)
        _record(conn, EventKind.JOB_CANCELLED, job, actor=actor)


def withdraw_jobs(catalog: Catalog, job_ids: Collection[int], *, leader_epoch: int) -> int:
    """By the leader: cancel offers that are not needed any more, and jobs that wait for an executor in vain; how many.
    Those that were started, or taken, meanwhile stay."""
    if not job_ids:
        return 0
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            return 0
        unheld = or_(_j.state == JobState.OFFERED, _FREE)
        return _cancel(conn, and_(_j.job_id.in_(job_ids), unheld), lease_ms=JOB_LEASE_MS)


def cancel_jobs_of(conn: Connection, tenant: Tenant) -> int:
    """In the transaction that deletes a tenant: cancel its open jobs; how many."""
    return _cancel(conn, and_(of_tenant(jobs, tenant), _j.open_key.is_not(None)))


def prune_jobs(catalog: Catalog, *, keep: int = KEEP_JOBS, days: int = KEEP_DAYS) -> int:
    """Delete ended jobs older than `days`, and all but the newest `keep`; how many. Works in short transactions."""
    pruned = 0
    while True:
        with catalog.transaction() as conn:
            ended = _j.open_key.is_(None)
            oldest_kept = select(_j.job_id).where(ended).order_by(_j.job_id.desc()).offset(keep - 1).limit(1)
            floor = int(conn.execute(oldest_kept).scalar() or 0)
            old = or_(_j.job_id < floor, _j.ended_ms < now_ms() - literal_column(str(days * _DAY_MS)))
            prunable = select(_j.job_id).where(ended, old).order_by(_j.job_id).limit(_PRUNED_AT_ONCE)
            ids = list(conn.execute(prunable).scalars())
            if ids:
                conn.execute(jobs.delete().where(_j.job_id.in_(ids)))
        pruned += len(ids)
        if len(ids) < _PRUNED_AT_ONCE:
            return pruned


def _leave(
    catalog: Catalog, job: JobRow, values: dict[str, Any], note: Callable[[Connection], None] = lambda conn: None
) -> None:
    """End a lease, once. A repeat after a lost reply finds that this epoch runs nothing, and returns."""
    parameters = {"asked_job": job.job_id, "my_epoch": job.epoch}
    leaving = jobs.update().where(_HELD).values(**values)

    def leave() -> bool:
        with catalog.transaction() as conn:
            if conn.execute(leaving, parameters).rowcount != 1:
                return False
            note(conn)
            return True

    if not commit_or_read_back(leave, lambda: _has_left(catalog, job) or None) and not _has_left(catalog, job):
        raise _fenced(job)


def _has_left(catalog: Catalog, job: JobRow) -> bool:
    """Whether this lease has ended by a call of its own: every other end raises the epoch."""
    with catalog.reading() as conn:
        row = conn.execute(ONE_JOB, {"asked_job": job.job_id}).one_or_none()
    return row is not None and row.epoch == job.epoch and row.state != JobState.RUNNING


def _fail(conn: Connection, seen: dict[str, Any]) -> None:
    job = job_row(conn.execute(ONE_JOB, seen).one())
    error = f"Each of {job.tries} executors died or lost its lease, the last one was {job.holder}."
    if conn.execute(_FAIL, {**seen, "code": "TS-1000", "error": error}).rowcount:
        _record(conn, EventKind.JOB_FAILED, job, error=error)


def _cancel(conn: Connection, which: ColumnElement[bool], **asked: int) -> int:
    ended = {"state": JobState.CANCELLED, "epoch": _j.epoch + 1, **_END}
    return conn.execute(jobs.update().where(which).values(**ended), asked).rowcount


def _locked(conn: Connection, job_id: int) -> JobRow:
    row = conn.execute(ONE_JOB.with_for_update(), {"asked_job": job_id}).one_or_none()
    if row is None:
        raise unknown_job(job_id)
    return job_row(row)


def _record(conn: Connection, kind: EventKind, job: JobRow, *, actor: str = "", **detail: object) -> None:
    record_event(conn, kind, job.job_id, tenant=job.tenant, actor=actor, job=job.kind, scope=job.scope, **detail)


def _fenced(job: JobRow) -> Fenced:
    return Fenced("the job was cancelled, or another executor has it", job_id=job.job_id, epoch=job.epoch)


def _values(number: int, job: NewJob) -> dict[str, Any]:
    return {
        "job_id": number,
        "cluster_id": job.tenant.cluster_id,
        "tenant_id": job.tenant.tenant_id,
        "kind": job.kind,
        "scope": job.scope,
        "executor": job.executor,
        "state": JobState.OFFERED if job.offered else JobState.QUEUED,
        "open_key": job.open_key,
        "holder": None,
        "limits": orjson.dumps(asdict(job.limits)).decode(),
        "reason": job.reason[:_TEXT_MAX],
        "estimated_bytes": job.estimated_bytes,
        "estimated_objects": job.estimated_objects,
        "outcome": "",
        "code": "",
        "error": "",
        **dict.fromkeys(_ZEROS, 0),
    }


_ZEROS = (
    *("epoch", "tries", "parts_done", "parts_total", "due_ms", "started_ms", "renewed_ms", "ended_ms"),
    *(each.name for each in fields(JobCounts)),
)
