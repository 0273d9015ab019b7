"""The operators' pages, and the forms behind their buttons.

Every page has a twin with `.json` behind its address. A button leads to a page that says what would happen (the verb's
dry run) and has a form that does it; then the browser is sent back. Nothing needs a script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from apiserver.console import operator_views
from apiserver.console.live import LiveParts
from reading.deps import Id, Services
from tistream.admin import actions
from tistream.catalog.tenancy.tenants import GIVEN_UP, look_up_tenant
from tistream.errors import InvalidInput
from tistream.http.auth.access import access_of, needs
from tistream.http.auth.bodies import read_body
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant

Show = Callable[[Request, str, Callable[[], dict[str, Any]]], Response]  #: renders a template with facts
Verb = Callable[[bool], dict[str, Any]]  #: does it, or says with `dry_run` what it would do

_FORM_BYTES_MAX = 16 << 10

_Tenant = Annotated[str | None, Query(alias="tenant", max_length=40)]
_Cursor = Annotated[str | None, Query(max_length=40)]
_Kind = Annotated[str | None, Query(max_length=32)]
_At = Annotated[str | None, Query(alias="at", max_length=40)]
_Worker = Annotated[str | None, Query(max_length=128)]
_Key = Annotated[str | None, Query(max_length=20_000)]
_Other = Annotated[int, Query(alias="with", ge=0, le=(1 << 63) - 1)]


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; empty for a page that is only looked at."""
    body = await read_body(request.receive, _FORM_BYTES_MAX) if request.method == "POST" else b""
    return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=20))


_Form = Annotated[dict[str, str], Depends(_form)]


def add_pages(routes: APIRouter, services: Services, show: Show, live: LiveParts) -> None:
    """Put the operators' pages under the console's router."""
    _add_tasks(routes, services, show, live)
    _add_workers(routes, services, show, live)
    _add_tenants(routes, services, show, live)
    _add_lists(routes, services, show, live)


def _add_tasks(routes: APIRouter, services: Services, show: Show, live: LiveParts) -> None:
    sources = operator_views.sources_of(services)

    def tasks(
        tenant: _Tenant = None, cursor: _Cursor = None, owner: _Worker = None, stopped: bool = False
    ) -> dict[str, Any]:
        return operator_views.tasks(services, _tenant(tenant), cursor, owner or None, stopped)

    routes.get("/tasks.json", dependencies=[needs(Right.LOOK)])(tasks)

    @routes.get("/tasks", dependencies=[needs(Right.LOOK)])
    @live.every(3)
    def tasks_page(
        request: Request, tenant: _Tenant = None, cursor: _Cursor = None, owner: _Worker = None, stopped: bool = False
    ) -> Response:
        return show(request, "tasks.html", lambda: tasks(tenant, cursor, owner, stopped))

    @routes.get("/tasks/{task_id}.json", dependencies=[needs(Right.LOOK)])
    def task_json(task_id: Id) -> dict[str, Any]:
        return operator_views.task(services, task_id)

    @routes.get("/tasks/{task_id}", dependencies=[needs(Right.LOOK)])
    @live.every(3)
    def task_page(request: Request, task_id: Id) -> Response:
        return show(request, "task.html", lambda: operator_views.task(services, task_id))

    @routes.api_route("/tasks/{task_id}/move", methods=["GET", "POST"], dependencies=[needs(Right.OPERATE)])
    def move(request: Request, task_id: Id, to: _Worker = None) -> Response:
        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.move(sources, task_id, to or None, dry_run=dry_run, actor=_actor(request))

        return _asked(request, show, verb, title=f"Move task {task_id}", back=f"/tasks/{task_id}")

    @routes.api_route("/tasks/{task_id}/split", methods=["GET", "POST"], dependencies=[needs(Right.OPERATE)])
    def split(request: Request, task_id: Id, key: _Key = None) -> Response:
        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.split(sources, task_id, key or None, dry_run=dry_run, actor=_actor(request))

        return _asked(request, show, verb, title=f"Split task {task_id}", back="/tasks")

    @routes.api_route("/tasks/{task_id}/merge", methods=["GET", "POST"], dependencies=[needs(Right.OPERATE)])
    def merge(request: Request, task_id: Id, other: _Other) -> Response:
        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.merge(sources, task_id, other, dry_run=dry_run, actor=_actor(request))

        return _asked(request, show, verb, title=f"Merge tasks {task_id} and {other}", back=f"/tasks/{task_id}")

    @routes.api_route("/tasks/{task_id}/retry", methods=["GET", "POST"], dependencies=[needs(Right.OPERATE)])
    def retry(request: Request, task_id: Id) -> Response:
        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.retry(sources, task_id, dry_run=dry_run, actor=_actor(request))

        return _asked(request, show, verb, title=f"Let task {task_id} try again", back=f"/tasks/{task_id}")


