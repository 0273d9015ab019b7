"""A proxy inside the process, for HTTP clients that resolve names themselves: it connects where a policy allows.

    opened = open_pass(policy, Target.server("https", "minio.example.com"))
    S3Store(..., client_options={"proxy_url": opened.url})
    opened.refusal                          why the policy refused a connection, if it did

A pass is good for one server while its object lives, and its secret is known to this process only. So a server cannot
send a client elsewhere, and the name is resolved, checked and connected to in one step. TLS is between client and
server: the gate sees the name and encrypted bytes. Without TLS each request has a connection of its own.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import structlog

from tistream.errors import InvalidInput
from tistream.outbound.policy import Policy
from tistream.outbound.rules import Target, TargetRefused

log = structlog.get_logger(__name__)

_CONNECT_S = 5.0
_HEAD_S = 10.0
_IDLE_S = 120.0
_CHUNK = 256 << 10
_HEAD_END = b"\r\n\r\n"


class _NotPassed(Exception):
    """The client may not connect there."""

    def __init__(self, status: bytes) -> None:
        self.status = status
        super().__init__(status.decode())


@dataclass(slots=True, weakref_slot=True, eq=False)
class Pass:
    """See the module."""

    policy: Policy
    target: Target
    gate: Gate = field(repr=False)
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    refusal: TargetRefused | None = None

    @property
    def url(self) -> str:
        """Of the proxy, with the secret."""
        return f"http://pass:{self.secret}@127.0.0.1:{self.gate.port}"


class Gate:
    """The proxy. It starts with its first pass and lives as long as the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: WeakValueDictionary[str, Pass] = WeakValueDictionary()
        self._listening: socket.socket | None = None
        self.port = 0

    def open_pass(self, policy: Policy, target: Target) -> Pass:
        """A pass to this server. TargetRefused when the policy refuses it by its text."""
        policy.check(target)
        with self._lock:
            if self._listening is None:
                self._start()
            made = Pass(policy, target, self)
            self._passes[base64.b64encode(f"pass:{made.secret}".encode()).decode()] = made
        return made

    def _start(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listening, self.port = listening, listening.getsockname()[1]
        threading.Thread(target=lambda: asyncio.run(self._serve(listening)), name="outbound-gate", daemon=True).start()

    async def _serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(self._answer, sock=listening, limit=_CHUNK)
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            head = await asyncio.wait_for(reader.readuntil(_HEAD_END), _HEAD_S)
            passed, forwarded = self._judged(head)
            back, there = await self._connected(passed)
            if forwarded:
                there.write(forwarded)
            else:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await _relay(reader, writer, back, there, is_tunnel=not forwarded)
        except _NotPassed as error:
            writer.write(b"HTTP/1.1 " + error.status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            with suppress(OSError):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the client sees a connection that ends
        finally:
            for each in (writer, there):
                if each is not None:
                    each.close()

    def _judged(self, head: bytes) -> tuple[Pass, bytes]:
        """(the pass of a request, what is sent to the server first; nothing for a tunnel)."""
        first, *fields = head.removesuffix(_HEAD_END).split(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3:
            raise _NotPassed(b"400 Bad Request")
        mine = b"proxy-"  # fields that are between the client and this proxy
        named = [each.partition(b":") for each in fields]
        given = next((value for name, _, value in named if name.lower() == b"proxy-authorization"), b"")
        passed = self._passes.get(given.strip().removeprefix(b"Basic ").decode("latin-1"))
        if passed is None:
            raise _NotPassed(b"407 Proxy Authentication Required")
        method, where, version = words
        if method == b"CONNECT":
            self._same(passed, f"https://{where.decode('latin-1')}")
            return passed, b""
        address = where.decode("latin-1")
        self._same(passed, address)
        parts = urlsplit(address)
        path = parts._replace(scheme="", netloc="").geturl() or "/"
        kept = [b"".join(each) for each in named if not each[0].lower().startswith(mine)]
        return passed, _closing([b" ".join((method, path.encode("latin-1"), version)), *kept])

    def _same(self, passed: Pass, address: str) -> None:
        """_NotPassed for another server than the pass is for."""
        try:
            parts = urlsplit(address)
            asked = Target.server(parts.scheme, parts.netloc)
        except (InvalidInput, ValueError) as error:
            raise _NotPassed(b"400 Bad Request") from error
        target = passed.target
        if (asked.scheme, asked.host, asked.port) != (target.scheme, target.host, target.port):
            log.info("a server sends its client elsewhere", server=target.host, asked=asked.host)
            passed.refusal = TargetRefused(target=f"{target.scheme}://{target.host}:{target.port}")
            raise _NotPassed(b"403 Forbidden")

    async def _connected(self, passed: Pass) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server of a pass, at an address that was just checked."""
        target = passed.target
        try:
            addresses = await asyncio.to_thread(passed.policy.addresses, target)
        except TargetRefused as error:
            passed.refusal = error
            raise _NotPassed(b"403 Forbidden") from error
        except OSError as error:
            raise _NotPassed(b"502 Bad Gateway") from error
        passed.refusal = None
        for address in addresses:
            with suppress(OSError, TimeoutError):
                opening = asyncio.open_connection(str(address), target.port, limit=_CHUNK)
                return await asyncio.wait_for(opening, _CONNECT_S)
        raise _NotPassed(b"502 Bad Gateway")


@dataclass(slots=True)
class _Moved:
    """When bytes last went either way."""

    at_s: float


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    back: asyncio.StreamReader,
    there: asyncio.StreamWriter,
    *,
    is_tunnel: bool,
) -> None:
    """Both ways, until the server has ended its side, or nothing has moved for a time."""
    moved = _Moved(asyncio.get_running_loop().time())
    sending = asyncio.ensure_future(_copy(reader, there, moved))
    try:
        if not is_tunnel:
            await _answer_head(back, writer)
        await _copy(back, writer, moved)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _answer_head(back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The head of the answer, which tells the client that the connection ends with it."""
    while True:
        async with asyncio.timeout(_IDLE_S):
            head = await back.readuntil(_HEAD_END)
        lines = head.removesuffix(_HEAD_END).split(b"\r\n")
        is_interim = lines[0][8:10] == b" 1"
        writer.write(head if is_interim else _closing(lines))
        if not is_interim:
            return


def _closing(lines: list[bytes]) -> bytes:
    """A head with these lines that ends its connection."""
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join((*kept, b"Connection: close")) + _HEAD_END


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, moved: _Moved) -> None:
    now = asyncio.get_running_loop().time
    while True:
        try:
            async with asyncio.timeout(_IDLE_S):
                data = await source.read(_CHUNK)
        except TimeoutError:
            if now() - moved.at_s < _IDLE_S:
                continue
            return
        if not data:
            break
        moved.at_s = now()
        to.write(data)
        await to.drain()
    if to.can_write_eof():
        to.write_eof()


_GATE = Gate()


def open_pass(policy: Policy, target: Target) -> Pass:
    """A pass of the process's gate. TargetRefused when the policy refuses the target by its text."""
    return _GATE.open_pass(policy, target)
