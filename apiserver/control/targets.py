"""Routes of the targets that operators allow for a tenant.

    GET      /v1/clusters/{c}/tenants/{t}/targets                   the rules, and those of the deployment
    POST     /v1/clusters/{c}/tenants/{t}/targets                   {"target": "s3://lake/tenant-2"}
    DELETE   /v1/clusters/{c}/tenants/{t}/targets?target=...

Any process answers them from the catalog; conventions as in `apiserver.control.registration`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from apiserver.control.admin import actor_of
from apiserver.control.routing import route
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy import targets
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.http.audit.request import note_target
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import PathTenant
from tistream.ids import Tenant
from tistream.outbound.policy import Terms
from tistream.outbound.rules import RULE_CHARS_MAX


class NewTarget(BaseModel):
    """A target to allow."""

    target: str = Field(
        min_length=1,
        max_length=RULE_CHARS_MAX,
        description="s3://BUCKET/PREFIX, https://HOST/BUCKET, tikv://HOST:PORT or file:///FOLDER; docs/auth.md has all",
    )


class Targets(BaseModel):
    """Where the service may write for a tenant's administrators."""

    targets: list[str] = Field(description="of the tenant", examples=[["s3://lake/tenant-1"]])
    of_deployment: list[str] = Field(
        description="of every tenant, from the settings", examples=[["https://s3.eu-west-1.amazonaws.com/lake"]]
    )


def target_router(catalog: Catalog, outbound: Terms) -> APIRouter:
    """The routes over this catalog. `outbound`: what the deployment allows for all tenants."""
    routes = APIRouter(tags=["tenants"])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}/targets"
    shared = [rule.text for rule in outbound.rules]

    def shown(tenant: Tenant) -> Targets:
        return Targets(targets=targets.list_targets(catalog, tenant), of_deployment=shared)

    @route(routes, "GET", base, Right.LOOK, "List the targets that are allowed for a tenant")
    def list_targets(tenant: PathTenant) -> Targets:
        return shown(get_tenant(catalog, tenant).tenant)

    @route(routes, "POST", base, Right.OPERATE, "Allow a target for a tenant")
    def allow_target(tenant: PathTenant, new: NewTarget, request: Request) -> Targets:
        targets.allow_target(catalog, tenant, new.target, actor=actor_of(request))
        note_target(request, target=new.target)  # a refused one may hold a password
        return shown(tenant)

    @route(routes, "DELETE", base, Right.OPERATE, "No longer allow a target for a tenant")
    def disallow_target(
        tenant: PathTenant,
        target: Annotated[str, Query(max_length=RULE_CHARS_MAX, description="as it was allowed")],
        request: Request,
    ) -> Targets:
        targets.disallow_target(catalog, tenant, target, actor=actor_of(request))
        note_target(request, target=target)
        return shown(tenant)

    return routes
