"""PullTenant, PullDB and PullTable.

A pull that waits sleeps on the event loop, not in a thread, and looks again a few times a second: any number of readers
may wait without keeping others from being served.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from apiserver import negotiate
from apiserver.cursor import Scope
from apiserver.deps import Id, Services
from apiserver.pull import PullAnswer, PullRequest, pull
from tistream.auth.access import needs
from tistream.auth.roles import Right
from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.limits import PULL_ROWS_DEFAULT, PULL_ROWS_MAX, PULL_WAIT_MS_MAX

_LOOK_AGAIN_S = 0.1
_OWN_WORDS = {"start_ts", "start-ts", "end_ts", "cursor", "format", "limit", "wait"}  # others are the format's

StartTs = Annotated[
    str | None,
    Query(description="A TSO, an RFC 3339 time, `earliest`, `latest`, or a span back from now such as `-15m`."),
]
StartTsDashed = Annotated[str | None, Query(alias="start-ts", include_in_schema=False)]
EndTs = Annotated[str | None, Query(description="Serve nothing above this; the same forms as start_ts.")]
Cursor = Annotated[str | None, Query(description="TiStream-Next-Cursor of the previous answer; wins over start_ts.")]
FormatWord = Annotated[str | None, Query(description="One of " + ", ".join(negotiate.FORMATS) + ". Wins over Accept.")]
Limit = Annotated[int, Query(ge=1, le=PULL_ROWS_MAX, description="Rows a page; it ends with a whole commit_ts.")]
Wait = Annotated[
    float, Query(ge=0, le=PULL_WAIT_MS_MAX / 1000, description="Seconds to wait while there is nothing new.")
]
Accept = Annotated[str | None, Header()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """What the three routes have in common: a pull without its scope, and how long it waits."""

    http: Request
    start_ts: str | None
    end_ts: str | None
    cursor: str | None
    format: str
    limit: int
    wait_s: float

    def of(self, scope: Scope) -> PullRequest:
        return PullRequest(
            scope=scope,
            start_ts=self.start_ts,
            end_ts=self.end_ts,
            cursor=self.cursor,
            format=self.format,
            options={k: v for k, v in self.http.query_params.items() if k not in _OWN_WORDS},
            limit=self.limit,
        )


async def _query(
    request: Request,
    start_ts: StartTs = None,
    start_ts_dashed: StartTsDashed = None,
    end_ts: EndTs = None,
    cursor: Cursor = None,
    format: FormatWord = None,
    limit: Limit = PULL_ROWS_DEFAULT,
    wait: Wait = 0,
    accept: Accept = None,
) -> _Query:
    start = start_ts if start_ts is not None else start_ts_dashed
    if start is None and cursor is None:
        raise InvalidInput("A pull starts somewhere: give start_ts (for example start_ts=earliest) or cursor.")
    return _Query(
        http=request,
        start_ts=start,
        end_ts=end_ts,
        cursor=cursor,
        format=negotiate.choose(format, accept),
        limit=limit,
        wait_s=wait,
    )


Asked = Annotated[_Query, Depends(_query)]


def router(services: Services) -> APIRouter:
    """The three pull routes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ)])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @routes.get(f"{base}/changes", operation_id="pull_tenant", summary="Changes of a tenant")
    async def pull_tenant(cluster_id: Id, tenant_id: Id, asked: Asked) -> Response:
        return await _answer(services, asked, Scope(tenant=Tenant(cluster_id, tenant_id)))

    @routes.get(f"{base}/databases/{{database}}/changes", operation_id="pull_db", summary="Changes of a database")
    async def pull_db(cluster_id: Id, tenant_id: Id, database: str, asked: Asked) -> Response:
        return await _answer(services, asked, Scope(tenant=Tenant(cluster_id, tenant_id), database=database))

    @routes.get(
        f"{base}/databases/{{database}}/tables/{{table}}/changes",
        operation_id="pull_table",
        summary="Changes of a table",
    )
    async def pull_table(cluster_id: Id, tenant_id: Id, database: str, table: str, asked: Asked) -> Response:
        scope = Scope(tenant=Tenant(cluster_id, tenant_id), database=database, table=table)
        return await _answer(services, asked, scope)

    return routes


async def _answer(services: Services, asked: _Query, scope: Scope) -> Response:
    answer = await _pull(services, asked, asked.of(scope))
    headers = {
        "TiStream-Next-Cursor": answer.next_cursor,
        "TiStream-Resolved-Ts": str(answer.resolved_ts),
        "TiStream-Has-More": "true" if answer.has_more else "false",
        "Cache-Control": "no-store",
        "Vary": "Accept",
        "Link": f'<{_next_url(asked.http, answer.next_cursor)}>; rel="next"',
    }
    if answer.quarantined:
        headers["TiStream-Quarantined"] = str(answer.quarantined)
    return Response(memoryview(answer.content), media_type=negotiate.FORMATS[asked.format], headers=headers)


async def _pull(services: Services, asked: _Query, request: PullRequest) -> PullAnswer:
    """The answer, once there is news or the time is up. What `latest` and spans mean is settled by the first look."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + asked.wait_s
    answer = await run_in_threadpool(pull, services, request)
    while answer.waits and (left := deadline - loop.time()) > 0 and not await asked.http.is_disconnected():
        await asyncio.sleep(min(_LOOK_AGAIN_S, left))
        answer = await run_in_threadpool(pull, services, replace(request, cursor=answer.next_cursor))
    return answer


def _next_url(request: Request, cursor: str) -> str:
    return str(request.url.remove_query_params(["start_ts", "start-ts"]).include_query_params(cursor=cursor))
