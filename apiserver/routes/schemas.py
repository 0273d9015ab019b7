"""Databases and tables at any timestamp of the history, its DDL, and differences between two timestamps."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from apiserver import schema_views
from apiserver.answers.schemas import DatabaseList, DdlPage, SchemaDiff, TableList
from apiserver.routes.parameters import Continued, StartTsDashed
from reading.served.position import FORMS
from reading.served.services import Services
from schemas.history import History
from schemas.model import Table
from schemas.types import full_type
from tistream.http.auth.access import KeyTables, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.parameters import PathTenant
from tistream.ids import Tenant
from tistream.limits import TIME_CHARS_MAX

StartTs = Annotated[
    str | None,
    Query(
        max_length=TIME_CHARS_MAX,
        description=f"List as of this timestamp: {FORMS}. Default: the served watermark.",
    ),
]
DiffTs = Annotated[str | None, Query(max_length=40, description="A timestamp, clamped to the known history.")]


def router(services: Services) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["schemas"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @routes.get(f"{base}/databases", summary="Databases of a tenant", responses={200: {"model": DatabaseList}})
    def list_dbs(
        tenant: PathTenant,
        within: KeyTables,
        start_ts: StartTs = None,
        start_ts_dashed: StartTsDashed = None,
        continued: Continued = False,
    ) -> dict[str, Any]:
        text = start_ts or start_ts_dashed
        history, ts = _at(services, tenant, within, text, continued=continued)
        items = [
            {"database": d.name, "db_id": d.id, "charset": d.charset, "collate": d.collate}
            for d in history.databases(ts)
        ]
        return {"items": items, "at_ts": str(ts)}

    @routes.get(
        f"{base}/databases/{{database:name}}/tables",
        summary="Tables of a database",
        responses={200: {"model": TableList}},
    )
    def list_tables(
        tenant: PathTenant,
        database: str,
        within: KeyTables,
        start_ts: StartTs = None,
        start_ts_dashed: StartTsDashed = None,
        continued: Continued = False,
    ) -> dict[str, Any]:
        text = start_ts or start_ts_dashed
        history, ts = _at(services, tenant, within, text, continued=continued)
        items = [describe(t) for t in history.tables(database, ts)]
        return {"database": history.database(database, ts).name, "items": items, "at_ts": str(ts)}

    @routes.get(f"{base}/ddl", summary="DDL of a tenant, the newest first", responses={200: {"model": DdlPage}})
    def list_ddl(
        tenant: PathTenant,
        within: KeyTables,
        limit: Annotated[int, Query(ge=1, le=1000, description="Events at most.")] = 100,
        cursor: Annotated[str | None, Query(max_length=20, description="next_cursor of the previous page.")] = None,
    ) -> dict[str, Any]:
        return schema_views.ddl_page(services, tenant, within, limit=limit, cursor=cursor)

    @routes.get(
        f"{base}/schema-diff", summary="Schema changes between two timestamps", responses={200: {"model": SchemaDiff}}
    )
    def diff_schema(
        tenant: PathTenant, within: KeyTables, from_ts: DiffTs = None, to_ts: DiffTs = None
    ) -> dict[str, Any]:
        return schema_views.schema_diff(services, tenant, within, from_ts, to_ts)

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


def _at(
    services: Services, tenant: Tenant, within: tuple[str, ...] | None, text: str | None, *, continued: bool
) -> tuple[History, int]:
    """The history as far as these tables go, and the TSO of `text`, at most the served watermark."""
    served, now_ms = services.served(tenant).within(within), services.clock.unix_ms()
    history = served.schema_as_of(continued=continued)
    ts = served.parse_ts(text or "latest", now_ms)
    served.check_start(ts, now_ms)
    return history, min(ts, served.resolved)
