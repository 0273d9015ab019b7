"""The service's time, by which a timestamp that a pusher wrote counts or waits.

    a read of the catalog, made anyway --note(database's clock)--> ServiceTime --ahead(ts)--> AheadOfTime, or None

It is the database's clock, never a worker's: between two reads it advances with the monotonic clock, at most AGE_MAX_S,
so it may be behind the database's clock and never ahead of it. A timestamp counts when it is at most the allowed skew
ahead. Thread-safe: readers see one whole note.
"""

from __future__ import annotations

import math

from tistream import ts as tso
from tistream.clock import Clock
from tistream.errors import AheadOfTime
from tistream.limits import CLOCK_SKEW_MAX_MS

AGE_MAX_S = 60.0  #: without a read for longer, the time stops


class ServiceTime:
    def __init__(self, clock: Clock, skew_max_ms: int = CLOCK_SKEW_MAX_MS) -> None:
        self._clock, self._skew_max_ms = clock, skew_max_ms
        self._noted: tuple[int, float] | None = None  # the database's Unix milliseconds, and when they were noted

    def note(self, database_ms: int) -> None:
        """The database's clock, just read."""
        self._noted = database_ms, self._clock.monotonic()

    def wait_s(self, ts: int) -> float:
        """Seconds until this timestamp counts; 0 when it does, infinite before the first read."""
        if self._noted is None:
            return math.inf
        return max(0.0, (tso.physical_ms(ts) - self._skew_max_ms - self._now_ms(*self._noted)) / 1000)

    def ahead(self, ts: int, what: str, **facts: object) -> AheadOfTime | None:
        """The error of an object whose largest timestamp does not count yet; None when it does. `what`: its kind."""
        if not self.wait_s(ts):
            return None
        noted = self._noted
        if noted is None:
            return AheadOfTime(f"the {what} waits: the catalog's clock was not read yet", **facts, ts=ts)
        ahead_s = (tso.physical_ms(ts) - self._now_ms(*noted)) / 1000
        counts_at = tso.compose(tso.physical_ms(ts) - self._skew_max_ms)
        return AheadOfTime(
            f"the {what} has a timestamp {ahead_s:.1f} s ahead of the catalog's clock: it counts at "
            f"{tso.to_text(counts_at)}, and until then waits with all that follow it",
            **facts,
            ts=ts,
            time=tso.to_text(ts),
            ahead_s=round(ahead_s, 1),
            counts_at=tso.to_text(counts_at),
        )

    def _now_ms(self, database_ms: int, noted_s: float) -> int:
        return database_ms + int(min(self._clock.monotonic() - noted_s, AGE_MAX_S) * 1000)
