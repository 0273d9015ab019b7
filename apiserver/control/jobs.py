"""Routes of maintenance jobs.

    GET  /v1/jobs  /v1/jobs/{id}
    POST /v1/jobs/{id}:retry  :cancel

Any process answers them from the catalog. Each action takes `dry_run=true` to return its effect without doing it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from apiserver.answers.processes import Job, JobPage
from apiserver.answers.tasks import Outcome
from apiserver.control.admin import Cursor, Limit, OrderQuery, TenantFilter
from apiserver.control.routing import route
from tistream.admin import jobs
from tistream.admin.views import Sources
from tistream.catalog.rows.jobs import JobKind, JobState
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Id

_States = Annotated[list[JobState] | None, Query(description="in one of these states; may be repeated")]
_Kind = Annotated[JobKind | None, Query(description="of this kind")]


def job_router(sources: Sources) -> APIRouter:
    """The routes over these sources."""
    routes = APIRouter(tags=["admin"])

    @route(routes, "GET", "/v1/jobs", Right.LOOK, "List maintenance jobs, newest first", answer=JobPage)
    def list_jobs(
        tenant: TenantFilter,
        limit: Limit = 100,
        cursor: Cursor = None,
        state: _States = None,
        kind: _Kind = None,
    ) -> dict[str, Any]:
        return jobs.jobs_page(sources, limit=limit, cursor=cursor, tenant=tenant, states=state or (), kind=kind)

    @route(routes, "GET", "/v1/jobs/{job_id}", Right.LOOK, "Get one maintenance job", answer=Job)
    def get_job(job_id: Id) -> dict[str, Any]:
        return jobs.job(sources, job_id)

    @route(
        routes, "POST", "/v1/jobs/{job_id}:retry", Right.OPERATE,
        "Run a job now that is offered, pauses, failed or was cancelled", answer=Outcome,
    )  # fmt: skip
    def retry_job(job_id: Id, order: OrderQuery) -> dict[str, Any]:
        return jobs.retry(sources, job_id, **order)

    @route(routes, "POST", "/v1/jobs/{job_id}:cancel", Right.OPERATE, "Cancel a job that has not ended", answer=Outcome)
    def cancel_job(job_id: Id, order: OrderQuery) -> dict[str, Any]:
        return jobs.cancel(sources, job_id, **order)

    return routes
