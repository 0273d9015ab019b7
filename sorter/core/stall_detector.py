"""Whose watermark stands still: shown to operators with the region, store and file that it waits for.

Every store says anew each second how far its regions are complete, written to or not, so a watermark that stands for
STALLED_AFTER_S while others go on has lost somebody: a store, a region's leader, the outcome of a transaction. A task to
which nothing comes at all has nothing to wait for: its pushers have ended, as after a recording, and the lag says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from sorter.core.task_core import TaskCore
from sorter.core.watermark import Stuck
from sorter.rows.saved import RowsOutOfReach, StateUnreadable
from tistream.errors import WatermarkStalled
from tistream.keyrange import KeyRange
from tistream.runtime.service import Problem

STALLED_AFTER_S = 30.0
REASONS_MAX = 3  #: told with a problem; `explain` tells them all


class StallDetector:
    """Since when the watermark of each task has stood where it is."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int | None, float]] = {}
        self._heard: dict[int, tuple[int, float]] = {}  # task -> batches, since when there are so many
        self.problems: list[Problem] = []

    def standing_s(self, now_s: float) -> dict[int, float]:
        """Task -> for how long its watermark has been where it is, as of the last look."""
        return {task_id: max(0.0, now_s - since) for task_id, (_, since) in self._since.items()}

    def look(self, cores: Mapping[int, TaskCore], now_s: float) -> None:
        """Look at the tasks that go on; `now_s` is the clock's monotonic time."""
        since, heard, problems = {}, {}, []
        for task_id, core in cores.items():
            w = core.watermark()
            before = self._since.get(task_id)
            since[task_id] = before if before is not None and before[0] == w else (w, now_s)
            known = self._heard.get(task_id)
            heard[task_id] = known if known is not None and known[0] == core.batches else (core.batches, now_s)
            if now_s - since[task_id][1] >= STALLED_AFTER_S > now_s - heard[task_id][1]:
                problems.append(Problem.of(f"task {task_id}", _told(core, w)))
        self._since, self._heard, self.problems = since, heard, problems


def explained(core: TaskCore, range_: KeyRange | None = None) -> list[Stuck]:
    """What the watermark waits for, also where the rows that would say it cannot be fetched."""
    try:
        return core.explain(range_)
    except (RowsOutOfReach, StateUnreadable) as e:
        return [Stuck(range=core.range if range_ is None else range_, w=None, reason=f"not known: {e}")]


def _told(core: TaskCore, w: int | None) -> WatermarkStalled:
    stuck = explained(core)
    first = stuck[0] if stuck else None
    facts = {"region": first.region_id, "store": first.store_id, "file": first.file} if first else {}
    reasons = "; ".join(str(s) for s in stuck[:REASONS_MAX])
    more = f"; and {len(stuck) - REASONS_MAX} more" if len(stuck) > REASONS_MAX else ""
    return WatermarkStalled(f"the watermark stands still: {reasons}{more}", task=core.task_id, watermark=w, **facts)
