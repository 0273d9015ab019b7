"""The commits that W(key) has reached and that are not decided yet, handed out in slices.

Whatever is here holds the watermark: a commit_ts is written only when all of it is decided. Runs are looked through
until a first slice's worth has been found; the others wait as a whole, with the lowest commit_ts that lives in them.

Prewrites that have been matched leave when all slices are done (`spend`, then `done`), so that what a slice finds does
not depend on where the slices were cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from sorter.core.watermark import RangeWatermarkMap
from sorter.core.watermark_index import Thresholds, may_reach, reached
from sorter.rows.kernels import I64, Flags
from sorter.rows.run import Run

DECIDE_ROWS = 1 << 16  #: commits that one slice decides


class DecisionQueue:
    """What is to be decided."""

    def __init__(self) -> None:
        self._found: deque[tuple[Run, I64, int]] = deque()  # reached commits; their lowest commit_ts
        self._unseen: deque[tuple[Run, int]] = deque()  # runs to look for such in; their lowest commit_ts
        self._spent: dict[int, tuple[Run, Flags]] = {}

    def __bool__(self) -> bool:
        return bool(self._found or self._unseen)

    def look(self, commits: Iterable[Run], watermarks: RangeWatermarkMap) -> None:
        """Find what W(key) has reached."""
        found = 0
        for run in commits:
            if not run.live:
                continue
            if found >= DECIDE_ROWS:
                self._unseen.append((run, run.span("commit_ts")[0]))
            elif len(at := _reached(run, watermarks)):
                self._found.append((run, at, int(run.ts("commit_ts")[at].min())))
                found += len(at)

    def slice(self, watermarks: RangeWatermarkMap) -> Iterator[tuple[Run, I64]]:
        """Up to DECIDE_ROWS of them, which are here no longer."""
        room = DECIDE_ROWS
        while room > 0 and self:
            if self._found:
                run, at, _ = self._found.popleft()
                now, later = at[:room], at[room:]
                if len(later):
                    self._found.appendleft((run, later, int(run.ts("commit_ts")[later].min())))
                room -= len(now)
                yield run, now
            else:
                run, low = self._unseen.popleft()
                if len(at := _reached(run, watermarks)):
                    self._found.append((run, at, low))

    def lowest(self) -> list[int]:
        """No commit_ts that is here is lower than all of these."""
        return [low for *_, low in self._found] + [low for _, low in self._unseen]

    def spend(self, run: Run, rows: I64) -> None:
        """These prewrites have done their work."""
        self._spent.setdefault(id(run), (run, np.zeros(len(run), np.bool_)))[1][rows] = True

    def done(self) -> None:
        """All slices are decided: what was spent leaves."""
        for run, flags in self._spent.values():
            run.kill(np.flatnonzero(flags))
        self._spent.clear()


def _reached(run: Run, watermarks: RangeWatermarkMap) -> I64:
    lowest = run.span("commit_ts")[0]
    if not may_reach(run, lowest, watermarks):
        return np.empty(0, np.int64)
    return reached(run, Thresholds(run.ts("commit_ts"), lowest), watermarks, strictly=False)
