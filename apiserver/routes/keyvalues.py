"""Pull and streams of keys and values: the changes of a raw or txn tenant, which has no tables.

    GET /v1/clusters/{c}/tenants/{t}/kv/changes
    GET /v1/clusters/{c}/tenants/{t}/kv/changes:stream
    GET /v1/clusters/{c}/tenants/{t}/kv/changes/splits

Cursors, waiting, headers and framing are those of the changes of tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from apiserver.routes.changes import Limit, PageQuery, Wait, answer_page
from apiserver.routes.parameters import (
    TENANT,
    Accept,
    AcceptEncoding,
    Buffers,
    Cursor,
    EndTs,
    StartTs,
    arrow_buffers,
    form_of,
)
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
from reading.deps import Id
from reading.kv.formats import FORMATS, lines_of
from reading.kv.selection import Selection, parse_selection
from reading.pull import PullRequest
from reading.scope import Scope
from reading.splits import plan, shown
from tistream.codec.key_format import KeyFormat
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.ids import Tenant
from tistream.limits import PULL_ROWS_DEFAULT, STREAM_ROWS_DEFAULT

FormatName = Annotated[str | None, Query(description="One of " + ", ".join(FORMATS) + ". Wins over Accept.")]
Form = Annotated[KeyFormat, Query(alias="key_format", description="How keys and values are written, here as well.")]
StartKey = Annotated[str | None, Query(description="Only keys from this one on; without mode and keyspace.")]
EndKey = Annotated[str | None, Query(description="Only keys below this one.")]
Prefix = Annotated[str | None, Query(description="Only keys that begin with this: TiKV-CDC's key-prefix.")]
_PATTERN = "a regular expression (RE2) that is found anywhere in them, where a byte is the character of its number."
KeyPattern = Annotated[str | None, Query(description=f"Only keys with a match of {_PATTERN}")]
ValuePattern = Annotated[str | None, Query(description=f"Only deletes, and values with a match of {_PATTERN}")]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Where a request begins and ends."""

    start_ts: str | None
    end_ts: str | None
    cursor: str | None


def _where(start_ts: StartTs = None, end_ts: EndTs = None, cursor: Cursor = None) -> _Where:
    return _Where(start_ts=start_ts, end_ts=end_ts, cursor=cursor)


Where = Annotated[_Where, Depends(_where)]


async def _page(
    request: Request,
    selected: Selected,
    where: Where,
    format: FormatName = None,
    limit: Limit = PULL_ROWS_DEFAULT,
    wait_s: Wait = 0,
    compression: Buffers = None,
    accept: Accept = None,
    accept_encoding: AcceptEncoding = None,
) -> PageQuery:
    form = form_of(format, compression, accept, accept_encoding, FORMATS)
    made = partial(
        PullRequest,
        start_ts=where.start_ts,
        end_ts=where.end_ts,
        cursor=where.cursor,
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
    where: Where,
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
        start_ts=where.start_ts,
        end_ts=where.end_ts,
        cursor=last_event_id or where.cursor,
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

    @routes.get(f"{TENANT}/kv/changes", operation_id="pull_kv", summary="Changes of keys", response_model=None)
    async def changes(cluster_id: Id, tenant_id: Id, asked: Any = page) -> Response:
        return await answer_page(followers, Scope(tenant=Tenant(cluster_id, tenant_id)), asked)

    @routes.get(
        f"{TENANT}/kv/changes:stream",
        operation_id="stream_kv",
        summary="Changes of keys as they come",
        response_model=None,
    )
    async def streamed(cluster_id: Id, tenant_id: Id, asked: Any = stream) -> Response:
        return await answer_stream(followers, Scope(tenant=Tenant(cluster_id, tenant_id)), asked)

    @routes.get(f"{TENANT}/kv/changes/splits", operation_id="split_kv", summary="Parts of a long pull of keys")
    async def splits(cluster_id: Id, tenant_id: Id, asked: Split) -> dict[str, Any]:
        planned = asked(scope=Scope(tenant=Tenant(cluster_id, tenant_id)), keys=True)
        return shown(await run_in_threadpool(plan, followers.services, planned))

    return routes
