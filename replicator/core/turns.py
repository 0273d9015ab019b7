"""Which lane of a worker has the next turn: the one that is due first, unless its changefeed has its share already.

A destination that accepts requests and never answers holds each turn until its deadline. So that it delays no other:

- at most `slots` turns of a changefeed run at a time, and there are twice as many threads;
- at most `slots` of the running turns are young: a turn that has waited for PATIENCE_S leaves its slot to another;
- a changefeed becomes *silent* when one of its turns fails after PATIENCE_S. It stays silent until a turn succeeds, or
  fails at once. A silent changefeed runs one turn at a time; all of them together take half of `slots`.

A lane whose run is over is due at once. Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from tistream.errors import invariant

PATIENCE_S = 1.0
NOW = float("-inf")

Changefeed = Hashable


@dataclass(frozen=True, slots=True)
class _Turn:
    changefeed: Changefeed
    began_s: float


class Turns:
    """See the module."""

    def __init__(self, slots: int) -> None:
        self._slots, self._silent_max = slots, max(1, slots // 2)
        self._changefeeds: dict[int, Changefeed] = {}
        self._due: dict[int, float] = {}
        self._running: dict[int, _Turn] = {}
        self._silent: set[Changefeed] = set()

    @property
    def threads(self) -> int:
        """How many turns may run."""
        return 2 * self._slots

    def add(self, lane_id: int, changefeed: Changefeed, due_s: float) -> None:
        """A lane that is to be written."""
        self._changefeeds[lane_id], self._due[lane_id] = changefeed, due_s

    def forget(self, lane_id: int) -> None:
        """The lane is not written any more."""
        self._running.pop(lane_id, None)
        self._due.pop(lane_id, None)
        changefeed = self._changefeeds.pop(lane_id)
        if changefeed not in self._changefeeds.values():
            self._silent.discard(changefeed)

    def take(self, now_s: float) -> int | None:
        """The lane that is scheduled now; None when none is due that may run."""
        running_of = Counter(turn.changefeed for turn in self._running.values())
        young = sum(now_s - turn.began_s < PATIENCE_S for turn in self._running.values())
        silent = sum(turn.changefeed in self._silent for turn in self._running.values())
        first: tuple[float, int] | None = None
        for lane_id, due_s in self._due.items():
            if due_s > now_s or (first is not None and (due_s, lane_id) > first):
                continue
            changefeed = self._changefeeds[lane_id]
            if changefeed in self._silent:
                may_run = not running_of[changefeed] and silent < self._silent_max
            else:
                may_run = running_of[changefeed] < self._slots and young < self._slots
            if may_run:
                first = due_s, lane_id
        if first is None:
            return None
        lane_id = first[1]
        del self._due[lane_id]
        self._running[lane_id] = _Turn(self._changefeeds[lane_id], now_s)
        return lane_id

    def ended(self, lane_id: int, now_s: float, due_s: float, *, has_moved: bool, has_failed: bool) -> None:
        """Its turn is over; the next is due at `due_s`. Neither moved nor failed: there was nothing to write."""
        turn = self._running.pop(lane_id, None)
        invariant(turn is not None, "a turn ends once", lane=lane_id)
        assert turn is not None
        self._due[lane_id] = due_s
        if has_failed and now_s - turn.began_s >= PATIENCE_S:
            self._silent.add(turn.changefeed)
        elif has_failed or has_moved:
            self._silent.discard(turn.changefeed)

    def hurry(self, lane_id: int) -> None:
        """Its run is over: it is due at once, unless its turn runs."""
        if lane_id in self._due:
            self._due[lane_id] = NOW

    def wake(self, changefeed: Changefeed, now_s: float) -> None:
        """The waiting lanes of a changefeed are due now."""
        for lane_id in self._due:
            if self._changefeeds[lane_id] == changefeed:
                self._due[lane_id] = min(self._due[lane_id], now_s)
