"""Parameters that several routes share, and routes that exist for a tenant, a database and a table alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel

from apiserver import negotiate
from apiserver.compression import CODINGS, choose_coding
from reading.filters import FILTER_NAMES, TEXT_MAX, Filter, parse_filter, refused
from reading.formats import format_options
from reading.pages.rendering import ARROW_FORMS
from reading.rows.scope import Scope
from tistream.errors import InvalidInput
from tistream.http.auth.access import KeyTables
from tistream.http.parameters import Id
from tistream.ids import Tenant
from tistream.limits import CURSOR_CHARS_MAX, KEY_CHARS_MAX, TIME_CHARS_MAX

TENANT = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"
DATABASE = TENANT + "/databases/{database:name}"
TABLE = DATABASE + "/tables/{table:name}"
_FORMAT_CHARS_MAX = 40

StartTs = Annotated[
    str | None,
    Query(
        max_length=TIME_CHARS_MAX,
        description="A TSO, an RFC 3339 time, `earliest`, `latest`, or a span back from now such as `-15m`.",
    ),
]
StartTsDashed = Annotated[str | None, Query(alias="start-ts", include_in_schema=False, max_length=TIME_CHARS_MAX)]
Continued = Annotated[
    bool,
    Query(
        description="Changes will be pulled from the timestamp on. A DDL under way there then counts from its event in "
        "these changes on; without this, from the schema version on with which TiDB answers a read AS OF."
    ),
]
EndTs = Annotated[
    str | None, Query(max_length=TIME_CHARS_MAX, description="Serve nothing above this; the same forms as start_ts.")
]
Cursor = Annotated[
    str | None,
    Query(max_length=CURSOR_CHARS_MAX, description="TiStream-Next-Cursor of the previous answer; wins over start_ts."),
]


def format_query(formats: Iterable[str], **more: Any) -> Any:
    """The query parameter `format` of a route with these formats. Other names are refused by the route."""
    words = "One of " + ", ".join(formats) + ". Wins over Accept."
    return Query(max_length=_FORMAT_CHARS_MAX, description=words, **more)


def long_text(description: str) -> Any:
    """A query parameter with rules or an expression, whose parser refuses what is longer and says where."""
    return Query(description=description, json_schema_extra={"maxLength": TEXT_MAX})


def key_text(description: str, alias: str | None = None) -> Any:
    """A query parameter with a key."""
    return Query(alias=alias, max_length=KEY_CHARS_MAX, description=description)


Buffers = Annotated[
    Literal["zstd", "lz4"] | None,
    Query(alias="compression", description="Arrow formats: how the buffers inside the answer are compressed."),
]
Tables = Annotated[
    str | None,
    long_text("Only tables that these rules mean, such as `shop.*,!shop.audit_*`: TiCDC's table rules."),
]
Columns = Annotated[
    str | None, long_text("Only columns that these rules mean, such as `id,name` or `*,!photo`, and the key.")
]
Operations = Annotated[str | None, long_text("Only these kinds: `insert`, `update`, `delete`, `ddl`.")]
Where = Annotated[
    str | None,
    long_text(
        "Only rows for which this is true, such as `price > 10 AND state IN ('new', 'paid')`. An update "
        "that leaves them is a delete, one that enters them an insert."
    ),
]
Changed = Annotated[
    str | None, long_text("Of updates only those that change a column that these rules mean: `*,!seen_at`.")
]
EventFilters = Annotated[
    str | None,
    long_text("TiCDC's event filters: a JSON list of objects with `matcher`, `ignore-event` and so on."),
]
Accept = Annotated[str | None, Header()]
AcceptEncoding = Annotated[str | None, Header()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How an answer with changes is written."""

    name: str  #: of the format
    media_type: str
    buffers: str | None  #: compression of Arrow buffers
    coding: str | None  #: content coding of the body


def form_of(
    format: str | None,
    compression: str | None,
    accept: str | None,
    accept_encoding: str | None,
    formats: Mapping[str, str] = negotiate.FORMATS,
) -> Form:
    """The form that a request asks for by its parameters and headers. Arrow answers are never coded."""
    name = negotiate.choose(format, accept, formats)
    return Form(
        name=name,
        media_type=formats[name],
        buffers=arrow_buffers(name, compression),
        coding=choose_coding(accept_encoding, () if name in ARROW_FORMS else CODINGS),
    )


