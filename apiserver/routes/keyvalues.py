"""Pull and streams of keys and values: the changes of a raw or txn tenant, which has no tables.

    GET /v1/clusters/{c}/tenants/{t}/kv/changes
    GET /v1/clusters/{c}/tenants/{t}/kv/changes:stream
    GET /v1/clusters/{c}/tenants/{t}/kv/changes/splits

Cursors, waiting, headers and framing are those of the changes of tables.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from apiserver.answers.reading import EntryPage, Plan
from apiserver.routes.changes import Limit, PageQuery, Wait, answer_page
from apiserver.routes.parameters import (
    TENANT,
    Accept,
    AcceptEncoding,
    Buffers,
    SpanQuery,
    arrow_buffers,
    form_query,
    format_query,
    key_text,
    long_text,
)
from apiserver.routes.parameters import Form as AnswerForm
from apiserver.routes.splits import Split
from apiserver.routes.streams import (
    Framing,
    LastEventId,
    StreamQuery,
    answer_stream,
    choose_form,
    coding_of,
    line_frames,
)
from apiserver.routes.streams import Limit as StreamLimit
from apiserver.stream.followers import Followers
from apiserver.stream.frames import ArrowFrames, Frames
from reading.kv.formats import FORMATS, lines_of
from reading.kv.selection import Selection, parse_selection
from reading.pages.request import PullRequest
from reading.pages.splits import plan, shown
from reading.rows.scope import Scope
from tistream.codec.key_format import KeyFormat
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.parameters import PathTenant
from tistream.limits import PULL_ROWS_DEFAULT, STREAM_ROWS_DEFAULT

EntryForm = Annotated[AnswerForm, Depends(form_query(FORMATS))]
FormatName = Annotated[str | None, format_query(FORMATS)]
Form = Annotated[KeyFormat, Query(alias="key_format", description="How keys and values are written, here as well.")]
StartKey = Annotated[str | None, key_text("Only keys from this one on; without mode and keyspace.")]
EndKey = Annotated[str | None, key_text("Only keys below this one.")]
Prefix = Annotated[str | None, key_text("Only keys that begin with this: TiKV-CDC's key-prefix.")]
_PATTERN = "a regular expression (RE2) that is found anywhere in them, where a byte is the character of its number."
KeyPattern = Annotated[str | None, long_text(f"Only keys with a match of {_PATTERN}")]
ValuePattern = Annotated[str | None, long_text(f"Only deletes, and values with a match of {_PATTERN}")]


def _selection(
    key_format: Form = KeyFormat.HEX,
    start_key: StartKey = None,
    end_key: EndKey = None,
    prefix: Prefix = None,
    key_pattern: KeyPattern = None,
    value_pattern: ValuePattern = None,
) -> Selection:
    return parse_selection(
        key_format,
        start_key=start_key,
        end_key=end_key,
        prefix=prefix,
        key_pattern=key_pattern,
        value_pattern=value_pattern,
    )


Selected = Annotated[Selection, Depends(_selection)]


async def _page(
    request: Request,
    selected: Selected,
    span: SpanQuery,
    form: EntryForm,
    limit: Limit = PULL_ROWS_DEFAULT,
    wait_s: Wait = 0,
) -> PageQuery:
    made = partial(
        PullRequest,
        start_ts=span.start_ts,
        end_ts=span.end_ts,
        cursor=span.cursor,
        format=form.name,
        options={},
        limit=limit,
        buffers=form.buffers,
        keys=selected,
    )
    return PageQuery(http=request, pull=made, form=form, wait_s=wait_s)


async def _stream(
    request: Request,
    selected: Selected,
    span: SpanQuery,
    format: FormatName = None,
    framing: Framing = None,
    limit: StreamLimit = STREAM_ROWS_DEFAULT,
    compression: Buffers = None,
    accept: Accept = None,
    accept_encoding: AcceptEncoding = None,
    last_event_id: LastEventId = None,
) -> StreamQuery:
    name, in_events = choose_form(format, framing, accept, FORMATS)
    buffers = arrow_buffers(name, compression)
    made = partial(
        PullRequest,
        start_ts=span.start_ts,
        end_ts=span.end_ts,
        cursor=last_event_id or span.cursor,
        format=name,
        options={},
        limit=limit,
        buffers=buffers,
        follows=True,
        keys=selected,
    )
    frames = partial(_frames, name, in_events, selected, buffers)
    return StreamQuery(http=request, pull=made, frames=frames, coding=coding_of(name, accept_encoding))


def _frames(name: str, in_events: bool, selected: Selection, buffers: str | None) -> Frames:
    return ArrowFrames(buffers) if name == "arrow" else line_frames(lines_of(name, selected.form), in_events)


def router(followers: Followers) -> APIRouter:
    """Pull and streams of a tenant."""
    routes = APIRouter(tags=["keys and values"], dependencies=[needs(Right.READ, limited=OfLimited.REFUSED)])
    page, stream = Depends(_page), Depends(_stream)

    @routes.get(
        f"{TENANT}/kv/changes", summary="Changes of keys", response_model=None, responses={200: {"model": EntryPage}}
    )
    async def pull_kv(tenant: PathTenant, query: Any = page) -> Response:
        return await answer_page(followers, Scope(tenant=tenant), query)

    @routes.get(f"{TENANT}/kv/changes:stream", summary="Changes of keys as they come", response_model=None)
    async def stream_kv(tenant: PathTenant, query: Any = stream) -> Response:
        return await answer_stream(followers, Scope(tenant=tenant), query)

    @routes.get(f"{TENANT}/kv/changes/splits", summary="Parts of a long pull of keys", responses={200: {"model": Plan}})
    async def split_kv(tenant: PathTenant, query: Split) -> dict[str, Any]:
        planned = query(scope=Scope(tenant=tenant), keys=True)
        return shown(await run_in_threadpool(plan, followers.services, planned))

    return routes
