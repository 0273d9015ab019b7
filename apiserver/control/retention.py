"""Routes of retention and safe points.

    PATCH    /v1/clusters/{c}/tenants/{t}                           {"retention_s": 86400}; 0 = all, null = the default
    GET      /v1/clusters/{c}/tenants/{t}/retention                 start of the log, and its holds
    GET      /v1/clusters/{c}/tenants/{t}/safe-point                the upstream must keep data above it
    PUT      /v1/clusters/{c}/tenants/{t}/safe-point/{service}      hold the log above a timestamp for some time
    DELETE   /v1/clusters/{c}/tenants/{t}/safe-point/{service}

Any process answers them from the catalog; conventions as in `apiserver.control.registration`.
"""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from apiserver.answers.retention import LogRetention, UpstreamSafePoint
from apiserver.control.routing import known, route, timestamp
from schemas.registry.log_start import LogStarts
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log import safe_points
from tistream.catalog.tenancy.tenants import set_retention
from tistream.catalog.work.tasks import served_watermark
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Name, PathTenant
from tistream.ids import Tenant

_DAY_S = 86_400
_SPAN_S_MAX = 3_600_000_000
_TSO = r"^\d{1,19}$"


class TenantChange(BaseModel):
    """Changes to a tenant."""

    retention_s: float | None = Field(
        ge=0, le=_SPAN_S_MAX, description="seconds of the log to keep; 0 = all, null = the setting"
    )


class NewSafePoint(BaseModel):
    """A safe point to set."""

    safe_ts: str = Field(pattern=_TSO, description="the log above it is kept")
    ttl_s: int = Field(default=_DAY_S, ge=0, le=365 * _DAY_S, description="seconds; 0 removes the safe point")


def retention_router(catalog: Catalog, starts: LogStarts) -> APIRouter:
    """The routes over this catalog."""
    routes = APIRouter(tags=["retention"])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @route(routes, "PATCH", base, Right.TENANT, "Set the retention of a tenant", answer=LogRetention)
    def change_tenant(tenant: PathTenant, change: TenantChange) -> dict[str, Any]:
        tenant = known(catalog, tenant)
        seconds = change.retention_s
        set_retention(catalog, tenant, None if seconds is None else math.ceil(seconds))
        return starts.shown(tenant)

    @route(routes, "GET", f"{base}/retention", Right.LOOK, "Start of the log, and its holds", answer=LogRetention)
    def get_retention(tenant: PathTenant) -> dict[str, Any]:
        return starts.shown(tenant)

    _safe_point_routes(catalog, routes, f"{base}/safe-point")
    return routes


def _safe_point_routes(catalog: Catalog, routes: APIRouter, base: str) -> None:
    @route(
        routes, "GET", base, Right.PUSH, "Timestamp above which the upstream must keep data", answer=UpstreamSafePoint
    )
    def get_safe_point(tenant: PathTenant) -> dict[str, Any]:
        return safe_point_of(catalog, known(catalog, tenant))

    @route(
        routes, "PUT", f"{base}/{{service_id}}", Right.TENANT,
        "Hold the log above a timestamp", answer=UpstreamSafePoint,
    )  # fmt: skip
    def set_safe_point(tenant: PathTenant, service_id: Name, new: NewSafePoint) -> dict[str, Any]:
        tenant = known(catalog, tenant)
        if new.ttl_s:
            safe_points.set_safe_point(catalog, tenant, service_id, timestamp(new.safe_ts), new.ttl_s)
        else:
            safe_points.remove_safe_point(catalog, tenant, service_id)
        return safe_point_of(catalog, tenant)

    @route(routes, "DELETE", f"{base}/{{service_id}}", Right.TENANT, "Remove a safe point", status_code=204)
    def remove_safe_point(tenant: PathTenant, service_id: Name) -> Response:
        safe_points.remove_safe_point(catalog, known(catalog, tenant), service_id)
        return Response(status_code=204)


def safe_point_of(catalog: Catalog, tenant: Tenant) -> dict[str, Any]:
    """The upstream must keep everything above `safe_ts`; null = nothing."""
    frontier = served_watermark(catalog, tenant)
    points = safe_points.list_safe_points(catalog, tenant)
    needed = [point.safe_ts for point in points] + ([frontier] if frontier else [])
    return {
        "safe_ts": str(min(needed)) if needed else None,
        "safe_time": tso.to_text(min(needed)) if needed else None,
        "frontier_ts": str(frontier) if frontier else None,
        "services": [
            {"service_id": point.service_id, "safe_ts": str(point.safe_ts), "expires_in_s": point.left_ms / 1000}
            for point in points
        ],
    }
