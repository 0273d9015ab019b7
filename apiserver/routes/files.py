"""The log as files, and tables as they were: what there is, and the bytes, by ranges.

    GET       /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/files
    GET|HEAD  /v1/clusters/{c}/tenants/{t}/files/{name}
    GET|HEAD  /v1/clusters/{c}/tenants/{t}/databases/{d}/tables/{tb}/rows/{ts}.parquet

A body is read from the bucket piece by piece while it is sent; an object that fails in the middle breaks it off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from apiserver import files
from apiserver.core.byte_ranges import ByteRange, NoSuchBytes, asked_range, names
from apiserver.table_files import TableFiles
from reading.asof.read import RowsRequest
from reading.deps import Id, Services
from reading.position import FORMS
from reading.scope import Scope
from tistream import ts as tso
from tistream.catalog.log.committed import SegmentFormat
from tistream.catalog.log.files import file_bytes
from tistream.errors import InvalidInput, NotFound, ObjectNotFound
from tistream.http import problem
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant

Ts = Annotated[int, Path(ge=0, lt=1 << 63, description="A TSO: other forms would mean something else each time.")]

_PIECE_BYTES = 4 << 20
_MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "seg": "application/octet-stream"}
_FORMATS = {"parquet": {SegmentFormat.PARQUET}, "segment": {SegmentFormat.SEGMENT}, "all": set(SegmentFormat)}

StartTs = Annotated[str, Query(description=f"Files with changes above this: {FORMS}.")]
EndTs = Annotated[str, Query(description="Files with changes at or below this; the same forms.")]
Format = Annotated[Literal["parquet", "segment", "all"], Query(description="`segment`: files not compacted yet.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    http: Request
    interval: dict[str, str]
    formats: set[SegmentFormat]


def _query(
    http: Request, start_ts: StartTs = "earliest", end_ts: EndTs = "latest", format: Format = "parquet"
) -> _Query:
    return _Query(http=http, interval={"start_ts": start_ts, "end_ts": end_ts}, formats=_FORMATS[format])


Asked = Annotated[_Query, Depends(_query)]


def router(services: Services) -> APIRouter:
    """Listings of three scopes, and the files."""
    routes = APIRouter(tags=["files"], dependencies=[needs(Right.READ)])
    _listings(services, routes)
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    def one(http: Request, cluster_id: Id, tenant_id: Id, name: str) -> Response:
        tenant = Tenant(cluster_id, tenant_id)
        key = files.object_key_of(tenant, name)
        size = None if key is None else file_bytes(services.catalog, tenant, key)
        if key is None or size is None:
            raise NotFound(f"There is no file '{name[:120]}', or not any more: list the files again.", file=name[:120])

        def read(at: int, length: int) -> bytes:
            try:
                return services.store.get_range(key, at, length)
            except ObjectNotFound as e:
                raise NotFound(f"The file '{name[:120]}' is not there any more: list the files again.") from e

        return answer(http, size=size, etag=files.etag_of(key), media_type=_media_type(name), read=read)

    path = f"{base}/files/{{name:path}}"
    routes.add_api_route(path, one, methods=["GET"], operation_id="get_file", summary="A file, or a range of it")
    routes.add_api_route(path, one, methods=["HEAD"], include_in_schema=False)
    _tables(services, routes)
    return routes


def _tables(services: Services, routes: APIRouter) -> None:
    made = TableFiles(services)

    def table_file(http: Request, cluster_id: Id, tenant_id: Id, database: str, table: str, ts: Ts) -> Response:
        found = made.get(
            RowsRequest(
                tenant=Tenant(cluster_id, tenant_id), database=database, table=table, as_of=str(ts), format="arrow"
            )
        )
        return answer(http, size=found.size, etag=found.etag, media_type=_MEDIA_TYPES["parquet"], read=found.read)

    path = (
        "/v1/clusters/{cluster_id}/tenants/{tenant_id}/databases/{database:name}/tables/{table:name}/rows/{ts}.parquet"
    )
    routes.add_api_route(
        path,
        table_file,
        methods=["GET"],
        operation_id="get_table_file",
        summary="The rows of a table as of a TSO as a Parquet file, or a range of it",
    )
    routes.add_api_route(path, table_file, methods=["HEAD"], include_in_schema=False)


def _listings(services: Services, routes: APIRouter) -> None:
    leases = files.ListingLeases(services.catalog, services.clock)
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"

    def listed(scope: Scope, asked: _Query) -> dict[str, Any]:
        return _shown(
            scope, files.listing(services, leases, scope, **asked.interval, formats=asked.formats), asked.http
        )

    @routes.get(f"{base}/files", operation_id="list_files", summary="Files of a tenant's log")
    def of_tenant(cluster_id: Id, tenant_id: Id, asked: Asked) -> dict[str, Any]:
        return listed(Scope(tenant=Tenant(cluster_id, tenant_id)), asked)

    @routes.get(
        f"{base}/databases/{{database:name}}/files",
        operation_id="list_db_files",
        summary="Files that may hold changes of a database",
    )
    def of_db(cluster_id: Id, tenant_id: Id, database: str, asked: Asked) -> dict[str, Any]:
        return listed(Scope(tenant=Tenant(cluster_id, tenant_id), database=database), asked)

    @routes.get(
        f"{base}/databases/{{database:name}}/tables/{{table:name}}/files",
        operation_id="list_table_files",
        summary="Files that may hold changes of a table",
    )
    def of_table(cluster_id: Id, tenant_id: Id, database: str, table: str, asked: Asked) -> dict[str, Any]:
        return listed(Scope(tenant=Tenant(cluster_id, tenant_id), database=database, table=table), asked)


def _shown(scope: Scope, found: files.Listing, http: Request) -> dict[str, Any]:
    tenant = scope.tenant
    where = f"{str(http.base_url).rstrip('/')}/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}/files"
    return {
        "items": [files.described(tenant, file, where) for file in found.files],
        "start_ts": str(found.start_ts),
        "end_ts": str(found.end_ts),
        "resolved_ts": str(found.resolved_ts),
        "parquet_upto_ts": str(found.parquet_upto_ts),
        "table_ids": found.table_ids,
        "good_until": tso.to_text(tso.compose(found.good_until_ms)),
    }


def answer(http: Request, *, size: int, etag: str, media_type: str, read: Callable[[int, int], bytes]) -> Response:
    """The answer to GET or HEAD of something with `size` bytes that never changes; `read(offset, length)` fetches."""
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, immutable, max-age=900"}
    if names(http.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    try:
        asked = asked_range(http.headers.get("range"), http.headers.get("if-range"), etag=etag, size=size)
    except NoSuchBytes:
        refused = problem.problem_response(InvalidInput(f"The file has {size} bytes.", bytes=size), 416)
        refused.headers.update({**headers, "Content-Range": f"bytes */{size}", "Cache-Control": "no-store"})
        return refused
    if asked is not None:
        headers["Content-Range"] = asked.content_range(size)
    wanted = ByteRange(offset=0, length=size) if asked is None else asked
    headers["Content-Length"] = str(wanted.length)
    status = 200 if asked is None else 206
    if http.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    body = _pieces(read, wanted)
    first = next(body, b"")  # what is gone is refused with a status, not in the middle of a body
    return StreamingResponse(chain([first], body), status, headers, media_type)


def _pieces(read: Callable[[int, int], bytes], wanted: ByteRange) -> Iterator[bytes]:
    at, end = wanted.offset, wanted.offset + wanted.length
    while at < end:
        length = min(_PIECE_BYTES, end - at)
        yield read(at, length)
        at += length


def _media_type(name: str) -> str:
    return _MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
