"""Reads the database's clock as the service's time, for callers that no other read brings it."""

from __future__ import annotations

from tistream.catalog.database.engine import Catalog, now_ms
from tistream.clock import Clock
from tistream.limits import CLOCK_SKEW_MAX_MS
from tistream.runtime.service_time import ServiceTime


def service_time(catalog: Catalog, clock: Clock, skew_max_ms: int = CLOCK_SKEW_MAX_MS) -> ServiceTime:
    """The time now. `skew_max_ms`: how far ahead of it a timestamp counts."""
    time = ServiceTime(clock, skew_max_ms)
    with catalog.reading() as conn:
        time.note(now_ms(conn))
    return time
