"""Updates of one open tab: each part of its page, and the newest rows, as they change.

Each part is asked for in a loop of its own, so that a slow one holds up nobody. What changed waits for the next round;
of a part that changed twice in between only the newest is sent. A tab keeps a hash of each part and no more.
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
BEAT_S = 10.0  #: a tab gets a message at least this often
_FIRST_ROUND_S = 0.1
_AGAIN_MS = 2000
_TROUBLE_S = 2.0
_TAIL_WAIT_S = 5
_TAIL_EVENTS_MAX = 120  # what a page shows of them
_TAIL_LIMIT = 2000
_AS_A_PART = {"HX-Request": "true", "Accept": "text/html"}
_AS_ROWS = {"Accept": "application/x-ndjson"}
_GONE, _UNAUTHENTICATED, _TOO_MANY = 410, 401, 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a page and how often it is looked at."""

    address: str
    every_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """From where on the rows of a tenant (CLUSTER/TENANT) are told."""

    tenant: str
    start_ts: str
    cursor: str | None


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
        self._news: dict[str, bytes] = {}  # of parts, by address
        self._rows: list[Any] = []
        self._cursor: str | None = None
        self._tail_over: str | None = None
        self._signed_out = False
        self._sent = 0

    @property
    def place(self) -> str:
        """How much was sent."""
        return f"{self._sent} rounds"

    def rest(self, reason: str) -> bytes:
        """The last words."""
        return _event("end", {"reason": reason})

    async def run(self) -> None:
        """Tell the tab until the process stops or its key ends."""
        await self._send(f"retry: {_AGAIN_MS}\n\n".encode() + _event("begin", {}))
        asking = [asyncio.ensure_future(self._follow(part)) for part in self._parts]
        if self._tail is not None:
            asking.append(asyncio.ensure_future(self._follow_tail(self._tail)))
        try:
            await self._send(self.rest(await self._rounds(asking)))
        finally:
            for task in asking:
                task.cancel()

    async def _rounds(self, asking: Sequence[asyncio.Future[None]]) -> str:
        """Why it is over."""
        loop = asyncio.get_running_loop()
        told_at, pause_s = loop.time(), _FIRST_ROUND_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = ROUND_S
            for task in asking:
                if task.done():
                    task.result()
            if self._is_closing():
                return "shutdown"
            if self._signed_out or not await self._is_in():
                return "signed-out"
            words = self._take()
            if not words and loop.time() - told_at >= BEAT_S:
                words = _event("beat", {})
            if words:
                await self._send(words)
                told_at = loop.time()
                self._sent += 1

    async def _is_in(self) -> bool:
        try:
            await self._check_key()
        except Unauthenticated:
            return False
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
        return True  # as far as is known: while the catalog is away parts say so, and show nothing

    def _take(self) -> bytes:
        pieces = [*self._news.values()]
        self._news.clear()
        if self._rows or self._tail_over is not None:
            over = self._tail_over
            told = {"cursor": self._cursor, "events": self._rows, "over": over is not None, "words": over or ""}
            pieces.append(_event("tail", told))
            self._rows, self._tail_over = [], None
        return b"".join(pieces)

    async def _follow(self, part: Part) -> None:
        """Ask for a part again and again, until it is refused or gone."""
        said: object = None
        while True:
            answer = await self._ask(part.address, _AS_A_PART)
            if answer.status == _UNAUTHENTICATED:
                self._signed_out = True
                return
            if _is_trouble(answer.status):
                if said != answer.status:
                    self._news[part.address] = _event("trouble", {"part": part.address, "status": answer.status})
                said = answer.status
                await asyncio.sleep(max(part.every_s, _TROUBLE_S))
                continue
            now = hashlib.sha256(answer.body).digest()
            over = answer.status != 200
            if now != said:
                self._news[part.address] = _event(
                    "part",
                    {
                        "part": part.address,
                        "status": answer.status,
                        "over": over,
                        "html": answer.body.decode("utf-8"),
                    },
                )
            said = now
            if over:
                return
            await asyncio.sleep(part.every_s)

    async def _follow_tail(self, tail: Tail) -> None:
        """Wait for rows, as a pull does, again and again, until that is refused."""
        cluster, _, tenant = tail.tenant.partition("/")
        path = f"/v1/clusters/{cluster}/tenants/{tenant}/changes"
        asked: dict[str, object] = {"format": "ndjson", "limit": _TAIL_LIMIT, "wait": _TAIL_WAIT_S}
        start = {"start_ts": tail.start_ts} if tail.cursor is None else {"cursor": tail.cursor}
        while True:
            answer = await self._ask(f"{path}?{urlencode({**asked, **start})}", _AS_ROWS)
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
                start = {"start_ts": "latest"}  # the tab slept for longer than the log is kept
            else:
                self._tail_over = str(orjson.loads(answer.body).get("detail", ""))
                return


def _is_trouble(status: int) -> bool:
    """Whether it may be better later."""
    return status >= 500 or status == _TOO_MANY


def _newest(body: bytes) -> list[Any]:
    """The newest events of an NDJSON body, in their order; watermarks are none."""
    found: list[Any] = []
    for line in reversed(body.split(b"\n")):
        if line.strip():
            event = orjson.loads(line)
            if event["type"] != "resolved":
                found.append(event)
        if len(found) == _TAIL_EVENTS_MAX:
            break
    return found[::-1]


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))
