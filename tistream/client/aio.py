"""The asynchronous client: `Client` with `await`. Pages, streams, tables, and any resource by its path."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self, Unpack

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
    page_of,
    pull_params,
    tenant_of,
    unreachable,
)
from tistream.client.core.streams import SILENCE_S, STREAMED, StreamReader
from tistream.client.cursors import CursorStore, SqlCursorStore
from tistream.client.tables import AsyncTablePull
from tistream.runtime.credentials import key_for


class AsyncClient:
    """A connection to one TiStream service, for one event loop."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        retry_s: float = 30,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """As `Client`."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.AsyncClient(timeout=TIMEOUT_S, transport=transport, headers=headers)
        self._retry_s = retry_s
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def page(self, cluster_id: int, tenant_id: int, *, wait_s: float = 0, **asked: Unpack[PullOptions]) -> Page:
        """One page. `wait_s`: seconds to wait while there is nothing new."""
        params = pull_params(asked) | ({"wait_s": str(wait_s)} if wait_s else {})
        path = changes_path(cluster_id, tenant_id, asked)
        response = await self._request("GET", path, params=params, timeout=wait_s + TIMEOUT_S)
        return page_of(response.content, response.headers)

    async def pull(
        self, cluster_id: int, tenant_id: int, *, follow: bool = False, **asked: Unpack[PullOptions]
    ) -> AsyncIterator[Page]:
        """As `Client.pull`."""
        if follow and asked.get("format", "ndjson") in STREAMED:
            async for page in self.stream(cluster_id, tenant_id, **asked):
                yield page
            return
        while True:
            wait_s = WAIT_S if follow and asked.get("cursor") is not None else 0
            page = await self.page(cluster_id, tenant_id, wait_s=wait_s, **asked)
            yield page
            asked["cursor"] = page.next_cursor
            if page.end_ts is not None:
                asked["end_ts"] = page.end_ts
            if page.is_last(follow=follow):
                return

    async def stream(self, cluster_id: int, tenant_id: int, **asked: Unpack[PullOptions]) -> AsyncIterator[Page]:
        """As `Client.stream`."""
        reader = StreamReader(asked)
        path, timeout = (
            f"{changes_path(cluster_id, tenant_id, asked)}:stream",
            httpx2.Timeout(TIMEOUT_S, read=SILENCE_S),
        )
        while not reader.done:
            answer = await self._request("GET", path, stream=True, params=reader.params(), timeout=timeout)
            try:
                reader.opened(answer.headers)
                async for piece in _until_it_breaks(answer):
                    for page in reader.take(piece):
                        yield page
                    if reader.done:
                        return
            finally:
                await answer.aclose()

    async def follow(self, cluster_id: int, tenant_id: int, *, store: CursorStore, **more: Any) -> AsyncIterator[Page]:
        """As `Client.follow`. Stores are called in a thread, except a SqlCursorStore: its connection belongs to the
        consumer's thread and transaction."""
        here = isinstance(store, SqlCursorStore)
        cursor = store.load() if here else await asyncio.to_thread(store.load)
        async for page in self.pull(cluster_id, tenant_id, **{"follow": True, **more, "cursor": cursor}):
            yield page
            if here:
                store.save(page.next_cursor)
            else:
                await asyncio.to_thread(store.save, page.next_cursor)

    def table(self, cluster_id: int, tenant_id: int, name: str, **more: Any) -> AsyncTablePull:
        """As `Client.table`."""
        return AsyncTablePull(self.page, cluster_id, tenant_id, name, **more)

    async def tenants(self) -> list[Tenant]:
        """The registered tenants that the key may see."""
        return [tenant_of(item) for item in (await self.get("/v1/tenants"))["items"]]

    async def get(self, path: str, **params: str) -> Any:
        """GET a JSON resource of the API by its path."""
        return orjson.loads((await self._request("GET", path, params=params)).content)

    async def register_tenant(self, cluster_id: int, tenant_id: int) -> dict[str, Any]:
        """Register a tenant; idempotent. The first answer holds a key for its pushers."""
        found: dict[str, Any] = await self.post("/v1/tenants", {"cluster_id": cluster_id, "tenant_id": tenant_id})
        return found

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **params: str) -> Any:
        """POST to a resource or an action of the API. Retries do not repeat it."""
        once = {"Idempotency-Key": secrets.token_hex(16)}
        sent = None if body is None else dict(body)
        return orjson.loads((await self._request("POST", path, headers=once, json=sent, params=params)).content)

    async def _request(self, method: str, path: str, *, stream: bool = False, **kwargs: Any) -> httpx2.Response:
        """The answer; with `stream` the caller reads its body and closes it."""
        retries = Retries(time.monotonic() + self._retry_s)
        while True:
            headers: Mapping[str, str] | None = None
            try:
                request = self._http.build_request(method, self.url + path, **kwargs)
                response = await self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                headers, content = response.headers, await response.aread()
                error = error_of(response.status_code, content)
            except httpx2.TransportError as e:
                error = unreachable(self.url, e)
            await self._sleep(retries.pause(error, headers, time.monotonic()))


async def _until_it_breaks(answer: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_bytes():
            yield piece
    except httpx2.TransportError:
        return


def connect_async(url: str = "http://127.0.0.1:8711", **more: Any) -> AsyncClient:
    """An asynchronous client of the service at `url`. Without a `key` it uses TISTREAM_KEY or the key of
    `tistream login`."""
    return AsyncClient(url, **{"key": key_for(url), **more})
