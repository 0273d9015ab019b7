"""Framing of streams: lines, server-sent events, or one Arrow IPC stream.

    lines   the format's lines; a watermark line at least each second (an empty line where the format has none)
    sse     each line as an event; `resolved` events carry the cursor as their id
    arrow   record batches with cursor and watermark as metadata; an empty batch is a heartbeat

Pieces are sent at once and end with an event. The cursor of a watermark covers everything before it; changes after the
last watermark a consumer saw come again when it resumes. Inside a large transaction the cursor moves and the watermark
does not: `open_transaction_ts` says so.

Undecodable rows are counted with the watermark after their page. Lines of other protocols cannot carry the count: such
a stream ends before the page, and the one that begins with it has a `TiStream-Quarantined` header.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import orjson
import pyarrow as pa

from apiserver.negotiate import ARROW
from reading.formats.protocol import Lines
from reading.pages.request import PullAnswer
from tistream import ts as tso

SSE = "text/event-stream"
_PIECE_BYTES = 64 << 10
_LOOK_BYTES = 4096
_RECONNECT_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Everything of the scope at or below `ts` has been delivered."""

    ts: int
    cursor: str
    open_ts: int | None = None  #: and a part of the changes of this commit, which the cursor is in

    def members(self) -> dict[str, object]:
        """JSON members."""
        return {
            "resolved_ts": str(self.ts),
            "resolved_time": tso.to_text(self.ts) if self.ts else None,
            "cursor": self.cursor,
            **({"open_transaction_ts": str(self.open_ts)} if self.open_ts is not None else {}),
        }


class Frames(Protocol):
    """The framing of one stream."""

    @property
    def media_type(self) -> str: ...

    def begin(self, first: PullAnswer) -> bytes:
        """The start of the body."""

    def fits(self, answer: PullAnswer) -> bool:
        """Whether the page fits this stream; if not, the stream ends before it."""

    def page(self, answer: PullAnswer, mark: Mark) -> list[bytes | memoryview]:
        """The pieces of the page, the mark last."""

    def mark(self, mark: Mark) -> bytes:
        """A watermark, also a heartbeat."""

    def end(self, reason: str, mark: Mark, problem: Mapping[str, object] | None) -> bytes:
        """The end of the body, with its reason."""


class LineFrames:
    """Lines of a text format. Only ndjson carries cursors and the reason of the end."""

    def __init__(self, fmt: Lines) -> None:
        self._format = fmt
        self._own = fmt.name == "ndjson"
        self.media_type = fmt.media_type
        self._first: PullAnswer | None = None

    def begin(self, first: PullAnswer) -> bytes:
        self._first = first
        return b""

    def fits(self, answer: PullAnswer) -> bool:
        first, self._first = self._first, None
        return self._own or not answer.quarantined or answer is first

    def page(self, answer: PullAnswer, mark: Mark) -> list[bytes | memoryview]:
        return [*pieces(answer.content), self.mark(mark, answer.quarantined)]

    def mark(self, mark: Mark, quarantined: int = 0) -> bytes:
        if self._own:
            facts = mark.members() | ({"quarantined": quarantined} if quarantined else {})
            return orjson.dumps({"type": "resolved", **facts}) + b"\n"
        return (self._format.watermark(mark.ts) or b"") + self._format.terminator

    def end(self, reason: str, mark: Mark, problem: Mapping[str, object] | None) -> bytes:
        return orjson.dumps(_end_members(reason, mark, problem)) + b"\n" if self._own else b""


