"""The synchronous client of the HTTP API: pages of changes, tables as Arrow, lists, status.

A page is finite and ends at its cursor; `pull` continues to the served watermark, or for ever with `follow`. Transport
errors and retryable answers (502, 503, 504) are retried with back-off at the same cursor, so a restart of the service
is only a pause. Every other problem becomes the TiStreamError that the server raised. `AsyncClient` is its twin.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self, Unpack

import httpx2
import orjson

from tistream.client.core.requests import (
    TIMEOUT_S,
    WAIT_S,
    Page,
    PullOptions,
    Retries,
    Tenant,
    changes_path,
    error_of,
    given,
    page_of,
    pull_params,
    scope_path,
    tenant_of,
    unreachable,
)
from tistream.client.core.streams import SILENCE_S, STREAMED, StreamReader
from tistream.client.cursors import CursorStore
from tistream.errors import StoreUnavailable
from tistream.runtime.credentials import key_for

if TYPE_CHECKING:
    from tistream.client.tables import TablePull


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
        """`key`: the API key, if required; `retry_s` bounds retries; `transport` replaces the network."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(timeout=TIMEOUT_S, transport=transport, headers=headers)
        self._retry_s = retry_s
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def page(self, cluster_id: int, tenant_id: int, *, wait_s: float = 0, **asked: Unpack[PullOptions]) -> Page:
        """One page. `wait_s`: seconds to wait while there is nothing new."""
        params = pull_params(asked) | ({"wait_s": str(wait_s)} if wait_s else {})
        path = changes_path(cluster_id, tenant_id, asked)
        response = self._request("GET", path, params=params, timeout=wait_s + TIMEOUT_S)
        return page_of(response.content, response.headers)

    def pull(
        self, cluster_id: int, tenant_id: int, *, follow: bool = False, **asked: Unpack[PullOptions]
    ) -> Iterator[Page]:
        """Pages from the position to the served watermark; with `follow` it then waits for more, for ever or until
        everything up to `end_ts` has been delivered. Following a line format uses a stream."""
        begins = bool(asked.get("snapshot"))  # streams hold changes only
        while begins:
            page = self.page(cluster_id, tenant_id, **asked)
            yield page
            asked["cursor"], begins = page.next_cursor, page.in_snapshot
            if page.end_ts is not None:
                asked["end_ts"] = page.end_ts
            if page.is_last(follow=follow):
                return
        if follow and asked.get("format", "ndjson") in STREAMED:
            yield from self.stream(cluster_id, tenant_id, **asked)
            return
        while True:
            wait_s = WAIT_S if follow and asked.get("cursor") is not None else 0
            page = self.page(cluster_id, tenant_id, wait_s=wait_s, **asked)
            yield page
            asked["cursor"] = page.next_cursor
            if page.end_ts is not None:
                asked["end_ts"] = page.end_ts
            if page.is_last(follow=follow):
                return

    def stream(self, cluster_id: int, tenant_id: int, **asked: Unpack[PullOptions]) -> Iterator[Page]:
        """As `pull` with `follow`, over one connection: a page each second at least, with the lines since the last one.
        `resolved_ts` is the watermark of the stream."""
        reader = StreamReader(asked)
        path, timeout = (
            f"{changes_path(cluster_id, tenant_id, asked)}:stream",
            httpx2.Timeout(TIMEOUT_S, read=SILENCE_S),
        )
        while not reader.done:
            answer = self._request("GET", path, stream=True, params=reader.params(), timeout=timeout)
            with closing(answer):
                reader.opened(answer.headers)
                for piece in _until_it_breaks(answer):
                    yield from reader.take(piece)
                    if reader.done:
                        return

    def follow(self, cluster_id: int, tenant_id: int, *, store: CursorStore, **more: Any) -> Iterator[Page]:
        """As `pull` with `follow=True`, resuming at the cursor of `store`. A page's cursor is saved when the loop asks
        for the next page, so a page whose body did not finish (a kill, an exception, a `break`) comes again. With a
        `SqlCursorStore` the body's rows and the cursor are one transaction: exactly once. `follow=False` ends at the
        watermark; `start_ts` applies until something is saved."""
        for page in self.pull(cluster_id, tenant_id, **{"follow": True, **more, "cursor": store.load()}):
            yield page
            store.save(page.next_cursor)

    def table(self, cluster_id: int, tenant_id: int, name: str, **more: Any) -> TablePull:
        """The changes of table `name` ("db.table") as Arrow, pandas, polars or DuckDB; `more` as TablePull has it."""
        from tistream.client.tables import TablePull

        return TablePull(self.page, cluster_id, tenant_id, name, **more)

    def tenants(self) -> list[Tenant]:
        """The registered tenants that the key may see."""
        return [tenant_of(item) for item in self.get("/v1/tenants")["items"]]

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
        path = scope_path(cluster_id, tenant_id, database, table)
        found: dict[str, Any] = self.get(f"{path}/changes/splits", **given(params))
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
        found: dict[str, Any] = self.get(f"{scope_path(cluster_id, tenant_id, database, table)}/files", **given(params))
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
        columns: str | None = None,
        wait_s: float = 0,
    ) -> Iterator[bytes]:
        """The rows of a table as of a timestamp, in pieces; `columns` are names separated by commas, None all of them.
        StoreUnavailable when the answer is truncated."""
        path = f"{scope_path(cluster_id, tenant_id, database, table)}/rows"
        params = {"as_of": str(as_of), "format": format} | ({"wait_s": str(wait_s)} if wait_s else {})
        params |= given({"columns": columns})
        with closing(self._request("GET", path, stream=True, params=params, timeout=wait_s + TIMEOUT_S)) as response:
            try:
                yield from response.iter_bytes()
            except httpx2.TransportError as e:
                raise StoreUnavailable(f"Rows of {database}.{table} were truncated: {e or type(e).__name__}.") from e

    def definition(
        self, cluster_id: int, tenant_id: int, database: str, table: str, *, as_of: str | int, dialect: str = "mysql"
    ) -> dict[str, Any]:
        """The CREATE statements of a table as of a timestamp, and notes on omissions."""
        path = f"{scope_path(cluster_id, tenant_id, database, table)}/definition"
        found: dict[str, Any] = self.get(path, as_of=str(as_of), dialect=dialect)
        return found

    def get(self, path: str, **params: str) -> Any:
        """GET a JSON resource of the API by its path."""
        return orjson.loads(self._request("GET", path, params=params).content)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Any request to the API by its path; the JSON answer, None when empty."""
        content = self._request(method, path, json=body).content
        return orjson.loads(content) if content else None

    def register_tenant(self, cluster_id: int, tenant_id: int) -> dict[str, Any]:
        """Register a tenant; idempotent. The first answer holds a key for its pushers."""
        found: dict[str, Any] = self.post("/v1/tenants", {"cluster_id": cluster_id, "tenant_id": tenant_id})
        return found

    def post(self, path: str, body: Mapping[str, Any] | None = None, **params: str) -> Any:
        """POST to a resource or an action of the API. Retries do not repeat it."""
        once = {"Idempotency-Key": secrets.token_hex(16)}
        sent = None if body is None else dict(body)
        return orjson.loads(self._request("POST", path, headers=once, json=sent, params=params).content)

    def delete(self, path: str) -> Any:
        """DELETE a resource of the API."""
        return orjson.loads(self._request("DELETE", path).content)

    def _request(self, method: str, path: str, *, stream: bool = False, **kwargs: Any) -> httpx2.Response:
        """The answer; with `stream` the caller reads its body and closes it."""
        retries = Retries(time.monotonic() + self._retry_s)
        while True:
            headers: Mapping[str, str] | None = None
            try:
                response = self._http.send(self._http.build_request(method, self.url + path, **kwargs), stream=stream)
                if response.is_success:
                    return response
                headers, content = response.headers, response.read()
                error = error_of(response.status_code, content)
            except httpx2.TransportError as e:
                error = unreachable(self.url, e)
            self._sleep(retries.pause(error, headers, time.monotonic()))


def _until_it_breaks(answer: httpx2.Response) -> Iterator[bytes]:
    try:
        yield from answer.iter_bytes()
    except httpx2.TransportError:
        return


def connect(url: str = "http://127.0.0.1:8711", **more: Any) -> Client:
    """A client of the service at `url`. Without a `key` it uses TISTREAM_KEY or the key of `tistream login`."""
    return Client(url, **{"key": key_for(url), **more})
