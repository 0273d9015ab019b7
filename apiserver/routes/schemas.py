"""Databases and tables at any timestamp of the history, its DDL, and differences between two timestamps."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from apiserver import schema_views
from apiserver.routes.parameters import StartTsDashed
from reading.deps import Id, Services
from reading.position import FORMS
from schemas.history import History
from schemas.model import Table
from schemas.types import full_type
from tistream.http.auth.access import KeyTables, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.ids import Tenant

StartTs = Annotated[
    str | None, Query(description=f"List as of this timestamp: {FORMS}. Default: the served watermark.")
]
DiffTs = Annotated[str | None, Query(max_length=40, description="A timestamp, clamped to the known history.")]


def router(services: Services) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["schemas"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @routes.get(f"{base}/databases", operation_id="list_dbs", summary="Databases of a tenant")
    def list_dbs(
        cluster_id: Id,
        tenant_id: Id,
        within: KeyTables,
        start_ts: StartTs = None,
        start_ts_dashed: StartTsDashed = None,
    ) -> dict[str, Any]:
        history, ts = _at(services, Tenant(cluster_id, tenant_id), within, start_ts or start_ts_dashed)
        items = [
            {"database": d.name, "db_id": d.id, "charset": d.charset, "collate": d.collate}
            for d in history.databases(ts)
        ]
        return {"items": items, "at_ts": str(ts)}

    @routes.get(
        f"{base}/databases/{{database:name}}/tables", operation_id="list_tables", summary="Tables of a database"
    )
    def list_tables(
        cluster_id: Id,
        tenant_id: Id,
        database: str,
        within: KeyTables,
        start_ts: StartTs = None,
        start_ts_dashed: StartTsDashed = None,
    ) -> dict[str, Any]:
        history, ts = _at(services, Tenant(cluster_id, tenant_id), within, start_ts or start_ts_dashed)
        items = [describe(t) for t in history.tables(database, ts)]
        return {"database": history.database(database, ts).name, "items": items, "at_ts": str(ts)}

    @routes.get(f"{base}/ddl", operation_id="list_ddl", summary="DDL of a tenant, the newest first")
    def list_ddl(
        cluster_id: Id,
        tenant_id: Id,
        within: KeyTables,
        limit: Annotated[int, Query(ge=1, le=1000, description="Events at most.")] = 100,
        cursor: Annotated[str | None, Query(max_length=20, description="next_cursor of the previous page.")] = None,
    ) -> dict[str, Any]:
        return schema_views.ddl_page(services, Tenant(cluster_id, tenant_id), within, limit=limit, cursor=cursor)

    @routes.get(f"{base}/schema-diff", operation_id="diff_schema", summary="Schema changes between two timestamps")
    def diff_schema(
        cluster_id: Id, tenant_id: Id, within: KeyTables, from_ts: DiffTs = None, to_ts: DiffTs = None
    ) -> dict[str, Any]:
        return schema_views.schema_diff(services, Tenant(cluster_id, tenant_id), within, from_ts, to_ts)

    return routes


def describe(table: Table) -> dict[str, Any]:
    """A table version as JSON."""
    return {
        "table": table.name,
        "table_id": table.id,
        "kind": table.kind,
        "partition_ids": list(table.partition_ids),
        "columns": [{"name": c.name, "type": full_type(c), "nullable": not c.not_null} for c in table.visible_columns],
        "primary_key": [c.name for c in table.columns if c.primary],
    }


def _at(services: Services, tenant: Tenant, within: tuple[str, ...] | None, text: str | None) -> tuple[History, int]:
    """The history as far as these tables go, and the TSO of `text`, at most the served watermark."""
    served, now_ms = services.served(tenant).within(within), services.clock.unix_ms()
    history = served.known_history
    ts = served.parse_ts(text or "latest", now_ms)
    served.check_start(ts, now_ms)
    return history, min(ts, served.resolved)
