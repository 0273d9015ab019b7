"""From no tenant to the first row: registering one, what is left to do, and how to connect.

    /tenants/register                a form; its script asks POST /v1/tenants, whose answer shows the push bundle once
    /tenants/{c}/{t}/checklist       the steps until the tenant is active, renewed by themselves
    /tenants/{c}/{t}/connect         how to push and how to pull, in lines to copy; the tenant's page has it as a dialog

Nothing here makes or shows a secret: the key of a new tenant's pushers is in the answer of the API, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from apiserver.console.live import LiveParts
from apiserver.console.snippets import ORIGIN, pull_snippets, push_snippets
from apiserver.routes import tenants as tenant_routes
from reading.deps import Id, Services
from tistream.admin.onboarding import checklist
from tistream.catalog.tenancy.keys import list_keys
from tistream.errors import NotFound
from tistream.http.auth.access import Who, access_of, needs
from tistream.http.auth.core.roles import Principal, Right, Role
from tistream.ids import Tenant

Show = Callable[[Request, str, Callable[[], dict[str, Any]]], Response]

_Table = Annotated[str, Query(max_length=200)]
_Asked = Annotated[int | None, Query(ge=0, le=(1 << 63) - 1)]


def add_pages(routes: APIRouter, services: Services, show: Show, live: LiveParts) -> None:
    """Put the pages under the console's router, before those of one tenant."""
    _add_register(routes, services, show)

    @routes.get("/tenants/{cluster_id}/{tenant_id}/checklist.json", dependencies=[needs(Right.LOOK)])
    def checklist_json(cluster_id: Id, tenant_id: Id) -> dict[str, Any]:
        return steps(services, Tenant(cluster_id, tenant_id))

    @routes.get("/tenants/{cluster_id}/{tenant_id}/checklist", dependencies=[needs(Right.LOOK)])
    @live.every(1)
    def checklist_page(request: Request, cluster_id: Id, tenant_id: Id) -> Response:
        return show(request, "checklist.html", lambda: steps(services, Tenant(cluster_id, tenant_id)))

    @routes.get("/tenants/{cluster_id}/{tenant_id}/connect.json", dependencies=[needs(Right.LOOK)])
    def connect_json(request: Request, cluster_id: Id, tenant_id: Id, table: _Table = "") -> dict[str, Any]:
        found = _connect(services, Tenant(cluster_id, tenant_id), table, keyed=asks_for_keys(request))
        origin = str(request.base_url).rstrip("/")
        for lines in (found["push"], found["pull"]):
            for each in lines:
                each["text"] = each["text"].replace(ORIGIN, origin)
        return found

    @routes.get("/tenants/{cluster_id}/{tenant_id}/connect", dependencies=[needs(Right.LOOK)])
    def connect_page(request: Request, cluster_id: Id, tenant_id: Id, table: _Table = "") -> Response:
        def facts() -> dict[str, Any]:
            of = Tenant(cluster_id, tenant_id)
            return {**_connect(services, of, table, keyed=asks_for_keys(request)), "origin": ORIGIN}

        return show(request, "connect.html", facts)


def asks_for_keys(request: Request) -> bool:
    """Whether this deployment asks for API keys."""
    return access_of(request).authenticator is not None


def steps(services: Services, of: Tenant) -> dict[str, Any]:
    """What is done and what is left to do until the tenant is active."""
    found = tenant_routes.detail(services, of)
    has_key = any(row.role == Role.PUSHER and row.state == "living" for row in list_keys(services.catalog, of))
    told = [
        {"step": step, "done": done, "more": more.removeprefix(": ") if done else ""}
        for step, done, more in checklist(found, has_key=has_key)
    ]
    return {
        "cluster_id": of.cluster_id,
        "tenant_id": of.tenant_id,
        "state": found["state"],
        "steps": told,
        "next": next((each["step"] for each in told if not each["done"]), None),
        "awaiting": found["state"] == "AWAITING_SNAPSHOT",
    }


def _add_register(routes: APIRouter, services: Services, show: Show) -> None:
    look = [needs(Right.LOOK, filtered=True)]

    @routes.get("/tenants/register.json", dependencies=look)
    def register_json(
        request: Request, who: Who, cluster_id: _Asked = None, tenant_id: _Asked = None
    ) -> dict[str, Any]:
        asked = None if cluster_id is None or tenant_id is None else Tenant(cluster_id, tenant_id)
        return _register(services, who, asked, keyed=asks_for_keys(request))

    @routes.get("/tenants/register", dependencies=look)
    def register_page(request: Request, who: Who) -> Response:
        return show(request, "register.html", lambda: _register(services, who, None, keyed=asks_for_keys(request)))


def _register(services: Services, who: Principal, asked: Tenant | None, *, keyed: bool) -> dict[str, Any]:
    """Whether `who` may register a tenant, and why not this one."""
    found: dict[str, Any] = {"may": Right.OPERATE in who.rights, "role": str(who.role), "keyed": keyed}
    if asked is None or not who.sees(asked):
        return {**found, "why_not": None, "see": None}
    try:
        state = str(tenant_routes.detail(services, asked)["state"]).replace("_", " ").lower()
    except NotFound:
        return {**found, "why_not": None, "see": None}
    see = f"/tenants/{asked.cluster_id}/{asked.tenant_id}"
    return {**found, "why_not": f"Tenant {asked} is registered already; it is {state}.", "see": see}


def _connect(services: Services, of: Tenant, table: str, *, keyed: bool) -> dict[str, Any]:
    found = tenant_routes.detail(services, of)
    return {
        "cluster_id": of.cluster_id,
        "tenant_id": of.tenant_id,
        "state": found["state"],
        "table": table,
        "keyed": keyed,
        "push": push_snippets(of, keyed=keyed),
        "pull": pull_snippets(of, table, keyed=keyed),
    }
