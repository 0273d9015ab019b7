"""Responses for slow readers: a reader holds only a bounded part of the process's memory, for a bounded time.

A body is sent in pieces, each after the socket has taken the one before. The server disconnects a reader that takes
nothing for a while (`tistream.cli.server`). A stream notices it itself: its reader first gets an `end` event with
its cursor, and as much time again to read it. A reader that disconnects ends its work at once.

For this `extensions` of the request hold a `Hangup`. Without it the connection is left to the server.
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
    """Server controls of a connection with a slow reader."""

    def take_over(self) -> None:
        """The answer itself notices that its reader is slow."""

    def release(self) -> None:
        """Accept the next pieces although the connection's buffer is full."""

    def abort_after(self, seconds: float) -> None:
        """Drop the connection after this time."""


class Loop(Protocol):
    """Fills the body of a stream."""

    @property
    def place(self) -> str:
        """Its position, for the log."""

    async def run(self) -> None:
        """Send until the stream ends."""

    def rest(self, reason: str) -> bytes:
        """The end of the body for a reader that was too slow."""


class SlowConsumer(Exception):
    """The reader took nothing for too long."""


class _Outlet:
    """Sends pieces, each within a time limit."""

    def __init__(self, scope: Scope, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self.hangup: Hangup | None = scope.get("extensions", {}).get(HANGUP)
        if self.hangup is not None:
            self.hangup.take_over()

    async def send(self, piece: bytes | memoryview, *, more: bool = True) -> None:
        """Send a piece. SlowConsumer, without sending it, when the socket stays full."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError as e:
            raise SlowConsumer from e

    async def force(self, piece: bytes) -> None:
        """Send the last piece to a full socket; the reader has the same time again."""
        if self.hangup is None:
            return
        self.hangup.release()
        self.hangup.abort_after(self._seconds)
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})


class PageAnswer(Response):
    """A whole body, sent piece by piece. `held` is released at the end."""

    def __init__(
        self,
        content: memoryview,
        *,
        media_type: str,
        headers: Mapping[str, str],
        held: ExitStack,
        status_code: int = 200,
    ) -> None:
        super().__init__(content, status_code, headers, media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await self._sent(scope, receive, send)

    async def _sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = memoryview(self.body)
        if len(body) <= _PIECE_BYTES:
            return await super().__call__(scope, receive, send)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(body), _PIECE_BYTES):
            more = at + _PIECE_BYTES < len(body)
            await send({"type": "http.response.body", "body": body[at : at + _PIECE_BYTES], "more_body": more})


class StreamAnswer(Response):
    """An unbounded body. `loop` makes its Loop, `held` is released at the end."""

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
        del self._loop  # it holds the first page
        running = asyncio.ensure_future(loop.run())
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                await outlet.send(b"", more=False)
        except SlowConsumer:
            log.warning("stream not read, disconnecting", path=scope["path"], place=loop.place)
            await outlet.force(loop.rest("slow-consumer"))
        finally:
            self._held.close()
            for task in (running, leaving):
                task.cancel()


async def disconnected(receive: Receive) -> None:
    """Return when the reader has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
