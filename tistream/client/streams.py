"""Following a stream of changes: pages out of server-sent events, over as many connections as it takes.

A page is what came between two watermarks; its cursor is the second one's. A connection that breaks off or is ended by
the server (it stops, or we were slow) is opened again at the last cursor, and what came behind that is dropped, for it
comes again: no change is lost or given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from tistream.errors import TiStreamError

#: formats that have streams with one message a line
STREAMED = frozenset({"ndjson", "canal-json", "debezium", "open-protocol", "simple"})
SILENCE_S = 30  # a stream says something each second

#: (cursor or None, end_ts or None) -> an answer whose body is still to be read
Open = Callable[[str | None, str | int | None], httpx2.Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Everything up to `resolved_ts` came before this; `content` since the mark before it."""

    content: bytes
    cursor: str
    resolved_ts: int
    quarantined: int


def follow(
    open_at: Open, error_of: Callable[[dict[str, Any]], TiStreamError], cursor: str | None, end_ts: str | int | None
) -> Iterator[Mark]:
    """Marks from `cursor` on, for ever or up to `end_ts`. Raises what ends the stream for good."""
    while True:
        with closing(open_at(cursor, end_ts)) as answer:
            end_ts = answer.headers.get("TiStream-End-Ts", end_ts)  # what a span such as -5m meant at the first time
            for event in _whole(answer):
                match event.name:
                    case "resolved":
                        facts = orjson.loads(event.data)
                        cursor = facts["cursor"]
                        yield Mark(
                            content=event.before,
                            cursor=facts["cursor"],
                            resolved_ts=int(facts["resolved_ts"]),
                            quarantined=int(facts.get("quarantined", 0)),
                        )
                    case "end":
                        facts = orjson.loads(event.data)
                        if facts["reason"] == "end-reached":
                            return
                        if facts["reason"] == "error":
                            raise error_of(facts["problem"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    name: str
    data: bytes
    before: bytes  #: the lines of the unnamed events since the last named one


def _whole(answer: httpx2.Response) -> Iterator[_Event]:
    """The named events up to where the connection ends, however it does."""
    lines: list[bytes] = []
    name, data = b"", b""
    try:
        for line in _lines(answer.iter_bytes()):
            if line.startswith(b"data: "):
                data = line[6:]
            elif line.startswith(b"event: "):
                name = line[7:]
            elif not line:
                if name:
                    yield _Event(name=name.decode(), data=data, before=b"".join(lines))
                    lines = []
                elif data:
                    lines.append(data + b"\n")
                name, data = b"", b""
    except httpx2.TransportError:
        return


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
