"""Where new subscriptions start: the published frontier and the rules that pushers derive from it.

The frontier lists, for each task of the tenant, its durable watermark (`durable_ts`) and how often new subscriptions
were requested (`resubscribe_id`). Rules:

- the checkpoint_ts of a region is the smallest `durable_ts` of the entries that its range touches. Such a watermark row
  is always admissible, because a sorter's W is at or above its published durable watermark;
- a region that touches no entry starts at the largest durable watermark. No task reads it, so nothing can be lost; when
  a task appears there, its entry is new to the subscription, which is then resubscribed;
- a region is resubscribed when an entry over its range has a larger resubscribe_id than the entries at the same place
  had when the subscription was opened, or when there was no entry.

`FrontierReader` keeps the last answer: with the service away an old frontier is only lower, which costs duplicates and
loses nothing.
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
_PAUSE_SHARE = 9  # times the duration of the failed request: a hanging service takes a tenth of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierEntry:
    range: KeyRange
    durable_ts: int  #: the committed log is complete up to here
    resubscribe_id: int  #: rises when this range needs new subscriptions


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
    """The lower bound of all checkpoints taken from this frontier; None while none is published."""
    return min((entry.durable_ts for entry in frontier), default=None)


def wants_resubscribe(opened_with: Frontier, now: Frontier, region: KeyRange) -> bool:
    """Whether a subscription of this region that was opened with one frontier must be reopened under another."""
    for entry in now:
        common = entry.range.intersect(region)
        if common is None:
            continue
        before = max((e.resubscribe_id for e in opened_with if e.range.intersect(common)), default=-1)
        if entry.resubscribe_id > before:
            return True
    return False


def pause_after_error(took_s: float) -> float:
    """Seconds to wait after a failed request that took `took_s`."""
    return max(_PAUSE_AFTER_ERROR_S, _PAUSE_SHARE * took_s)


class FrontierReader:
    """Reads and caches the frontier. Used from one thread; the pushers of a process may share it."""

    def __init__(self, control: _HasFrontier, clock: Clock) -> None:
        self._control = control
        self._clock = clock
        self._frontier: Frontier = ()
        self._fresh_until = float("-inf")
        self.error: TiStreamError | None = None  #: of the last attempt; None = it succeeded

    def read(self) -> Frontier:
        """The frontier, at most FRONTIER_CACHE_MS old, or the last one while the service is away; () = none published.

        Raises errors of the control plane that are not kind RETRY."""
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
