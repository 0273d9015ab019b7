"""Routes for operators: views and actions.

    GET  /v1/tasks  /v1/tasks/{id}  /v1/ranges  /v1/workers  /v1/workers/{id}  /v1/owner  /v1/gaps  /v1/events
         /v1/stops  /v1/clusters/{c}/tenants/{t}/quarantines
    POST /v1/workers/{id}:drain  :undrain
    POST /v1/tasks/{id}:move  :split  :merge  :retry
    POST /v1/stops/{id}:resume
    POST /v1/clusters/{c}/tenants/{t}:pause  :resume
    POST /v1/clusters/{c}/tenants/{t}/stores/{s}:reject
    DELETE /v1/clusters/{c}/tenants/{t}

Any process, leader or not, answers them from the catalog. Lists are paged. Each action takes `dry_run=true` to return
its effect without doing it. The ETag of a task is its epoch; with `If-Match`, `:move` returns 412 when the task was
reassigned since.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from apiserver.answers.processes import EventPage, Leader, WorkerDetail, WorkerList
from apiserver.answers.tasks import (
    Drained,
    Merged,
    Moved,
    Outcome,
    QuarantineList,
    Split,
    StopPage,
    TaskDetail,
    TaskPage,
    TenantDeletion,
    TenantSwitched,
    WatermarkGapList,
)
from apiserver.control.routing import route
from tistream.admin import actions, quarantines, stops, views
from tistream.admin.views import Sources
from tistream.errors import InvalidInput
from tistream.http.auth.access import access_of
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Id, PathTenant
from tistream.ids import Tenant
from tistream.limits import INT_MAX

Limit = Annotated[int, Query(ge=1, le=1000, description="maximum number of items")]
Cursor = Annotated[str | None, Query(max_length=20_000, description="next_cursor of the previous page")]
_Kind = Annotated[
    str | None, Query(max_length=32, description="a kind as task.moved, or all of task, worker, tenant ...")
]


async def _tenant_filter(
    cluster_id: Annotated[int | None, Query(ge=0, le=INT_MAX, description="of this cluster; needs tenant_id")] = None,
    tenant_id: Annotated[int | None, Query(ge=0, le=INT_MAX, description="of this tenant; needs cluster_id")] = None,
) -> Tenant | None:
    if cluster_id is None and tenant_id is None:
        return None
    if cluster_id is None or tenant_id is None:
        raise InvalidInput("cluster_id and tenant_id must be given together")
    return Tenant(cluster_id, tenant_id)


TenantFilter = Annotated[Tenant | None, Depends(_tenant_filter)]


def actor_of(request: Request) -> str:
    """The caller's name for events."""
    who = access_of(request).principal
    return who.key_id if who is not None and who.key_id else "API"


class Order(TypedDict):
    """How an action is to be done, and for whom."""

    dry_run: bool
    actor: str


async def _order(
    request: Request, dry_run: Annotated[bool, Query(description="return the effect, and do nothing")] = False
) -> Order:
    return Order(dry_run=dry_run, actor=actor_of(request))


