"""Routes for operators: views and actions.

    GET  /v1/tasks  /v1/tasks/{id}  /v1/ranges  /v1/workers  /v1/workers/{id}  /v1/owner  /v1/gaps  /v1/events
         /v1/stops  /v1/clusters/{c}/tenants/{t}/quarantines  .../amendments
    POST /v1/workers/{id}:drain  :undrain
    POST /v1/tasks/{id}:move  :split  :merge  :retry
    POST /v1/stops/{id}:resume
    POST /v1/clusters/{c}/tenants/{t}:pause  :resume
    POST /v1/clusters/{c}/tenants/{t}/stores/{s}:accept  :reject
    DELETE /v1/clusters/{c}/tenants/{t}

Any process, leader or not, answers them from the catalog. Lists are paged. Each action takes `dry_run=true` to return
its effect without doing it. The ETag of a task is its epoch; with `If-Match`, `:move` returns 412 when the task was
reassigned since.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response

from metaserver.routing import route
from tistream.admin import actions, quarantines, stops, views
from tistream.admin.views import Sources
from tistream.errors import InvalidInput
from tistream.http.auth.access import access_of
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant

_INT_MAX = (1 << 63) - 1
Id = Annotated[int, Path(ge=0, le=_INT_MAX)]
Limit = Annotated[int, Query(ge=1, le=1000, description="maximum number of items")]
Cursor = Annotated[str | None, Query(max_length=20_000, description="next_cursor of the previous page")]
ClusterFilter = Annotated[int | None, Query(ge=0, le=_INT_MAX, description="of this cluster; needs tenant_id")]
TenantFilter = Annotated[int | None, Query(ge=0, le=_INT_MAX, description="of this tenant; needs cluster_id")]
DryRun = Annotated[bool, Query(description="return the effect, and do nothing")]
_Kind = Annotated[
    str | None, Query(max_length=32, description="a kind as task.moved, or all of task, worker, tenant ...")
]


def actor_of(request: Request) -> str:
    """The caller's name for events."""
    who = access_of(request).principal
    return who.key_id if who is not None and who.key_id else "API"


def admin_router(sources: Sources) -> APIRouter:
    """The routes over these sources."""
    routes = APIRouter(tags=["admin"])
    _add_lists(routes, sources)
    _add_workers(routes, sources)
    _add_tasks(routes, sources)
    _add_stops(routes, sources)
    _add_tenants(routes, sources)
    _add_quarantines(routes, sources)
    return routes


