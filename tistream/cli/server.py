"""Runs an HTTP application and its services until Ctrl-C or SIGTERM."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import uvicorn

from tistream.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI


class HttpServer:
    """uvicorn in a thread of its own, so that the main thread can show and stop things."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        settings = uvicorn.Config(
            app, host=host, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._ended = threading.Event()
        self.url = f"http://{host}:{port}"

    def start(self) -> None:
        """Start and wait until the port answers. ConfigError when it cannot be had."""
        self._thread.start()
        while not self._server.started:
            if self._ended.wait(0.02):
                raise ConfigError(f"Cannot listen on {self.url}: is the port in use?")

    def stop(self) -> None:
        """Finish running requests and stop."""
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        try:
            self._server.run()
        except SystemExit:
            pass  # uvicorn's way to say that the port is taken; start() reports it
        finally:
            self._ended.set()
