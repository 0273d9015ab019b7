"""Runs an HTTP application and its services until Ctrl-C or SIGTERM."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import uvicorn

from tistream.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI


class HttpServer:
    """uvicorn in a thread of its own, so that the main thread can show and stop things."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Takes the port at once (0 = any free one), so that nothing starts without it. ConfigError if it is taken."""
        self._socket = _bound(host, port)
        port = self._socket.getsockname()[1]
        settings = uvicorn.Config(
            app, host=host, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=5
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
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._ended.set()


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
