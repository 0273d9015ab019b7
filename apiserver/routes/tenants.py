"""Registered tenants, their lag, and their tasks and stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from reading.deps import Id, Services
from tistream import ts as tso
from tistream.admin.core.keyspaces import kind_fact
from tistream.catalog.tenancy import tenants
from tistream.catalog.work import stores, tasks
from tistream.catalog.work.stream_ends import ends_of, stream_ends
from tistream.http.auth.access import KeyTables, Who, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.ids import Tenant


def router(services: Services) -> APIRouter:
    """Read-only tenant routes; registration belongs to the control plane."""
    routes = APIRouter(tags=["tenants"])

    @routes.get(
        "/v1/tenants",
        operation_id="list_tenants",
        summary="All tenants that the key may see",
        dependencies=[needs(Right.LOOK, filtered=True, limited=OfLimited.NO_TABLES)],
    )
    def list_tenants(who: Who) -> dict[str, Any]:
        ends = stream_ends(services.catalog)
        return {
            "items": [
                summary(services, row, ends) for row in tenants.list_tenants(services.catalog) if who.sees(row.tenant)
            ]
        }

    @routes.get(
        "/v1/clusters/{cluster_id}/tenants/{tenant_id}",
        operation_id="get_tenant",
        summary="One tenant",
        dependencies=[needs(Right.LOOK, limited=OfLimited.WITHIN)],
    )
    def get_tenant(cluster_id: Id, tenant_id: Id, within: KeyTables) -> dict[str, Any]:
        found = detail(services, Tenant(cluster_id, tenant_id))
        if within is not None:  # key ranges and errors of tasks show other tables
            del found["tasks"], found["stores"]
        return found

    return routes


def summary(services: Services, row: tenants.TenantRow, ends: Mapping[Tenant, int]) -> dict[str, Any]:
    """State and lag of one tenant. `ends`: where the streams of tenants end that do."""
    resolved, end_ts = tasks.served_watermark(services.catalog, row.tenant), ends.get(row.tenant)
    return {
        "cluster_id": row.tenant.cluster_id,
        "tenant_id": row.tenant.tenant_id,
        **kind_fact(row),
        "state": str(row.state),
        "start_ts": str(row.start_ts),
        "earliest_ts": str(row.earliest_ts),
        "retention_s": row.retention_s,
        "resolved_ts": str(resolved),
        "resolved_time": tso.to_text(resolved) if resolved else None,
        "end_ts": None if end_ts is None else str(end_ts),
        "ended": end_ts is not None and resolved >= end_ts,
        "lag_s": tso.lag_ms(resolved, services.clock.unix_ms(), end_ts) / 1000 if resolved else None,
    }


def detail(services: Services, tenant: Tenant) -> dict[str, Any]:
    """One tenant with its tasks and stores."""
    row = tenants.look_up_tenant(services.catalog, tenant)  # shown until it is deleted
    if row.state is tenants.TenantState.DELETED:
        raise tenants.given_up(tenant)
    followed = stores.list_stores(services.catalog, tenant)
    return {
        **summary(services, row, ends_of(followed)),
        "tasks": [task(t) for t in tasks.list_tasks(services.catalog, tenant)],
        "stores": [
            {
                "store_id": s.store_id,
                "incarnation": s.incarnation,
                "max_cut_ts": str(s.max_cut_ts),
                "dispatcher": s.dispatcher,
                "end_ts": str(s.end_ts) if s.end_ts else None,
            }
            for s in followed
        ],
    }


def task(row: tasks.TaskRow) -> dict[str, Any]:
    """A task as JSON."""
    return {
        "task_id": row.task_id,
        "kind": row.kind,
        "start_key": row.range.start.hex(),
        "end_key": row.range.end.hex(),
        "durable_ts": str(row.durable_ts),
        "durable_time": tso.to_text(row.durable_ts),
        "epoch": row.epoch,
        "owner": row.owner,
        "resubscribe_id": row.resubscribe_id,
        "error": row.error,
    }
