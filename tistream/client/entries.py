"""Keys and values as of a moment, and the versions of one key: dicts, Arrow, data frames. Each reading makes its own
requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from tistream.client.connection import Connection
from tistream.client.core.keys import IN_BYTES, entry_of
from tistream.client.core.requests import TIMEOUT_S
from tistream.client.results import Frames
from tistream.client.shared import EntriesBase

if TYPE_CHECKING:
    import pyarrow as pa


class Entries(EntriesBase, Frames):
    """Entries of a raw or txn tenant. A loop over them gives dicts as docs/asof.md has them, `key` and `value` as
    bytes."""

    _connection: Connection

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for page in self.pieces(options=IN_BYTES):
            yield from (entry_of(orjson.loads(line)) for line in page.splitlines())

    def pieces(self, format: str = "ndjson", options: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Page by page as ndjson or arrow. `options`: `key_format` of text is hex, base64, utf8 or escaped."""
        params: dict[str, str] | None = self._query.first(format, options)
        path, timeout_s = f"{self._target.path}/{self._query.what}", self._query.wait_s + TIMEOUT_S
        while params is not None:
            answer = self._connection.request("GET", path, params=params, timeout_s=timeout_s)
            yield answer.content
            params = self._query.next(params, answer.headers)

    def to_arrow(self) -> pa.Table:
        """All entries."""
        from tistream.client import frames

        return frames.joined([frames.read(page) for page in self.pieces("arrow")])
