"""Flush schedule: when the stores of a cluster write their batch files.

Ticks fall on whole multiples of the flush interval by the wall clock, at the same moments for all stores of a tenant.
The slowest store determines a tenant's watermark: if stores ticked at different moments, each row would wait for almost
another interval, and each store would cause requests of its own. `phase` spreads the ticks of different tenants.

While nothing is written in the whole cluster, ticks come every `idle_s` instead (an idle store's file costs as much as
a busy one's). The first row ends that for all stores of the schedule. An idle store in a busy cluster must keep the
short interval, or it would hold the others back; so all stores of the cluster must share one schedule.

Wall clocks may be wrong and may jump: a tick comes between half an interval and one and a half after the previous one.
Coinciding ticks save cost; correctness does not depend on them.
"""

from __future__ import annotations

import zlib

from tistream.clock import Clock
from tistream.ids import Tenant

IDLE_AFTER_S = 10.0  #: seconds without a row in the whole cluster


class FlushSchedule:
    """Shared by the sources of a process. Thread-safe."""

    def __init__(self, clock: Clock, *, flush_s: float = 1.0, idle_s: float | None = None, phase: float = 0.0) -> None:
        """`idle_s`: None = `flush_s`. `phase`: 0 to 1, as a share of the interval."""
        self._clock, self._flush_s = clock, flush_s
        self._idle_s = max(flush_s, flush_s if idle_s is None else idle_s)
        self._phase = phase
        self._wrote_at = clock.monotonic()

    @classmethod
    def for_tenant(
        cls, tenant: Tenant, clock: Clock, *, flush_s: float = 1.0, idle_s: float | None = None
    ) -> FlushSchedule:
        phase = zlib.crc32(str(tenant).encode()) / (1 << 32)
        return cls(clock, flush_s=flush_s, idle_s=idle_s, phase=phase)

    def note_rows(self) -> None:
        """Rows arrived: the cluster is not idle."""
        self._wrote_at = self._clock.monotonic()

    def next_tick_at(self, ticked_at: float) -> float:
        """When the next tick is due after one at `ticked_at`, in monotonic seconds. It may become earlier once rows
        arrive."""
        now = self._clock.monotonic()
        interval_s = self._flush_s if now - self._wrote_at < IDLE_AFTER_S else self._idle_s
        ticked_unix_s = self._clock.unix_ms() / 1000 - (now - ticked_at) - self._phase * interval_s
        pause_s = interval_s - ticked_unix_s % interval_s
        return ticked_at + (pause_s if pause_s > interval_s / 2 else pause_s + interval_s)
