"""`Client` with `await`.

async with connect_async(url) as client:
    await client.tenant(1, 1).table("shop.customers").rows().to_arrow()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2

from tistream.client.aio.connection import AsyncConnection
from tistream.client.aio.tenant import AsyncTenant
from tistream.client.api import DEFAULT_URL
from tistream.client.core.requests import FIRST_ANSWER_S, Target, TenantState, tenant_of
from tistream.runtime.credentials import files_for, key_for


class AsyncClient(AsyncConnection):
    """A connection to one TiStream service, for one event loop."""

    def tenant(self, cluster_id: int, tenant_id: int) -> AsyncTenant:
        """A tenant, to read from it. Nothing is asked yet."""
        return AsyncTenant(self, Target(cluster_id, tenant_id))

    async def tenants(self) -> list[TenantState]:
        """The registered tenants that the key may see."""
        return [tenant_of(item) for item in (await self.get("/v1/tenants"))["items"]]


def connect_async(
    url: str = DEFAULT_URL,
    *,
    key: str | None = None,
    ca: str | Path | None = None,
    cert: tuple[str | Path, str | Path] | None = None,
    retry_s: float = 30,
    first_answer_s: float = FIRST_ANSWER_S,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncClient:
    """An asynchronous client of the service at `url`; options as `AsyncClient` has them. Without a `key` it uses
    TISTREAM_KEY or the key of `tistream login`. `ca` and `cert` as `connect` has them."""
    key, files = key_for(url) if key is None else key, files_for(url, ca, cert)
    return AsyncClient(
        url, key=key, retry_s=retry_s, first_answer_s=first_answer_s, sleep=sleep, transport=transport, files=files
    )
