"""Streams of changes: one connection that stays open.

    GET /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/changes:stream

An invalid request gets a problem document and no stream. A later failure ends the stream with an `end` event, see
`apiserver.stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response

from apiserver import negotiate
from apiserver.callers import caller_of
from apiserver.compression import CODINGS, choose_coding, coder
from apiserver.routes.parameters import (
    Accept,
    AcceptEncoding,
    Buffers,
    Filtered,
    Options,
    SpanQuery,
    StartTsDashed,
    add_scoped,
    arrow_buffers,
    format_query,
)
from apiserver.stream.answer import StreamAnswer
from apiserver.stream.followers import Followers
from apiserver.stream.frames import SSE, ArrowFrames, EventFrames, Frames, LineFrames
from apiserver.stream.stream_loop import StreamLoop
from reading.formats import create_format, parse_options
from reading.formats.protocol import Lines
from reading.pages.rendering import ARROW_FORMS
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from tistream.errors import InvalidInput
from tistream.http.auth.access import check_key, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.limits import CURSOR_CHARS_MAX, PULL_ROWS_MAX, STREAM_ROWS_DEFAULT

_NOT_STREAMED = ("json", "csv")
_FORMATS = [name for name in negotiate.FORMATS if name not in _NOT_STREAMED]

FormatName = Annotated[str | None, format_query(_FORMATS)]
Framing = Annotated[
    Literal["lines", "sse"] | None,
    Query(description="`sse`: server-sent events, as with Accept: text/event-stream; else lines, or Arrow."),
]
Limit = Annotated[int, Query(ge=1, le=PULL_ROWS_MAX, description="Rows between two watermarks, roughly.")]
LastEventId = Annotated[
    str | None,
    Header(max_length=CURSOR_CHARS_MAX, description="The id of the last event: resumes there, wins over the query."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamQuery:
    """A parsed query."""

    http: Request
    pull: Callable[..., PullRequest]  #: lacks its scope
    frames: Callable[[], Frames]
    coding: str | None  #: content coding of the body


async def _query(
    request: Request,
    options: Options,
    filtered: Filtered,
    span: SpanQuery,
    start_ts_dashed: StartTsDashed = None,
    format: FormatName = None,
    framing: Framing = None,
    limit: Limit = STREAM_ROWS_DEFAULT,
    compression: Buffers = None,
    accept: Accept = None,
    accept_encoding: AcceptEncoding = None,
    last_event_id: LastEventId = None,
) -> StreamQuery:
    name, in_events = choose_form(format, framing, accept)
    buffers = arrow_buffers(name, compression)
    made = partial(
        PullRequest,
        start_ts=span.start_ts if span.start_ts is not None else start_ts_dashed,
        end_ts=span.end_ts,
        cursor=last_event_id or span.cursor,
        format=name,
        options=options,
        limit=limit,
        filter=filtered,
        buffers=buffers,
        follows=True,
    )
    frames = partial(_frames, name, in_events, options, buffers)
    return StreamQuery(http=request, pull=made, frames=frames, coding=coding_of(name, accept_encoding))


def coding_of(format: str, accept_encoding: str | None) -> str | None:
    """The content coding of a stream. Arrow is never coded."""
    return choose_coding(accept_encoding, () if format in ARROW_FORMS else CODINGS)


def choose_form(
    format: str | None, framing: str | None, accept: str | None, formats: Mapping[str, str] = negotiate.FORMATS
) -> tuple[str, bool]:
    """(format, one of `formats`; whether as server-sent events)."""
    weighted = negotiate.weights(accept or "")
    in_events = framing == "sse" or (framing is None and weighted.get(SSE, 0) > 0)
    if format is None and (in_events or not accept):
        name = "ndjson"
    else:
        name = negotiate.choose(format, accept, formats)
        if name == "json" and format is None:
            name = "ndjson"  # what `*/*` means here
    if name in _NOT_STREAMED:
        offers = ", ".join(word for word in formats if word not in _NOT_STREAMED)
        raise InvalidInput(f"'{name}' cannot be streamed.", offers=offers)
    if in_events and name in ARROW_FORMS:
        raise InvalidInput("Arrow cannot be sent as server-sent events: leave out framing=sse.", format=name)
    return name, in_events


def router(followers: Followers) -> APIRouter:
    """Streams of three scopes."""
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])
    operations = ("stream_tenant", "stream_db", "stream_table")
    summary = "Changes of a {} as they come"
    add_scoped(
        routes, "/changes:stream", partial(answer_stream, followers), _query, operations=operations, summary=summary
    )
    return routes


async def answer_stream(followers: Followers, scope: Scope, query: StreamQuery) -> Response:
    """The stream, which begins with its first page."""
    with ExitStack() as on_error:
        on_error.enter_context(followers.counted("streams", caller_of(query.http), followers.limits.streams_max))
        frames, request = query.frames(), query.pull(scope=scope)
        caller = caller_of(query.http)
        first = await followers.run_for(caller, request, followers.first_page, request)
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
        if query.coding is not None:
            headers["Content-Encoding"] = query.coding
        check = partial(check_key, query.http)
        return StreamAnswer(
            lambda send: StreamLoop(followers, request, frames, coder(query.coding), first, send, check, caller),
            media_type=frames.media_type,
            headers=headers,
            slow_s=followers.limits.slow_consumer_s,
            held=on_error.pop_all(),
        )


def _frames(format: str, in_events: bool, options: dict[str, str], buffers: str | None) -> Frames:
    if format in ARROW_FORMS:
        return ArrowFrames(buffers)
    return line_frames(create_format(format, parse_options(options)), in_events)


def line_frames(fmt: Lines, in_events: bool) -> Frames:
    """The framing of a text format."""
    return EventFrames(fmt) if in_events else LineFrames(fmt)
