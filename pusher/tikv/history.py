"""Holds back the cluster's garbage collection for what a tenant still has to read, and no longer than agreed.

    needed ts (the lowest that anybody may register at) -> a service safe point or GC barrier in PD that ends by itself

An opening scan reads everything committed above its checkpoint_ts. What has been collected of that is missing without a
word: no store refuses the registration. So:

- history is held at `needed`, which is never above the published frontier nor any checkpoint whose scan goes on;
- `covers(ts)` is true only while a hold at or below `ts` stands in PD. Nothing is registered otherwise (HeldFrontier),
  and no opening scan that it did not cover to its end is called ready;
- whether it stands is judged by the newest timestamp of PD as well as by the monotonic clock, which stands still while
  a machine is suspended and PD's does not. Whoever registers takes a timestamp right before;
- a hold ends by itself once `needed` has become older than `cap_s`, also when everybody who could end it is gone: that
  is its time to live. Beyond the cap history is not held any more, registrations wait until the frontier has moved on,
  and `problem` says so;
- when PD says that history is gone already, TsExpired goes up: what is registered there would have a hole. What lives
  needs no history, and the frontier may still rise above what is gone, by files that are in the bucket: until then
  registrations wait, and `problem` says so.

`Hold` is one hold; whoever owns it calls `renew` from time to time.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from pusher.control import ControlUnavailable
from pusher.frontier import Frontier, FrontierReader, lowest_durable_ts
from tistream import ts as tso
from tistream.clock import Clock
from tistream.errors import StoreUnavailable, TiStreamError, TsExpired
from tistream.ts import to_text

log = structlog.get_logger(__name__)

CAP_S = 24 * 3600  #: history is held for no longer than this
_AHEAD_MS = 60_000  #: a frontier may be newer than the newest timestamp that this process took
_MARGIN_S = 30.0  # a hold counts as over so long before PD ends it
_RESTART = (
    "The tenant cannot go on without a gap. Start it anew: register another tenant, which begins with a schema snapshot"
    " of now."
)


class HistoryPd(Protocol):
    """What is asked of PD."""

    @property
    def newest_tso(self) -> int: ...
    def tso(self) -> int: ...
    def hold_history(self, name: str, ts: int, ttl_s: int) -> None: ...
    def release_history(self, name: str) -> None: ...


class Hold:
    """One hold, under one name. `renew` is called from one thread, the rest from any."""

    def __init__(self, pd: HistoryPd, name: str, *, clock: Clock, cap_s: float = CAP_S) -> None:
        self.name = name
        self._pd, self._clock, self._cap_s = pd, clock, cap_s
        self._held: tuple[int, float, float] | None = None  # (ts; until when: monotonic seconds, PD's milliseconds)
        self.problem = ""  #: why history is not held

    @property
    def held_ts(self) -> int:
        """What stands in PD now, 0 = nothing."""
        held = self._held
        if held is None or self._clock.monotonic() >= held[1]:
            return 0
        return held[0] if self.newest_ms < held[2] else 0

    @property
    def newest_ms(self) -> int:
        """The newest time of PD that is known."""
        return tso.physical_ms(self._pd.newest_tso)

    def covers(self, ts: int) -> bool:
        """Whether everything committed above `ts` can be read now."""
        return 0 < self.held_ts <= ts

    def renew(self, needed: int) -> None:
        """Hold everything above `needed`, if it is not too old. TsExpired when it is gone; errors of PD."""
        asked_at, now_ms = self._clock.monotonic(), tso.physical_ms(self._pd.tso())
        age_s = (now_ms - tso.physical_ms(needed)) / 1000
        if age_s < 0:
            raise StoreUnavailable("PD has not given this timestamp yet, nothing is read there", ts=needed)
        ttl_s = int(self._cap_s - age_s)
        if ttl_s <= _MARGIN_S:
            self._give_up(needed, age_s)
            return
        try:
            self._pd.hold_history(self.name, needed, ttl_s)
        except TsExpired as e:
            self._lose(f"the cluster's history above {needed} ({to_text(needed)}) is gone", needed, age_s)
            e.hint = _RESTART
            raise
        stands_s = ttl_s - _MARGIN_S
        self._held = (needed, asked_at + stands_s, now_ms + stands_s * 1000)
        if self.problem:
            log.info("history is held again", name=self.name, ts=needed)
            self.problem = ""

    def release(self) -> None:
        """End the hold; what PD cannot be told ends by itself."""
        self._held = None
        try:
            self._pd.release_history(self.name)
        except TiStreamError as e:
            log.warning("a hold on history could not be ended, it ends by itself", name=self.name, error=str(e))

    def _give_up(self, needed: int, age_s: float) -> None:
        words = f"the cluster's garbage collection is held for {self._cap_s / 3600:g} h at most"
        self._lose(words, needed, age_s)

    def _lose(self, why: str, needed: int, age_s: float) -> None:
        self._held = None
        if not self.problem:
            log.error("history is not held any more", name=self.name, ts=needed, age_s=round(age_s), cap_s=self._cap_s)
        self.problem = (
            f"the tenant stands at {needed} ({to_text(needed)}), {age_s / 3600:.1f} h behind; {why}, so ranges that"
            " have to be registered anew wait until it has caught up"
        )


class HeldFrontier(FrontierReader):
    """The frontier as those see it who register: nothing while the history above it is not held, and nothing of one
    that lies in the cluster's future, where a store would send too little without a word."""

    def __init__(self, control: object, clock: Clock, hold: Hold) -> None:
        super().__init__(control, clock)  # type: ignore[arg-type]  # whatever gives a frontier
        self._hold = hold
        self.lowest: int | None = None  #: of the newest frontier that was given out or could have been

    def read(self) -> Frontier:
        """As FrontierReader.read."""
        frontier = super().read()
        self.lowest = lowest_durable_ts(frontier)
        if self.lowest is None or not self._hold.covers(self.lowest):
            return ()
        highest = max(entry.durable_ts for entry in frontier)
        if tso.physical_ms(highest) > self._hold.newest_ms + _AHEAD_MS:
            self.error = ControlUnavailable("the frontier lies in the future of the cluster", durable_ts=highest)
            return ()
        return frontier
