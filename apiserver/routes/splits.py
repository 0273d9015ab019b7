"""Plans of long reads, see `reading.splits`.

GET /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/changes/splits
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.concurrency import run_in_threadpool

from apiserver.routes.parameters import Cursor, EndTs, StartTs, add_scoped
from reading.deps import Services
from reading.scope import Scope
from reading.splits import SplitRequest, plan, shown
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.limits import SPLITS_MAX

_PART_BYTES = 16 << 20

Rows = Annotated[int | None, Query(ge=1, description="Rows the plan covers at most; it ends with a whole commit_ts.")]
Parts = Annotated[int, Query(ge=1, le=SPLITS_MAX, description="Parts at most.")]
PartBytes = Annotated[int, Query(ge=1, description="Stored bytes of a part, at least about this many.")]


def _query(
    start_ts: StartTs = None,
    cursor: Cursor = None,
    end_ts: EndTs = None,
    rows: Rows = None,
    parts: Parts = 1,
    part_bytes: PartBytes = _PART_BYTES,
) -> Callable[..., SplitRequest]:
    return partial(
        SplitRequest, start_ts=start_ts, cursor=cursor, end_ts=end_ts, rows=rows, parts=parts, part_bytes=part_bytes
    )


Split = Annotated[Callable[..., SplitRequest], Depends(_query)]  #: the request, but for what is read


def router(services: Services) -> APIRouter:
    """Plans of three scopes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])

    async def planned(scope: Scope, asked: Callable[..., SplitRequest]) -> dict[str, Any]:
        return shown(await run_in_threadpool(plan, services, asked(scope=scope)))

    operations = ("split_tenant", "split_db", "split_table")
    summary = "Parts of a long pull of a {}"
    add_scoped(routes, "/changes/splits", planned, _query, operations=operations, summary=summary)
    return routes
