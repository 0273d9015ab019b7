"""The live stream of one tab: parts of its page and the newest rows, as they change.

Each part is polled by its own task, so that a slow one delays no other. Changes wait for the next round; of a part that
changed twice only the newest is sent. A tab keeps only a hash of each part.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson

from apiserver.console.internal_get import Answer
from apiserver.stream.answer import SendPiece
from tistream.errors import ErrorKind, TiStreamError, Unauthenticated

Ask = Callable[[str, Mapping[str, str]], Awaitable[Answer]]

ROUND_S = 0.5  #: between two rounds that send something
BEAT_S = 10.0  #: between two events at most
_FIRST_ROUND_S = 0.1
_AGAIN_MS = 2000
_TROUBLE_S = 2.0
_TAIL_WAIT_S = 5
_TAIL_EVENTS_MAX = 120  # shown by the page
_TAIL_LIMIT = 2000
_AS_A_PART = {"HX-Request": "true", "Accept": "text/html"}
_AS_ROWS = {"Accept": "application/x-ndjson"}
_GONE, _UNAUTHENTICATED, _TOO_MANY = 410, 401, 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a page and its polling interval."""

    address: str
    every_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The tail of a tenant (CLUSTER/TENANT) and its start."""

    tenant: str
    start_ts: str
    cursor: str | None
    keys: bool = False  #: it is a keyspace: changes of keys


class Tab:
    """One stream. `ask` gets an address of this application with the credentials of the stream; `check_key` raises once
    key or session have ended."""

    def __init__(
        self,
        parts: Sequence[Part],
        tail: Tail | None,
        *,
        ask: Ask,
        send: SendPiece,
        check_key: Callable[[], Awaitable[None]],
        is_closing: Callable[[], bool],
    ) -> None:
        self._parts, self._tail = parts, tail
        self._ask, self._send, self._check_key, self._is_closing = ask, send, check_key, is_closing
        self._changed: dict[str, bytes] = {}  # events of changed parts, by address
        self._rows: list[Any] = []
        self._cursor: str | None = None
        self._tail_over: str | None = None
        self._signed_out = False
        self._sent = 0

    @property
    def place(self) -> str:
        """Rounds sent, for the log."""
        return f"{self._sent} rounds"

    def rest(self, reason: str) -> bytes:
        """The end event."""
        return _event("end", {"reason": reason})

    async def run(self) -> None:
        """Send updates until the process stops or the key ends."""
        await self._send(f"retry: {_AGAIN_MS}\n\n".encode() + _event("begin", {}))
        polling = [asyncio.ensure_future(self._follow(part)) for part in self._parts]
        if self._tail is not None:
            polling.append(asyncio.ensure_future(self._follow_tail(self._tail)))
        try:
            await self._send(self.rest(await self._rounds(polling)))
        finally:
            for task in polling:
                task.cancel()

    async def _rounds(self, polling: Sequence[asyncio.Future[None]]) -> str:
        """Send changes each round. Returns the reason of the end."""
        loop = asyncio.get_running_loop()
        sent_at, pause_s = loop.time(), _FIRST_ROUND_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = ROUND_S
            for task in polling:
                if task.done():
                    task.result()
            if self._is_closing():
                return "shutdown"
            if self._signed_out or not await self._is_in():
                return "signed-out"
            events = self._take()
            if not events and loop.time() - sent_at >= BEAT_S:
                events = _event("beat", {})
            if events:
                await self._send(events)
                sent_at = loop.time()
                self._sent += 1

    async def _is_in(self) -> bool:
        try:
            await self._check_key()
        except Unauthenticated:
            return False
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
        return True  # while the catalog is unavailable, parts fail by themselves

    def _take(self) -> bytes:
        pieces = [*self._changed.values()]
        self._changed.clear()
        if self._rows or self._tail_over is not None:
            over = self._tail_over
            update = {"cursor": self._cursor, "events": self._rows, "over": over is not None, "words": over or ""}
            pieces.append(_event("tail", update))
            self._rows, self._tail_over = [], None
        return b"".join(pieces)

    async def _follow(self, part: Part) -> None:
        """Poll a part until it is refused or gone."""
        last: object = None
        while True:
            answer = await self._ask(part.address, _AS_A_PART)
            if answer.status == _UNAUTHENTICATED:
                self._signed_out = True
                return
            if _is_trouble(answer.status):
                if last != answer.status:
                    self._changed[part.address] = _event("trouble", {"part": part.address, "status": answer.status})
                last = answer.status
                await asyncio.sleep(max(part.every_s, _TROUBLE_S))
                continue
            now = hashlib.sha256(answer.body).digest()
            over = answer.status != 200
            if now != last:
                self._changed[part.address] = _event(
                    "part",
                    {
                        "part": part.address,
                        "status": answer.status,
                        "over": over,
                        "html": answer.body.decode("utf-8"),
                    },
                )
            last = now
            if over:
                return
            await asyncio.sleep(part.every_s)

    async def _follow_tail(self, tail: Tail) -> None:
        """Pull rows with waiting, until that is refused."""
        cluster, _, tenant = tail.tenant.partition("/")
        path = f"/v1/clusters/{cluster}/tenants/{tenant}/{'kv/' if tail.keys else ''}changes"
        params: dict[str, object] = {"format": "ndjson", "limit": _TAIL_LIMIT, "wait": _TAIL_WAIT_S}
        params |= {"key_format": "escaped"} if tail.keys else {}
        start = {"start_ts": tail.start_ts} if tail.cursor is None else {"cursor": tail.cursor}
        while True:
            answer = await self._ask(f"{path}?{urlencode({**params, **start})}", _AS_ROWS)
            if answer.status == 200:
                self._cursor = answer.headers["tistream-next-cursor"]
                start = {"cursor": self._cursor}
                self._rows = [*self._rows, *_newest(answer.body)][-_TAIL_EVENTS_MAX:]
                await asyncio.sleep(ROUND_S)
            elif answer.status == _UNAUTHENTICATED:
                self._signed_out = True
                return
            elif _is_trouble(answer.status):
                await asyncio.sleep(_TROUBLE_S)
            elif answer.status == _GONE and start != {"start_ts": "latest"}:
                start = {"start_ts": "latest"}  # the tab was hidden for longer than the log is kept
            else:
                self._tail_over = str(orjson.loads(answer.body).get("detail", ""))
                return


def _is_trouble(status: int) -> bool:
    """Whether a retry may help."""
    return status >= 500 or status == _TOO_MANY


def _newest(body: bytes) -> list[Any]:
    """The newest events of an NDJSON body, in order, without watermarks."""
    events: list[Any] = []
    for line in reversed(body.split(b"\n")):
        if line.strip():
            event = orjson.loads(line)
            if event.get("type") != "resolved":
                events.append(event)
        if len(events) == _TAIL_EVENTS_MAX:
            break
    return events[::-1]


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))