def _add_workers(routes: APIRouter, services: Services, show: Show, live: LiveParts) -> None:
    sources = operator_views.sources_of(services)

    @routes.get("/workers.json", dependencies=[needs(Right.LOOK)])
    def workers_json() -> dict[str, Any]:
        return operator_views.workers(services)

    @routes.get("/workers", dependencies=[needs(Right.LOOK)])
    @live.every(3)
    def workers_page(request: Request) -> Response:
        return show(request, "workers.html", lambda: operator_views.workers(services))

    @routes.get("/workers/{worker_id}.json", dependencies=[needs(Right.LOOK)])
    def worker_json(worker_id: str) -> dict[str, Any]:
        return operator_views.worker(services, worker_id)

    @routes.get("/workers/{worker_id}", dependencies=[needs(Right.LOOK)])
    @live.every(3)
    def worker_page(request: Request, worker_id: str) -> Response:
        return show(request, "worker.html", lambda: operator_views.worker(services, worker_id))

    @routes.api_route("/workers/{worker_id}/drain", methods=["GET", "POST"], dependencies=[needs(Right.OPERATE)])
    def drain(request: Request, worker_id: str) -> Response:
        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.drain(sources, worker_id, dry_run=dry_run, actor=_actor(request))

        return _asked(request, show, verb, title=f"Drain {worker_id}", back=f"/workers/{quote(worker_id)}")

    @routes.api_route("/workers/{worker_id}/undrain", methods=["GET", "POST"], dependencies=[needs(Right.OPERATE)])
    def undrain(request: Request, worker_id: str) -> Response:
        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.undrain(sources, worker_id, dry_run=dry_run, actor=_actor(request))

        title = f"Give {worker_id} work again"
        return _asked(request, show, verb, title=title, back=f"/workers/{quote(worker_id)}")


