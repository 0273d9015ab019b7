"""Quarantined stores for operators: what they sent against their own promise, and the decision about it."""

from __future__ import annotations

from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.views import Sources, ids_of
from tistream.catalog.log.amendments import list_amendments
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.acceptance import accept_store
from tistream.catalog.work.quarantines import QuarantineRow, list_quarantines, open_quarantines, reject_store
from tistream.errors import NotFound, StateForbids
from tistream.ids import Tenant


def quarantines_of(sources: Sources, tenant: Tenant) -> dict[str, Any]:
    """The quarantines of a tenant, open and decided, oldest first."""
    return {"items": [_fact(row) for row in list_quarantines(sources.catalog, tenant)]}


def reject(sources: Sources, tenant: Tenant, store_id: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Give up the store's incarnation from the quarantined file on, and serve the log on."""
    mine = _open(sources, tenant, store_id)
    good_ts, served_ts = min(row.good_ts for row in mine), max(row.served_ts for row in mine)
    words = (
        f"Store {store_id} begins a new incarnation; {sum(row.rows for row in mine)} rows of it are not taken. "
        f"Pulls go on above {good_ts}."
    )
    if good_ts < served_ts:
        words += f" Rows in ({good_ts}, {served_ts}], which were served already, may be missing for good."
    if not dry_run:
        reject_store(sources.catalog, tenant, store_id, actor=actor)
    return actions.outcome("reject", f"store {store_id} of tenant {tenant}", dry_run, words)


def accept(sources: Sources, tenant: Tenant, store_id: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Merge the store's rows into the log, and serve it on. Readers that have passed their place are told."""
    mine = [row for row in _open(sources, tenant, store_id) if row.state == QuarantineState.QUARANTINED]
    if not mine:
        raise StateForbids(f"The rows of store {store_id} of tenant {tenant} are being merged.", store=store_id)
    good_ts, served_ts = min(row.good_ts for row in mine), max(row.served_ts for row in mine)
    words = (
        f"{sum(row.rows for row in mine)} rows of store {store_id} are merged into the log above {good_ts}. "
        "Pulls go on once every task has taken its files."
    )
    if good_ts < served_ts:
        words += f" Cursors above {good_ts} are refused once: their readers read again from where the error says."
    if not dry_run:
        accept_store(sources.catalog, tenant, store_id, actor=actor)
    return actions.outcome("accept", f"store {store_id} of tenant {tenant}", dry_run, words)


def amendments_of(sources: Sources, tenant: Tenant) -> dict[str, Any]:
    """The amendments of the tenant's log, oldest first."""
    return {
        "items": [
            {
                **ids_of(tenant),
                "number": a.number,
                "store_id": str(a.store_id),
                "rows": a.rows,
                "from_ts": str(a.from_ts),
                "from_time": tso.to_text(a.from_ts),
                "to_ts": str(a.to_ts),
                "decided_by": a.decided_by or None,
            }
            for a in list_amendments(sources.catalog, tenant)
        ]
    }


def problems_of(sources: Sources, tenant: Tenant | None) -> list[dict[str, object]]:
    """The open quarantines in the form of problems, each with the console's page of its store and whether its rows can
    be accepted."""
    return [
        {
            **row.problem().shown(),
            "store_page": f"/tenants/{row.tenant}/stores/{row.store_id}",
            "may_accept": row.state == QuarantineState.QUARANTINED,
        }
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
        "error": row.error,
    }
