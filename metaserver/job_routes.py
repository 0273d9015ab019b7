"""Routes of maintenance jobs.

    GET  /v1/jobs  /v1/jobs/{id}
    POST /v1/jobs/{id}:retry  :cancel

Any process answers them from the catalog. Each action takes `dry_run=true` to return its effect without doing it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from metaserver.admin_routes import (
    ClusterFilter,
    Cursor,
    DryRun,
    Id,
    Limit,
    TenantFilter,
    actor_of,
    tenant_filter,
)
from metaserver.routing import route
from tistream.admin import jobs
from tistream.admin.views import Sources
from tistream.catalog.work.job_rows import JobKind, JobState
from tistream.http.auth.core.roles import Right

_States = Annotated[list[JobState] | None, Query(description="in one of these states; may be repeated")]
_Kind = Annotated[JobKind | None, Query(description="of this kind")]


def job_router(sources: Sources) -> APIRouter:
    """The routes over these sources."""
    routes = APIRouter(tags=["admin"])

    @route(routes, "GET", "/v1/jobs", Right.LOOK, "list_jobs", "List maintenance jobs, newest first")
    def list_jobs(
        limit: Limit = 100,
        cursor: Cursor = None,
        cluster_id: ClusterFilter = None,
        tenant_id: TenantFilter = None,
        state: _States = None,
        kind: _Kind = None,
    ) -> dict[str, Any]:
        tenant = tenant_filter(cluster_id, tenant_id)
        return jobs.jobs_page(sources, limit=limit, cursor=cursor, tenant=tenant, states=state or (), kind=kind)

    @route(routes, "GET", "/v1/jobs/{job_id}", Right.LOOK, "get_job", "Get one maintenance job")
    def get_job(job_id: Id) -> dict[str, Any]:
        return jobs.job(sources, job_id)

    @route(
        routes,
        "POST",
        "/v1/jobs/{job_id}:retry",
        Right.OPERATE,
        "retry_job",
        "Run a job now that is offered, pauses, failed or was cancelled",
    )
    def retry(request: Request, job_id: Id, dry_run: DryRun = False) -> dict[str, Any]:
        return jobs.retry(sources, job_id, dry_run=dry_run, actor=actor_of(request))

    @route(routes, "POST", "/v1/jobs/{job_id}:cancel", Right.OPERATE, "cancel_job", "Cancel a job that has not ended")
    def cancel(request: Request, job_id: Id, dry_run: DryRun = False) -> dict[str, Any]:
        return jobs.cancel(sources, job_id, dry_run=dry_run, actor=actor_of(request))

    return routes
