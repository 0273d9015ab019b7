"""A small synchronous client of the HTTP API: pages of changes, lists, status.

It speaks HTTP only. A page is finite and ends at its cursor; `pull` walks pages until the served watermark (or for ever
with `follow`). Transport errors and answers that say "not now" (502, 503, 504) are retried with back-off at the same
cursor, so a restarted service is no more than a pause. Every other problem answer becomes the TiStreamError that the
server raised, with its words and facts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx2
import orjson
import pyarrow as pa

from tistream.client.streams import SILENCE_S, STREAMED, follow
from tistream.credentials import key_for
from tistream.errors import (
    AheadOfWatermark,
    AnotherRequest,
    ChangedMeanwhile,
    CursorInvalid,
    InvalidInput,
    NotAllowed,
    NotConvertible,
    NotFound,
    RateLimited,
    SeedNeeded,
    StateForbids,
    StillInFlight,
    StoreUnavailable,
    TiStreamError,
    TooManyOpen,
    TsExpired,
    TsOutOfRange,
    Unauthenticated,
)

_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0
_WAIT_S = 10
_TIMEOUT_S = 120  # for an answer; the first page after a start may wait until its code is compiled

#: errors that a caller handles apart, by the code of the problem
_BY_CODE: dict[str, type[TiStreamError]] = {
    error.code: error
    for error in (
        InvalidInput,
        CursorInvalid,
        TsOutOfRange,
        TsExpired,
        NotFound,
        AheadOfWatermark,
        RateLimited,
        TooManyOpen,
        StateForbids,
        ChangedMeanwhile,
        SeedNeeded,
        NotConvertible,
        Unauthenticated,
        NotAllowed,
        AnotherRequest,
        StillInFlight,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer of a pull."""

    content: bytes
    next_cursor: str
    resolved_ts: int
    has_more: bool
    quarantined: int = 0  #: rows of this page that the server could not decode
    end_ts: int | None = None  #: what the `end_ts` of the request meant

    def lines(self) -> list[bytes]:
        """The messages of a format with one message a line, without their ends. (A CSV record may hold line ends.)"""
        return self.content.splitlines()

    def arrow(self) -> pa.Table:
        """The rows of an Arrow answer."""
        return pa.ipc.open_stream(self.content).read_all()


