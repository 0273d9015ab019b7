"""Changes and rows as they are read, with `await`. As `tistream.client.results`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import orjson

from tistream.client import frames
from tistream.client.aio.connection import AsyncConnection
from tistream.client.core.keys import IN_BYTES, entry_of
from tistream.client.core.requests import TIMEOUT_S, Page, page_of, truncated
from tistream.client.core.streams import SILENCE_S, StreamReader
from tistream.client.core.walk import Walk
from tistream.client.cursors import CursorStore, SqlCursorStore
from tistream.client.shared import ChangesBase, RowsBase

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class AsyncChanges(ChangesBase):
    """As `Changes`, with `async for`."""

    _connection: AsyncConnection

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        async for page in self.pages():
            page.check_complete()
            for change in page.changes():
                yield change

    async def pages(self, format: str = "ndjson", options: Mapping[str, str] | None = None) -> AsyncIterator[Page]:
        """As `Changes.pages`."""
        walk = self._walk(None if self._store is None else await self._load(self._store), format, options)
        while not walk.done:
            async for page in self._stream(walk) if walk.streams else self._page(walk):
                yield page
                if self._store is not None:
                    await self._save(self._store, page.next_cursor)

    async def _page(self, walk: Walk) -> AsyncIterator[Page]:
        yield await read_page(self._connection, walk)

    async def _stream(self, walk: Walk) -> AsyncIterator[Page]:
        """The pages of a stream, over as many connections as needed."""
        reader = StreamReader(walk)
        while not walk.done:
            request = self._connection.streaming(f"{walk.path}:stream", reader.params(), silence_s=SILENCE_S)
            async with request as answer:
                reader.opened(answer.headers)
                with suppress(httpx2.TransportError):
                    async for piece in answer.aiter_bytes():
                        for page in reader.take(piece):
                            yield page
                        if walk.done:
                            return

    async def _load(self, store: CursorStore) -> str | None:
        return store.load() if isinstance(store, SqlCursorStore) else await asyncio.to_thread(store.load)

    async def _save(self, store: CursorStore, cursor: str) -> None:
        if isinstance(store, SqlCursorStore):
            store.save(cursor)
        else:
            await asyncio.to_thread(store.save, cursor)


class AsyncFrames:
    """As those of `Changes` and `Rows`."""

    async def to_arrow(self) -> pa.Table:
        """All rows."""
        raise NotImplementedError

    async def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame."""
        frames.needs("pandas")
        return frames.to_pandas(await self.to_arrow())

    async def to_polars(self) -> pl.DataFrame:
        """All rows as a polars frame."""
        frames.needs("polars")
        return frames.to_polars(await self.to_arrow())

    async def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """All rows as a DuckDB relation, of `connection` or of a new one in memory."""
        frames.needs("duckdb")
        return frames.to_duckdb(await self.to_arrow(), connection)


class AsyncTableChanges(AsyncChanges, AsyncFrames):
    """As `TableChanges`."""

    async def batches(self) -> AsyncIterator[frames.ArrowPage]:
        """As `TableChanges.batches`."""
        counted = frames.Counted(self._progress)
        async for page in self.pages("arrow"):
            yield counted.took(page)

    async def to_arrow(self) -> pa.Table:
        """All rows, joined."""
        frames.check_ends(self._asked, follow=self._follows)
        return frames.bare(frames.joined([page.rows async for page in self.batches()]))


class AsyncKeyChanges(AsyncTableChanges):
    """As `KeyChanges`."""

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        async for page in self.pages(options=IN_BYTES):
            for change in page.changes():
                yield entry_of(change)


class AsyncRows(RowsBase, AsyncFrames):
    """As `Rows`, with `async for`."""

    _connection: AsyncConnection

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        rest = b""
        async for piece in self.pieces("ndjson"):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield orjson.loads(line)["columns"]

    async def pieces(self, format: str = "ndjson") -> AsyncIterator[bytes]:
        """As `Rows.pieces`."""
        params, silence_s = {**self._params, "format": format}, self._wait_s + TIMEOUT_S
        async with self._connection.streaming(f"{self._target.path}/rows", params, silence_s=silence_s) as answer:
            try:
                async for piece in answer.aiter_bytes():
                    yield piece
            except httpx2.TransportError as e:
                raise truncated(self._target, e) from e

    async def to_arrow(self) -> pa.Table:
        """All rows."""
        return frames.read(b"".join([piece async for piece in self.pieces("arrow")]))


async def read_page(connection: AsyncConnection, walk: Walk) -> Page:
    """The next page of a pull."""
    answer = await connection.request("GET", walk.path, params=walk.params(), timeout_s=walk.wait_s + TIMEOUT_S)
    page = page_of(answer.content, answer.headers)
    walk.took(page)
    return page
