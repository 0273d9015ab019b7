"""A small TCP proxy that can misbehave: cut, refuse, hang, lose, or answer every request with 503.

    with Proxy(port, ...) as proxy:          several backend ports: the first that answers is used
        connect to 127.0.0.1:proxy.port
        proxy.trouble = Trouble.REFUSE

One thread with an event loop. Setting any mode but PASS cuts the existing connections. `lose` is a host that loses
power: nothing passes on the existing connections, and neither end is notified. `turns` counts round trips.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

_CHUNK = 1 << 16
_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_BUSY = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: "
    + str(len(_SLOW_DOWN)).encode()
    + b"\r\n\r\n"
    + _SLOW_DOWN
)


class Trouble(StrEnum):
    """How the proxy treats connections."""

    PASS = "pass"  #: nothing
    REFUSE = "refuse"  #: closes them at once
    HANG = "hang"  #: accepts data, and answers nothing
    BUSY = "busy"  #: answers the first request of each with 503, as S3 does when it is asked too much


@dataclass(slots=True, eq=False)
class _Link:
    """One connection from a client to a server."""

    is_lost: bool = False
    is_answered: bool = True  #: the last data was from the server, or there was none


class Proxy:
    """Listens on a free port of the loopback interface from its start to its end as a context."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._trouble = Trouble.PASS
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: set[_Link] = set()
        self.turns = 0  #: round trips so far: how often a client spoke, and the server answered before it spoke again
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._call(self._listen())
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def trouble(self) -> Trouble:
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self.cut()

    def lead_to(self, *ports: int) -> None:
        """Direct new connections to other ports; existing ones are not affected."""
        self._ports = ports

    def cut(self) -> None:
        """Cut the existing connections."""
        self._call(self._cut())

    def lose(self) -> None:
        """From now on nothing passes on the existing connections, and none is closed. New ones pass."""
        self._call(self._lose())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _lose(self) -> None:
        for link in self._links:
            link.is_lost = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._answer(reader, writer)
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._trouble is Trouble.HANG:
            while await _read(reader):
                continue
        elif self._trouble is Trouble.BUSY:
            if await _read(reader):
                writer.write(_BUSY)
                with suppress(OSError):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        elif self._trouble is Trouble.PASS:
            await self._pass_on(reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in self._ports:
            with suppress(OSError):
                to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            return
        self._writers.add(to_writer)
        link = _Link()
        self._links.add(link)
        try:
            ways = [
                asyncio.ensure_future(self._copy(link, reader, to_writer, to_server=True)),
                asyncio.ensure_future(self._copy(link, to_reader, writer, to_server=False)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if link.is_lost:  # the other end is not notified
                await asyncio.wait(ways)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._links.remove(link)
            self._writers.discard(to_writer)
            to_writer.transport.abort()

    async def _copy(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        with suppress(OSError):
            while data := await _read(reader):
                if link.is_lost:
                    continue
                self.turns += to_server and link.is_answered
                link.is_answered = not to_server
                writer.write(data)
                await writer.drain()
            if not link.is_lost:
                writer.write_eof()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """The next bytes; empty at the end, for whatever reason."""
    try:
        return await reader.read(_CHUNK)
    except OSError:
        return b""
