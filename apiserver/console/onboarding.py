"""Onboarding: registering a tenant, the steps until it is active, and how to connect.

    /tenants/register                a form; its script calls POST /v1/tenants and shows the push credentials once
    /tenants/{c}/{t}/checklist       the steps until the tenant is active, live
    /tenants/{c}/{t}/connect         lines to copy for push and pull; a dialog on the tenant's page

These pages neither create nor show a secret: the key of a tenant's pushers is only in the answer of the API.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request

from apiserver.console.pages import Pages
from apiserver.console.snippets import ORIGIN, keys_snippets, pull_snippets, push_snippets
from apiserver.sources import sources_of
from reading.served.services import Services
from tistream.admin import onboarding
from tistream.admin.tenants import detail
from tistream.catalog.tenancy.keys import list_keys
from tistream.errors import NotFound
from tistream.http.auth.access import Who, access_of, needs
from tistream.http.auth.core.roles import OfLimited, Principal, Right, Role
from tistream.http.parameters import PathTenant
from tistream.ids import Tenant
from tistream.limits import INT_MAX

_TENANT = "/tenants/{cluster_id}/{tenant_id}"

_Table = Annotated[str, Query(max_length=200)]
_Number = Annotated[int | None, Query(ge=0, le=INT_MAX)]


def add_pages(pages: Pages) -> None:
    """Add the pages of onboarding."""
    services, needed = pages.services, [needs(Right.LOOK, filtered=True, limited=OfLimited.REFUSED)]

    @pages.routes.get("/tenants/register.json", dependencies=needed)
    def register_json(
        request: Request, who: Who, cluster_id: _Number = None, tenant_id: _Number = None
    ) -> dict[str, Any]:
        tenant = None if cluster_id is None or tenant_id is None else Tenant(cluster_id, tenant_id)
        return _register(services, who, tenant, keyed=asks_for_keys(request))

    @pages.view("/tenants/register", "register.html", filtered=True, json=False)
    def register(request: Request, who: Who) -> dict[str, Any]:
        return _register(services, who, None, keyed=asks_for_keys(request))

    @pages.view(f"{_TENANT}/checklist", "checklist.html", every=1)
    def checklist(tenant: PathTenant) -> dict[str, Any]:
        return steps(services, tenant)

    @pages.routes.get(f"{_TENANT}/connect.json", dependencies=[needs(Right.LOOK, limited=OfLimited.REFUSED)])
    def connect_json(request: Request, tenant: PathTenant, table: _Table = "") -> dict[str, Any]:
        shown = _connect(services, tenant, table, keyed=asks_for_keys(request))
        origin = str(request.base_url).rstrip("/")
        for line in (*shown["push"], *shown["pull"]):
            line["text"] = line["text"].replace(ORIGIN, origin)
        return shown

    @pages.view(f"{_TENANT}/connect", "connect.html", json=False)
    def connect(request: Request, tenant: PathTenant, table: _Table = "") -> dict[str, Any]:
        shown = _connect(services, tenant, table, keyed=asks_for_keys(request))
        return {**shown, "origin": ORIGIN}


def asks_for_keys(request: Request) -> bool:
    """Whether this deployment requires API keys."""
    return access_of(request).authenticator is not None


def steps(services: Services, of: Tenant) -> dict[str, Any]:
    """The steps until the tenant is active, done or not."""
    tenant = detail(sources_of(services), of)
    has_key = any(row.role == Role.PUSHER and row.state == "living" for row in list_keys(services.catalog, of))
    done_or_not = [
        {"step": step, "done": done, "more": more.removeprefix(": ") if done else ""}
        for step, done, more in onboarding.checklist(tenant, has_key=has_key)
    ]
    return {
        "cluster_id": of.cluster_id,
        "tenant_id": of.tenant_id,
        "state": tenant["state"],
        "steps": done_or_not,
        "next": next((each["step"] for each in done_or_not if not each["done"]), None),
        "awaiting": tenant["state"] == "AWAITING_SNAPSHOT",
    }


def _register(services: Services, who: Principal, tenant: Tenant | None, *, keyed: bool) -> dict[str, Any]:
    """Whether `who` may register tenants, and why `tenant` cannot be registered."""
    form: dict[str, Any] = {"may": Right.OPERATE in who.rights, "role": str(who.role), "keyed": keyed}
    if tenant is None or not who.sees(tenant):
        return {**form, "why_not": None, "see": None}
    try:
        state = str(detail(sources_of(services), tenant)["state"]).replace("_", " ").lower()
    except NotFound:
        return {**form, "why_not": None, "see": None}
    see = f"/tenants/{tenant.cluster_id}/{tenant.tenant_id}"
    return {**form, "why_not": f"Tenant {tenant} is registered already; it is {state}.", "see": see}


def _connect(services: Services, of: Tenant, table: str, *, keyed: bool) -> dict[str, Any]:
    tenant = detail(sources_of(services), of)
    has_tables = tenant["keyspace"] is None
    return {
        "cluster_id": of.cluster_id,
        "tenant_id": of.tenant_id,
        "state": tenant["state"],
        "has_tables": has_tables,
        "table": table,
        "keyed": keyed,
        "push": push_snippets(of, keyed=keyed, tables=has_tables),
        "pull": pull_snippets(of, table, keyed=keyed) if has_tables else keys_snippets(of, keyed=keyed),
    }
