"""Requests to one service, and their retries, with `await`. As `tistream.client.connection`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx2
import orjson

from tistream.client.core.requests import ALIVE, FIRST_ANSWER_S, TIMEOUT_S, Retries, error_of, unreachable
from tistream.client.shared import ConnectionBase
from tistream.runtime.tls import ClientFiles


class AsyncConnection(ConnectionBase):
    """The requests of a client, for one event loop."""

    _http: httpx2.AsyncClient

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        retry_s: float = 30,
        first_answer_s: float = FIRST_ANSWER_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
        files: ClientFiles | None = None,
    ) -> None:
        """As `Connection`."""
        super().__init__(url, httpx2.AsyncClient, key, transport, files)
        self._retry_s, self._first_answer_s = retry_s, first_answer_s
        self._sleep = sleep
        self._has_answered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str, **params: str) -> Any:
        """GET a JSON resource of the API by its path."""
        return orjson.loads((await self.request("GET", path, params=params)).content)

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Any request to the API by its path; the JSON answer, None when empty."""
        content = (await self.request(method, path, body=body)).content
        return orjson.loads(content) if content else None

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **params: str) -> Any:
        """POST to a resource or an action of the API. Retries do not repeat it."""
        once = {"Idempotency-Key": secrets.token_hex(16)}
        return orjson.loads((await self.request("POST", path, headers=once, body=body, params=params)).content)

    async def delete(self, path: str) -> Any:
        """DELETE a resource of the API."""
        return orjson.loads((await self.request("DELETE", path)).content)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx2.Response:
        """The whole answer, after retries. `timeout_s`: longest silence."""
        request = self._request(method, path, params=params, body=body, headers=headers, timeout_s=timeout_s)
        return await self._answer(request, stream=False)

    @asynccontextmanager
    async def streaming(
        self, path: str, params: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[httpx2.Response]:
        """The answer of a GET, after retries, with a body that is yet to be read."""
        request = self._request("GET", path, params=params, timeout_s=silence_s)
        answer = await self._answer(request, stream=True)
        try:
            yield answer
        finally:
            await answer.aclose()

    async def _answer(self, request: httpx2.Request, *, stream: bool) -> httpx2.Response:
        if not self._has_answered:
            await self._first_answer()
        retries = Retries(time.monotonic() + self._retry_s)
        while True:
            headers: Mapping[str, str] | None = None
            try:
                response = await self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                headers, content = response.headers, await response.aread()
                error = error_of(response.status_code, content)
            except httpx2.TransportError as e:
                error = unreachable(self.url, e)
            await self._sleep(retries.pause(error, headers, time.monotonic()))

    async def _first_answer(self) -> None:
        """As `tistream.client.first_answer`; the event loop can end the wait for a silent name server by itself."""
        retries = Retries(time.monotonic() + min(self._retry_s, self._first_answer_s))
        try:
            async with asyncio.timeout(self._first_answer_s):
                while True:
                    try:
                        await self._http.get(self.url + ALIVE, timeout=self._first_answer_s)
                        self._has_answered = True
                        return
                    except httpx2.TransportError as e:
                        error = unreachable(self.url, e)
                    await self._sleep(retries.pause(error, None, time.monotonic()))
        except TimeoutError as e:
            raise unreachable(self.url, f"nothing came within {self._first_answer_s:g} s") from e
