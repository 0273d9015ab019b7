"""Runs an HTTP application and its services until Ctrl-C or SIGTERM.

The server's side of one HTTP connection: what a client may send and how long it may take, before any route is asked.

    TLS      its handshake within `head_s`, where the port has certificates; a quarter of the open files at once
    head     64 KiB, within `head_s`
    body     `REQUEST_BODY_BYTES_MAX` and as much again to be dropped; a first part within `body_s`, 16 KiB/s on average
    the rest framing of chunks and trailers: 64 KiB, and no more than the body; trailers are dropped
    pipeline 64 requests
    answers  a client that takes nothing of them for `slow_s` is disconnected

Who exceeds a bound is disconnected, with a 400 or 408 where no answer has begun. The answer of a stream ends itself
with a last event: it takes the connection over by the `Hangup` in its request's `extensions`.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tistream.errors import ConfigError
from tistream.http.mutual_tls import CERTIFIED, MutualTls
from tistream.limits import REQUEST_BODY_BYTES_MAX, REQUEST_HEAD_BYTES_MAX
from tistream.runtime import metrics
from tistream.runtime.tls import FileContext, has_certificate

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tistream.cli.ports import Certificates

_FILES_WANTED = 65_536  # a connection is one


class HttpServer:
    """uvicorn in a thread."""

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        closing: Callable[[], None] = lambda: None,
        limits: ConnectionLimits | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """Takes the port at once (0 = any free one), so that nothing starts without it. ConfigError if it is taken.

        `certificates`: of its TLS. `closing` is called before it stops and must end requests without an end. The limit
        of open files is raised as far as the system allows: many systems begin with 1024. No address gets more than
        half of them.
        """
        limits = limits or ConnectionLimits()
        files = allow_open_files(_FILES_WANTED)
        limits = replace(limits, address_max=min(limits.address_max, max(1, files // 2)))
        self._closing = closing
        self._socket = _bound(host, port)
        port = self._socket.getsockname()[1]
        settings = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=partial(Connection, limits, Addresses()),  # type: ignore[arg-type]  # it is only called
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
            ssl_context_factory=None if certificates is None else lambda *_: certificates.context,
        )
        self._server = _Server(settings, limits.head_s)
        if certificates is not None:
            certificates.context.handshakes_max = max(1, files // 4)
            if certificates.files.client_ca is not None:
                app.add_middleware(MutualTls)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._ended = threading.Event()
        scheme = "http" if certificates is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        """Start and wait until the port answers."""
        self._thread.start()
        while not self._server.started:
            if self._ended.wait(0.02):
                raise ConfigError(f"The server at {self.url} ended before it answered.")

    def stop(self) -> None:
        """Finish running requests and stop."""
        self._closing()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._ended.set()


class _Server(uvicorn.Server):
    """Bounds the time of a TLS handshake, which comes before the protocol."""

    def __init__(self, config: uvicorn.Config, handshake_s: float) -> None:
        super().__init__(config)
        self._handshake_s = handshake_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        if self.config.ssl is not None:
            loop = asyncio.get_running_loop()  # of this server alone
            listen = partial(loop.create_server, ssl_handshake_timeout=self._handshake_s)
            loop.create_server = listen  # type: ignore[method-assign]
        await super().startup(sockets)


def allow_open_files(count: int) -> int:
    """Raise this process's limit of open files towards `count`, as far as the system allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= count:
        return soft
    raised = count if hard == unlimited else min(count, hard)
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(soft, raised)


def _bound(host: str, port: int) -> socket.socket:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(*address[:3])
    except OSError as e:
        raise ConfigError(f"Cannot listen on '{host}': {e.strerror}.", host=host) from e
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address[4])
    except OSError as e:
        bound.close()
        raise ConfigError(f"Cannot listen on port {port} of {host}: {e.strerror}.", host=host, port=port) from e
    return bound


log = structlog.get_logger(__name__)

