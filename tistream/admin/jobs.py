"""Maintenance jobs as operators see them: pages of jobs, one job, and the actions to run or cancel one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.views import Sources, ids_of, number_of_cursor
from tistream.catalog.rows.jobs import JobKind, JobRow, JobState
from tistream.catalog.work.job_rows import get_job, job_figures, list_jobs
from tistream.catalog.work.jobs import cancel_job, retry_job
from tistream.ids import Tenant

_KINDS = {
    JobKind.MERGE: "merge of small files",
    JobKind.BASES: "bases of tables",
    JobKind.RETIRE_SEEDS: "bases that let retention advance",
    JobKind.REPLAY: "replay of a backlog",
}


def jobs_page(
    sources: Sources,
    *,
    limit: int,
    cursor: str | None = None,
    tenant: Tenant | None = None,
    states: Sequence[JobState] = (),
    kind: JobKind | None = None,
) -> dict[str, Any]:
    """Jobs, newest first."""
    below = None if cursor is None else number_of_cursor(cursor)
    jobs = list_jobs(sources.catalog, limit=limit + 1, below=below, tenant=tenant, states=states, kind=kind)
    items, more = jobs[:limit], len(jobs) > limit
    return {"items": [job_fact(row) for row in items], "next_cursor": str(items[-1].job_id) if more else None}


def job(sources: Sources, job_id: int) -> dict[str, Any]:
    """One job."""
    return job_fact(get_job(sources.catalog, job_id))


def figures(sources: Sources) -> dict[str, Any]:
    """Counts of all jobs."""
    counted = job_figures(sources.catalog)
    return {
        "by_state": {state: counted.by_state.get(state, 0) for state in JobState},
        "oldest_queued_ms": counted.oldest_queued_ms,
        "bytes_read": counted.bytes_read,
        "requests_saved": counted.requests_saved,
    }


def retry(sources: Sources, job_id: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Run a job now that is offered, pauses, failed or was cancelled."""
    row = get_job(sources.catalog, job_id)
    if not dry_run:
        retry_job(sources.catalog, job_id, actor=actor)
    words = f"The {_what(row)} is queued for the next executor; it was {row.state}."
    return actions.outcome("retry", f"job {job_id}", dry_run, words)


def cancel(sources: Sources, job_id: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """End an open job."""
    row = get_job(sources.catalog, job_id)
    if not dry_run:
        cancel_job(sources.catalog, job_id, actor=actor)
    stops = f" {row.holder} stops it at its next renewal." if row.state is JobState.RUNNING else ""
    words = f"The {_what(row)} is cancelled; what it has published stays.{stops}"
    return actions.outcome("cancel", f"job {job_id}", dry_run, words)


def job_fact(row: JobRow) -> dict[str, Any]:
    """A job for people and programs."""
    since = row.started_ms or row.created_ms
    end = row.ended_ms or row.read_ms
    return {
        "job_id": str(row.job_id),
        **ids_of(row.tenant),
        "kind": row.kind,
        "words": _KINDS.get(row.kind, str(row.kind)),
        "scope": row.scope or None,
        "executor": row.executor,
        "state": row.state,
        "outcome": row.outcome or None,
        "reason": row.reason,
        "holder": row.holder if row.state is JobState.RUNNING else None,
        "tries": row.tries,
        "estimated_bytes": row.estimated_bytes,
        "estimated_objects": row.estimated_objects,
        "parts_done": row.parts_done,
        "parts_total": row.parts_total,
        **asdict(row.counts),
        "code": row.code or None,
        "error": row.error or None,
        "created_time": _moment(row.created_ms),
        "started_time": _moment(row.started_ms),
        "ended_time": _moment(row.ended_ms),
        "next_try_time": _moment(row.due_ms) if row.state is JobState.QUEUED and row.due_ms > row.read_ms else None,
        "duration_s": max(0, end - since) / 1000 if row.started_ms else None,
        "may_retry": row.state not in (JobState.RUNNING, JobState.DONE),
        "may_cancel": row.state in (JobState.OFFERED, JobState.QUEUED, JobState.RUNNING),
    }


def _what(row: JobRow) -> str:
    return f"{_KINDS.get(row.kind, str(row.kind))} of tenant {row.tenant}"


def _moment(unix_ms: int) -> str | None:
    return tso.to_text(tso.compose(unix_ms)) if unix_ms else None