class Client:
    """A connection to one TiStream service. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        retry_s: float = 30,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """`key` is the API key, where one is asked for; `retry_s` bounds how long a request is tried again;
        `transport` replaces the network."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(timeout=_TIMEOUT_S, transport=transport, headers=headers)
        self._retry_s = retry_s
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def page(
        self,
        cluster_id: int,
        tenant_id: int,
        *,
        database: str | None = None,
        table: str | None = None,
        start_ts: str | int | None = None,
        end_ts: str | int | None = None,
        cursor: str | None = None,
        format: str = "ndjson",
        limit: int | None = None,
        wait_s: float = 0,
        options: Mapping[str, str] | None = None,
    ) -> Page:
        """One page from `cursor`, or from `start_ts` (`earliest` when neither is given)."""
        path = _of_scope(cluster_id, tenant_id, database, table)
        params: dict[str, str] = {**(options or {}), "format": format}
        if cursor is not None:
            params["cursor"] = cursor
        else:
            params["start_ts"] = str(start_ts if start_ts is not None else "earliest")
        if end_ts is not None:
            params["end_ts"] = str(end_ts)
        if limit is not None:
            params["limit"] = str(limit)
        if wait_s:
            params["wait"] = str(wait_s)
        response = self._request("GET", f"{path}/changes", params=params, timeout=wait_s + _TIMEOUT_S)
        return Page(
            content=response.content,
            next_cursor=response.headers["TiStream-Next-Cursor"],
            resolved_ts=int(response.headers["TiStream-Resolved-Ts"]),
            has_more=response.headers["TiStream-Has-More"] == "true",
            quarantined=int(response.headers.get("TiStream-Quarantined", "0")),
            end_ts=int(end) if (end := response.headers.get("TiStream-End-Ts")) else None,
        )

    def pull(
        self,
        cluster_id: int,
        tenant_id: int,
        *,
        follow: bool = False,
        cursor: str | None = None,
        start_ts: str | int | None = None,
        end_ts: str | int | None = None,
        **more: Any,
    ) -> Iterator[Page]:
        """Pages from the position to the served watermark; with `follow` it then waits for more, for ever or until
        everything up to `end_ts` has come. Following a format with one message a line takes a stream."""
        if follow and more.get("format", "ndjson") in STREAMED:
            yield from self.stream(cluster_id, tenant_id, cursor=cursor, start_ts=start_ts, end_ts=end_ts, **more)
            return
        while True:
            wait_s = _WAIT_S if follow and cursor is not None else 0
            page = self.page(
                cluster_id, tenant_id, cursor=cursor, start_ts=start_ts, end_ts=end_ts, wait_s=wait_s, **more
            )
            yield page
            cursor = page.next_cursor
            end_ts = page.end_ts if page.end_ts is not None else end_ts
            is_all = end_ts is not None and page.end_ts is not None and page.resolved_ts >= page.end_ts
            if not page.has_more and (is_all or not follow):
                return

    def stream(
        self,
        cluster_id: int,
        tenant_id: int,
        *,
        database: str | None = None,
        table: str | None = None,
        cursor: str | None = None,
        start_ts: str | int | None = None,
        end_ts: str | int | None = None,
        format: str = "ndjson",
        limit: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Iterator[Page]:
        """As `pull` with `follow`, over one connection: a page each second at least, with the lines that came since the
        one before. `resolved_ts` is how far everything has come."""
        path = f"{_of_scope(cluster_id, tenant_id, database, table)}/changes:stream"
        words = {**(options or {}), "format": format, "framing": "sse"} | ({"limit": str(limit)} if limit else {})

        def open_at(cursor: str | None, end_ts: str | int | None) -> httpx2.Response:
            start = str(start_ts if start_ts is not None else "earliest")
            position = {"cursor": cursor} if cursor is not None else {"start_ts": start}
            end = {"end_ts": str(end_ts)} if end_ts is not None else {}
            timeout = httpx2.Timeout(_TIMEOUT_S, read=SILENCE_S)
            params = words | position | end
            return self._request("GET", path, stream=True, params=params, timeout=timeout)

        for mark in follow(open_at, _problem_error, cursor, end_ts):
            content = mark.content
            if format == "ndjson":
                content += orjson.dumps({"type": "resolved", "resolved_ts": str(mark.resolved_ts)}) + b"\n"
            yield Page(
                content=content,
                next_cursor=mark.cursor,
                resolved_ts=mark.resolved_ts,
                has_more=False,
                quarantined=mark.quarantined,
            )

    def splits(
        self,
        cluster_id: int,
        tenant_id: int,
        *,
        database: str | None = None,
        table: str | None = None,
        **params: str | int | None,
    ) -> dict[str, Any]:
        """The parts of a long pull, each with its cursor and end. `params` are those of the route: start_ts or cursor,
        end_ts, rows, parts, part_bytes; None leaves one out."""
        given = {name: str(value) for name, value in params.items() if value is not None}
        path = _of_scope(cluster_id, tenant_id, database, table)
        found: dict[str, Any] = self.get(f"{path}/changes/splits", **given)
        return found

    def files(
        self,
        cluster_id: int,
        tenant_id: int,
        *,
        database: str | None = None,
        table: str | None = None,
        **params: str | int | None,
    ) -> dict[str, Any]:
        """The files of the log with their addresses. `params` are those of the route: start_ts, end_ts, format; None
        leaves one out."""
        given = {name: str(value) for name, value in params.items() if value is not None}
        found: dict[str, Any] = self.get(f"{_of_scope(cluster_id, tenant_id, database, table)}/files", **given)
        return found

    def rows(
        self,
        cluster_id: int,
        tenant_id: int,
        database: str,
        table: str,
        *,
        as_of: str | int = "latest",
        format: str = "ndjson",
        wait_s: float = 0,
    ) -> Iterator[bytes]:
        """The rows of a table as of a timestamp, piece by piece. StoreUnavailable when the answer breaks off: what
        came before is then a part only."""
        path = f"{_of_scope(cluster_id, tenant_id, database, table)}/rows"
        params = {"as_of": str(as_of), "format": format} | ({"wait": str(wait_s)} if wait_s else {})
        with closing(self._request("GET", path, stream=True, params=params, timeout=wait_s + _TIMEOUT_S)) as response:
            try:
                yield from response.iter_bytes()
            except httpx2.TransportError as e:
                raise StoreUnavailable(f"The rows of {database}.{table} broke off: {e or type(e).__name__}.") from e

    def definition(
        self, cluster_id: int, tenant_id: int, database: str, table: str, *, as_of: str | int, dialect: str = "mysql"
    ) -> dict[str, Any]:
        """The CREATE statements of a table as of a timestamp, and notes on what they leave out."""
        path = f"{_of_scope(cluster_id, tenant_id, database, table)}/definition"
        found: dict[str, Any] = self.get(path, as_of=str(as_of), dialect=dialect)
        return found

    def get(self, path: str, **params: str) -> Any:
        """GET a JSON resource of the API by its path."""
        return orjson.loads(self._request("GET", path, params=params).content)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Another request to the API by its path, with a JSON body where it has one; the answer, None when empty."""
        content = self._request(method, path, json=body).content
        return orjson.loads(content) if content else None

    def register_tenant(self, cluster_id: int, tenant_id: int) -> dict[str, Any]:
        """Register a tenant; fine when it is registered already. The first answer holds a key for its pushers."""
        found: dict[str, Any] = self.post("/v1/tenants", {"cluster_id": cluster_id, "tenant_id": tenant_id})
        return found

    def post(self, path: str, body: Mapping[str, Any] | None = None, **params: str) -> Any:
        """POST to a resource or a verb of the API. However often it is tried again, it is done once."""
        once = {"Idempotency-Key": secrets.token_hex(16)}
        sent = None if body is None else dict(body)
        return orjson.loads(self._request("POST", path, headers=once, json=sent, params=params).content)

    def delete(self, path: str) -> Any:
        """DELETE a resource of the API."""
        return orjson.loads(self._request("DELETE", path).content)

    def _request(self, method: str, path: str, *, stream: bool = False, **kwargs: Any) -> httpx2.Response:
        """The answer; with `stream` its body is still to be read, and the answer to be closed."""
        deadline = time.monotonic() + self._retry_s
        pause = _RETRY_FIRST_S
        while True:
            try:
                response = self._http.send(self._http.build_request(method, self.url + path, **kwargs), stream=stream)
                if stream and not response.is_success:
                    response.read()
                error = None if response.is_success else _error(response)
            except httpx2.TransportError as e:
                error = StoreUnavailable(f"{self.url} does not answer: {e or type(e).__name__}.")
            if error is None:
                return response
            if isinstance(error, RateLimited):
                pause = max(pause, float(response.headers.get("Retry-After", pause)))
            again = isinstance(error, StoreUnavailable | StillInFlight | RateLimited)
            if not again or time.monotonic() + pause > deadline:
                raise error
            self._sleep(pause)
            pause = min(pause * 2, _RETRY_MAX_S)


def connect(url: str = "http://127.0.0.1:8711", **more: Any) -> Client:
    """A client of the service at `url`. Without a `key` it shows what TISTREAM_KEY holds or `tistream login` kept."""
    return Client(url, **{"key": key_for(url), **more})


def _of_scope(cluster_id: int, tenant_id: int, database: str | None, table: str | None) -> str:
    path = f"/v1/clusters/{cluster_id}/tenants/{tenant_id}"
    if database is not None:
        path += f"/databases/{quote(database, safe='')}"
    if table is not None:
        path += f"/tables/{quote(table, safe='')}"
    return path


def _error(response: httpx2.Response) -> TiStreamError:
    """The error that an answer stands for: the server's own where it is a problem document."""
    status = response.status_code
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        body = {"detail": response.text[:200]}
    return _problem_error({**body, "status": status})


def _problem_error(body: dict[str, Any]) -> TiStreamError:
    """The error of a problem document."""
    status = int(body["status"])
    text = str(body.get("detail") or body.get("title") or f"HTTP {status}")
    if status in (502, 503, 504):
        return StoreUnavailable(text)
    by_status = NotFound if status == 404 else InvalidInput if status < 500 else TiStreamError
    error = _BY_CODE.get(str(body.get("code")), by_status)(text, **_facts(body), status=status)
    error.hint = str(body.get("hint") or "")
    return error


def _facts(body: Mapping[str, Any]) -> dict[str, object]:
    """The facts of a problem that can be attributes of an error."""
    facts = body.get("facts")
    taken = {"self", "message", "facts", "status"}
    return {
        name: value
        for name, value in (facts.items() if isinstance(facts, dict) else ())
        if name not in taken and not hasattr(TiStreamError, name)
    }
