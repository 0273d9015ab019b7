"""Where a new subscription starts: the published frontier, and what a pusher concludes from it.

The frontier says, for each task of the tenant, up to where the committed log is complete (`durable_ts`), and how
often new subscriptions were asked for there (`resubscribe_id`). The conclusions:

- checkpoint_ts of a region = the smallest `durable_ts` of the entries that its range touches. Such a row is always
  admissible, because each sorter's W is at or above its published durable watermark; entries elsewhere do not matter;
- a region that touches no entry starts at the largest durable watermark known. Nobody listens there, so nothing can
  be lost; and when a task appears there later, its entry is new to the subscription, which is therefore opened again
  (next point);
- a subscription is opened again when an entry over its range has a larger resubscribe_id than the entries that it was
  opened with had in the same place, or when there was none.

`FrontierReader` remembers the last answer: with the service away an old frontier is as good, only lower, and lower
costs duplicates and no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tistream import limits
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.keyrange import KeyRange

_PAUSE_AFTER_ERROR_S = 1.0
_PAUSE_SHARE = 9  # and so many times as long as the failed request took: a service that hangs costs a tenth of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierEntry:
    """One task of the tenant."""

    range: KeyRange
    durable_ts: int  #: everything at or below it is in the committed log
    resubscribe_id: int  #: rises when new subscriptions are wanted in this range


Frontier = tuple[FrontierEntry, ...]


class _HasFrontier(Protocol):
    def frontier(self) -> Sequence[FrontierEntry]: ...


def checkpoint_for(frontier: Frontier, region: KeyRange) -> int | None:
    """checkpoint_ts of a region; None while no frontier is published."""
    if not frontier:
        return None
    touched = [e.durable_ts for e in frontier if e.range.intersect(region)]
    return min(touched) if touched else max(e.durable_ts for e in frontier)


def lowest_durable_ts(frontier: Frontier) -> int | None:
    """No checkpoint_ts that is taken from this frontier lies below it; None while none is published."""
    return min((entry.durable_ts for entry in frontier), default=None)


def wants_resubscribe(opened_with: Frontier, now: Frontier, region: KeyRange) -> bool:
    """Whether a subscription of this region, opened with one frontier, has to be opened again under another."""
    for entry in now:
        common = entry.range.intersect(region)
        if common is None:
            continue
        before = max((e.resubscribe_id for e in opened_with if e.range.intersect(common)), default=-1)
        if entry.resubscribe_id > before:
            return True
    return False


def pause_after_error(took_s: float) -> float:
    """Seconds until the control plane is asked again, after a request that failed and took so long."""
    return max(_PAUSE_AFTER_ERROR_S, _PAUSE_SHARE * took_s)


class FrontierReader:
    """The newest frontier that could be read. Used from one thread; may be shared by the pushers of a process."""

    def __init__(self, control: _HasFrontier, clock: Clock) -> None:
        self._control = control
        self._clock = clock
        self._frontier: Frontier = ()
        self._fresh_until = float("-inf")
        self.error: TiStreamError | None = None  #: why the last attempt failed; None when it did not

    def read(self) -> Frontier:
        """The frontier, at most FRONTIER_CACHE_MS old or, with the service away, the last one; () = none published.

        Raises what the control says, unless that is to try again."""
        now = self._clock.monotonic()
        if now < self._fresh_until:
            return self._frontier
        try:
            answer = tuple(self._control.frontier())
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            self.error = e
            failed = self._clock.monotonic()
            self._fresh_until = failed + pause_after_error(failed - now)
            return self._frontier
        self.error = None
        self._frontier = answer or self._frontier
        self._fresh_until = self._clock.monotonic() + limits.FRONTIER_CACHE_MS / 1000
        return self._frontier