def form_query(formats: Mapping[str, str]) -> Callable[..., Awaitable[Form]]:
    """The dependency that gives the form of an answer in one of these formats."""
    name = format_query(formats, default=None)

    async def parse(
        format: str | None = name,
        compression: Buffers = None,
        accept: Accept = None,
        accept_encoding: AcceptEncoding = None,
    ) -> Form:
        return form_of(format, compression, accept, accept_encoding, formats)

    return parse


AnyForm = Annotated[Form, Depends(form_query(negotiate.FORMATS))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where a request begins and ends."""

    start_ts: str | None
    end_ts: str | None
    cursor: str | None


async def _span(start_ts: StartTs = None, end_ts: EndTs = None, cursor: Cursor = None) -> Span:
    return Span(start_ts=start_ts, end_ts=end_ts, cursor=cursor)


SpanQuery = Annotated[Span, Depends(_span)]


def add_scoped(
    routes: APIRouter,
    suffix: str,
    answer: Callable[[Scope, Any], Awaitable[Any]],
    query: Callable[..., Any],
    *,
    operations: tuple[str, str, str],
    summary: str,
    model: type[BaseModel] | None = None,
) -> None:
    """Add a GET route of a tenant, of a database and of a table. `query` is the dependency that parses parameters;
    `summary` has a `{}` for the kind of scope; `model` describes a JSON answer. A scope holds the limit of the key."""
    described: dict[int | str, dict[str, Any]] = {} if model is None else {200: {"model": model}}
    for path, scope_of, kind, operation_id in (
        (TENANT, _tenant_scope, "tenant", operations[0]),
        (DATABASE, _database_scope, "database", operations[1]),
        (TABLE, _table_scope, "table", operations[2]),
    ):
        its_scope, parsed = Depends(scope_of), Depends(query)

        async def endpoint(scope: Any = its_scope, query: Any = parsed) -> Any:
            return await answer(scope, query)

        route = routes.get(
            path + suffix,
            operation_id=operation_id,
            summary=summary.format(kind),
            response_model=None,
            responses=described,
        )
        route(endpoint)


def _tenant_scope(cluster_id: Id, tenant_id: Id, within: KeyTables) -> Scope:
    return Scope(tenant=Tenant(cluster_id, tenant_id), within=within)


def _database_scope(cluster_id: Id, tenant_id: Id, database: str, within: KeyTables) -> Scope:
    return Scope(tenant=Tenant(cluster_id, tenant_id), database=database, within=within)


def _table_scope(cluster_id: Id, tenant_id: Id, database: str, table: str, within: KeyTables) -> Scope:
    return Scope(tenant=Tenant(cluster_id, tenant_id), database=database, table=table, within=within)


def _format_options(**given: str | None) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in given.items() if text is not None}


#: each option is a parameter of the route, so that its description has them and the route knows their names
_format_options.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        Parameter(
            name.replace("-", "_"),
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                Query(
                    alias=name,
                    description=f"Option of formats. {option.meaning}.",
                    json_schema_extra={"maxLength": option.bytes_max},
                ),
            ],
        )
        for name, option in format_options().items()
    ]
)

#: options of the format, as the query has them
Options = Annotated[dict[str, str], Depends(_format_options)]


def given_filter(
    request: Request,
    tables: Tables = None,
    columns: Columns = None,
    ops: Operations = None,
    where: Where = None,
    changed: Changed = None,
    event_filters: EventFilters = None,
) -> Filter:
    """The filter of a query; of rules that are given several times all count. FilterInvalid for a wrong one."""
    texts: dict[str, str] = {}
    for name in FILTER_NAMES:
        values = request.query_params.getlist(name)
        if len(values) > 1 and name in ("where", "event_filters"):
            raise refused(name, values[1], 0, "is given more than once")
        if values:
            texts[name] = ",".join(values)
    return parse_filter(texts)


Filtered = Annotated[Filter, Depends(given_filter)]


def arrow_buffers(format: str, compression: str | None) -> str | None:
    """How the buffers of an Arrow answer are compressed. InvalidInput for other formats, which have none."""
    if compression is not None and format not in ARROW_FORMS:
        raise InvalidInput(f"A {format} answer has no buffers to compress: use Accept-Encoding.", option="compression")
    return compression
