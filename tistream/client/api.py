"""A small synchronous client of the HTTP API: pages of changes, lists, status.

It speaks HTTP only. A page is finite and ends at its cursor; `pull` walks pages until the served watermark (or for ever
with `follow`). Transport errors and 503 answers are retried with back-off at the same cursor, so a restarted service is
no more than a pause. Every other problem answer becomes a TiStreamError with the server's words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx2
import orjson
import pyarrow as pa

from tistream.errors import InvalidInput, NotFound, StoreUnavailable, TiStreamError

_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0
_WAIT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer of a pull."""

    content: bytes
    next_cursor: str
    resolved_ts: int
    has_more: bool
    quarantined: int = 0  #: rows of this page that the server could not decode

    def lines(self) -> list[bytes]:
        """The messages of a line format, without their ends."""
        return self.content.splitlines()

    def arrow(self) -> pa.Table:
        """The rows of an Arrow answer."""
        return pa.ipc.open_stream(self.content).read_all()


class Client:
    """A connection to one TiStream service."""

    def __init__(self, url: str, *, retry_s: float = 30, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = url.rstrip("/")
        self._http = httpx2.Client(timeout=_WAIT_S * 3)
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
        path = f"/v1/clusters/{cluster_id}/tenants/{tenant_id}"
        if database is not None:
            path += f"/databases/{quote(database, safe='')}"
        if table is not None:
            path += f"/tables/{quote(table, safe='')}"
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
        response = self._request("GET", f"{path}/changes", params=params)
        return Page(
            content=response.content,
            next_cursor=response.headers["TiStream-Next-Cursor"],
            resolved_ts=int(response.headers["TiStream-Resolved-Ts"]),
            has_more=response.headers["TiStream-Has-More"] == "true",
            quarantined=int(response.headers.get("TiStream-Quarantined", "0")),
        )

    def pull(
        self,
        cluster_id: int,
        tenant_id: int,
        *,
        follow: bool = False,
        cursor: str | None = None,
        start_ts: str | int | None = None,
        **more: Any,
    ) -> Iterator[Page]:
        """Pages from the position to the served watermark; with `follow` it then waits for more, for ever."""
        while True:
            wait_s = _WAIT_S if follow and cursor is not None else 0
            page = self.page(cluster_id, tenant_id, cursor=cursor, start_ts=start_ts, wait_s=wait_s, **more)
            yield page
            cursor = page.next_cursor
            if not page.has_more and not follow:
                return

    def get(self, path: str, **params: str) -> Any:
        """GET a JSON resource of the API by its path."""
        return orjson.loads(self._request("GET", path, params=params).content)

    def register_tenant(self, cluster_id: int, tenant_id: int) -> dict[str, Any]:
        """Register a tenant; fine when it is registered already."""
        body = {"cluster_id": cluster_id, "tenant_id": tenant_id}
        found: dict[str, Any] = orjson.loads(self._request("POST", "/v1/tenants", json=body).content)
        return found

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx2.Response:
        deadline = time.monotonic() + self._retry_s
        pause = _RETRY_FIRST_S
        while True:
            try:
                response = self._http.request(method, self.url + path, **kwargs)
                error = None if response.is_success else _problem(response)
            except httpx2.TransportError as e:
                error = StoreUnavailable(f"{self.url} does not answer: {e or type(e).__name__}.")
            if error is None:
                return response
            if not isinstance(error, StoreUnavailable) or time.monotonic() + pause > deadline:
                raise error
            self._sleep(pause)
            pause = min(pause * 2, _RETRY_MAX_S)


def connect(url: str = "http://127.0.0.1:8711", **more: Any) -> Client:
    """A client of the service at `url`."""
    return Client(url, **more)


def _problem(response: httpx2.Response) -> TiStreamError:
    try:
        body = orjson.loads(response.content)
        text = " ".join(filter(None, (str(body.get("detail") or body.get("title")), body.get("hint"))))
    except orjson.JSONDecodeError:
        text = response.text[:200]
    if response.status_code == 503:
        return StoreUnavailable(text)
    if response.status_code == 404:
        return NotFound(text)
    if response.status_code < 500:
        return InvalidInput(text, status=response.status_code)
    return TiStreamError(text, status=response.status_code)
