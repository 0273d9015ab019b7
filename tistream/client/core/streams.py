"""Following a stream of changes: pages out of server-sent events, over as many connections as it takes (pure).

A page is what came between two watermarks; its cursor is the second one's. A connection that breaks off or is ended by
the server (it stops, or we were slow) is opened again at the last cursor, and what came behind that is dropped, for it
comes again: no change is lost or given twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from tistream.client.core.requests import Page, position_params, problem_error

#: formats that have streams with one message a line
STREAMED = frozenset({"ndjson", "canal-json", "debezium", "open-protocol", "simple"})
SILENCE_S = 30  # a stream says something each second


class StreamReader:
    """One stream, however many connections it takes. For each: `params`, `opened`, then `take` of what comes."""

    def __init__(
        self,
        *,
        format: str,
        cursor: str | None,
        start_ts: str | int | None,
        end_ts: str | int | None,
        limit: int | None,
        options: Mapping[str, str] | None,
    ) -> None:
        self.done = False  #: whether everything up to the end has come
        self._words = {**(options or {}), "format": format, "framing": "sse"}
        self._format, self._limit = format, limit
        self._cursor, self._start_ts, self._end_ts = cursor, start_ts, end_ts
        self._rest, self._name, self._data = b"", "", b""
        self._lines: list[bytes] = []

    def params(self) -> dict[str, str]:
        """What the next connection asks for."""
        return self._words | position_params(self._cursor, self._start_ts, self._end_ts, self._limit)

    def opened(self, headers: Mapping[str, str]) -> None:
        """A connection answers; what came behind the last watermark of the one before is dropped."""
        self._end_ts = headers.get("TiStream-End-Ts", self._end_ts)  # what a span such as -5m meant at the first time
        self._rest, self._name, self._data, self._lines = b"", "", b"", []

    def take(self, piece: bytes) -> Iterator[Page]:
        """The pages that are whole with these bytes. Raises what ends the stream for good."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self._data = line[6:]
            elif line.startswith(b"event: "):
                self._name = line[7:].decode()
            elif not line:
                name, data, self._name, self._data = self._name, self._data, "", b""
                if name:
                    content, self._lines = b"".join(self._lines), []
                    yield from self._event(name, data, content)
                elif data:
                    self._lines.append(data + b"\n")

    def _event(self, name: str, data: bytes, content: bytes) -> Iterator[Page]:
        """`content`: the lines of the unnamed events since the last named one."""
        if name == "resolved":
            facts = orjson.loads(data)
            self._cursor, resolved_ts = facts["cursor"], int(facts["resolved_ts"])
            if self._format == "ndjson":
                content += orjson.dumps({"type": "resolved", "resolved_ts": str(resolved_ts)}) + b"\n"
            yield Page(
                content=content,
                next_cursor=facts["cursor"],
                resolved_ts=resolved_ts,
                has_more=False,
                quarantined=int(facts.get("quarantined", 0)),
            )
        elif name == "end":
            facts = orjson.loads(data)
            self.done = facts["reason"] == "end-reached"
            if facts["reason"] == "error":
                raise problem_error(facts["problem"])
