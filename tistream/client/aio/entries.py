"""Keys and values as of a moment, and the versions of one key, with `await`. As `tistream.client.entries`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from tistream.client import frames
from tistream.client.aio.connection import AsyncConnection
from tistream.client.aio.results import AsyncFrames
from tistream.client.core.keys import IN_BYTES, entry_of
from tistream.client.core.requests import TIMEOUT_S
from tistream.client.shared import EntriesBase

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncEntries(EntriesBase, AsyncFrames):
    """As `Entries`, with `async for`."""

    _connection: AsyncConnection

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        async for page in self.pieces(options=IN_BYTES):
            for line in page.splitlines():
                yield entry_of(orjson.loads(line))

    async def pieces(self, format: str = "ndjson", options: Mapping[str, str] | None = None) -> AsyncIterator[bytes]:
        """As `Entries.pieces`."""
        params: dict[str, str] | None = self._query.first(format, options)
        path, timeout_s = f"{self._target.path}/{self._query.what}", self._query.wait_s + TIMEOUT_S
        while params is not None:
            answer = await self._connection.request("GET", path, params=params, timeout_s=timeout_s)
            yield answer.content
            params = self._query.next(params, answer.headers)

    async def to_arrow(self) -> pa.Table:
        """As `Entries.to_arrow`."""
        return frames.joined([frames.read(page) async for page in self.pieces("arrow")])