_BODY_BYTES_PER_S = 16 << 10
_TAKEN_BYTES_MIN = 64 << 10  # in `slow_s`; less counts as nothing
_PIPELINED_MAX = 64
_GOODBYE_S = 0.5
_LINE_BYTES = 12  # of a request line besides method and URL; a header's line has 4 besides name and value


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How long a client may take, and how many connections an address may have."""

    head_s: float = 20
    body_s: float = 30
    slow_s: float = 30
    address_max: int = 4096


class Addresses:
    """Counts the connections of a port by address. A caller with IPv6 owns a /64: it counts as one."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def enter(self, host: str, most: int) -> str | None:
        """The name to `leave` with; None when the address has `most` open."""
        name = _network(host)
        if self._open[name] >= most:
            return None
        self._open[name] += 1
        return name

    def leave(self, name: str) -> None:
        """A connection is closed."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with these bounds."""

    def __init__(self, limits: ConnectionLimits, addresses: Addresses, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._limits, self._addresses = limits, addresses
        self._place: str | None = None  # of its address
        self._certified = False
        self._why = ""  # the parser's callbacks refuse
        self._in_body = False
        self._head_bytes = 0  # of the head that is being read, as far as it is parsed
        self._unparsed = 0  # bytes received for the current part that nothing was made of
        self._body_bytes = 0
        self._waits: asyncio.TimerHandle | None = None  # for the rest of a head or body
        self._waits_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects. Without a free place for its address it is dropped at once."""
        watched = _Watched(transport, self.loop, self._limits.slow_s)
        super().connection_made(watched)  # type: ignore[arg-type]
        secured, context = transport.get_extra_info("ssl_object"), transport.get_extra_info("sslcontext")
        self._certified = has_certificate(secured)
        if isinstance(context, FileContext):
            context.handshakes.discard(secured)
        self._place = self._addresses.enter(self.client[0] if self.client else "", self._limits.address_max)
        if self._place is None:
            self._drop("too_many")
        else:
            self._wait(self._limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; requests that wait behind the current one are not begun."""
        if self._place is not None:
            self._addresses.leave(self._place)
            self._place = None
        self._wait(None)
        self.pipeline.clear()
        super().connection_lost(exc)
        self._watched.end()

    def data_received(self, data: bytes) -> None:
        """Parse what came. Whatever the parser keeps or skips without handing it on is counted."""
        self._unparsed += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        most = REQUEST_HEAD_BYTES_MAX + (self._body_bytes if self._in_body else 0)
        if self._unparsed > most or self._body_bytes > 2 * REQUEST_BODY_BYTES_MAX:
            self._refuse("too_long", "The request is too long." if self._in_body else _HEAD_TOO_LONG)
        elif self._waits is None and not self._is_answering:
            self._wait(self._limits.head_s)

    def shutdown(self) -> None:
        """The server stops. A client that keeps its connection, and has not seen that TLS ends, is not waited for."""
        super().shutdown()
        if not self._is_answering:
            self.loop.call_later(_GOODBYE_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not take."""
        self._refuse("too_long" if self._why else "invalid", self._why or msg)

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; after the body a trailer, which no route asks for."""
        if self._in_body:
            return
        self._head_bytes += len(name) + len(value) + 4
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete: the request begins, or waits behind the one before."""
        method = self.parser.get_method()
        if self._head_bytes + len(method) + _LINE_BYTES > REQUEST_HEAD_BYTES_MAX:
            self._why = _HEAD_TOO_LONG
        if len(self.pipeline) >= _PIPELINED_MAX:
            self._why = "Too many requests wait behind another one."
        if self._why:
            raise HttpParserError(self._why)
        self._in_body, self._unparsed, self._head_bytes, self._body_bytes = True, 0, 0, 0
        self._wait(self._limits.body_s)
        super().on_headers_complete()
        self.scope["extensions"] = {"tistream.hangup": Hangup(self), CERTIFIED: self._certified}  # type: ignore[dict-item]

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        self._unparsed -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        super().on_message_complete()
        self._in_body, self._unparsed, self._body_bytes = False, 0, 0
        self._wait(None)

    def on_response_complete(self) -> None:
        """The answer is written: the next request begins, or the client has some seconds to send one."""
        self._watched.patient = False
        super().on_response_complete()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _watched(self) -> _Watched:
        assert isinstance(self.transport, _Watched)
        return self.transport

    def _wait(self, seconds: float | None) -> None:
        """Wait so long for the rest of the head or body; None: nothing is awaited."""
        if self._waits is not None:
            self._waits.cancel()
        self._waits_since = self.loop.time()
        self._waits = None if seconds is None else self.loop.call_later(seconds, self._waited)

    def _waited(self) -> None:
        self._waits = None
        if self.transport.is_closing():
            return
        if self._in_body:
            left_s = self._limits.body_s + self._body_bytes / _BODY_BYTES_PER_S - self.loop.time() + self._waits_since
            if self.flow.read_paused:  # it is the application that is slow
                self._wait(self._limits.body_s)
            elif left_s > 0:
                self._waits = self.loop.call_later(left_s, self._waited)
            else:
                self._refuse("too_slow", "The body of the request did not come in time.", _TIMED_OUT)
        elif not self._unparsed:  # a connection that is kept for later
            self._drop("too_slow")
        else:
            self._refuse("too_slow", "The head of the request did not come in time.", _TIMED_OUT)

    def _refuse(self, reason: str, why: str, status: bytes = b"400 Bad Request") -> None:
        """Answer and close. In the middle of another answer only close."""
        if self.pipeline or (self._is_answering and self.cycle.response_started):
            self._drop(reason)
            return
        metrics.CONNECTIONS_DROPPED.labels(reason=reason).inc()
        head = b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n" % (status, len(why))
        self.transport.write(head + b"connection: close\r\n\r\n" + why.encode("ascii"))
        self.transport.close()

    def _drop(self, reason: str) -> None:
        metrics.CONNECTIONS_DROPPED.labels(reason=reason).inc()
        self.transport.abort()


class Hangup:
    """Lets the answer of a stream end a connection whose client does not read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take_over(self) -> None:
        """From now on the answer itself notices that its reader is slow."""
        self._connection._watched.patient = True

    def release(self) -> None:
        """Accept more data into the connection's buffer although it is full."""
        self._connection.flow.resume_writing()

    def abort_after(self, seconds: float) -> None:
        """Drop the connection after so much time, whatever its client takes until then."""
        self._connection._watched.end()
        self._connection.loop.call_later(seconds, self._connection.transport.abort)


class _Watched:
    """A transport that drops its connection when the client takes nothing of what was written, also while closing."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, slow_s: float) -> None:
        self._transport, self._loop, self._slow_s = transport, loop, slow_s
        self._written = self._taken = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self.patient = False  #: the current answer looks itself

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | memoryview) -> None:
        """Write, and see whether it is taken."""
        self._written += len(data)
        self._transport.write(data)
        self._watch()

    def close(self) -> None:
        """Close, once the client has taken what is written."""
        self.patient = False
        self._transport.close()
        self._watch()

    def end(self) -> None:
        """Watch no more."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        if self._timer is None and not self._ended and (left := self._transport.get_write_buffer_size()):
            self._taken = self._written - left
            self._timer = self._loop.call_later(self._slow_s, self._look)

    def _look(self) -> None:
        self._timer = None
        left = self._transport.get_write_buffer_size()
        if not left:
            return
        if self._written - left - self._taken < _TAKEN_BYTES_MIN and not self.patient:
            log.warning("answer not read, disconnecting", client=str(self._transport.get_extra_info("peername")))
            metrics.CONNECTIONS_DROPPED.labels(reason="not_read").inc()
            self._transport.abort()
        else:
            self._watch()


_HEAD_TOO_LONG = "The head of the request is too long."
_TIMED_OUT = b"408 Request Timeout"


def _network(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(int(address) >> 64)