def _add_lists(routes: APIRouter, sources: Sources) -> None:
    @route(routes, "GET", "/v1/tasks", Right.LOOK, "list_tasks", "List tasks by id, with owners and load")
    def list_tasks(
        limit: Limit = 100,
        cursor: Cursor = None,
        cluster_id: ClusterFilter = None,
        tenant_id: TenantFilter = None,
        owner: Annotated[str | None, Query(max_length=128, description="of this worker")] = None,
        stopped: Annotated[bool, Query(description="only stopped ones")] = False,
    ) -> dict[str, Any]:
        tenant = tenant_filter(cluster_id, tenant_id)
        return views.tasks_page(sources, limit=limit, cursor=cursor, tenant=tenant, owner=owner, stopped=stopped)

    @route(
        routes, "GET", "/v1/ranges", Right.LOOK, "list_ranges", "List the key ranges of a tenant in order, with owners"
    )
    def list_ranges(
        cluster_id: Annotated[int, Query(ge=0, le=_INT_MAX)],
        tenant_id: Annotated[int, Query(ge=0, le=_INT_MAX)],
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> dict[str, Any]:
        return views.ranges_page(sources, Tenant(cluster_id, tenant_id), limit=limit, cursor=cursor)

    @route(routes, "GET", "/v1/owner", Right.LOOK, "get_owner", "Get the leader of the meta servers")
    def get_owner() -> dict[str, Any]:
        return views.owner(sources)

    @route(routes, "GET", "/v1/gaps", Right.LOOK, "list_watermark_gaps", "List stalled ranges")
    def list_watermark_gaps(cluster_id: ClusterFilter = None, tenant_id: TenantFilter = None) -> dict[str, Any]:
        return views.watermark_gaps(sources, tenant_filter(cluster_id, tenant_id))

    @route(routes, "GET", "/v1/events", Right.LOOK, "list_events", "List events, newest first")
    def list_events(
        limit: Limit = 100,
        cursor: Cursor = None,
        after: Annotated[str | None, Query(max_length=20, description="newer than this event_id, in order")] = None,
        kind: _Kind = None,
        cluster_id: ClusterFilter = None,
        tenant_id: TenantFilter = None,
        subject: Annotated[str | None, Query(max_length=128, description="id of a task, store, worker ...")] = None,
    ) -> dict[str, Any]:
        tenant = tenant_filter(cluster_id, tenant_id)
        return views.events_page(
            sources, limit=limit, cursor=cursor, after=after, kind=kind, tenant=tenant, subject=subject
        )


def _add_workers(routes: APIRouter, sources: Sources) -> None:
    @route(routes, "GET", "/v1/workers", Right.LOOK, "list_workers", "List processes with state and load")
    def list_workers(
        kind: Annotated[
            str | None, Query(max_length=32, description="sorter, dispatcher, maintain, spark or replay")
        ] = None,
    ) -> dict[str, Any]:
        return views.workers(sources, kind)

    @route(routes, "GET", "/v1/workers/{worker_id}", Right.LOOK, "get_worker", "Get one process with its report")
    def get_worker(worker_id: str) -> dict[str, Any]:
        return views.worker(sources, worker_id)

    @route(
        routes,
        "POST",
        "/v1/workers/{worker_id}:drain",
        Right.OPERATE,
        "drain_worker",
        "Move all work away from a worker",
    )
    def drain(request: Request, worker_id: str, dry_run: DryRun = False) -> dict[str, Any]:
        return actions.drain(sources, worker_id, dry_run=dry_run, actor=actor_of(request))

    @route(
        routes,
        "POST",
        "/v1/workers/{worker_id}:undrain",
        Right.OPERATE,
        "undrain_worker",
        "Assign work to a worker again",
    )
    def undrain(request: Request, worker_id: str, dry_run: DryRun = False) -> dict[str, Any]:
        return actions.undrain(sources, worker_id, dry_run=dry_run, actor=actor_of(request))


def _add_tasks(routes: APIRouter, sources: Sources) -> None:
    @route(routes, "GET", "/v1/tasks/{task_id}", Right.LOOK, "get_task", "Get one task with its stalled ranges")
    def get_task(task_id: Id, response: Response) -> dict[str, Any]:
        found = views.task(sources, task_id)
        response.headers["ETag"] = f'"{found["epoch"]}"'
        return found

    @route(routes, "POST", "/v1/tasks/{task_id}:move", Right.OPERATE, "move_task", "Move a task to another sorter")
    def move(
        request: Request,
        task_id: Id,
        to: Annotated[
            str | None, Query(max_length=128, description="a sorter; default: the one with least load")
        ] = None,
        dry_run: DryRun = False,
        if_match: Annotated[str | None, Header(max_length=40, description="ETag of the task")] = None,
    ) -> dict[str, Any]:
        seen = _epoch(if_match)
        return actions.move(sources, task_id, to, dry_run=dry_run, actor=actor_of(request), if_epoch=seen)

    @route(routes, "POST", "/v1/tasks/{task_id}:split", Right.OPERATE, "split_task", "Split a task in two")
    def split(
        request: Request,
        task_id: Id,
        key: Annotated[
            str | None,
            Query(max_length=20_000, description="hexadecimal; default: the split key that its sorter reports"),
        ] = None,
        dry_run: DryRun = False,
    ) -> dict[str, Any]:
        return actions.split(sources, task_id, key, dry_run=dry_run, actor=actor_of(request))

    @route(routes, "POST", "/v1/tasks/{task_id}:merge", Right.OPERATE, "merge_tasks", "Merge two neighbouring tasks")
    def merge(
        request: Request,
        task_id: Id,
        other: Annotated[int, Query(alias="with", ge=0, le=_INT_MAX, description="id of the neighbour")],
        dry_run: DryRun = False,
    ) -> dict[str, Any]:
        return actions.merge(sources, task_id, other, dry_run=dry_run, actor=actor_of(request))

    @route(routes, "POST", "/v1/tasks/{task_id}:retry", Right.OPERATE, "retry_stopped_task", "Retry a stopped task")
    def retry(request: Request, task_id: Id, dry_run: DryRun = False) -> dict[str, Any]:
        return actions.retry(sources, task_id, dry_run=dry_run, actor=actor_of(request))


def _add_stops(routes: APIRouter, sources: Sources) -> None:
    @route(
        routes,
        "GET",
        "/v1/stops",
        Right.LOOK,
        "list_stops",
        "List what errors have stopped: tenants, stores, jobs and tasks",
    )
    def list_stops(
        limit: Limit = 100, cursor: Cursor = None, cluster_id: ClusterFilter = None, tenant_id: TenantFilter = None
    ) -> dict[str, Any]:
        return stops.stops_page(sources, limit=limit, cursor=cursor, tenant=tenant_filter(cluster_id, tenant_id))

    @route(routes, "POST", "/v1/stops/{stop_id}:resume", Right.OPERATE, "resume_stop", "Retry a stopped item now")
    def resume(request: Request, stop_id: str, dry_run: DryRun = False) -> dict[str, Any]:
        return stops.resume(sources, stop_id, dry_run=dry_run, actor=actor_of(request))


def _add_tenants(routes: APIRouter, sources: Sources) -> None:
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @route(routes, "POST", f"{base}:pause", Right.TENANT, "pause_tenant", "Pause a tenant")
    def pause(
        request: Request,
        cluster_id: Id,
        tenant_id: Id,
        reason: Annotated[str, Query(max_length=500, description="shown with the tenant")] = "",
        dry_run: DryRun = False,
    ) -> dict[str, Any]:
        tenant = Tenant(cluster_id, tenant_id)
        return actions.pause(sources, tenant, reason=reason, dry_run=dry_run, actor=actor_of(request))

    @route(routes, "POST", f"{base}:resume", Right.TENANT, "resume_tenant", "Resume a paused tenant")
    def resume(request: Request, cluster_id: Id, tenant_id: Id, dry_run: DryRun = False) -> dict[str, Any]:
        return actions.resume(sources, Tenant(cluster_id, tenant_id), dry_run=dry_run, actor=actor_of(request))

    @route(routes, "DELETE", base, Right.OPERATE, "delete_tenant", "Delete a tenant for ever; idempotent")
    def delete(
        request: Request,
        cluster_id: Id,
        tenant_id: Id,
        reason: Annotated[str, Query(max_length=500, description="shown with the tenant")] = "",
        dry_run: DryRun = False,
    ) -> dict[str, Any]:
        tenant = Tenant(cluster_id, tenant_id)
        return actions.delete(sources, tenant, reason=reason, dry_run=dry_run, actor=actor_of(request))


def _add_quarantines(routes: APIRouter, sources: Sources) -> None:
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @route(
        routes,
        "GET",
        f"{base}/quarantines",
        Right.LOOK,
        "list_quarantines",
        "List stores that sent commits below their own promise",
    )
    def list_all(cluster_id: Id, tenant_id: Id) -> dict[str, Any]:
        return quarantines.quarantines_of(sources, Tenant(cluster_id, tenant_id))

    @route(
        routes,
        "POST",
        base + "/stores/{store_id}:reject",
        Right.OPERATE,
        "reject_store",
        "Give up the incarnation of a quarantined store",
    )
    def reject(
        request: Request, cluster_id: Id, tenant_id: Id, store_id: Id, dry_run: DryRun = False
    ) -> dict[str, Any]:
        tenant = Tenant(cluster_id, tenant_id)
        return quarantines.reject(sources, tenant, store_id, dry_run=dry_run, actor=actor_of(request))

    @route(
        routes,
        "POST",
        base + "/stores/{store_id}:accept",
        Right.OPERATE,
        "accept_store",
        "Merge the rows of a quarantined store into the log",
    )
    def accept(
        request: Request, cluster_id: Id, tenant_id: Id, store_id: Id, dry_run: DryRun = False
    ) -> dict[str, Any]:
        tenant = Tenant(cluster_id, tenant_id)
        return quarantines.accept(sources, tenant, store_id, dry_run=dry_run, actor=actor_of(request))

    @route(
        routes,
        "GET",
        f"{base}/amendments",
        Right.LOOK,
        "list_amendments",
        "List rows that were accepted into the log after it had been served",
    )
    def amendments(cluster_id: Id, tenant_id: Id) -> dict[str, Any]:
        return quarantines.amendments_of(sources, Tenant(cluster_id, tenant_id))


def tenant_filter(cluster_id: int | None, tenant_id: int | None) -> Tenant | None:
    """The tenant of two query parameters; None without them."""
    if cluster_id is None and tenant_id is None:
        return None
    if cluster_id is None or tenant_id is None:
        raise InvalidInput("cluster_id and tenant_id must be given together")
    return Tenant(cluster_id, tenant_id)


def _epoch(if_match: str | None) -> int | None:
    if if_match is None or if_match == "*":
        return None
    text = if_match.strip().strip('"')
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise InvalidInput("If-Match must be the ETag of a task", if_match=if_match)
    return int(text)
