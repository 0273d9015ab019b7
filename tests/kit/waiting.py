"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WAIT_S = 120.0  #: a busy machine is slow, not wrong
_PAUSE_S, _PAUSE_MAX_S = 0.01, 0.2
_PAUSE_PART = 0.05  #: of what was waited so far: looking often takes processor time, here and in what is asked


def eventually(holds: Callable[[], object], what: str | Callable[[], object] = "not in time") -> float:
    """Wait until it holds; the seconds that took. AssertionError with `what`, or with what that answers then, when it
    does not hold after WAIT_S seconds."""
    began = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - began
        if waited_s > WAIT_S:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(min(max(_PAUSE_S, waited_s * _PAUSE_PART), _PAUSE_MAX_S))
    return time.monotonic() - began


def problem_of(url: str, key: str) -> dict[str, Any]:
    """The problem in /healthz that names this object, once there is one."""
    from simulator.chaos.servers.processes import client

    shown: list[dict[str, Any]] = []
    with client(url) as c:

        def is_named() -> bool:
            shown[:] = [p for p in c.get("/healthz")["problems"] if p["facts"].get("object") == key]
            return bool(shown)

        eventually(is_named, lambda: f"/healthz does not name {key}: {c.get('/healthz')}")
    return shown[0]
