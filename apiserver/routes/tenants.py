"""Registered tenants, their lag, and their tasks and stores."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from apiserver.answers.tenants import TenantDetail, TenantList
from apiserver.sources import sources_of
from reading.served.services import Services
from tistream.admin.lag import live_readers
from tistream.admin.tenants import detail, summary
from tistream.catalog.tenancy import tenants
from tistream.catalog.work.stream_ends import stream_ends
from tistream.http.auth.access import KeyTables, Who, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.parameters import PathTenant

_Readers = Annotated[
    bool, Query(description="with the consumers and changefeeds of each that are neither paused nor finished")
]


def router(services: Services) -> APIRouter:
    """Read-only tenant routes; registration belongs to the control plane."""
    routes, sources = APIRouter(tags=["tenants"]), sources_of(services)

    @routes.get(
        "/v1/tenants",
        summary="All tenants that the key may see",
        dependencies=[needs(Right.LOOK, filtered=True, limited=OfLimited.NO_TABLES)],
        responses={200: {"model": TenantList}},
    )
    def list_tenants(who: Who, readers: _Readers = False) -> dict[str, Any]:
        ends = stream_ends(services.catalog)
        rows = [row for row in tenants.list_tenants(services.catalog) if who.sees(row.tenant)]
        items = [summary(sources, row, ends) for row in rows]
        if readers and who.tables is None:  # readers of other tables are not for a limited key
            for item, row in zip(items, rows, strict=True):
                item["readers"] = live_readers(services.catalog, row.tenant)
        return {"items": items}

    @routes.get(
        "/v1/clusters/{cluster_id}/tenants/{tenant_id}",
        summary="One tenant",
        dependencies=[needs(Right.LOOK, limited=OfLimited.WITHIN)],
        responses={200: {"model": TenantDetail}},
    )
    def get_tenant(tenant: PathTenant, within: KeyTables) -> dict[str, Any]:
        shown = detail(sources, tenant)
        if within is not None:  # key ranges and errors of tasks show other tables
            del shown["tasks"], shown["stores"]
        return shown

    return routes
