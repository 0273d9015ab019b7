"""Holds a cluster's history back from garbage collection while work lasts, by a barrier that expires soon after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.runtime.service import Repeating
from tistream.tikv.pd import PdClient

log = structlog.get_logger(__name__)

TTL_S = 300
_RENEW_S = 60.0


@contextmanager
def held_history(pd: PdClient, name: str, ts: int, clock: Clock) -> Iterator[None]:
    """Keep everything above `ts` for as long as the block runs. TsExpired when some of it was collected already."""
    pd.hold_history(name, ts, TTL_S)
    renewing = Repeating("history", lambda: pd.hold_history(name, ts, TTL_S), interval_s=_RENEW_S, clock=clock)
    renewing.start()
    try:
        yield
    finally:
        renewing.stop()
        try:
            pd.release_history(name)
        except TiStreamError as e:
            log.warning("releasing the GC barrier failed, it will expire", name=name, error=str(e))
