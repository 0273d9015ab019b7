"""Keys and values as of a timestamp, and the versions of one key.

GET /v1/clusters/{c}/tenants/{t}/kv/rows?as_of=TS&start_key&end_key&prefix&key_format&limit&cursor&allow_state
    &format=ndjson|arrow
GET /v1/clusters/{c}/tenants/{t}/kv/history?key=K&key_format&start_ts&end_ts&limit&cursor&format=ndjson|arrow
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import pyarrow as pa
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from apiserver.callers import caller_of
from apiserver.routes.keyvalues import EndKey, Form, Prefix, StartKey
from apiserver.routes.parameters import TENANT, Accept, Cursor, EndTs, StartTs, format_query, key_text
from apiserver.routes.rows import AsOf, Wait, choose_format, read_when_served
from apiserver.stream.followers import Followers
from reading.kv.selection import Selection, parse_selection
from reading.pages.key_history import HistoryAnswer, HistoryRequest, read_history
from reading.pages.key_rows import FORMATS
from reading.pages.key_snapshot import EntriesAnswer, EntriesRequest, read_entries
from reading.rows.scope import Scope
from tistream.codec.key_format import KeyFormat, parse
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.parameters import PathTenant
from tistream.limits import CURSOR_CHARS_MAX, PULL_ROWS_DEFAULT, PULL_ROWS_MAX

FormatName = Annotated[str | None, format_query(FORMATS)]
RowsCursor = Annotated[
    str | None,
    Query(
        max_length=CURSOR_CHARS_MAX,
        description="TiStream-Next-Cursor of the previous page of the same range; wins over as_of.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=PULL_ROWS_MAX, description="Keys a page, or versions of the key.")]
AllowState = Annotated[
    bool, Query(description="Answer also where the state of keys is not known: their entries have `exact` false.")
]
TheKey = Annotated[str, key_text("The key, in key_format and without mode and keyspace.", alias="key")]


def router(followers: Followers) -> APIRouter:
    """The two routes."""
    routes = APIRouter(tags=["keys and values"], dependencies=[needs(Right.READ, limited=OfLimited.REFUSED)])

    @routes.get(f"{TENANT}/kv/rows", summary="Keys and values as of a timestamp", response_class=Response)
    async def read_kv(
        http: Request,
        tenant: PathTenant,
        as_of: AsOf = "latest",
        key_format: Form = KeyFormat.HEX,
        start_key: StartKey = None,
        end_key: EndKey = None,
        prefix: Prefix = None,
        limit: Limit = PULL_ROWS_DEFAULT,
        cursor: RowsCursor = None,
        allow_state: AllowState = False,
        format: FormatName = None,
        wait_s: Wait = 0,
        accept: Accept = None,
    ) -> Response:
        tenant, name = tenant, choose_format(format, accept, FORMATS)
        request = EntriesRequest(
            tenant=tenant,
            as_of=as_of,
            selection=parse_selection(key_format, start_key=start_key, end_key=end_key, prefix=prefix),
            format=name,
            limit=limit,
            cursor=cursor,
            allow_state=allow_state,
        )
        read = partial(read_entries, followers.services, request)
        return _page_of_rows(await read_when_served(followers, tenant, caller_of(http), read, wait_s), name)

    @routes.get(f"{TENANT}/kv/history", summary="The versions of one key, oldest first", response_class=Response)
    async def read_kv_history(
        tenant: PathTenant,
        key: TheKey,
        key_format: Form = KeyFormat.HEX,
        start_ts: StartTs = None,
        end_ts: EndTs = None,
        limit: Limit = PULL_ROWS_DEFAULT,
        cursor: Cursor = None,
        format: FormatName = None,
        accept: Accept = None,
    ) -> Response:
        request = HistoryRequest(
            scope=Scope(tenant=tenant),
            key=parse(key, key_format, parameter="key"),
            selection=Selection(form=key_format),
            format=choose_format(format, accept, FORMATS),
            limit=limit,
            start_ts="earliest" if start_ts is None else start_ts,
            end_ts=end_ts,
            cursor=cursor,
        )
        return _page_of_history(await run_in_threadpool(read_history, followers.services, request), request.format)

    return routes


def _page_of_rows(answer: EntriesAnswer, name: str) -> Response:
    headers = {"TiStream-As-Of": str(answer.as_of), "TiStream-Unknown-Keys": str(answer.unknown)}
    more = answer.next_cursor is not None
    return _response(answer.content, name, headers, answer.resolved_ts, answer.next_cursor, has_more=more)


def _page_of_history(answer: HistoryAnswer, name: str) -> Response:
    headers = {} if answer.gap is None else {"TiStream-Gap": f"{answer.gap[0]}-{answer.gap[1]}"}
    return _response(answer.content, name, headers, answer.resolved_ts, answer.next_cursor, has_more=answer.has_more)


def _response(
    content: pa.Buffer, name: str, headers: dict[str, str], resolved_ts: int, cursor: str | None, *, has_more: bool
) -> Response:
    headers |= {
        "TiStream-Resolved-Ts": str(resolved_ts),
        "TiStream-Has-More": "true" if has_more else "false",
        "Cache-Control": "no-store",
        "Vary": "Accept",
    }
    if cursor is not None:
        headers["TiStream-Next-Cursor"] = cursor
    return Response(memoryview(content), media_type=FORMATS[name], headers=headers)
