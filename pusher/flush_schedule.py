"""When the stores of a cluster write their batch files.

Ticks lie at whole multiples of the flush interval by the wall clock, for every store of every pusher alike. A tenant is
complete up to what the slowest of its stores has said: with stores that tick at different moments each row waits for
almost a whole interval more, and the log moves, and costs requests, once for each store instead of once for all.

While nothing is written anywhere in the cluster, ticks come each `idle_s` instead, if that is given: a file of an idle
store costs as much as one of a busy store. The first row ends that at once, for all stores that share the Pace. A
store that is idle in a cluster that is not has to speak each interval, or its silence would hold all others back; so
one Pace must know of all stores of the cluster.

The ticks of different tenants lie apart: `phase`, the same for all stores of a tenant, says where.

Wall clocks may be wrong and may jump: no tick comes sooner than half an interval after the one before, nor later than
one and a half. Which ticks fall together is a matter of cost only, never of correctness.
"""

from __future__ import annotations

import zlib

from tistream.clock import Clock
from tistream.ids import Tenant

IDLE_AFTER_S = 10.0  #: without a row


class Pace:
    """Shared by the sources of a process. Safe to use from several threads."""

    def __init__(self, clock: Clock, *, flush_s: float = 1.0, idle_s: float | None = None, phase: float = 0.0) -> None:
        """`idle_s`: None = no other than `flush_s`. `phase`: 0 to 1, of an interval."""
        self._clock, self._flush_s = clock, flush_s
        self._idle_s = max(flush_s, flush_s if idle_s is None else idle_s)
        self._phase = phase
        self._wrote_at = clock.monotonic()

    @classmethod
    def of(cls, tenant: Tenant, clock: Clock, *, flush_s: float = 1.0, idle_s: float | None = None) -> Pace:
        """The pace of a tenant's stores."""
        phase = zlib.crc32(str(tenant).encode()) / (1 << 32)
        return cls(clock, flush_s=flush_s, idle_s=idle_s, phase=phase)

    def wrote(self) -> None:
        """Something came that readers wait for."""
        self._wrote_at = self._clock.monotonic()

    def due_at(self, ticked_at: float) -> float:
        """When the next tick is due after one at `ticked_at`, both in the clock's monotonic seconds. Ask again: it may
        be sooner by then."""
        now = self._clock.monotonic()
        interval_s = self._flush_s if now - self._wrote_at < IDLE_AFTER_S else self._idle_s
        ticked_unix_s = self._clock.unix_ms() / 1000 - (now - ticked_at) - self._phase * interval_s
        pause_s = interval_s - ticked_unix_s % interval_s
        return ticked_at + (pause_s if pause_s > interval_s / 2 else pause_s + interval_s)
