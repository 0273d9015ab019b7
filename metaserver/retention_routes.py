"""Routes of retention, safe points and changefeeds.

    PATCH  /v1/clusters/{c}/tenants/{t}                             {"retention_s": 86400}; 0 = all, null = the default
    GET    /v1/clusters/{c}/tenants/{t}/retention                   start of the log, and its holds GET
    /v1/clusters/{c}/tenants/{t}/safe-point                  the timestamp above which the upstream must keep data PUT
    /v1/clusters/{c}/tenants/{t}/safe-point/{service}        hold the log above a timestamp for some time DELETE
    /v1/clusters/{c}/tenants/{t}/safe-point/{service} GET    /v1/clusters/{c}/tenants/{t}/changefeeds
    registered consumers POST   /v1/clusters/{c}/tenants/{t}/changefeeds GET, PATCH, DELETE
    /v1/clusters/{c}/tenants/{t}/changefeeds/{id} POST   /v1/clusters/{c}/tenants/{t}/changefeeds/{id}:pause, :resume

Any process answers them from the catalog; conventions as in `metaserver.routes`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from metaserver.routing import route
from reading.filters import parse_filter
from schemas.registry.log_start import LogStarts
from tistream import ts as tso
from tistream.admin.consumers import consumers_of, one_consumer
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.safe_points import list_safe_points, remove_safe_point, set_safe_point
from tistream.catalog.tenancy.changefeeds import (
    ChangefeedRow,
    FeedState,
    add_changefeed,
    get_changefeed,
    list_changefeeds,
    move_checkpoint,
    remove_changefeed,
    switch_changefeed,
)
from tistream.catalog.tenancy.tenants import get_tenant, set_retention
from tistream.catalog.work.tasks import served_watermark
from tistream.errors import InvalidInput
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant
from tistream.limits import CONSUMER_IDLE_HOURS_DEFAULT, CONSUMER_PARTITIONS_MAX

_INT_MAX = (1 << 63) - 1
_DAY_S = 86_400
_SPAN_S_MAX = 3_600_000_000
_Id = Annotated[int, Path(ge=0, le=_INT_MAX)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_Name = Annotated[str, Path(pattern=_NAME)]
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


class NewChangefeed(BaseModel):
    """A consumer to register."""

    changefeed_id: str = Field(pattern=_NAME)
    start_ts: str = Field(
        default="latest", pattern=r"^(\d{1,19}|earliest|latest)$", description="a TSO, `earliest` or `latest`"
    )
    target_ts: str = Field(default="0", pattern=_TSO, description="end; 0 = none")
    filters: dict[Literal["tables", "columns", "ops", "where", "changed", "event_filters"], str] = Field(
        default={}, description="filters of its pulls, as the query of a pull has them"
    )
    partitions: int = Field(
        default=1, ge=1, le=CONSUMER_PARTITIONS_MAX, description="members that can share it; a table is in one"
    )
    idle_limit_s: float = Field(
        default=CONSUMER_IDLE_HOURS_DEFAULT * 3600,
        ge=0,
        le=_SPAN_S_MAX,
        description="without a request for so long, it no longer holds the log; 0 = it holds for ever",
    )


class Checkpoint(BaseModel):
    """A consumer's checkpoint."""

    checkpoint_ts: str = Field(pattern=_TSO, description="it has everything at or below it; never falls")


class ShownPartition(BaseModel):
    """A part of a consumer's changes."""

    partition: int
    member: str | None
    epoch: int
    checkpoint_ts: str
    lag_s: float


class Changefeed(BaseModel):
    """A registered consumer."""

    changefeed_id: str
    state: FeedState
    start_ts: str
    checkpoint_ts: str
    checkpoint_time: str
    target_ts: str
    filters: dict[str, str]
    created_time: str
    seen_time: str
    lag_s: float = Field(description="from the checkpoint to the served watermark")
    idle_s: float = Field(description="since its last request")
    idle_limit_s: float
    holds_log: bool
    members: list[str] = Field(description="those whose lease has not been taken over")
    leases_s: dict[str, float] = Field(description="what is left of the lease of each; below 0 it has ended")
    partitions: list[ShownPartition]


def retention_router(catalog: Catalog, starts: LogStarts) -> APIRouter:
    """The routes over this catalog."""
    routes = APIRouter(tags=["retention"])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @route(routes, "PATCH", base, Right.TENANT, "change_tenant", "Set the retention of a tenant")
    def change(cluster_id: _Id, tenant_id: _Id, wanted: TenantChange) -> dict[str, Any]:
        tenant = _known(catalog, cluster_id, tenant_id)
        seconds = wanted.retention_s
        set_retention(catalog, tenant, None if seconds is None else math.ceil(seconds))
        return starts.shown(tenant)

    @route(routes, "GET", f"{base}/retention", Right.LOOK, "get_retention", "Start of the log, and its holds")
    def retention(cluster_id: _Id, tenant_id: _Id) -> dict[str, Any]:
        return starts.shown(Tenant(cluster_id, tenant_id))

    _safe_point_routes(catalog, routes, f"{base}/safe-point")
    _changefeed_routes(catalog, routes, f"{base}/changefeeds")
    return routes


