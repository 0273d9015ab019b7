"""Service safe points: named, expiring requests to keep the log above a timestamp, as in PD.

A safe point expires `ttl_s` after it was set, by the database's clock; setting it again changes timestamp and expiry.
Until then the tenant's log above it is kept, and the upstream's safe point is not raised above it. `set_safe_point`
locks the tenant's row, as `raise_floor` does (see `retention`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import of_asked_tenant, safe_points, tenant_ids
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.errors import TsExpired
from tistream.ids import Tenant

_p = safe_points.c
_MINE = and_(of_asked_tenant(safe_points), _p.service_id == bindparam("asked_service"))
_SETTLE = safe_points.delete().where(
    of_asked_tenant(safe_points), (_p.service_id == bindparam("asked_service")) | (_p.expires_ms <= now_ms())
)
_SET = safe_points.insert().values(expires_ms=now_ms() + bindparam("ttl_ms"))
_REMOVE = safe_points.delete().where(_MINE)
_ALL = (
    select(_p.service_id, _p.safe_ts, (_p.expires_ms - now_ms()).label("left_ms"))
    .where(of_asked_tenant(safe_points), _p.expires_ms > now_ms())
    .order_by(_p.safe_ts, _p.service_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafePoint:
    """A live service safe point."""

    service_id: str
    safe_ts: int
    left_ms: int  #: until it expires


def set_safe_point(catalog: Catalog, tenant: Tenant, service_id: str, safe_ts: int, ttl_s: int) -> None:
    """Keep the log above `safe_ts` for `ttl_s` seconds. TsExpired when some of it is already deleted."""
    with catalog.transaction() as conn:
        earliest = max(lock_tenant(conn, tenant))
        if safe_ts < earliest:
            raise TsExpired(f"The log of this tenant begins at {earliest}.", earliest_ts=str(earliest))
        conn.execute(_SETTLE, {**tenant_ids(tenant), "asked_service": service_id})
        conn.execute(
            _SET,
            {
                "cluster_id": tenant.cluster_id,
                "tenant_id": tenant.tenant_id,
                "service_id": service_id,
                "safe_ts": safe_ts,
                "ttl_ms": ttl_s * 1000,
            },
        )


def remove_safe_point(catalog: Catalog, tenant: Tenant, service_id: str) -> bool:
    """Remove a safe point. False when it does not exist."""
    with catalog.transaction() as conn:
        return conn.execute(_REMOVE, {**tenant_ids(tenant), "asked_service": service_id}).rowcount == 1


def list_safe_points(catalog: Catalog, tenant: Tenant) -> list[SafePoint]:
    """The live safe points, lowest first."""
    with catalog.reading() as conn:
        return [
            SafePoint(service_id=row.service_id, safe_ts=row.safe_ts, left_ms=int(row.left_ms))
            for row in conn.execute(_ALL, tenant_ids(tenant))
        ]
