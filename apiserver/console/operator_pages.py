"""The operators' pages, and the forms behind their buttons. Nothing needs a script."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query

from apiserver.console import operator_views
from apiserver.console.pages import Action, Form, Pages
from apiserver.sources import sources_of
from tistream.admin import actions, jobs, quarantines
from tistream.catalog.rows.jobs import JobState
from tistream.catalog.tenancy.tenants import GIVEN_UP, look_up_tenant
from tistream.errors import InvalidInput
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Id, PathTenant
from tistream.ids import Tenant
from tistream.limits import INT_MAX

_TENANT = "/tenants/{cluster_id}/{tenant_id}"

_TenantName = Annotated[str | None, Query(alias="tenant", max_length=40)]
_Cursor = Annotated[str | None, Query(max_length=40)]
_Kind = Annotated[str | None, Query(max_length=32)]
_At = Annotated[str | None, Query(alias="at", max_length=40)]
_Worker = Annotated[str | None, Query(max_length=128)]
_Key = Annotated[str | None, Query(max_length=20_000)]
_Other = Annotated[int, Query(alias="with", ge=0, le=INT_MAX)]


def add_pages(pages: Pages) -> None:
    """Add the operators' pages."""
    _add_views(pages)
    _add_work_actions(pages)
    _add_tenant_actions(pages)
    _add_store_actions(pages)


def _add_views(pages: Pages) -> None:
    services = pages.services

    @pages.view("/tasks", "tasks.html", every=3)
    def tasks(
        tenant: _TenantName = None, cursor: _Cursor = None, owner: _Worker = None, stopped: bool = False
    ) -> dict[str, Any]:
        return operator_views.tasks(services, parse_tenant(tenant), cursor, owner or None, stopped)

    @pages.view("/tasks/{task_id}", "task.html", every=3)
    def task(task_id: Id) -> dict[str, Any]:
        return operator_views.task(services, task_id)

    @pages.view("/workers", "workers.html", every=3)
    def workers() -> dict[str, Any]:
        return operator_views.workers(services)

    @pages.view("/workers/{worker_id}", "worker.html", every=3)
    def worker(worker_id: str) -> dict[str, Any]:
        return operator_views.worker(services, worker_id)

    @pages.view("/tenants", "tenants.html", every=3)
    def tenants() -> dict[str, Any]:
        return operator_views.all_tenants(services)

    @pages.view(f"{_TENANT}/schema", "schema.html", right=Right.READ)
    def schema(tenant: PathTenant, at: _At = None) -> dict[str, Any]:
        return operator_views.schema(services, tenant, at)

    @pages.view("/gaps", "gaps.html", every=3)
    def watermark_gaps(tenant: _TenantName = None) -> dict[str, Any]:
        return operator_views.watermark_gaps(services, parse_tenant(tenant))

    @pages.view("/jobs", "jobs.html", every=3)
    def maintenance_jobs(tenant: _TenantName = None, cursor: _Cursor = None, state: _Kind = None) -> dict[str, Any]:
        return operator_views.maintenance_jobs(services, cursor, _parse_state(state), parse_tenant(tenant))

    @pages.view("/events", "events.html", every=3)
    def events(tenant: _TenantName = None, cursor: _Cursor = None, kind: _Kind = None) -> dict[str, Any]:
        return operator_views.events(services, cursor, kind, parse_tenant(tenant))


