"""Plans of long reads, see `reading.splits`.

GET /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/changes/splits
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from apiserver.routes.changes import Cursor, EndTs, StartTs
from reading.deps import Id, Services
from reading.scope import Scope
from reading.splits import SplitRequest, plan, shown
from tistream.errors import InvalidInput
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant
from tistream.limits import SPLITS_MAX

_PART_BYTES = 16 << 20

Rows = Annotated[int | None, Query(ge=1, description="The plan covers at most so many rows; it ends with a commit_ts.")]
Parts = Annotated[int, Query(ge=1, le=SPLITS_MAX, description="Parts at most.")]
PartBytes = Annotated[int, Query(ge=1, description="A part is worth about so many stored bytes at least.")]


def _query(
    start_ts: StartTs = None,
    cursor: Cursor = None,
    end_ts: EndTs = None,
    rows: Rows = None,
    parts: Parts = 1,
    part_bytes: PartBytes = _PART_BYTES,
) -> Callable[..., SplitRequest]:
    if start_ts is None and cursor is None:
        raise InvalidInput("A read starts somewhere: give start_ts (for example start_ts=earliest) or cursor.")
    return partial(
        SplitRequest, start_ts=start_ts, cursor=cursor, end_ts=end_ts, rows=rows, parts=parts, part_bytes=part_bytes
    )


Asked = Annotated[Callable[..., SplitRequest], Depends(_query)]


def router(services: Services) -> APIRouter:
    """Plans of three scopes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ)])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @routes.get(f"{base}/changes/splits", operation_id="split_tenant", summary="Parts of a long pull of a tenant")
    def of_tenant(cluster_id: Id, tenant_id: Id, asked: Asked) -> dict[str, Any]:
        return shown(plan(services, asked(scope=Scope(tenant=Tenant(cluster_id, tenant_id)))))

    @routes.get(
        f"{base}/databases/{{database:name}}/changes/splits",
        operation_id="split_db",
        summary="Parts of a long pull of a database",
    )
    def of_db(cluster_id: Id, tenant_id: Id, database: str, asked: Asked) -> dict[str, Any]:
        return shown(plan(services, asked(scope=Scope(tenant=Tenant(cluster_id, tenant_id), database=database))))

    @routes.get(
        f"{base}/databases/{{database:name}}/tables/{{table:name}}/changes/splits",
        operation_id="split_table",
        summary="Parts of a long pull of a table",
    )
    def of_table(cluster_id: Id, tenant_id: Id, database: str, table: str, asked: Asked) -> dict[str, Any]:
        scope = Scope(tenant=Tenant(cluster_id, tenant_id), database=database, table=table)
        return shown(plan(services, asked(scope=scope)))

    return routes
