"""Waiting for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 120.0  #: a busy machine is slow, not wrong
_PAUSE_S = 0.01


def eventually(holds: Callable[[], object], what: str | Callable[[], object] = "not in time") -> float:
    """Wait until it holds; the seconds that took. AssertionError with `what`, or with what that answers then, when it
    does not hold after WAIT_S seconds."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > WAIT_S:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(_PAUSE_S)
    return time.monotonic() - began
