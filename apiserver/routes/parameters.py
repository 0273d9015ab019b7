"""Parameters that several routes share, and routes that exist for a tenant, a database and a table alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request

from apiserver import negotiate
from apiserver.compression import CODINGS, choose_coding
from reading.deps import Id
from reading.filters import FILTER_NAMES, Filter, parse_filter, refused
from reading.formats import option_meanings
from reading.rendering import ARROW_FORMS
from reading.scope import Scope
from tistream.errors import InvalidInput
from tistream.http.auth.access import KeyTables
from tistream.ids import Tenant

TENANT = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"
DATABASE = TENANT + "/databases/{database:name}"
TABLE = DATABASE + "/tables/{table:name}"

StartTs = Annotated[
    str | None,
    Query(description="A TSO, an RFC 3339 time, `earliest`, `latest`, or a span back from now such as `-15m`."),
]
StartTsDashed = Annotated[str | None, Query(alias="start-ts", include_in_schema=False)]
EndTs = Annotated[str | None, Query(description="Serve nothing above this; the same forms as start_ts.")]
Cursor = Annotated[str | None, Query(description="TiStream-Next-Cursor of the previous answer; wins over start_ts.")]
FormatName = Annotated[str | None, Query(description="One of " + ", ".join(negotiate.FORMATS) + ". Wins over Accept.")]
Buffers = Annotated[
    Literal["zstd", "lz4"] | None,
    Query(alias="compression", description="Arrow formats: how the buffers inside the answer are compressed."),
]
Tables = Annotated[
    str | None,
    Query(description="Only tables that these rules mean, such as `shop.*,!shop.audit_*`: TiCDC's table rules."),
]
Columns = Annotated[
    str | None, Query(description="Only columns that these rules mean, such as `id,name` or `*,!photo`, and the key.")
]
Operations = Annotated[str | None, Query(description="Only these kinds: `insert`, `update`, `delete`, `ddl`.")]
Where = Annotated[
    str | None,
    Query(
        description="Only rows for which this is true, such as `price > 10 AND state IN ('new', 'paid')`. An update "
        "that leaves them is a delete, one that enters them an insert."
    ),
]
Changed = Annotated[
    str | None, Query(description="Of updates only those that change a column that these rules mean: `*,!seen_at`.")
]
EventFilters = Annotated[
    str | None,
    Query(description="TiCDC's event filters: a JSON list of objects with `matcher`, `ignore-event` and so on."),
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


def add_scoped(
    routes: APIRouter,
    suffix: str,
    answer: Callable[[Scope, Any], Awaitable[Any]],
    query: Callable[..., Any],
    *,
    operations: tuple[str, str, str],
    summary: str,
) -> None:
    """Add a GET route of a tenant, of a database and of a table. `query` is the dependency that parses parameters;
    `summary` has a `{}` for the kind of scope. A scope holds the limit of the key."""
    for path, scope_of, kind, operation_id in (
        (TENANT, _tenant_scope, "tenant", operations[0]),
        (DATABASE, _database_scope, "database", operations[1]),
        (TABLE, _table_scope, "table", operations[2]),
    ):
        its_scope, parsed = Depends(scope_of), Depends(query)

        async def endpoint(scope: Any = its_scope, asked: Any = parsed) -> Any:
            return await answer(scope, asked)

        route = routes.get(path + suffix, operation_id=operation_id, summary=summary.format(kind), response_model=None)
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
            annotation=Annotated[str | None, Query(alias=name, description=f"Option of formats. {meaning}.")],
        )
        for name, meaning in option_meanings().items()
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
    found: dict[str, str] = {}
    for name in FILTER_NAMES:
        values = request.query_params.getlist(name)
        if len(values) > 1 and name in ("where", "event_filters"):
            raise refused(name, values[1], 0, "is given more than once")
        if values:
            found[name] = ",".join(values)
    return parse_filter(found)


Filtered = Annotated[Filter, Depends(given_filter)]


def arrow_buffers(format: str, compression: str | None) -> str | None:
    """How the buffers of an Arrow answer are compressed. InvalidInput for other formats, which have none."""
    if compression is not None and format not in ARROW_FORMS:
        raise InvalidInput(f"A {format} answer has no buffers to compress: use Accept-Encoding.", option="compression")
    return compression
