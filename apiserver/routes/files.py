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
from apiserver.core.byte_ranges import ByteRange, NoSuchBytes, asked_range, names
from apiserver.routes.parameters import TABLE, TENANT, add_scoped
from apiserver.table_files import TableFiles
from reading.asof.read import RowsRequest
from reading.deps import Id, Services
from reading.position import FORMS
from reading.scope import Scope
from tistream import ts as tso
from tistream.catalog.log.files import file_bytes
from tistream.catalog.log.segments import SegmentFormat
from tistream.errors import InvalidInput, NotFound, ObjectNotFound
from tistream.http import problem
from tistream.http.auth.access import KeyTables, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.heads import is_head
from tistream.ids import Tenant

Ts = Annotated[int, Path(ge=0, lt=1 << 63, description="A TSO: other forms would mean something else each time.")]

_PIECE_BYTES = 4 << 20
_MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "seg": "application/octet-stream"}
_FORMATS = {"parquet": {SegmentFormat.PARQUET}, "segment": {SegmentFormat.SEGMENT}, "all": set(SegmentFormat)}

StartTs = Annotated[str, Query(description=f"Files with changes above this: {FORMS}.")]
EndTs = Annotated[str, Query(description="Files with changes at or below this; the same forms.")]
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

    def listed(scope: Scope, asked: tuple[Request, dict[str, Any]]) -> dict[str, Any]:
        http, wanted = asked
        return _shown(scope, files.listing(services, leases, scope, **wanted), http)

    async def answer_listing(scope: Scope, asked: tuple[Request, dict[str, Any]]) -> dict[str, Any]:
        return await run_in_threadpool(listed, scope, asked)

    operations = ("list_files", "list_db_files", "list_table_files")
    summary = "Files that may hold changes of a {}"
    add_scoped(of_log, "/files", answer_listing, _query, operations=operations, summary=summary)

    def log_file(http: Request, cluster_id: Id, tenant_id: Id, name: str) -> Response:
        tenant = Tenant(cluster_id, tenant_id)
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

    def table_file(
        http: Request, cluster_id: Id, tenant_id: Id, database: str, table: str, within: KeyTables, ts: Ts
    ) -> Response:
        tenant = Tenant(cluster_id, tenant_id)
        request = RowsRequest(
            tenant=tenant, database=database, table=table, as_of=str(ts), format="arrow", within=within
        )
        found = made.get(request)
        return answer(http, size=found.size, etag=found.etag, media_type=_MEDIA_TYPES["parquet"], read=found.read)

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
        "expires_time": tso.to_text(tso.compose(found.good_until_ms)),
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
    if is_head(http):
        return Response(status_code=status, headers=headers, media_type=media_type)
    body = _pieces(read, wanted)
    first = next(body, b"")  # a missing object becomes a status, not a broken body
    return StreamingResponse(chain([first], body), status, headers, media_type)


def _pieces(read: Callable[[int, int], bytes], wanted: ByteRange) -> Iterator[bytes]:
    at, end = wanted.offset, wanted.offset + wanted.length
    while at < end:
        length = min(_PIECE_BYTES, end - at)
        yield read(at, length)
        at += length


def _media_type(name: str) -> str:
    return _MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
