"""Protects a tenant's unread history from the cluster's garbage collection, for no longer than a cap.

    needed ts (the lowest checkpoint that may be used) -> a GC barrier or service safe point in PD, with a time to live

An opening scan reads everything committed above its checkpoint_ts. What was collected is silently missing: no store
refuses the registration. So:

- history is held at `needed`, at or below the published frontier and every checkpoint of a running scan;
- `covers(ts)` is true only while PD has a barrier at or below `ts`. Nothing is registered otherwise (HeldFrontier), and
  no opening scan becomes ready unless the barrier covered it to its end;
- a scan of RawKV from 0 reads the newest version of every key. `floor_ts`, taken before it, is then what must be held;
- expiry is judged by PD's newest timestamp and by the monotonic clock. A caller that registers takes a timestamp right
  before;
- a barrier expires when `needed` becomes older than `cap_s`, also if its owner is gone: that is its time to live.
  Beyond the cap history is not held, registrations wait until the frontier has advanced, and `problem` says so;
- TsExpired is raised when PD has collected the history already: a registration there would have a gap. Live streams
  need no history, and the frontier may still rise by files in the bucket; until then registrations wait, and `problem`
  says so.

The owner of a `GcBarrier` calls `renew` periodically.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from pusher.control import ControlUnavailable
from pusher.frontier import Frontier, FrontierReader, lowest_durable_ts
from tistream import ts as tso
from tistream.admin.core.units import duration_text
from tistream.clock import Clock
from tistream.errors import StoreUnavailable, TiStreamError, TsExpired
from tistream.ts import to_text

log = structlog.get_logger(__name__)

CAP_S = 24 * 3600  #: history is held for at most this long
_AHEAD_MS = 60_000  #: a frontier may be this much newer than our newest TSO
_MARGIN_S = 30.0  # a barrier counts as expired this long before PD drops it
_RESTART = (
    "The tenant cannot continue without a gap: tistream tenant reseed puts another one in its place, which starts with "
    "a current schema snapshot and all rows."
)


class HistoryPd(Protocol):
    """The requests to PD that a GC barrier needs."""

    @property
    def newest_tso(self) -> int: ...
    def tso(self) -> int: ...
    def hold_history(self, name: str, ts: int, ttl_s: int) -> None: ...
    def release_history(self, name: str) -> None: ...


class GcBarrier:
    """One barrier, by name. `renew` is called from one thread, the rest from any."""

    def __init__(self, pd: HistoryPd, name: str, *, clock: Clock, cap_s: float = CAP_S) -> None:
        self.name = name
        self._pd, self._clock, self._cap_s = pd, clock, cap_s
        self._held: tuple[int, float, float] | None = None  # (ts; expiry in monotonic seconds, in PD's ms)
        self.problem = ""  #: why history is not held
        self.floor_ts = 0  #: nothing that was collected at or below it is missed

    @property
    def held_ts(self) -> int:
        """The timestamp that PD holds now; 0 = none."""
        held = self._held
        if held is None or self._clock.monotonic() >= held[1]:
            return 0
        return held[0] if self.newest_ms < held[2] else 0

    @property
    def newest_ms(self) -> int:
        """The newest known time of PD."""
        return tso.physical_ms(self._pd.newest_tso)

    def covers(self, ts: int) -> bool:
        """Whether everything committed above `ts` can be read now."""
        return 0 < self.held_ts <= max(ts, self.floor_ts)

    def renew(self, needed: int) -> None:
        """Hold everything above `needed`, unless it is too old. TsExpired when it was collected; errors of PD."""
        needed = max(needed, self.floor_ts)
        asked_at, now_ms = self._clock.monotonic(), tso.physical_ms(self._pd.tso())
        age_s = (now_ms - tso.physical_ms(needed)) / 1000
        if age_s < 0:
            raise StoreUnavailable("the timestamp is above PD's newest one", ts=needed)
        ttl_s = int(self._cap_s - age_s)
        if ttl_s <= _MARGIN_S:
            self._lose(f"garbage collection is held back for {self._cap_s / 3600:g} h at most", needed, age_s)
            return
        try:
            self._pd.hold_history(self.name, needed, ttl_s)
        except TsExpired as e:
            gone = f"GC has collected the cluster's history above {needed} ({to_text(needed)})"
            self._lose(gone, needed, age_s, " by files in the bucket; if it cannot: tistream tenant reseed")
            e.hint = _RESTART
            raise
        valid_s = ttl_s - _MARGIN_S
        self._held = (needed, asked_at + valid_s, now_ms + valid_s * 1000)
        if self.problem:
            log.info("GC barrier set again", name=self.name, ts=needed)
            self.problem = ""

    def release(self) -> None:
        """Remove it. If PD is unavailable it expires."""
        self._held = None
        try:
            self._pd.release_history(self.name)
        except TiStreamError as e:
            log.warning("releasing the GC barrier failed, it will expire", name=self.name, error=str(e))

    def _lose(self, why: str, needed: int, age_s: float, or_else: str = "") -> None:
        self._held = None
        if not self.problem:
            log.error("GC barrier lost", name=self.name, ts=needed, age_s=round(age_s), cap_s=self._cap_s)
        self.problem = (
            f"the tenant's watermark is {needed} ({to_text(needed)}), {duration_text(age_s * 1000)} behind; {why}, so"
            f" ranges that must be registered again wait until it has caught up{or_else}"
        )


class HeldFrontier(FrontierReader):
    """The frontier for registrations: empty while history above it is not held, or when it is in the cluster's future,
    where a store would silently send too little."""

    def __init__(self, control: object, clock: Clock, barrier: GcBarrier) -> None:
        super().__init__(control, clock)  # type: ignore[arg-type]  # anything with a frontier
        self._barrier = barrier
        self.lowest: int | None = None  #: of the newest frontier, also if it was not returned

    def read(self) -> Frontier:
        frontier = super().read()
        self.lowest = lowest_durable_ts(frontier)
        if self.lowest is None or not self._barrier.covers(self.lowest):
            return ()
        highest = max(entry.durable_ts for entry in frontier)
        if tso.physical_ms(highest) > self._barrier.newest_ms + _AHEAD_MS:
            self.error = ControlUnavailable("the frontier is in the future of the cluster", durable_ts=highest)
            return ()
        return frontier
