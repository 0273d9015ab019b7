"""Reads a stream of changes: pages from server-sent events, over as many connections as needed (pure).

A page is what came between two watermarks; its cursor is that of the second. After a broken or ended connection the
stream is opened again at the last cursor, and changes after it, which come again, are dropped: no change is lost or
delivered twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from tistream.client.core.requests import Page, problem_error
from tistream.client.core.walk import Walk

SILENCE_S = 30  # a stream sends something each second


class StreamReader:
    """The connections of a walk. For each one: `params`, `opened`, then `take` of its bytes."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._rest, self._name, self._data = b"", "", b""
        self._lines: list[bytes] = []

    def params(self) -> dict[str, str]:
        """The query of the next connection."""
        return self._walk.params() | {"framing": "sse"}

    def opened(self, headers: Mapping[str, str]) -> None:
        """A connection has answered. Drop what came after the last watermark of the previous one."""
        if (end := headers.get("TiStream-End-Ts")) is not None:
            self._walk.asked["end"] = end  # resolves spans such as -5m
        self._rest, self._name, self._data, self._lines = b"", "", b"", []

    def take(self, piece: bytes) -> Iterator[Page]:
        """The pages completed by these bytes. Raises the problem that ends the stream."""
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
        """`content`: lines of the unnamed events since the last named one."""
        if name == "resolved":
            facts = orjson.loads(data)
            self._walk.asked["cursor"], resolved_ts = facts["cursor"], int(facts["resolved_ts"])
            if self._walk.format == "ndjson":
                content += orjson.dumps({"type": "resolved", "resolved_ts": str(resolved_ts)}) + b"\n"
            yield Page(
                content=content,
                next_cursor=facts["cursor"],
                resolved_ts=resolved_ts,
                has_more=False,
                quarantined=int(facts.get("quarantined", 0)),
                open_transaction_ts=int(ts) if (ts := facts.get("open_transaction_ts")) else None,
            )
        elif name == "end":
            facts = orjson.loads(data)
            self._walk.done = facts["reason"] == "end-reached"
            if facts["reason"] == "error":
                raise problem_error(facts["problem"])
