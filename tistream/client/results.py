"""Changes and rows as they are read: dicts, pages, Arrow, data frames. Each reading makes its own requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import orjson

from tistream.client.connection import Connection
from tistream.client.core.keys import IN_BYTES, entry_of
from tistream.client.core.requests import TIMEOUT_S, Page, page_of, truncated
from tistream.client.core.streams import SILENCE_S, StreamReader
from tistream.client.core.walk import Walk
from tistream.client.shared import ChangesBase, RowsBase

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tistream.client.frames import ArrowPage


class Changes(ChangesBase):
    """Changes of a scope in commit order. A loop over them gives dicts, as docs/formats/messages.md has them."""

    _connection: Connection

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for page in self.pages():
            page.check_complete()
            yield from page.changes()

    def pages(self, format: str = "ndjson", options: Mapping[str, str] | None = None) -> Iterator[Page]:
        """Page by page in one of the formats, with the format's options. Following a line format uses a stream, with a
        page each second at least; `resolved_ts` is then the watermark of the stream."""
        store = self._store
        walk = self._walk(None if store is None else store.load(), format, options)
        while not walk.done:
            for page in self._stream(walk) if walk.streams else [read_page(self._connection, walk)]:
                yield page
                if store is not None:
                    store.save(page.next_cursor)

    def _stream(self, walk: Walk) -> Iterator[Page]:
        """The pages of a stream, over as many connections as needed."""
        reader = StreamReader(walk)
        while not walk.done:
            with self._connection.streaming(f"{walk.path}:stream", reader.params(), silence_s=SILENCE_S) as answer:
                reader.opened(answer.headers)
                with suppress(httpx2.TransportError):
                    for piece in answer.iter_bytes():
                        yield from reader.take(piece)
                        if walk.done:
                            return


class Frames:
    """What can be made of an Arrow table."""

    def to_arrow(self) -> pa.Table:
        """All rows."""
        raise NotImplementedError

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame."""
        from tistream.client import frames

        frames.needs("pandas")
        return frames.to_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """All rows as a polars frame."""
        from tistream.client import frames

        frames.needs("polars")
        return frames.to_polars(self.to_arrow())

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """All rows as a DuckDB relation, of `connection` or of a new one in memory."""
        from tistream.client import frames

        frames.needs("duckdb")
        return frames.to_duckdb(self.to_arrow(), connection)


class TableChanges(Changes, Frames):
    """Changes of a table, also as Arrow: page by page, or joined into a frame.

    A DDL that changes columns ends a page, so pages may differ in columns. A joined column has the widest of its types,
    text if they have none in common; columns that a page lacks are null in its rows.
    """

    def batches(self) -> Iterator[ArrowPage]:
        """Page by page, as Arrow tables with their cursors."""
        from tistream.client.frames import Counted

        counted = Counted(self._progress)
        for page in self.pages("arrow"):
            yield counted.took(page)

    def to_arrow(self) -> pa.Table:
        """All rows, joined."""
        from tistream.client import frames

        frames.check_ends(self._asked, follow=self._follows)
        return frames.bare(frames.joined([page.rows for page in self.batches()]))


class KeyChanges(TableChanges):
    """Writes of keys in the order of their timestamps, also as Arrow. A loop over them gives dicts as
    docs/formats/messages.md has them, `key` and `value` as bytes."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for page in self.pages(options=IN_BYTES):
            yield from map(entry_of, page.changes())


class Rows(RowsBase, Frames):
    """The rows of a table as of a moment. A loop over them gives dicts: column to value as in ndjson."""

    _connection: Connection

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rest = b""
        for piece in self.pieces("ndjson"):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield orjson.loads(line)["columns"]

    def pieces(self, format: str = "ndjson") -> Iterator[bytes]:
        """The rows as ndjson, csv, arrow, parquet or sql, in pieces of any size. StoreUnavailable when the answer is
        truncated."""
        params, silence_s = {**self._params, "format": format}, self._wait_s + TIMEOUT_S
        with self._connection.streaming(f"{self._target.path}/rows", params, silence_s=silence_s) as answer:
            try:
                yield from answer.iter_bytes()
            except httpx2.TransportError as e:
                raise truncated(self._target, e) from e

    def to_arrow(self) -> pa.Table:
        """All rows."""
        from tistream.client import frames

        return frames.read(b"".join(self.pieces("arrow")))


def read_page(connection: Connection, walk: Walk) -> Page:
    """The next page of a pull."""
    answer = connection.request("GET", walk.path, params=walk.params(), timeout_s=walk.wait_s + TIMEOUT_S)
    page = page_of(answer.content, answer.headers)
    walk.took(page)
    return page