class EventFrames:
    """Server-sent events of the lines of a text format."""

    media_type = SSE

    def __init__(self, fmt: Lines) -> None:
        self._format = fmt
        self._own = fmt.name == "ndjson"

    def begin(self, first: PullAnswer) -> bytes:
        return b"retry: %d\n\n" % _RECONNECT_MS

    def fits(self, answer: PullAnswer) -> bool:
        return True

    def page(self, answer: PullAnswer, mark: Mark) -> list[bytes | memoryview]:
        return [*(_events(bytes(piece)) for piece in pieces(answer.content)), self.mark(mark, answer.quarantined)]

    def mark(self, mark: Mark, quarantined: int = 0) -> bytes:
        line = None if self._own else self._format.watermark(mark.ts)
        facts = mark.members() | ({"quarantined": quarantined} if quarantined else {})
        head = b"" if line is None else b"data: %b\n\n" % line
        return head + _event(b"resolved", facts, mark.cursor)

    def end(self, reason: str, mark: Mark, problem: Mapping[str, object] | None) -> bytes:
        return _event(b"end", _end_members(reason, mark, problem), mark.cursor)


class ArrowFrames:
    """One Arrow IPC stream of one schema."""

    media_type = ARROW

    def __init__(self, buffers: str | None) -> None:
        self._buffers = buffers
        self._sink = io.BytesIO()

    def begin(self, first: PullAnswer) -> bytes:
        table = pa.ipc.open_stream(first.content).read_all()
        self._schema = table.schema.remove_metadata()
        self._nothing = pa.RecordBatch.from_pylist([], schema=self._schema)
        options = pa.ipc.IpcWriteOptions(compression=self._buffers)
        self._writer = pa.ipc.new_stream(self._sink, self._schema, options=options)
        return self._written()

    def fits(self, answer: PullAnswer) -> bool:
        reader = pa.ipc.open_stream(answer.content)
        return bool(reader.schema.equals(self._schema)) or not sum(b.num_rows for b in reader)

    def page(self, answer: PullAnswer, mark: Mark) -> list[bytes | memoryview]:
        reader = pa.ipc.open_stream(answer.content)
        facts = {**_metadata(mark), **(reader.schema.metadata or {})}
        batches = [batch for batch in reader if batch.num_rows] or [self._nothing]
        for n, batch in enumerate(batches):
            last = n == len(batches) - 1
            plain = batch.replace_schema_metadata(None)
            self._writer.write_batch(plain, custom_metadata=facts if last else None)
            self._nothing = plain.slice(0, 0)  # with the dictionaries that the reader has
        return [self._written()]

    def mark(self, mark: Mark) -> bytes:
        self._writer.write_batch(self._nothing, custom_metadata=_metadata(mark))
        return self._written()

    def end(self, reason: str, mark: Mark, problem: Mapping[str, object] | None) -> bytes:
        facts = _metadata(mark) | {"end": reason} | ({"problem": orjson.dumps(problem)} if problem else {})
        self._writer.write_batch(self._nothing, custom_metadata=facts)
        self._writer.close()
        return self._written()

    def _written(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


def pieces(content: pa.Buffer) -> list[memoryview]:
    """The lines in pieces of about 64 KiB, without copying."""
    data, at, cut = memoryview(content), 0, []
    while at < len(data):
        end = _line_end(data, at + _PIECE_BYTES)
        cut.append(data[at:end])
        at = end
    return cut


def _line_end(data: memoryview, at: int) -> int:
    """The offset after the first line end at or after `at`."""
    for start in range(at, len(data), _LOOK_BYTES):
        place = bytes(data[start : start + _LOOK_BYTES]).find(b"\n")
        if place >= 0:
            return start + place + 1
    return len(data)


def _metadata(mark: Mark) -> dict[str | bytes, str | bytes]:
    facts: dict[str | bytes, str | bytes] = {"cursor": mark.cursor, "resolved_ts": str(mark.ts)}
    if mark.open_ts is not None:
        facts["open_transaction_ts"] = str(mark.open_ts)
    return facts


def _end_members(reason: str, mark: Mark, problem: Mapping[str, object] | None) -> dict[str, object]:
    return {"type": "end", "reason": reason, **mark.members(), **({"problem": problem} if problem else {})}


def _event(name: bytes, facts: Mapping[str, object], cursor: str) -> bytes:
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name, cursor.encode(), orjson.dumps(facts))


def _events(piece: bytes) -> bytes:
    """Lines as unnamed events."""
    return b"data: " + piece.rstrip(b"\r\n").replace(b"\n", b"\n\ndata: ") + b"\n\n"