def _add_work_actions(pages: Pages) -> None:
    sources = sources_of(pages.services)

    @pages.action("/tasks/{task_id}/move")
    def move(task_id: Id, to: _Worker = None) -> Action:
        run = partial(actions.move, sources, task_id, to or None)
        return Action(run, f"Move task {task_id}", f"/tasks/{task_id}")

    @pages.action("/tasks/{task_id}/split")
    def split(task_id: Id, key: _Key = None) -> Action:
        return Action(partial(actions.split, sources, task_id, key or None), f"Split task {task_id}", "/tasks")

    @pages.action("/tasks/{task_id}/merge")
    def merge(task_id: Id, other: _Other) -> Action:
        run = partial(actions.merge, sources, task_id, other)
        return Action(run, f"Merge tasks {task_id} and {other}", f"/tasks/{task_id}")

    @pages.action("/tasks/{task_id}/retry")
    def retry(task_id: Id) -> Action:
        return Action(partial(actions.retry, sources, task_id), f"Retry task {task_id}", f"/tasks/{task_id}")

    @pages.action("/workers/{worker_id}/drain")
    def drain(worker_id: str) -> Action:
        return Action(partial(actions.drain, sources, worker_id), f"Drain {worker_id}", f"/workers/{quote(worker_id)}")

    @pages.action("/workers/{worker_id}/undrain")
    def undrain(worker_id: str) -> Action:
        run = partial(actions.undrain, sources, worker_id)
        return Action(run, f"Assign work to {worker_id} again", f"/workers/{quote(worker_id)}")

    @pages.action("/jobs/{job_id}/retry")
    def retry_job(job_id: Id) -> Action:
        return Action(partial(jobs.retry, sources, job_id), f"Run job {job_id}", "/jobs")

    @pages.action("/jobs/{job_id}/cancel")
    def cancel_job(job_id: Id) -> Action:
        return Action(partial(jobs.cancel, sources, job_id), f"Cancel job {job_id}", "/jobs")


def _add_tenant_actions(pages: Pages) -> None:
    services, sources = pages.services, sources_of(pages.services)

    @pages.action(f"{_TENANT}/pause", right=Right.TENANT)
    def pause(tenant: PathTenant) -> Action:
        return Action(partial(actions.pause, sources, tenant, reason=""), f"Pause tenant {tenant}", "/tenants")

    @pages.action(f"{_TENANT}/resume", right=Right.TENANT)
    def resume(tenant: PathTenant) -> Action:
        return Action(partial(actions.resume, sources, tenant), f"Resume tenant {tenant}", "/tenants")

    @pages.action(f"{_TENANT}/delete", template="tenant_delete.html")
    def delete(tenant: PathTenant, form: Form) -> Action:
        def run(*, dry_run: bool, actor: str) -> dict[str, Any]:
            typed, reason = (form.get(name, "").strip() for name in ("typed", "reason"))
            if not dry_run and typed != str(tenant):
                raise InvalidInput(f"'{typed[:80]}' is not {tenant}: nothing was deleted.", tenant=str(tenant))
            over = look_up_tenant(services.catalog, tenant).state in GIVEN_UP
            done = actions.delete(sources, tenant, reason=reason[:500], dry_run=dry_run, actor=actor)
            return {**done, "over": over, "name": str(tenant)}

        return Action(run, f"Delete tenant {tenant}", "/tenants")


def _add_store_actions(pages: Pages) -> None:
    sources = sources_of(pages.services)

    @pages.action(f"{_TENANT}/stores/{{store_id}}/reject")
    def reject(tenant: PathTenant, store_id: Id) -> Action:
        run = partial(quarantines.reject, sources, tenant, store_id)
        return Action(run, f"Reject store {store_id}", f"/tenants/{tenant}")


def _parse_state(text: str | None) -> JobState | None:
    try:
        return JobState(text) if text else None
    except ValueError as e:
        raise InvalidInput(f"Jobs are {', '.join(JobState)}.", state=text) from e


def parse_tenant(text: str | None) -> Tenant | None:
    """The tenant that a page is asked for as CLUSTER/TENANT; None = all. InvalidInput."""
    if not text:
        return None
    cluster, slash, tenant = text.partition("/")
    if not slash or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in (cluster, tenant)):
        raise InvalidInput("A tenant is named CLUSTER/TENANT, two numbers.", tenant=text)
    return Tenant(int(cluster), int(tenant))
