"""Queue of commits that W(key) has reached and that are not decided yet, handed out in slices.

Queued commits hold the watermark: a commit_ts is written only when all of its commits are decided. Runs are searched
until the first slice is full; the other runs, and saved ones that are not loaded, wait with their lowest commit_ts.

Matched prewrites leave only after the last slice (`spend`, then `done`), so results do not depend on where slices are
cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from sorter.core.watermark import RangeWatermarkMap
from sorter.core.watermark_index import Thresholds, may_reach, reached
from sorter.rows.run import PROBED, Run, require
from tistream.model.arrays import I64, Mask

DECIDE_ROWS = 1 << 16  #: commits that one slice decides


class DecisionQueue:
    def __init__(self) -> None:
        self._found: deque[tuple[Run, I64, int]] = deque()  # reached commits; their lowest commit_ts
        self._unsearched: deque[tuple[Run, int]] = deque()  # runs not searched yet; their lowest commit_ts
        self._spent: dict[int, tuple[Run, Mask]] = {}

    def __bool__(self) -> bool:
        return bool(self._found or self._unsearched)

    def look(self, commits: Iterable[Run], watermarks: RangeWatermarkMap) -> None:
        count = 0
        for run in commits:
            if not run.live:
                continue
            if count >= DECIDE_ROWS or (run.missing(PROBED) and may_reach(run, run.span("commit_ts")[0], watermarks)):
                self._unsearched.append((run, run.span("commit_ts")[0]))
            elif len(at := _reached(run, watermarks)):
                self._found.append((run, at, int(run.ts("commit_ts")[at].min())))
                count += len(at)

    def slice(self, watermarks: RangeWatermarkMap) -> list[tuple[Run, I64]]:
        """Remove DECIDE_ROWS commits, or all if there are fewer; returns them by run."""
        count = sum(len(at) for _, at, _ in self._found)
        while count < DECIDE_ROWS and self._unsearched:
            run, low = self._unsearched[0]
            require([run], PROBED)
            self._unsearched.popleft()
            if len(at := _reached(run, watermarks)):
                self._found.append((run, at, low))
                count += len(at)
        due: list[tuple[Run, I64]] = []
        left = DECIDE_ROWS
        while left > 0 and self._found:
            run, at, _ = self._found.popleft()
            due.append((run, at[:left]))
            if len(at) > left:
                self.put_back([(run, at[left:])])
            left -= len(at)
        return due

    def put_back(self, due: list[tuple[Run, I64]]) -> None:
        """Queue commits again that were not decided."""
        for run, at in reversed(due):
            self._found.appendleft((run, at, int(run.ts("commit_ts")[at].min())))

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
