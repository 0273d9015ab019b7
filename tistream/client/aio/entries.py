"""Keys and values as of a moment, and the versions of one key, with `await`. As `tistream.client.entries`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from tistream.client import frames
from tistream.client.aio.results import AsyncFrames
from tistream.client.core.requests import TIMEOUT_S, Target, key_page_params

if TYPE_CHECKING:
    from tistream.client.aio.api import AsyncClient


class AsyncEntries(AsyncFrames):
    """As `Entries`, with `async for`."""

    def __init__(
        self, client: AsyncClient, target: Target, what: str, params: Mapping[str, str], *, wait_s: float = 0
    ) -> None:
        self._client, self._target, self._what, self._params = client, target, what, dict(params)
        self._wait_s = wait_s

    def __repr__(self) -> str:
        return f"AsyncEntries({self._what} of {str(self._target)!r})"

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        async for page in self.pieces("ndjson"):
            for line in page.splitlines():
                yield orjson.loads(line)

    async def pieces(self, format: str = "ndjson") -> AsyncIterator[bytes]:
        """As `Entries.pieces`."""
        params: dict[str, str] | None = {**self._params, "format": format}
        while params is not None:
            path, timeout_s = f"{self._target.path}/kv/{self._what}", self._wait_s + TIMEOUT_S
            answer = await self._client.request("GET", path, params=params, timeout_s=timeout_s)
            yield answer.content
            params = key_page_params(params, answer.headers)

    async def to_arrow(self) -> pa.Table:
        """As `Entries.to_arrow`."""
        return pa.concat_tables([frames.read(page) async for page in self.pieces("arrow")])
