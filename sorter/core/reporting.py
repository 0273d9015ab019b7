"""Heartbeat report of a sorter's tasks.

At most TASKS_REPORTED_MAX tasks are reported: the busiest first, then stalled ones, then others. Explaining a stalled
watermark reads all slices of a task, so only a few tasks are explained per report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sorter.core.task_core import TaskCore
from sorter.core.traffic import Traffic
from sorter.core.watermark import Stuck
from tistream.catalog.rows.reports import STUCK_MAX, StuckReport, TaskReport, WorkerReport
from tistream.catalog.rows.tasks import TaskRow

TASKS_REPORTED_MAX = 2_000
SPLITS_REPORTED_MAX = 64  #: of the busiest tasks, with a split key
PROBLEMS_REPORTED_MAX = 20
EXPLAIN_AFTER_S = 10.0  #: a watermark stalled for so long is explained ...
EXPLAIN_EVERY_S = 10.0  #: ... and again after this long
EXPLAINED_AT_ONCE = 5


class Reported(Protocol):
    """A task as its runner has it."""

    row: TaskRow
    traffic: Traffic

    @property
    def core(self) -> TaskCore: ...

    def held_bytes(self) -> int: ...


class Reporter:
    """Builds reports and caches why watermarks are stalled."""

    def __init__(self) -> None:
        self._explained: dict[int, tuple[tuple[StuckReport, ...], float]] = {}

    def look(
        self,
        tasks: Sequence[Reported],
        stalled_s: Mapping[int, float],
        problems: Iterable[Mapping[str, Any]],
        now_s: float,
    ) -> WorkerReport:
        """The report. `stalled_s`: task -> seconds since its watermark moved; `now_s` is monotonic."""
        for task in tasks:
            task.traffic.tick(now_s)
        order = sorted(
            tasks, key=lambda t: (-t.traffic.bytes_per_s, -stalled_s.get(t.row.task_id, 0.0), t.row.task_id)
        )[:TASKS_REPORTED_MAX]
        self._explain(order, stalled_s, now_s)
        reports = tuple(self._report(task, stalled_s, splits=i < SPLITS_REPORTED_MAX) for i, task in enumerate(order))
        return WorkerReport(
            bytes_per_s=sum(task.traffic.bytes_per_s for task in tasks),
            held_bytes=sum(report.held_bytes for report in reports),
            tasks=reports,
            problems=tuple(dict(problem) for problem in problems)[:PROBLEMS_REPORTED_MAX],
        )

    def _explain(self, tasks: Sequence[Reported], stalled_s: Mapping[int, float], now_s: float) -> None:
        stalled = {t.row.task_id: t for t in tasks if stalled_s.get(t.row.task_id, 0.0) >= EXPLAIN_AFTER_S}
        self._explained = {task_id: known for task_id, known in self._explained.items() if task_id in stalled}
        never = float("-inf")
        oldest = sorted(stalled, key=lambda task_id: self._explained.get(task_id, ((), never))[1])
        for task_id in oldest[:EXPLAINED_AT_ONCE]:
            if now_s - self._explained.get(task_id, ((), never))[1] >= EXPLAIN_EVERY_S:
                stuck = stalled[task_id].core.explain()
                shown = [*stuck[: STUCK_MAX - 1], *stuck[STUCK_MAX - 1 :][-1:]]  # the last one is the open transaction
                self._explained[task_id] = tuple(map(_stuck, shown)), now_s

    def _report(self, task: Reported, stalled_s: Mapping[int, float], *, splits: bool) -> TaskReport:
        task_id, traffic = task.row.task_id, task.traffic
        return TaskReport(
            task_id=task_id,
            epoch=task.row.epoch,
            rows_per_s=round(traffic.rows_per_s, 1),
            bytes_per_s=round(traffic.bytes_per_s, 1),
            open_rows=task.core.open_rows(),
            held_bytes=task.held_bytes(),
            watermark=task.core.watermark(),
            split_key=traffic.split_key(task.row.range) if splits else None,
            standing_s=round(stalled_s.get(task_id, 0.0), 1),
            stuck=self._explained.get(task_id, ((), 0.0))[0],
        )


def _stuck(stuck: Stuck) -> StuckReport:
    return StuckReport(
        start_key=stuck.range.start,
        end_key=stuck.range.end,
        watermark=stuck.w,
        region_id=stuck.region_id,
        version=stuck.version,
        store_id=stuck.store_id,
        file=stuck.file,
        start_ts=stuck.start_ts,
        reason=stuck.reason,
    )
