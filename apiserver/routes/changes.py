"""Pull: the changes of a tenant, a database or a table, one finite page per request.

    GET /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/changes

    parse the query -> pull a page (`reading.pages.pull`: position, history, page, rendering) -> wait if it is empty
    -> answer

A waiting pull sleeps on the event loop, not in a thread, and is woken when the tenant's watermark moves, so any number
of readers may wait without delaying other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from apiserver.answers.reading import ChangePage
from apiserver.callers import caller_of
from apiserver.compression import compress, is_worth_it
from apiserver.routes.parameters import AnyForm, Filtered, Form, Options, SpanQuery, StartTsDashed, add_scoped
from apiserver.stream.answer import PageAnswer, disconnected
from apiserver.stream.followers import Followers, is_costly
from reading.asof.output import left_out_headers
from reading.pages.pull import pull
from reading.pages.request import PullAnswer, PullRequest
from reading.rows.scope import Scope
from reading.served.position import decode_cursor
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.limits import PULL_ROWS_DEFAULT, PULL_ROWS_MAX, PULL_WAIT_MS_MAX, TIME_CHARS_MAX

Limit = Annotated[
    int,
    Query(ge=1, le=PULL_ROWS_MAX, description="Rows a page; it ends with a whole commit_ts unless that is very large."),
]
Wait = Annotated[
    float,
    Query(
        alias="wait",
        ge=0,
        le=PULL_WAIT_MS_MAX / 1000,
        description="Seconds to wait while there is nothing new.",
    ),
]

Snapshot = Annotated[
    bool,
    Query(description="First the rows as of one timestamp, then the changes above it. A cursor wins over it."),
]
AsOf = Annotated[
    str | None, Query(max_length=TIME_CHARS_MAX, description="The timestamp of a snapshot; the watermark by default.")
]
SchemaTs = Annotated[
    str | None,
    Query(
        max_length=TIME_CHARS_MAX,
        description="`arrow` of one table: each page has the columns that the table has at this timestamp.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """A parsed query."""

    http: Request
    pull: Callable[..., PullRequest]  #: lacks its scope
    form: Form
    wait_s: float


async def _query(
    request: Request,
    options: Options,
    filtered: Filtered,
    span: SpanQuery,
    form: AnyForm,
    start_ts_dashed: StartTsDashed = None,
    snapshot: Snapshot = False,
    as_of: AsOf = None,
    schema_ts: SchemaTs = None,
    limit: Limit = PULL_ROWS_DEFAULT,
    wait_s: Wait = 0,
) -> PageQuery:
    made = partial(
        PullRequest,
        start_ts=span.start_ts if span.start_ts is not None else start_ts_dashed,
        end_ts=span.end_ts,
        cursor=span.cursor,
        snapshot=snapshot,
        as_of=as_of,
        schema_ts=schema_ts,
        format=form.name,
        options=options,
        limit=limit,
        filter=filtered,
        buffers=form.buffers,
    )
    return PageQuery(http=request, pull=made, form=form, wait_s=wait_s)


def router(followers: Followers) -> APIRouter:
    """The three pull routes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])
    operations = ("pull_tenant", "pull_db", "pull_table")
    add_scoped(
        routes,
        "/changes",
        partial(answer_page, followers),
        _query,
        operations=operations,
        summary="Changes of a {}",
        model=ChangePage,
    )
    return routes


async def answer_page(followers: Followers, scope: Scope, query: PageQuery) -> Response:
    """The next page, or an empty one when nothing came in time."""
    answer = await page_or_wait(followers, query.http, query.pull(scope=scope), query.wait_s)
    headers = {
        "TiStream-Next-Cursor": answer.next_cursor,
        "Link": f'<{_next_url(query.http, answer.next_cursor)}>; rel="next"',
    }
    return await page_response(followers, query.http, answer, query.form, headers)


