"""The rows and the definition of a table as of a timestamp.

    GET /v1/clusters/{c}/tenants/{t}/databases/{d}/tables/{tb}/rows?as_of=TS&columns=A,B&where=CONDITION
        &format=ndjson|csv|arrow|parquet|sql&continued=true|false
    GET /v1/clusters/{c}/tenants/{t}/databases/{d}/tables/{tb}/definition?as_of=TS&dialect=mysql|mariadb|tidb
        &continued=true|false

A read that waits for the watermark sleeps on the event loop, as a waiting pull does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from apiserver import negotiate
from apiserver.answers.schemas import TableDefinition
from apiserver.callers import caller_of
from apiserver.negotiate import NotAcceptable
from apiserver.routes.parameters import TABLE, Accept, Continued, format_query, long_text
from apiserver.stream.followers import Followers
from reading.asof.core.projection import parse_columns
from reading.asof.csv import load_statement
from reading.asof.output import FORMATS, left_out_headers
from reading.asof.read import RowsAnswer, RowsRequest, moment, read_rows
from reading.filters import parse_filter
from reading.served.position import FORMS
from schemas.history import History
from schemas.model import Table
from schemas.shape import shape_of, to_json
from schemas.show_create import Dialect, define
from tistream.errors import AheadOfWatermark, InvalidInput
from tistream.http.auth.access import KeyTables, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.parameters import PathTenant
from tistream.ids import Tenant
from tistream.limits import PULL_WAIT_MS_MAX, REQUEST_HEAD_BYTES_MAX, TIME_CHARS_MAX

T = TypeVar("T")

AsOf = Annotated[str, Query(max_length=TIME_CHARS_MAX, description=f"The timestamp: {FORMS}.")]
FormatName = Annotated[str | None, format_query(FORMATS)]
Wait = Annotated[
    float,
    Query(
        alias="wait",
        ge=0,
        le=PULL_WAIT_MS_MAX / 1000,
        description="Seconds to wait until the watermark has passed as_of.",
    ),
]
Columns = Annotated[
    str | None,
    Query(
        max_length=REQUEST_HEAD_BYTES_MAX,
        description="Names separated by commas, one with a comma in backquotes; all columns with values by default.",
    ),
]
Where = Annotated[str | None, long_text("Only rows for which this is true: `price > 10 AND state IN ('new', 'paid')`.")]
DialectName = Annotated[Dialect, Query(description="The server that will run the statements.")]


def router(followers: Followers) -> APIRouter:
    """The two routes."""
    services = followers.services
    routes = APIRouter(tags=["rows"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])

    @routes.get(
        f"{TABLE}/rows",
        operation_id="read_rows",
        summary="The rows of a table as of a timestamp",
        response_class=Response,
    )
    async def rows(
        http: Request,
        tenant: PathTenant,
        database: str,
        table: str,
        within: KeyTables,
        as_of: AsOf = "latest",
        format: FormatName = None,
        columns: Columns = None,
        where: Where = None,
        continued: Continued = False,
        wait_s: Wait = 0,
        accept: Accept = None,
    ) -> Response:
        name = choose_format(format, accept)
        if http.scope.get("http_version") == "1.0":
            raise InvalidInput(
                "Rows need HTTP/1.1: over HTTP/1.0 a truncated body looks complete. A proxy in between must use it as "
                "well (nginx: proxy_http_version 1.1)."
            )
        names, passing = parse_columns(columns), parse_filter({} if where is None else {"where": where})
        request = RowsRequest(
            tenant=tenant,
            database=database,
            table=table,
            as_of=as_of,
            format=name,
            columns=names,
            filter=passing,
            within=within,
            continued=continued,
        )
        read = partial(read_rows, services, request)
        answer = await read_when_served(followers, tenant, caller_of(http), read, wait_s)
        return StreamingResponse(answer.content, media_type=FORMATS[name], headers=_headers(answer))

    @routes.get(
        f"{TABLE}/definition",
        summary="CREATE statements of a table as of a timestamp",
        responses={200: {"model": TableDefinition}},
    )
    def get_definition(
        tenant: PathTenant,
        database: str,
        table: str,
        within: KeyTables,
        as_of: AsOf = "latest",
        dialect: DialectName = Dialect.MYSQL,
        continued: Continued = False,
    ) -> dict[str, Any]:
        history, at, _, _ = moment(services, tenant, as_of, within, continued=continued)
        return _defined(history, history.find_base_table(database, table, at), at, dialect)

    return routes


def _defined(history: History, table: Table, at: int, dialect: Dialect) -> dict[str, Any]:
    made = define(history.database(table.db, at), table, dialect)
    return {
        "database": table.db,
        "table": table.name,
        "as_of": str(at),
        "create_database": made.create_database,
        "create_table": made.create_table,
        "load_csv": load_statement(table),
        "notes": list(made.notes),
        "shape": to_json(shape_of(table)),
    }


def choose_format(name: str | None, accept: str | None, formats: Mapping[str, str] = FORMATS) -> str:
    """The format: `?format=` wins, else the offered media type that Accept prefers, else ndjson."""
    if name is not None:
        if name not in formats:
            raise InvalidInput(f"Rows have no format '{name[:40]}'.", offers=", ".join(formats))
        return name
    offers = {**{media: name for name, media in formats.items()}, "application/jsonl": "ndjson"}
    offer = negotiate.offered(accept or "*/*", offers)
    if offer is not None:
        return offer
    raise NotAcceptable(
        f"Accept '{(accept or '')[:80]}' names no offered media type.", offers=", ".join(formats.values())
    )


def _headers(answer: RowsAnswer) -> dict[str, str]:
    headers = {
        "TiStream-As-Of": str(answer.as_of),
        "TiStream-Base-Ts": str(answer.base_ts),
        "TiStream-Resolved-Ts": str(answer.resolved_ts),
        "Cache-Control": "no-store",
        "Vary": "Accept",
    }
    return headers | left_out_headers([("", column) for column in answer.left_out])


async def read_when_served(
    followers: Followers, tenant: Tenant, caller: str, read: Callable[[], T], wait_s: float
) -> T:
    """The answer of `read`, once its timestamp is served. AheadOfWatermark when the time is up, TooManyOpen."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    try:
        return await run_in_threadpool(read)
    except AheadOfWatermark as e:
        ahead = e
    if not wait_s:
        raise ahead
    seen = int(str(ahead.facts["resolved_ts"]))
    counted = followers.counted("waits", caller, followers.limits.waits_max)
    with counted, followers.waker.watching(tenant) as watch:
        while (moved := await watch.moved(seen, deadline - loop.time())) is not None:
            try:
                return await run_in_threadpool(read)
            except AheadOfWatermark as e:
                ahead, seen = e, max(moved, int(str(e.facts["resolved_ts"])))
    raise ahead
