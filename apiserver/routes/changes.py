"""PullTenant, PullDB and PullTable.

A pull that waits sleeps on the event loop, not in a thread, and is woken when the tenant's watermark moves: any number
of readers may wait without keeping others from being served.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from apiserver import negotiate
from apiserver.callers import caller_of
from apiserver.compression import CODINGS, choose_coding, compress, is_worth_it
from apiserver.stream.answer import PageAnswer, gone
from apiserver.stream.followers import Followers
from reading import position
from reading.deps import Id, Services
from reading.pull import PullAnswer, PullRequest, pull
from reading.rendering import ARROW_FORMS
from reading.scope import Scope
from tistream.errors import InvalidInput
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant
from tistream.limits import PULL_ROWS_DEFAULT, PULL_ROWS_MAX, PULL_WAIT_MS_MAX

#: of the query; others are the format's
OWN_WORDS = {"start_ts", "start-ts", "end_ts", "cursor", "format", "limit", "wait", "compression"}

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
Buffers = Annotated[
    Literal["zstd", "lz4"] | None,
    Query(alias="compression", description="Arrow formats: how the buffers inside the answer are compressed."),
]
Accept = Annotated[str | None, Header()]
AcceptEncoding = Annotated[str | None, Header()]


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
    buffers: str | None
    coding: str | None  #: of the body

    def of(self, scope: Scope) -> PullRequest:
        return PullRequest(
            scope=scope,
            start_ts=self.start_ts,
            end_ts=self.end_ts,
            cursor=self.cursor,
            format=self.format,
            options={k: v for k, v in self.http.query_params.items() if k not in OWN_WORDS},
            limit=self.limit,
            buffers=self.buffers,
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
    compression: Buffers = None,
    accept: Accept = None,
    accept_encoding: AcceptEncoding = None,
) -> _Query:
    start = start_ts if start_ts is not None else start_ts_dashed
    if start is None and cursor is None:
        raise InvalidInput("A pull starts somewhere: give start_ts (for example start_ts=earliest) or cursor.")
    word = negotiate.choose(format, accept)
    return _Query(
        http=request,
        start_ts=start,
        end_ts=end_ts,
        cursor=cursor,
        format=word,
        limit=limit,
        wait_s=wait,
        buffers=buffers_of(word, compression),
        coding=choose_coding(accept_encoding, () if word in ARROW_FORMS else CODINGS),
    )


def buffers_of(format: str, compression: str | None) -> str | None:
    """How the buffers of an Arrow answer are compressed. InvalidInput for other formats, which have none."""
    if compression is not None and format not in ARROW_FORMS:
        raise InvalidInput(f"A {format} answer has no buffers to compress: use Accept-Encoding.", option="compression")
    return compression


Asked = Annotated[_Query, Depends(_query)]


def router(services: Services, followers: Followers) -> APIRouter:
    """The three pull routes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ)])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @routes.get(f"{base}/changes", operation_id="pull_tenant", summary="Changes of a tenant")
    async def pull_tenant(cluster_id: Id, tenant_id: Id, asked: Asked) -> Response:
        return await _answer(followers, asked, Scope(tenant=Tenant(cluster_id, tenant_id)))

    @routes.get(f"{base}/databases/{{database:name}}/changes", operation_id="pull_db", summary="Changes of a database")
    async def pull_db(cluster_id: Id, tenant_id: Id, database: str, asked: Asked) -> Response:
        return await _answer(followers, asked, Scope(tenant=Tenant(cluster_id, tenant_id), database=database))

    @routes.get(
        f"{base}/databases/{{database:name}}/tables/{{table:name}}/changes",
        operation_id="pull_table",
        summary="Changes of a table",
    )
    async def pull_table(cluster_id: Id, tenant_id: Id, database: str, table: str, asked: Asked) -> Response:
        scope = Scope(tenant=Tenant(cluster_id, tenant_id), database=database, table=table)
        return await _answer(followers, asked, scope)

    return routes


async def _answer(followers: Followers, asked: _Query, scope: Scope) -> Response:
    answer = await _pull(followers, asked, asked.of(scope))
    headers = {
        "TiStream-Next-Cursor": answer.next_cursor,
        "TiStream-Resolved-Ts": str(answer.resolved_ts),
        "TiStream-Has-More": "true" if answer.has_more else "false",
        "Cache-Control": "no-store",
        "Vary": "Accept, Accept-Encoding",
        "Link": f'<{_next_url(asked.http, answer.next_cursor)}>; rel="next"',
    }
    if answer.end_ts is not None:
        headers["TiStream-End-Ts"] = str(answer.end_ts)
    if answer.quarantined:
        headers["TiStream-Quarantined"] = str(answer.quarantined)
    content: memoryview = memoryview(answer.content)
    if asked.coding is not None and is_worth_it(len(content)):
        headers["Content-Encoding"] = asked.coding
        content = memoryview(await run_in_threadpool(compress, content, asked.coding))
    limits, media_type = followers.limits, negotiate.FORMATS[asked.format]
    with ExitStack() as failing:
        caller = caller_of(asked.http)
        failing.enter_context(followers.counted("page_bytes", caller, limits.page_bytes_max, len(content)))
        slow_s, held = limits.slow_consumer_s, failing.pop_all()
    return PageAnswer(content, media_type=media_type, headers=headers, slow_s=slow_s, held=held)


async def _pull(followers: Followers, asked: _Query, request: PullRequest) -> PullAnswer:
    """The answer, once there is news or the time is up. What `latest` and spans mean is settled by the first look."""
    answer = await _first_look(followers, request, asked.wait_s)
    if not answer.waits or not asked.wait_s:
        return answer
    with followers.counted("waits", caller_of(asked.http), followers.limits.waits_max):
        waiting = asyncio.ensure_future(_news(followers, request, answer, asked.wait_s))
        away = asyncio.ensure_future(gone(asked.http.receive))
        try:
            await asyncio.wait({waiting, away}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else answer
        finally:
            waiting.cancel()
            away.cancel()


async def _first_look(followers: Followers, request: PullRequest, wait_s: float) -> PullAnswer:
    """What there is now. For one who goes on waiting while others wait as well, it is what they are told: hundreds who
    come back at once ask the catalog no more than one does."""
    moment = await followers.current(request.scope.tenant) if wait_s and request.cursor is not None else None
    if moment is None:
        return await run_in_threadpool(pull, followers.services, request)
    if request.cursor is not None and position.decode_cursor(request.cursor, request.scope) >= moment.resolved:
        return pull(followers.services, request, moment)  # there is nothing to read
    return await followers.run(followers.pages.make, followers.services, request, moment)


async def _news(followers: Followers, request: PullRequest, answer: PullAnswer, seconds: float) -> PullAnswer:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    seen, tenant = answer.resolved_ts, request.scope.tenant
    if answer.end_ts is not None:
        request = replace(request, end_ts=str(answer.end_ts))
    with followers.waker.watching(tenant) as watch:
        while answer.waits:
            moved = await watch.moved(seen, deadline - loop.time())
            if moved is None:
                break
            moment = followers.served.known(tenant, moved)
            if moment is None:
                moment = await followers.run(followers.served.at, tenant, moved)
            seen = moment.covers
            asked = replace(request, start_ts=None, cursor=answer.next_cursor)
            answer = await followers.run(followers.pages.make, followers.services, asked, moment)
    return answer


def _next_url(request: Request, cursor: str) -> str:
    return str(request.url.remove_query_params(["start_ts", "start-ts"]).include_query_params(cursor=cursor))
