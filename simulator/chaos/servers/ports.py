"""Ports for the servers of a test, and how long one takes to answer."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

START_S = 60


class ServerError(RuntimeError):
    """A server is not installed, or did not come up."""


def free_port() -> int:
    """An unused port of the loopback interface."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_until(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers. ServerError with its log when it has ended, or takes too long."""
    end = time.monotonic() + START_S
    while not answers():
        if process.poll() is not None or time.monotonic() > end:
            state = "does not answer" if process.returncode is None else f"stopped with {process.returncode}"
            raise ServerError(f"{process.args!r} {state}:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)