OrderQuery = Annotated[Order, Depends(_order)]


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
    @route(routes, "GET", "/v1/tasks", Right.LOOK, "List tasks by id, with owners and load", answer=TaskPage)
    def list_tasks(
        tenant: TenantFilter,
        limit: Limit = 100,
        cursor: Cursor = None,
        owner: Annotated[str | None, Query(max_length=128, description="of this worker")] = None,
        stopped: Annotated[bool, Query(description="only stopped ones")] = False,
    ) -> dict[str, Any]:
        return views.tasks_page(sources, limit=limit, cursor=cursor, tenant=tenant, owner=owner, stopped=stopped)

    @route(
        routes, "GET", "/v1/ranges", Right.LOOK,
        "List the key ranges of a tenant in order, with owners", answer=TaskPage,
    )  # fmt: skip
    def list_ranges(
        cluster_id: Annotated[int, Query(ge=0, le=INT_MAX)],
        tenant_id: Annotated[int, Query(ge=0, le=INT_MAX)],
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> dict[str, Any]:
        return views.ranges_page(sources, Tenant(cluster_id, tenant_id), limit=limit, cursor=cursor)

    @route(routes, "GET", "/v1/owner", Right.LOOK, "Get the leader of the meta servers", answer=Leader)
    def get_owner() -> dict[str, Any]:
        return views.owner(sources)

    @route(routes, "GET", "/v1/gaps", Right.LOOK, "List stalled ranges", answer=WatermarkGapList)
    def list_watermark_gaps(tenant: TenantFilter) -> dict[str, Any]:
        return views.watermark_gaps(sources, tenant)

    @route(routes, "GET", "/v1/events", Right.LOOK, "List events, newest first", answer=EventPage)
    def list_events(
        tenant: TenantFilter,
        limit: Limit = 100,
        cursor: Cursor = None,
        after: Annotated[str | None, Query(max_length=20, description="newer than this event_id, in order")] = None,
        kind: _Kind = None,
        subject: Annotated[str | None, Query(max_length=128, description="id of a task, store, worker ...")] = None,
    ) -> dict[str, Any]:
        return views.events_page(
            sources, limit=limit, cursor=cursor, after=after, kind=kind, tenant=tenant, subject=subject
        )


def _add_workers(routes: APIRouter, sources: Sources) -> None:
    @route(routes, "GET", "/v1/workers", Right.LOOK, "List processes with state and load", answer=WorkerList)
    def list_workers(
        kind: Annotated[
            str | None,
            Query(
                max_length=32,
                description="sorter, dispatcher, replicate, maintain, spark, replay, meta, api or command",
            ),
        ] = None,
    ) -> dict[str, Any]:
        return views.workers(sources, kind)

    @route(routes, "GET", "/v1/workers/{worker_id}", Right.LOOK, "Get one process with its report", answer=WorkerDetail)
    def get_worker(worker_id: str) -> dict[str, Any]:
        return views.worker(sources, worker_id)

    @route(
        routes, "POST", "/v1/workers/{worker_id}:drain", Right.OPERATE,
        "Move all work away from a worker", answer=Drained,
    )  # fmt: skip
    def drain_worker(worker_id: str, order: OrderQuery) -> dict[str, Any]:
        return actions.drain(sources, worker_id, **order)

    @route(
        routes, "POST", "/v1/workers/{worker_id}:undrain", Right.OPERATE,
        "Assign work to a worker again", answer=Outcome,
    )  # fmt: skip
    def undrain_worker(worker_id: str, order: OrderQuery) -> dict[str, Any]:
        return actions.undrain(sources, worker_id, **order)


def _add_tasks(routes: APIRouter, sources: Sources) -> None:
    @route(routes, "GET", "/v1/tasks/{task_id}", Right.LOOK, "Get one task with its stalled ranges", answer=TaskDetail)
    def get_task(task_id: Id, response: Response) -> dict[str, Any]:
        task = views.task(sources, task_id)
        response.headers["ETag"] = f'"{task["epoch"]}"'
        return task

    @route(routes, "POST", "/v1/tasks/{task_id}:move", Right.OPERATE, "Move a task to another sorter", answer=Moved)
    def move_task(
        order: OrderQuery,
        task_id: Id,
        to: Annotated[
            str | None, Query(max_length=128, description="a sorter; default: the one with least load")
        ] = None,
        if_match: Annotated[str | None, Header(max_length=40, description="ETag of the task")] = None,
    ) -> dict[str, Any]:
        seen = _epoch(if_match)
        return actions.move(sources, task_id, to, **order, if_epoch=seen)

    @route(routes, "POST", "/v1/tasks/{task_id}:split", Right.OPERATE, "Split a task in two", answer=Split)
    def split_task(
        order: OrderQuery,
        task_id: Id,
        key: Annotated[
            str | None,
            Query(max_length=20_000, description="hexadecimal; default: the split key that its sorter reports"),
        ] = None,
    ) -> dict[str, Any]:
        return actions.split(sources, task_id, key, **order)

    @route(routes, "POST", "/v1/tasks/{task_id}:merge", Right.OPERATE, "Merge two neighbouring tasks", answer=Merged)
    def merge_tasks(
        order: OrderQuery,
        task_id: Id,
        other: Annotated[int, Query(alias="with", ge=0, le=INT_MAX, description="id of the neighbour")],
    ) -> dict[str, Any]:
        return actions.merge(sources, task_id, other, **order)

    @route(routes, "POST", "/v1/tasks/{task_id}:retry", Right.OPERATE, "Retry a stopped task", answer=Outcome)
    def retry_stopped_task(task_id: Id, order: OrderQuery) -> dict[str, Any]:
        return actions.retry(sources, task_id, **order)


def _add_stops(routes: APIRouter, sources: Sources) -> None:
    @route(
        routes, "GET", "/v1/stops", Right.LOOK,
        "List what errors have stopped: tenants, stores, jobs and tasks", answer=StopPage,
    )  # fmt: skip
    def list_stops(tenant: TenantFilter, limit: Limit = 100, cursor: Cursor = None) -> dict[str, Any]:
        return stops.stops_page(sources, limit=limit, cursor=cursor, tenant=tenant)

    @route(routes, "POST", "/v1/stops/{stop_id}:resume", Right.OPERATE, "Retry a stopped item now", answer=Outcome)
    def resume_stop(stop_id: str, order: OrderQuery) -> dict[str, Any]:
        return stops.resume(sources, stop_id, **order)


def _add_tenants(routes: APIRouter, sources: Sources) -> None:
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @route(routes, "POST", f"{base}:pause", Right.TENANT, "Pause a tenant", answer=TenantSwitched)
    def pause_tenant(
        order: OrderQuery,
        tenant: PathTenant,
        reason: Annotated[str, Query(max_length=500, description="shown with the tenant")] = "",
    ) -> dict[str, Any]:
        return actions.pause(sources, tenant, reason=reason, **order)

    @route(routes, "POST", f"{base}:resume", Right.TENANT, "Resume a paused tenant", answer=TenantSwitched)
    def resume_tenant(tenant: PathTenant, order: OrderQuery) -> dict[str, Any]:
        return actions.resume(sources, tenant, **order)

    @route(routes, "DELETE", base, Right.OPERATE, "Delete a tenant for ever; idempotent", answer=TenantDeletion)
    def delete_tenant(
        order: OrderQuery,
        tenant: PathTenant,
        reason: Annotated[str, Query(max_length=500, description="shown with the tenant")] = "",
        replaced_by: Annotated[
            int | None,
            Query(ge=0, le=INT_MAX, description="tenant of the cluster that has its place, and where its readers go"),
        ] = None,
    ) -> dict[str, Any]:
        if replaced_by is not None:
            return actions.replace(sources, tenant, Tenant(tenant.cluster_id, replaced_by), **order)
        return actions.delete(sources, tenant, reason=reason, **order)


def _add_quarantines(routes: APIRouter, sources: Sources) -> None:
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @route(
        routes, "GET", f"{base}/quarantines", Right.LOOK,
        "List stores that sent commits below their own promise", answer=QuarantineList,
    )  # fmt: skip
    def list_quarantines(tenant: PathTenant) -> dict[str, Any]:
        return quarantines.quarantines_of(sources, tenant)

    @route(
        routes, "POST", base + "/stores/{store_id}:reject", Right.OPERATE,
        "Give up the incarnation of a quarantined store", answer=Outcome,
    )  # fmt: skip
    def reject_store(tenant: PathTenant, store_id: Id, order: OrderQuery) -> dict[str, Any]:
        return quarantines.reject(sources, tenant, store_id, **order)


def _epoch(if_match: str | None) -> int | None:
    if if_match is None or if_match == "*":
        return None
    text = if_match.strip().strip('"')
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise InvalidInput("If-Match must be the ETag of a task", if_match=if_match)
    return int(text)
