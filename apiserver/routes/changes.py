"""PullTenant, PullDB and PullTable."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from apiserver import negotiate
from apiserver.cursor import Scope
from apiserver.deps import Services
from apiserver.pull import PullRequest, pull
from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.limits import PULL_ROWS_DEFAULT, PULL_ROWS_MAX, PULL_WAIT_MS_MAX

_OWN_WORDS = {"start_ts", "start-ts", "end_ts", "cursor", "format", "limit", "wait"}

StartTs = Annotated[
    str | None,
    Query(description="A TSO, an RFC 3339 time, `earliest`, `latest`, or a span back from now such as `-15m`."),
]
Cursor = Annotated[str | None, Query(description="TiStream-Next-Cursor of the previous answer; wins over start_ts.")]
Limit = Annotated[int, Query(ge=1, le=PULL_ROWS_MAX, description="Rows a page; it ends with a whole commit_ts.")]
Wait = Annotated[
    float, Query(ge=0, le=PULL_WAIT_MS_MAX / 1000, description="Seconds to wait while there is nothing new.")
]
FormatWord = Annotated[str | None, Query(description="One of " + ", ".join(negotiate.FORMATS) + ". Wins over Accept.")]


def router(services: Services) -> APIRouter:
    """The three pull routes."""
    routes = APIRouter(tags=["changes"])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @routes.get(f"{base}/changes", operation_id="pull_tenant", summary="Changes of a tenant")
    def pull_tenant(
        request: Request,
        cluster_id: int,
        tenant_id: int,
        start_ts: StartTs = None,
        cursor: Cursor = None,
        format: FormatWord = None,
        limit: Limit = PULL_ROWS_DEFAULT,
        wait: Wait = 0,
        accept: Annotated[str | None, Header()] = None,
    ) -> Response:
        scope = Scope(tenant=Tenant(cluster_id, tenant_id))
        return _answer(services, request, scope, start_ts, cursor, format, limit, wait, accept)

    @routes.get(f"{base}/databases/{{database}}/changes", operation_id="pull_db", summary="Changes of a database")
    def pull_db(
        request: Request,
        cluster_id: int,
        tenant_id: int,
        database: str,
        start_ts: StartTs = None,
        cursor: Cursor = None,
        format: FormatWord = None,
        limit: Limit = PULL_ROWS_DEFAULT,
        wait: Wait = 0,
        accept: Annotated[str | None, Header()] = None,
    ) -> Response:
        scope = Scope(tenant=Tenant(cluster_id, tenant_id), database=database)
        return _answer(services, request, scope, start_ts, cursor, format, limit, wait, accept)

    @routes.get(
        f"{base}/databases/{{database}}/tables/{{table}}/changes",
        operation_id="pull_table",
        summary="Changes of a table",
    )
    def pull_table(
        request: Request,
        cluster_id: int,
        tenant_id: int,
        database: str,
        table: str,
        start_ts: StartTs = None,
        cursor: Cursor = None,
        format: FormatWord = None,
        limit: Limit = PULL_ROWS_DEFAULT,
        wait: Wait = 0,
        accept: Annotated[str | None, Header()] = None,
    ) -> Response:
        scope = Scope(tenant=Tenant(cluster_id, tenant_id), database=database, table=table)
        return _answer(services, request, scope, start_ts, cursor, format, limit, wait, accept)

    return routes


def _answer(
    services: Services,
    request: Request,
    scope: Scope,
    start_ts: str | None,
    cursor: str | None,
    word: str | None,
    limit: int,
    wait: float,
    accept: str | None,
) -> Response:
    query = request.query_params
    start_ts = start_ts if start_ts is not None else query.get("start-ts")
    if start_ts is None and cursor is None:
        raise InvalidInput("A pull starts somewhere: give start_ts or cursor.", hint_start="start_ts=earliest")
    chosen = negotiate.choose(word, accept)
    options = {k: v for k, v in query.items() if k not in _OWN_WORDS}
    answer = pull(
        services,
        PullRequest(
            scope=scope,
            start_ts=start_ts,
            cursor=cursor,
            format=chosen,
            options=options,
            limit=limit,
            wait_ms=int(wait * 1000),
            end_ts=query.get("end_ts"),
        ),
    )
    following = request.url.remove_query_params("start_ts").include_query_params(cursor=answer.next_cursor)
    headers = {
        "TiStream-Next-Cursor": answer.next_cursor,
        "TiStream-Resolved-Ts": str(answer.resolved_ts),
        "TiStream-Has-More": "true" if answer.has_more else "false",
        "Vary": "Accept",
        "Link": f'<{following}>; rel="next"',
    }
    if answer.quarantined:
        headers["TiStream-Quarantined"] = str(answer.quarantined)
    return Response(bytes(memoryview(answer.content)), media_type=negotiate.FORMATS[chosen], headers=headers)