def _add_tenants(routes: APIRouter, services: Services, show: Show, live: LiveParts) -> None:
    sources = operator_views.sources_of(services)

    @routes.get("/tenants.json", dependencies=[needs(Right.LOOK)])
    def tenants_json() -> dict[str, Any]:
        return operator_views.all_tenants(services)

    @routes.get("/tenants", dependencies=[needs(Right.LOOK)])
    @live.every(3)
    def tenants_page(request: Request) -> Response:
        return show(request, "tenants.html", lambda: operator_views.all_tenants(services))

    @routes.get("/tenants/{cluster_id}/{tenant_id}/schema.json", dependencies=[needs(Right.READ)])
    def schema_json(cluster_id: Id, tenant_id: Id, at: _At = None) -> dict[str, Any]:
        return operator_views.schema(services, Tenant(cluster_id, tenant_id), at)

    @routes.get("/tenants/{cluster_id}/{tenant_id}/schema", dependencies=[needs(Right.READ)])
    def schema_page(request: Request, cluster_id: Id, tenant_id: Id, at: _At = None) -> Response:
        return show(request, "schema.html", lambda: operator_views.schema(services, Tenant(cluster_id, tenant_id), at))

    @routes.api_route(
        "/tenants/{cluster_id}/{tenant_id}/pause", methods=["GET", "POST"], dependencies=[needs(Right.TENANT)]
    )
    def pause(request: Request, cluster_id: Id, tenant_id: Id) -> Response:
        tenant = Tenant(cluster_id, tenant_id)

        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.pause(sources, tenant, reason="", dry_run=dry_run, actor=_actor(request))

        return _asked(request, show, verb, title=f"Pause tenant {tenant}", back="/tenants")

    @routes.api_route(
        "/tenants/{cluster_id}/{tenant_id}/resume", methods=["GET", "POST"], dependencies=[needs(Right.TENANT)]
    )
    def resume(request: Request, cluster_id: Id, tenant_id: Id) -> Response:
        tenant = Tenant(cluster_id, tenant_id)

        def verb(dry_run: bool) -> dict[str, Any]:
            return actions.resume(sources, tenant, dry_run=dry_run, actor=_actor(request))

        return _asked(request, show, verb, title=f"Resume tenant {tenant}", back="/tenants")

    @routes.api_route(
        "/tenants/{cluster_id}/{tenant_id}/delete", methods=["GET", "POST"], dependencies=[needs(Right.OPERATE)]
    )
    def delete(request: Request, cluster_id: Id, tenant_id: Id, form: _Form) -> Response:
        tenant = Tenant(cluster_id, tenant_id)

        def verb(dry_run: bool) -> dict[str, Any]:
            typed, reason = (form.get(name, "").strip() for name in ("typed", "reason"))
            if not dry_run and typed != str(tenant):
                raise InvalidInput(f"'{typed[:80]}' is not {tenant}: nothing was deleted.", tenant=str(tenant))
            over = look_up_tenant(services.catalog, tenant).state in GIVEN_UP
            done = actions.delete(sources, tenant, reason=reason[:500], dry_run=dry_run, actor=_actor(request))
            return {**done, "over": over, "name": str(tenant)}

        title = f"Delete tenant {tenant}"
        return _asked(request, show, verb, title=title, back="/tenants", template="tenant_delete.html")


def _add_lists(routes: APIRouter, services: Services, show: Show, live: LiveParts) -> None:
    @routes.get("/gaps.json", dependencies=[needs(Right.LOOK)])
    def watermark_gaps_json(tenant: _Tenant = None) -> dict[str, Any]:
        return operator_views.watermark_gaps(services, _tenant(tenant))

    @routes.get("/gaps", dependencies=[needs(Right.LOOK)])
    @live.every(3)
    def watermark_gaps_page(request: Request, tenant: _Tenant = None) -> Response:
        return show(request, "gaps.html", lambda: operator_views.watermark_gaps(services, _tenant(tenant)))

    @routes.get("/events.json", dependencies=[needs(Right.LOOK)])
    def events_json(tenant: _Tenant = None, cursor: _Cursor = None, kind: _Kind = None) -> dict[str, Any]:
        return operator_views.events(services, cursor, kind, _tenant(tenant))

    @routes.get("/events", dependencies=[needs(Right.LOOK)])
    @live.every(3)
    def events_page(request: Request, tenant: _Tenant = None, cursor: _Cursor = None, kind: _Kind = None) -> Response:
        return show(request, "events.html", lambda: operator_views.events(services, cursor, kind, _tenant(tenant)))


def _actor(request: Request) -> str:
    who = access_of(request).principal
    return f"console {who.key_id}" if who is not None and who.key_id else "console"


def _asked(
    request: Request, show: Show, verb: Verb, *, title: str, back: str, template: str = "confirm.html"
) -> Response:
    """GET: what would happen, with a form. POST: do it, and back."""
    if request.method == "GET":
        return show(request, template, lambda: {**verb(True), "title": title, "back": back})

    def do() -> dict[str, Any]:
        return {**verb(False), "title": title, "back": back}

    answer = show(request, template, do)
    return RedirectResponse(back, 303) if answer.status_code == 200 else answer


def _tenant(text: str | None) -> Tenant | None:
    if not text:
        return None
    cluster, slash, tenant = text.partition("/")
    if not slash or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in (cluster, tenant)):
        raise InvalidInput("A tenant is named CLUSTER/TENANT, two numbers.", tenant=text)
    return Tenant(int(cluster), int(tenant))
