"""Registered tenants as people and programs see them: state, lag, tasks and stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tistream import ts as tso
from tistream.admin.core.keyspaces import kind_fact
from tistream.admin.views import Sources
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TenantRow, TenantState
from tistream.catalog.tenancy import tenants
from tistream.catalog.work import stores, tasks
from tistream.catalog.work.stream_ends import ends_of
from tistream.ids import Tenant


def summary(sources: Sources, row: TenantRow, ends: Mapping[Tenant, int]) -> dict[str, Any]:
    """State and lag of one tenant. `ends`: where the streams of tenants end that do."""
    resolved, end_ts = tasks.served_watermark(sources.catalog, row.tenant), ends.get(row.tenant)
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
        "lag_s": tso.lag_ms(resolved, sources.clock.unix_ms(), end_ts) / 1000 if resolved else None,
    }


def detail(sources: Sources, tenant: Tenant) -> dict[str, Any]:
    """One tenant with its tasks and stores."""
    row = tenants.look_up_tenant(sources.catalog, tenant)  # shown until it is deleted
    if row.state is TenantState.DELETED:
        raise tenants.given_up(tenant, row.reason)
    followed = stores.list_stores(sources.catalog, tenant)
    return {
        **summary(sources, row, ends_of(followed)),
        "tasks": [task(t) for t in tasks.list_tasks(sources.catalog, tenant)],
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


def task(row: TaskRow) -> dict[str, Any]:
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
