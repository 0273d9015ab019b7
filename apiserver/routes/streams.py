"""Streams of changes: one connection that stays open.

    GET /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/changes:stream

What is wrong with a request is answered with a problem and no stream; what goes wrong later ends the stream with its
last words, see `apiserver.stream`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from apiserver import negotiate
from apiserver.callers import caller_of
from apiserver.compression import CODINGS, choose_coding, coder
from apiserver.routes.changes import (
    OWN_WORDS,
    Accept,
    AcceptEncoding,
    Buffers,
    Cursor,
    EndTs,
    StartTs,
    StartTsDashed,
    buffers_of,
)
from apiserver.stream.answer import StreamAnswer
from apiserver.stream.followers import Followers
from apiserver.stream.frames import SSE, ArrowFrames, EventFrames, Frames, LineFrames
from apiserver.stream.stream_loop import StreamLoop
from reading.deps import Id, Services
from reading.formats import create_format, parse_options
from reading.pull import PullRequest
from reading.rendering import ARROW_FORMS
from reading.scope import Scope
from tistream.errors import InvalidInput
from tistream.http.auth.access import needs, still_in
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant
from tistream.limits import PULL_ROWS_MAX, STREAM_ROWS_DEFAULT

_FORMATS = [name for name in negotiate.FORMATS if name not in ("json", "csv")]
_OWN_WORDS = OWN_WORDS | {"framing"}

FormatWord = Annotated[str | None, Query(description="One of " + ", ".join(_FORMATS) + ". Wins over Accept.")]
Framing = Annotated[
    Literal["lines", "sse"] | None,
    Query(description="`sse`: server-sent events, as with Accept: text/event-stream; else lines, or Arrow."),
]
Limit = Annotated[int, Query(ge=1, le=PULL_ROWS_MAX, description="Rows between two watermarks, roughly.")]
LastEventId = Annotated[str | None, Header(description="The id of the last event: resumes there, wins over the query.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    http: Request
    frames: Callable[[], Frames]
    format: str
    start_ts: str | None
    end_ts: str | None
    cursor: str | None
    limit: int
    options: dict[str, str]
    buffers: str | None
    coding: str | None

    def of(self, scope: Scope) -> PullRequest:
        return PullRequest(
            scope=scope,
            start_ts=self.start_ts,
            end_ts=self.end_ts,
            cursor=self.cursor,
            format=self.format,
            options=self.options,
            limit=self.limit,
            buffers=self.buffers,
            follows=True,
        )


async def _query(
    request: Request,
    start_ts: StartTs = None,
    start_ts_dashed: StartTsDashed = None,
    end_ts: EndTs = None,
    cursor: Cursor = None,
    format: FormatWord = None,
    framing: Framing = None,
    limit: Limit = STREAM_ROWS_DEFAULT,
    compression: Buffers = None,
    accept: Accept = None,
    accept_encoding: AcceptEncoding = None,
    last_event_id: LastEventId = None,
) -> _Query:
    start = start_ts if start_ts is not None else start_ts_dashed
    at = last_event_id or cursor
    if start is None and at is None:
        raise InvalidInput("A stream starts somewhere: give start_ts (for example start_ts=latest) or cursor.")
    word, in_events = choose_form(format, framing, accept)
    buffers = buffers_of(word, compression)
    options = {k: v for k, v in request.query_params.items() if k not in _OWN_WORDS}
    return _Query(
        http=request,
        frames=partial(_frames, word, in_events, options, buffers),
        format=word,
        start_ts=start,
        end_ts=end_ts,
        cursor=at,
        limit=limit,
        options=options,
        buffers=buffers,
        coding=choose_coding(accept_encoding, () if word in ARROW_FORMS else CODINGS),
    )


Asked = Annotated[_Query, Depends(_query)]


def choose_form(format: str | None, framing: str | None, accept: str | None) -> tuple[str, bool]:
    """(format, whether as server-sent events)."""
    asked = negotiate.weights(accept or "")
    in_events = framing == "sse" or (framing is None and asked.get(SSE, 0) > 0)
    if format is None and (in_events or not accept):
        word = "ndjson"
    else:
        word = negotiate.choose(format, accept)
        if word == "json" and format is None:
            word = "ndjson"  # what `*/*` means here
    if word not in _FORMATS:
        raise InvalidInput(f"There are no streams of '{word}'.", offers=", ".join(_FORMATS))
    if in_events and word in ARROW_FORMS:
        raise InvalidInput("Arrow is a stream of its own: it does not go into server-sent events.", format=word)
    return word, in_events


def router(services: Services, followers: Followers) -> APIRouter:
    """Streams of three scopes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ)])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    @routes.get(f"{base}/changes:stream", operation_id="stream_tenant", summary="Changes of a tenant as they come")
    async def stream_tenant(cluster_id: Id, tenant_id: Id, asked: Asked) -> Response:
        return await _answer(followers, asked, Scope(tenant=Tenant(cluster_id, tenant_id)))

    @routes.get(
        f"{base}/databases/{{database:name}}/changes:stream",
        operation_id="stream_db",
        summary="Changes of a database as they come",
    )
    async def stream_db(cluster_id: Id, tenant_id: Id, database: str, asked: Asked) -> Response:
        return await _answer(followers, asked, Scope(tenant=Tenant(cluster_id, tenant_id), database=database))

    @routes.get(
        f"{base}/databases/{{database:name}}/tables/{{table:name}}/changes:stream",
        operation_id="stream_table",
        summary="Changes of a table as they come",
    )
    async def stream_table(cluster_id: Id, tenant_id: Id, database: str, table: str, asked: Asked) -> Response:
        scope = Scope(tenant=Tenant(cluster_id, tenant_id), database=database, table=table)
        return await _answer(followers, asked, scope)

    return routes


async def _answer(followers: Followers, asked: _Query, scope: Scope) -> Response:
    with ExitStack() as failing:
        failing.enter_context(followers.counted("streams", caller_of(asked.http), followers.limits.streams_max))
        frames, request = asked.frames(), asked.of(scope)
        first = await followers.run(followers.first_page, request)
        headers = {
            "Cache-Control": "no-store",
            "Connection": "close",
            "Vary": "Accept, Accept-Encoding",
            "X-Accel-Buffering": "no",
        }
        if first.end_ts is not None:
            headers["TiStream-End-Ts"] = str(first.end_ts)
        if first.quarantined:
            headers["TiStream-Quarantined"] = str(first.quarantined)
        if asked.coding is not None:
            headers["Content-Encoding"] = asked.coding
        return StreamAnswer(
            lambda send: StreamLoop(
                followers, request, frames, coder(asked.coding), first, send, partial(still_in, asked.http)
            ),
            media_type=frames.media_type,
            headers=headers,
            slow_s=followers.limits.slow_consumer_s,
            held=failing.pop_all(),
        )


def _frames(format: str, in_events: bool, options: dict[str, str], buffers: str | None) -> Frames:
    if format in ARROW_FORMS:
        return ArrowFrames(buffers)
    fmt = create_format(format, parse_options(options))
    return EventFrames(fmt) if in_events else LineFrames(fmt)
