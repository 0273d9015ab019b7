"""The lag of a tenant, and its causes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from apiserver.answers.tenants import TenantLag
from apiserver.sources import lag_sources
from reading.served.services import Services
from tistream.admin.lag import explained, lag_of
from tistream.catalog.tenancy import tenants
from tistream.errors import KeyLimited
from tistream.http.auth.access import KeyTables, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.parameters import PathTenant

Why = Annotated[bool, Query(description="Explain the lag in a sentence and by stage; reads the bucket.")]


def router(services: Services) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["tenants"], dependencies=[needs(Right.LOOK, limited=OfLimited.WITHIN)])
    sources = lag_sources(services)

    @routes.get(
        "/v1/clusters/{cluster_id}/tenants/{tenant_id}/lag",
        summary="Lag of a tenant, and its causes",
        responses={200: {"model": TenantLag}},
    )
    def get_lag(tenant: PathTenant, within: KeyTables, why: Why = False) -> dict[str, Any]:
        if why and within is not None:
            raise KeyLimited("A key that is limited to tables is not told why a tenant lags: leave out why.")
        row = tenants.get_tenant(services.catalog, tenant)
        if why:
            return explained(sources, row)
        lag = lag_of(sources, row)
        if within is not None:  # readers of other tables are not for a limited key
            del lag["readers"]
        return lag

    return routes
