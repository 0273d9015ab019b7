"""Queue of commits that W(key) has reached and that are not decided yet, handed out in slices.

Queued commits hold the watermark: a commit_ts is written only when all of its commits are decided. Runs are searched
until the first slice is full; the other runs, and saved ones that are not loaded, wait with their lowest commit_ts.

Matched prewrites leave only after the last slice (`spend`, then `done`), so results do not depend on where slices are
cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from sorter.core.watermark import RangeWatermarkMap
from sorter.core.watermark_index import Thresholds, may_reach, reached
from sorter.rows.kernels import I64, Flags
from sorter.rows.run import PROBED, Need, Run

DECIDE_ROWS = 1 << 16  #: commits that one slice decides


class DecisionQueue:
    def __init__(self) -> None:
        self._found: deque[tuple[Run, I64, int]] = deque()  # reached commits; their lowest commit_ts
        self._unsearched: deque[tuple[Run, int]] = deque()  # runs not searched yet; their lowest commit_ts
        self._spent: dict[int, tuple[Run, Flags]] = {}

    def __bool__(self) -> bool:
        return bool(self._found or self._unsearched)

    def look(self, commits: Iterable[Run], watermarks: RangeWatermarkMap) -> None:
        found = 0
        for run in commits:
            if not run.live:
                continue
            if found >= DECIDE_ROWS or (run.missing(PROBED) and may_reach(run, run.span("commit_ts")[0], watermarks)):
                self._unsearched.append((run, run.span("commit_ts")[0]))
            elif len(at := _reached(run, watermarks)):
                self._found.append((run, at, int(run.ts("commit_ts")[at].min())))
                found += len(at)

    def slice(self, watermarks: RangeWatermarkMap) -> Iterator[tuple[Run, I64]]:
        """Remove and yield up to DECIDE_ROWS commits, by run: a full slice once `needs` is empty, where there are as
        many."""
        self._search(watermarks)
        left = DECIDE_ROWS
        while left > 0 and self._found:
            run, at, _ = self._found.popleft()
            now, later = at[:left], at[left:]
            if len(later):
                self._found.appendleft((run, later, int(run.ts("commit_ts")[later].min())))
            left -= len(now)
            yield run, now

    def next(self, watermarks: RangeWatermarkMap) -> list[tuple[Run, I64]]:
        """The commits that the next slice is cut from; none when their run is not loaded, see `needs`."""
        self._search(watermarks)
        return [(run, at) for run, at, _ in self._found]

    def needs(self) -> list[Need]:
        """What must be loaded before the next slice is full. Call after `next`, which searches what is loaded."""
        full = sum(len(at) for _, at, _ in self._found) >= DECIDE_ROWS
        return [] if full or not self._unsearched else self._unsearched[0][0].missing(PROBED)

    def _search(self, watermarks: RangeWatermarkMap) -> None:
        """Search further runs until the next slice is full, up to one that is not loaded."""
        count = sum(len(at) for _, at, _ in self._found)
        while count < DECIDE_ROWS and self._unsearched and not self._unsearched[0][0].missing(PROBED):
            run, low = self._unsearched.popleft()
            if len(at := _reached(run, watermarks)):
                self._found.append((run, at, low))
                count += len(at)

    def lowest(self) -> list[int]:
        """Lower bounds of all queued commit timestamps."""
        return [low for *_, low in self._found] + [low for _, low in self._unsearched]

    def spend(self, run: Run, rows: I64) -> None:
        """Mark prewrites that were matched."""
        self._spent.setdefault(id(run), (run, np.zeros(len(run), np.bool_)))[1][rows] = True

    def done(self) -> None:
        """Drop the matched prewrites: all slices are decided."""
        for run, flags in self._spent.values():
            run.kill(np.flatnonzero(flags))
        self._spent.clear()


def _reached(run: Run, watermarks: RangeWatermarkMap) -> I64:
    lowest = run.span("commit_ts")[0]
    if not may_reach(run, lowest, watermarks):
        return np.empty(0, np.int64)
    return reached(run, Thresholds(run.ts("commit_ts"), lowest), watermarks, strictly=False)
