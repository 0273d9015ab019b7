"""Runs an HTTP application and its services until Ctrl-C or SIGTERM.

The application can drop the connection of a slow reader by the hang-up in a request's `extensions`. A request whose
head does not end is dropped here.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tistream.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI


_HEAD_BYTES_MAX = 64 << 10
_FILES_WANTED = 65_536  # a connection is one


class _Hangup:
    """Lets an application drop the connection of a slow reader."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol

    def release(self) -> None:
        """Accept more data into the connection's buffer although it is full."""
        self._protocol.flow.resume_writing()

    def abort_after(self, seconds: float) -> None:
        """Drop the connection after so much time."""
        asyncio.get_running_loop().call_later(seconds, self._protocol.transport.abort)


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol with a hang-up in each request and a bound on the size of the head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"tistream.hangup": _Hangup(self)}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._head_bytes = -(1 << 62)  # the body has a bound of its own
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes = 0


class HttpServer:
    """uvicorn in a thread."""

    def __init__(self, app: FastAPI, host: str, port: int, closing: Callable[[], None] = lambda: None) -> None:
        """Takes the port at once (0 = any free one), so that nothing starts without it. ConfigError if it is taken.

        `closing` is called before it stops and must end requests without an end. The limit of open files is raised as
        far as the system allows: many systems begin with 1024.
        """
        allow_open_files(_FILES_WANTED)
        self._closing = closing
        self._socket = _bound(host, port)
        port = self._socket.getsockname()[1]
        settings = uvicorn.Config(
            app, host=host, port=port, http=_Protocol, log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._ended = threading.Event()
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

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


def allow_open_files(wanted: int) -> int:
    """Raise this process's limit of open files towards `wanted`, as far as the system allows; returns the limit."""
    mine, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if mine == unlimited or mine >= wanted:
        return mine
    raised = wanted if most == unlimited else min(wanted, most)
    if raised > mine:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
    return max(mine, raised)


def _bound(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(*found[:3])
    except OSError as e:
        raise ConfigError(f"Cannot listen on '{host}': {e.strerror}.", host=host) from e
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(found[4])
    except OSError as e:
        bound.close()
        raise ConfigError(f"Cannot listen on port {port} of {host}: {e.strerror}.", host=host, port=port) from e
    return bound