def _safe_point_routes(catalog: Catalog, routes: APIRouter, base: str) -> None:
    @route(routes, "GET", base, Right.PUSH, "get_safe_point", "Timestamp above which the upstream must keep data")
    def safe_point(cluster_id: _Id, tenant_id: _Id) -> dict[str, Any]:
        return safe_point_of(catalog, _known(catalog, cluster_id, tenant_id))

    @route(routes, "PUT", f"{base}/{{service_id}}", Right.TENANT, "set_safe_point", "Hold the log above a timestamp")
    def hold(cluster_id: _Id, tenant_id: _Id, service_id: _Name, new: NewSafePoint) -> dict[str, Any]:
        tenant = _known(catalog, cluster_id, tenant_id)
        if new.ttl_s:
            set_safe_point(catalog, tenant, service_id, _ts(new.safe_ts), new.ttl_s)
        else:
            remove_safe_point(catalog, tenant, service_id)
        return safe_point_of(catalog, tenant)

    @route(
        routes,
        "DELETE",
        f"{base}/{{service_id}}",
        Right.TENANT,
        "remove_safe_point",
        "Remove a safe point",
        status_code=204,
    )
    def release(cluster_id: _Id, tenant_id: _Id, service_id: _Name) -> Response:
        remove_safe_point(catalog, _known(catalog, cluster_id, tenant_id), service_id)
        return Response(status_code=204)


def _changefeed_routes(catalog: Catalog, routes: APIRouter, base: str) -> None:
    one = f"{base}/{{changefeed_id}}"

    @route(routes, "GET", base, Right.LOOK, "list_changefeeds", "List registered consumers")
    def changefeeds(cluster_id: _Id, tenant_id: _Id) -> dict[str, list[Changefeed]]:
        tenant = _known(catalog, cluster_id, tenant_id)
        return {"items": [Changefeed(**found) for found in consumers_of(catalog, tenant)]}

    @route(routes, "POST", base, Right.READ, "create_changefeed", "Register a consumer", status_code=201)
    def create(cluster_id: _Id, tenant_id: _Id, new: NewChangefeed, response: Response) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        served = served_watermark(catalog, tenant)
        if not served:
            raise InvalidInput("the tenant awaits its schema snapshot: its log has not started")
        word = new.start_ts
        start = None if word == "earliest" else served if word == "latest" else _ts(word)
        known = {row.changefeed_id: row for row in list_changefeeds(catalog, tenant)}.get(new.changefeed_id)
        if known is not None and word == "latest":
            start = known.start_ts  # a repeat after a lost reply
        parse_filter({str(name): text for name, text in new.filters.items()})
        made = add_changefeed(
            catalog,
            tenant,
            new.changefeed_id,
            start,
            target_ts=_ts(new.target_ts),
            filters=orjson.dumps(new.filters, option=orjson.OPT_SORT_KEYS).decode(),
            partitions=new.partitions,
            idle_limit_ms=int(new.idle_limit_s * 1000),
        )
        response.status_code = 201 if made else 200
        return _one_shown(catalog, get_changefeed(catalog, tenant, new.changefeed_id))

    @route(routes, "GET", one, Right.LOOK, "get_changefeed", "Get a consumer")
    def read(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> Changefeed:
        return _one_shown(catalog, get_changefeed(catalog, _known(catalog, cluster_id, tenant_id), changefeed_id))

    @route(routes, "PATCH", one, Right.READ, "move_checkpoint", "Advance a consumer's checkpoint")
    def checkpoint(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name, new: Checkpoint) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        return _one_shown(catalog, move_checkpoint(catalog, tenant, changefeed_id, _ts(new.checkpoint_ts)))

    _changefeed_states(catalog, routes, one)


def _changefeed_states(catalog: Catalog, routes: APIRouter, one: str) -> None:
    @route(routes, "DELETE", one, Right.TENANT, "remove_changefeed", "Remove a consumer", status_code=204)
    def remove(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> Response:
        remove_changefeed(catalog, _known(catalog, cluster_id, tenant_id), changefeed_id)
        return Response(status_code=204)

    @route(routes, "POST", f"{one}:pause", Right.TENANT, "pause_changefeed", "Pause a consumer")
    def pause(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        return _one_shown(catalog, switch_changefeed(catalog, tenant, changefeed_id, FeedState.STOPPED))

    @route(routes, "POST", f"{one}:resume", Right.TENANT, "resume_changefeed", "Resume a consumer")
    def resume(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        return _one_shown(catalog, switch_changefeed(catalog, tenant, changefeed_id, FeedState.NORMAL))


def safe_point_of(catalog: Catalog, tenant: Tenant) -> dict[str, Any]:
    """The upstream must keep everything above `safe_ts`; null = nothing."""
    frontier = served_watermark(catalog, tenant)
    points = list_safe_points(catalog, tenant)
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


def _known(catalog: Catalog, cluster_id: int, tenant_id: int) -> Tenant:
    return get_tenant(catalog, Tenant(cluster_id, tenant_id)).tenant


def _ts(text: str) -> int:
    value = int(text)
    if value > _INT_MAX or (value and tso.physical_ms(value) > 253_402_300_799_000):
        raise InvalidInput(f"{text} is not a timestamp.")
    return value


def _one_shown(catalog: Catalog, row: ChangefeedRow) -> Changefeed:
    return Changefeed(**one_consumer(catalog, row))
