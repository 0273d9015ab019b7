"""Files of the log and of tables as of a timestamp: listings, and bytes by ranges.

    GET  /v1/clusters/{c}/tenants/{t}[/databases/{d}[/tables/{tb}]]/files
    GET  /v1/clusters/{c}/tenants/{t}/files/{name}
    GET  /v1/clusters/{c}/tenants/{t}/databases/{d}/tables/{tb}/rows/{ts}.parquet

A body is read from the bucket in pieces while it is sent; a read error breaks it off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from apiserver import files
from apiserver.answers.reading import FileList
from apiserver.core.byte_ranges import ByteRange, NoSuchBytes, asked_range, names
from apiserver.routes.parameters import TABLE, TENANT, add_scoped
from apiserver.table_files import TableFiles
from reading.asof.read import RowsRequest
from reading.rows.scope import Scope
from reading.served.position import FORMS
from reading.served.services import Services
from tistream import ts as tso
from tistream.catalog.log.files import file_bytes
from tistream.catalog.rows.segments import SegmentFormat
from tistream.errors import InvalidInput, NotFound, ObjectNotFound
from tistream.http import problem
from tistream.http.auth.access import KeyTables, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.heads import is_head
from tistream.http.parameters import PathTenant
from tistream.limits import TIME_CHARS_MAX

Ts = Annotated[int, Path(ge=0, lt=1 << 63, description="A TSO: other forms would mean something else each time.")]

_PIECE_BYTES = 4 << 20
_MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "seg": "application/octet-stream"}
_FORMATS = {"parquet": {SegmentFormat.PARQUET}, "segment": {SegmentFormat.SEGMENT}, "all": set(SegmentFormat)}

StartTs = Annotated[str, Query(max_length=TIME_CHARS_MAX, description=f"Files with changes above this: {FORMS}.")]
EndTs = Annotated[
    str, Query(max_length=TIME_CHARS_MAX, description="Files with changes at or below this; the same forms.")
]
Format = Annotated[Literal["parquet", "segment", "all"], Query(description="`segment`: files not compacted yet.")]


def _query(
    http: Request, start_ts: StartTs = "earliest", end_ts: EndTs = "latest", format: Format = "parquet"
) -> tuple[Request, dict[str, Any]]:
    return http, {"start_ts": start_ts, "end_ts": end_ts, "formats": _FORMATS[format]}


def router(services: Services) -> APIRouter:
    """Listings of three scopes, and the files."""
    # files of the log hold the rows of all tables
    of_log = APIRouter(tags=["files"], dependencies=[needs(Right.READ, limited=OfLimited.REFUSED)])
    of_tables = APIRouter(tags=["files"], dependencies=[needs(Right.READ, limited=OfLimited.WITHIN)])
    leases, made = files.ListingLeases(services.catalog, services.clock), TableFiles(services)

    def listed(scope: Scope, query: tuple[Request, dict[str, Any]]) -> dict[str, Any]:
        http, options = query
        return _shown(scope, files.listing(services, leases, scope, **options), http)

    async def answer_listing(scope: Scope, query: tuple[Request, dict[str, Any]]) -> dict[str, Any]:
        return await run_in_threadpool(listed, scope, query)

    operations = ("list_files", "list_db_files", "list_table_files")
    summary = "Files that may hold changes of a {}"
    add_scoped(of_log, "/files", answer_listing, _query, operations=operations, summary=summary, model=FileList)

    def log_file(http: Request, tenant: PathTenant, name: str) -> Response:
        key = files.object_key_of(tenant, name)
        size = None if key is None else file_bytes(services.catalog, tenant, key)
        if key is None or size is None:
            raise NotFound(f"File '{name[:120]}' not found: list the files again.", file=name[:120])

        def read(at: int, length: int) -> bytes:
            try:
                return services.store.get_range(key, at, length)
            except ObjectNotFound as e:
                raise NotFound(f"File '{name[:120]}' has been deleted: list the files again.") from e

        return answer(http, size=size, etag=files.etag_of(key), media_type=_media_type(name), read=read)

    def table_file(http: Request, tenant: PathTenant, database: str, table: str, within: KeyTables, ts: Ts) -> Response:
        request = RowsRequest(
            tenant=tenant, database=database, table=table, as_of=str(ts), format="arrow", within=within
        )
        file = made.get(request)
        return answer(http, size=file.size, etag=file.etag, media_type=_MEDIA_TYPES["parquet"], read=file.read)

    for group, path, endpoint, operation_id, summary in (
        (of_log, f"{TENANT}/files/{{name:path}}", log_file, "get_file", "A file, or a range of it"),
        (
            of_tables,
            f"{TABLE}/rows/{{ts}}.parquet",
            table_file,
            "get_table_file",
            "The rows of a table as of a TSO as a Parquet file, or a range of it",
        ),
    ):
        group.add_api_route(path, endpoint, methods=["GET"], operation_id=operation_id, summary=summary)
    routes = APIRouter()
    for group in (of_log, of_tables):
        routes.include_router(group)
    return routes


def _shown(scope: Scope, listing: files.Listing, http: Request) -> dict[str, Any]:
    tenant = scope.tenant
    where = f"{str(http.base_url).rstrip('/')}/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}/files"
    return {
        "items": [files.described(tenant, file, where) for file in listing.files],
        "start_ts": str(listing.start_ts),
        "end_ts": str(listing.end_ts),
        "resolved_ts": str(listing.resolved_ts),
        "parquet_upto_ts": str(listing.parquet_upto_ts),
        "table_ids": listing.table_ids,
        "expires_time": tso.to_text(tso.compose(listing.good_until_ms)),
    }


def answer(http: Request, *, size: int, etag: str, media_type: str, read: Callable[[int, int], bytes]) -> Response:
    """The answer to GET or HEAD of something with `size` bytes that never changes; `read(offset, length)` fetches."""
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, immutable, max-age=900"}
    if names(http.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    try:
        part = asked_range(http.headers.get("range"), http.headers.get("if-range"), etag=etag, size=size)
    except NoSuchBytes:
        refused = problem.problem_response(InvalidInput(f"The file has {size} bytes.", bytes=size), 416)
        refused.headers.update({**headers, "Content-Range": f"bytes */{size}", "Cache-Control": "no-store"})
        return refused
    if part is not None:
        headers["Content-Range"] = part.content_range(size)
    span = ByteRange(offset=0, length=size) if part is None else part
    headers["Content-Length"] = str(span.length)
    status = 200 if part is None else 206
    if is_head(http):
        return Response(status_code=status, headers=headers, media_type=media_type)
    body = _pieces(read, span)
    first = next(body, b"")  # a missing object becomes a status, not a broken body
    return StreamingResponse(chain([first], body), status, headers, media_type)


def _pieces(read: Callable[[int, int], bytes], span: ByteRange) -> Iterator[bytes]:
    at, end = span.offset, span.offset + span.length
    while at < end:
        length = min(_PIECE_BYTES, end - at)
        yield read(at, length)
        at += length


def _media_type(name: str) -> str:
    return _MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
