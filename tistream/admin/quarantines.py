"""Quarantined stores for operators: what they sent against their own promise, and the decision about it."""

from __future__ import annotations

from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.views import Sources, ids_of
from tistream.catalog.work.quarantines import QuarantineRow, list_quarantines, open_quarantines, reject_store
from tistream.errors import NotFound
from tistream.ids import Tenant


def quarantines_of(sources: Sources, tenant: Tenant) -> dict[str, Any]:
    """The quarantines of a tenant, open and decided, oldest first."""
    return {"items": [_fact(row) for row in list_quarantines(sources.catalog, tenant)]}


def reject(sources: Sources, tenant: Tenant, store_id: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Give up the store's incarnation from the quarantined file on, and serve the log on."""
    mine = _open(sources, tenant, store_id)
    good_ts = min(row.good_ts for row in mine)
    words = (
        f"Store {store_id} begins a new incarnation; {sum(row.rows for row in mine)} rows of it are not taken. "
        f"Pulls go on above {good_ts}. Those of the rows that are in the cluster may be missing for good: if there are "
        "any, connect another tenant and delete this one instead."
    )
    if not dry_run:
        reject_store(sources.catalog, tenant, store_id, actor=actor)
    return actions.outcome("reject", f"store {store_id} of tenant {tenant}", dry_run, words)


def problems_of(sources: Sources, tenant: Tenant | None) -> list[dict[str, object]]:
    """The open quarantines in the form of problems, each with the console's page of its store."""
    return [
        {**row.problem().shown(), "store_page": f"/tenants/{row.tenant}/stores/{row.store_id}"}
        for row in open_quarantines(sources.catalog, tenant)
    ]


def _open(sources: Sources, tenant: Tenant, store_id: int) -> list[QuarantineRow]:
    """The open quarantines of the store. NotFound without any."""
    mine = [row for row in open_quarantines(sources.catalog, tenant) if row.store_id == store_id]
    if not mine:
        raise NotFound(f"Store {store_id} of tenant {tenant} is not quarantined.", store=store_id)
    return mine


def _fact(row: QuarantineRow) -> dict[str, Any]:
    decided = tso.to_text(tso.compose(row.decided_ms)) if row.decided_ms else None
    return {
        **ids_of(row.tenant),
        "store_id": str(row.store_id),
        "incarnation": str(row.incarnation),
        "seq": str(row.seq),
        "task_id": str(row.task_id),
        "object": row.object_key,
        "state": row.state,
        "good_ts": str(row.good_ts),
        "good_time": tso.to_text(row.good_ts),
        "served_ts": str(row.served_ts),
        "rows": row.rows,
        "sample": list(row.sample),
        "since_time": tso.to_text(tso.compose(row.since_ms)),
        "decided_time": decided,
        "decided_by": row.decided_by or None,
    }
