"""Detects stalled watermarks and names the region, store and file that each one waits for.

Stores report every second how far their regions are complete, even without writes. So a watermark that has not moved
for STALLED_AFTER_S while batches arrive is missing an input: a store, a region's leader, or the outcome of a
transaction. A task that receives no batches is not stalled: its pushers have ended, and the lag shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sorter.core.task_core import TaskCore
from tistream.errors import WatermarkStalled
from tistream.model.problem import Problem

STALLED_AFTER_S = 30.0
REASONS_MAX = 3  #: shown with a problem; `explain` gives all of them


class StallDetector:
    """Remembers when the watermark of each task last moved."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int | None, float]] = {}
        self._batches: dict[int, tuple[int, float]] = {}  # task -> batches taken, and since when that many
        self.problems: list[Problem] = []

    def stalled_s(self, now_s: float) -> dict[int, float]:
        """Task -> seconds since its watermark moved, as of the last look."""
        return {task_id: max(0.0, now_s - since) for task_id, (_, since) in self._since.items()}

    def look(self, cores: Mapping[int, TaskCore], now_s: float) -> None:
        """Check the running tasks; `now_s` is monotonic."""
        since, batches, problems = {}, {}, []
        for task_id, core in cores.items():
            w = core.watermark()
            before = self._since.get(task_id)
            since[task_id] = before if before is not None and before[0] == w else (w, now_s)
            known = self._batches.get(task_id)
            batches[task_id] = known if known is not None and known[0] == core.batches else (core.batches, now_s)
            if now_s - since[task_id][1] >= STALLED_AFTER_S > now_s - batches[task_id][1]:
                problems.append(Problem.of(f"task {task_id}", _error(core, w)))
        self._since, self._batches, self.problems = since, batches, problems


def _error(core: TaskCore, w: int | None) -> WatermarkStalled:
    stuck = core.explain()
    first = stuck[0] if stuck else None
    facts = {"region": first.region_id, "store": first.store_id, "file": first.file} if first else {}
    reasons = "; ".join(str(s) for s in stuck[:REASONS_MAX])
    more = f"; and {len(stuck) - REASONS_MAX} more" if len(stuck) > REASONS_MAX else ""
    return WatermarkStalled(f"the watermark is stalled: {reasons}{more}", task=core.task_id, watermark=w, **facts)