async def page_response(
    followers: Followers,
    http: Request,
    answer: PullAnswer,
    form: Form,
    headers: dict[str, str],
) -> Response:
    """The response with a page. `headers`: those besides the ones that every page has."""
    headers |= {
        "TiStream-Resolved-Ts": str(answer.resolved_ts),
        "TiStream-Has-More": "true" if answer.has_more else "false",
        "Cache-Control": "no-store",
        "Vary": "Accept, Accept-Encoding",
    }
    if answer.open_ts is not None:
        headers["TiStream-Open-Transaction-Ts"] = str(answer.open_ts)
    if answer.end_ts is not None:
        headers["TiStream-End-Ts"] = str(answer.end_ts)
    if answer.gap is not None:
        headers["TiStream-Gap"] = f"{answer.gap[0]}-{answer.gap[1]}"
    if answer.snapshot_ts is not None:
        headers["TiStream-Snapshot-Ts"] = str(answer.snapshot_ts)
        headers["TiStream-Snapshot-Complete"] = "false" if answer.in_snapshot else "true"
    headers |= left_out_headers(answer.left_out)
    if answer.quarantined:
        headers["TiStream-Quarantined"] = str(answer.quarantined)
    content: memoryview = memoryview(answer.content)
    if form.coding is not None and is_worth_it(len(content)):
        headers["Content-Encoding"] = form.coding
        content = memoryview(await run_in_threadpool(compress, content, form.coding))
    limits = followers.limits
    with ExitStack() as on_error:
        caller = caller_of(http)
        on_error.enter_context(followers.counted("page_bytes", caller, limits.page_bytes_max, len(content)))
        held = on_error.pop_all()
    return PageAnswer(content, media_type=form.media_type, headers=headers, held=held)


async def page_or_wait(followers: Followers, http: Request, request: PullRequest, wait_s: float) -> PullAnswer:
    """The page, once there are changes or the time is up. `latest` and spans mean what they mean at the first read."""
    caller = caller_of(http)
    answer = await _first_page(followers, caller, request, wait_s)
    if not answer.waits or not wait_s:
        return answer
    with followers.counted("waits", caller, followers.limits.waits_max):
        waiting = asyncio.ensure_future(_next_change(followers, caller, request, answer, wait_s))
        leaving = asyncio.ensure_future(disconnected(http.receive))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else answer
        finally:
            waiting.cancel()
            leaving.cancel()


async def _first_page(followers: Followers, caller: str, request: PullRequest, wait_s: float) -> PullAnswer:
    """What is served now. A resumed wait uses the state shared by the tenant's followers: hundreds that come back at
    once cost the catalog no more than one."""
    resumes = request.cursor is not None and not request.is_snapshot
    served = await followers.current(request.scope.tenant) if wait_s and resumes else None
    if served is None:
        if is_costly(request):
            return await followers.run_for(caller, request, pull, followers.services, request)
        return await run_in_threadpool(pull, followers.services, request)
    if request.cursor is not None and decode_cursor(request.cursor, request.scope) >= served.resolved:
        return pull(followers.services, request, served)  # nothing to read: no thread needed
    return await followers.run_for(caller, request, followers.pages.make, followers.services, request, served)


async def _next_change(
    followers: Followers, caller: str, request: PullRequest, answer: PullAnswer, seconds: float
) -> PullAnswer:
    """The first page with changes, or what there is when the time is up. BeyondQuarantine when a store is quarantined
    meanwhile below the position."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    seen, tenant = answer.resolved_ts, request.scope.tenant
    if answer.end_ts is not None:
        request = replace(request, end_ts=str(answer.end_ts))
    with followers.waker.watching(tenant) as watch:
        while answer.waits:
            if watch.good_ts is not None and answer.end > watch.good_ts:
                (await followers.run(followers.served.now, tenant)).check_good(answer.end)
            watermark = await watch.moved(seen, deadline - loop.time())
            if watermark is None:
                if followers.waker.closing or loop.time() >= deadline:
                    break
                continue  # a store was quarantined
            served = await followers.served_at(tenant, watermark)
            seen = served.covers
            resumed = replace(request, start_ts=None, cursor=answer.next_cursor)
            answer = await followers.run_for(caller, resumed, followers.pages.make, followers.services, resumed, served)
    return answer


def _next_url(request: Request, cursor: str) -> str:
    """A reference relative to the host, in the form in which the request came: a name in it may have any character, and
    what a Host header says is not repeated."""
    left_out = ("start_ts", "start-ts", "snapshot", "as_of", "cursor")
    query = [pair for pair in request.query_params.multi_items() if pair[0] not in left_out]
    path = quote(request.scope["raw_path"].decode("latin-1").partition("?")[0], safe="/%:@!$&'()*+,;=~")
    return f"{path}?{urlencode([*query, ('cursor', cursor)])}"
