"""Changes and rows as they are read: dicts, pages, Arrow, data frames. Each reading makes its own requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import httpx2
import orjson

from tistream.client.core.keys import IN_BYTES, KeyFilter, entry_of
from tistream.client.core.requests import (
    TIMEOUT_S,
    ChangeOptions,
    Moment,
    Page,
    Target,
    check_arguments,
    page_of,
    rows_params,
    truncated,
)
from tistream.client.core.streams import SILENCE_S, StreamReader
from tistream.client.core.walk import Walk
from tistream.client.cursors import CursorStore

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tistream.client.api import Client
    from tistream.client.frames import ArrowPage, Progress


class Changes:
    """Changes of a scope in commit order. A loop over them gives dicts, as docs/formats/messages.md has them."""

    def __init__(
        self, client: Client, target: Target, asked: ChangeOptions, *, store: CursorStore | None, follow: bool
    ) -> None:
        check_arguments(asked)
        self._client, self._target, self._asked, self._store = client, target, asked, store
        self._follows = follow

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._target)!r})"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for page in self.pages():
            page.check_complete()
            yield from page.changes()

    def pages(self, format: str = "ndjson", options: Mapping[str, str] | None = None) -> Iterator[Page]:
        """Page by page in one of the formats, with the format's options. Following a line format uses a stream, with a
        page each second at least; `resolved_ts` is then the watermark of the stream."""
        asked, store = self._asked.copy(), self._store
        if store is not None and (saved := store.load()) is not None:
            asked["cursor"] = saved
        walk = Walk(self._target, asked, format=format, options=options, follow=self._follows)
        while not walk.done:
            for page in self._stream(walk) if walk.streams else [self._page(walk)]:
                yield page
                if store is not None:
                    store.save(page.next_cursor)

    def _page(self, walk: Walk) -> Page:
        answer = self._client.request("GET", walk.path, params=walk.params(), timeout_s=walk.wait_s + TIMEOUT_S)
        page = page_of(answer.content, answer.headers)
        walk.took(page)
        return page

    def _stream(self, walk: Walk) -> Iterator[Page]:
        """The pages of a stream, over as many connections as needed."""
        reader = StreamReader(walk)
        while not walk.done:
            with self._client.streaming(f"{walk.path}:stream", reader.params(), silence_s=SILENCE_S) as answer:
                reader.opened(answer.headers)
                for piece in _until_it_breaks(answer):
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

    def __init__(
        self,
        client: Client,
        target: Target,
        asked: ChangeOptions,
        *,
        store: CursorStore | None,
        follow: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        super().__init__(client, target, asked, store=store, follow=follow)
        self._progress = progress

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

    def __init__(
        self,
        client: Client,
        target: Target,
        keys: KeyFilter,
        asked: ChangeOptions,
        *,
        store: CursorStore | None,
        follow: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        super().__init__(client, target, asked, store=store, follow=follow, progress=progress)
        self._keys = keys

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for page in self.pages(options=IN_BYTES):
            yield from map(entry_of, page.changes())

    def pages(self, format: str = "ndjson", options: Mapping[str, str] | None = None) -> Iterator[Page]:
        """As of every scope. `options`: `key_format` of text is hex, base64, utf8 or escaped."""
        return super().pages(format, self._keys.params(options))


class Rows(Frames):
    """The rows of a table as of a moment. A loop over them gives dicts: column to value as in ndjson."""

    def __init__(
        self,
        client: Client,
        target: Target,
        *,
        as_of: Moment,
        columns: str | None,
        where: str | None,
        wait_s: float,
    ) -> None:
        self._client, self._target, self._wait_s = client, target, wait_s
        self._params = rows_params(as_of, columns, where, wait_s)

    def __repr__(self) -> str:
        return f"Rows({str(self._target)!r} as of {self._params['as_of']})"

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
        with self._client.streaming(f"{self._target.path}/rows", params, silence_s=silence_s) as answer:
            try:
                yield from answer.iter_bytes()
            except httpx2.TransportError as e:
                raise truncated(self._target, e) from e

    def to_arrow(self) -> pa.Table:
        """All rows."""
        from tistream.client import frames

        return frames.read(b"".join(self.pieces("arrow")))


def _until_it_breaks(answer: httpx2.Response) -> Iterator[bytes]:
    try:
        yield from answer.iter_bytes()
    except httpx2.TransportError:
        return
