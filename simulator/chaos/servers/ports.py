"""Ports for the servers of a test."""

from __future__ import annotations

import socket


def free_port() -> int:
    """An unused port of the loopback interface."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
