"""Plans of long reads, see `reading.pages.splits`.

GET /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/changes/splits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.concurrency import run_in_threadpool

from apiserver.answers.reading import Plan
from apiserver.routes.parameters import SpanQuery, add_scoped
from reading.pages.splits import SplitRequest, plan, shown
from reading.rows.scope import Scope
from reading.served.services import Services
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.limits import SPLITS_MAX

_PART_BYTES = 16 << 20

Rows = Annotated[int | None, Query(ge=1, description="Rows the plan covers at most; it ends with a whole commit_ts.")]
Parts = Annotated[int, Query(ge=1, le=SPLITS_MAX, description="Parts at most.")]
PartBytes = Annotated[int, Query(ge=1, description="Stored bytes of a part, at least about this many.")]


def _query(
    span: SpanQuery,
    rows: Rows = None,
    parts: Parts = 1,
    part_bytes: PartBytes = _PART_BYTES,
) -> Callable[..., SplitRequest]:
    return partial(SplitRequest, **asdict(span), rows=rows, parts=parts, part_bytes=part_bytes)


Split = Annotated[Callable[..., SplitRequest], Depends(_query)]  #: the request, but for what is read


def router(services: Services) -> APIRouter:
    """Plans of three scopes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])

    async def planned(scope: Scope, request_of: Callable[..., SplitRequest]) -> dict[str, Any]:
        return shown(await run_in_threadpool(plan, services, request_of(scope=scope)))

    operations = ("split_tenant", "split_db", "split_table")
    summary = "Parts of a long pull of a {}"
    add_scoped(routes, "/changes/splits", planned, _query, operations=operations, summary=summary, model=Plan)
    return routes
