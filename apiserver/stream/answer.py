"""Answers whose readers may be slow: nobody keeps more than a bounded piece of the process's memory for long.

A body is sent in pieces, each when the socket has taken the one before. A reader that takes nothing for a while is cut
off: a stream first gets its last words, with the cursor, and as much time again to read them. A reader that went away
ends the work for it at once.

Cutting off needs the server's help: the request's `extensions` hold a `Hangup` (see `tistream.cli.server`). Without it
the connection is left to the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = structlog.get_logger(__name__)

HANGUP = "tistream.hangup"
_PIECE_BYTES = 256 << 10

SendPiece = Callable[[bytes | memoryview], Awaitable[None]]


class Hangup(Protocol):
    """What the server can do with a connection whose reader is slow."""

    def release(self) -> None:
        """Let the next pieces into the connection's buffer although it is full."""

    def abort_after(self, seconds: float) -> None:
        """Drop the connection, read or not, when so much time has passed."""


class Loop(Protocol):
    """What fills the body of a stream."""

    @property
    def place(self) -> str:
        """How far it is, for the log."""

    async def run(self) -> None:
        """Send until it is over."""

    def rest(self, reason: str) -> bytes:
        """The last words to one who was too slow."""


class SlowConsumer(Exception):
    """The reader took nothing for too long."""


class _Outlet:
    """Sends pieces, each within a time."""

    def __init__(self, scope: Scope, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self.hangup: Hangup | None = scope.get("extensions", {}).get(HANGUP)

    async def send(self, piece: bytes | memoryview, *, more: bool = True) -> None:
        """SlowConsumer when the socket is still full after the time; the piece is then not sent."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError as e:
            raise SlowConsumer from e

    async def force(self, piece: bytes) -> None:
        """The last piece, although the socket is full; the reader has as long again to take it."""
        if self.hangup is None:
            return
        self.hangup.release()
        self.hangup.abort_after(self._seconds)
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})


class PageAnswer(Response):
    """A whole body, given to the socket piece by piece. `held` is released when it is over."""

    def __init__(
        self,
        content: memoryview,
        *,
        media_type: str,
        headers: Mapping[str, str],
        slow_s: float,
        held: ExitStack,
        status_code: int = 200,
    ) -> None:
        super().__init__(content, status_code, headers, media_type)
        self._slow_s, self._held = slow_s, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await self._sent(scope, receive, send)

    async def _sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = memoryview(self.body)
        if len(body) <= _PIECE_BYTES:
            return await super().__call__(scope, receive, send)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        outlet = _Outlet(scope, send, self._slow_s)
        try:
            for at in range(0, len(body), _PIECE_BYTES):
                await outlet.send(body[at : at + _PIECE_BYTES], more=at + _PIECE_BYTES < len(body))
        except SlowConsumer:
            log.warning("a page was not taken", path=scope["path"])
            if outlet.hangup is not None:
                outlet.hangup.abort_after(0)
                await disconnected(receive)


class StreamAnswer(Response):
    """A body without an end of its own. `loop` makes what fills it, `held` is released when it is over."""

    def __init__(
        self,
        loop: Callable[[SendPiece], Loop],
        *,
        media_type: str,
        headers: Mapping[str, str],
        slow_s: float,
        held: ExitStack,
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._loop, self._slow_s, self._held = loop, slow_s, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        outlet = _Outlet(scope, send, self._slow_s)
        loop = self._loop(outlet.send)
        del self._loop  # it holds the first page, and the stream may be open for days
        running = asyncio.ensure_future(loop.run())
        away = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({running, away}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                await outlet.send(b"", more=False)
        except SlowConsumer:
            log.warning("a stream's consumer took nothing", path=scope["path"], place=loop.place)
            await outlet.force(loop.rest("slow-consumer"))
        finally:
            self._held.close()
            for task in (running, away):
                task.cancel()


async def disconnected(receive: Receive) -> None:
    """Returns when the reader has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
