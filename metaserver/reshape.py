"""Decides which tasks are split and which are merged (pure).

    split    a data task with at least split_bytes_per_s for split_after_s, at the key that halves its reported traffic,
             while its tenant has fewer than tasks_max
    merge    two neighbours that together have at most merge_bytes_per_s for merge_after_s, while their tenant has more
             than tasks_min; repeated when their owners differ
    cancel   a merge requested here and not done yet, when the two are no longer cold

At most one change per tenant at a time. A new task has no history and is left alone until it has been hot or cold for
as long as any other; between the two bounds nothing happens. A task without a report of its owner is neither hot nor
cold. DDL tasks, stopped tasks and tasks without an owner stay as they are.

Reports are not trusted: at worst the wrong task is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeGuard

from tistream.catalog.rows.reports import TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshapeSettings:
    """When tasks are split and merged. A rate of 0 = never."""

    split_bytes_per_s: float = 0.0
    split_after_s: float = 30.0
    merge_bytes_per_s: float = 0.0
    merge_after_s: float = 600.0
    tasks_min: int = 1  #: data tasks of a tenant below which none are merged
    tasks_max: int = 64  #: data tasks of a tenant above which none are split


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Split the task at `key`."""

    task: TaskRow
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Request the merge of two neighbours."""

    left: TaskRow
    right: TaskRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Withdraw the merge of the task with its neighbour."""

    task: TaskRow


Change = Split | Merge | Cancel


class Reshaper:
    """Remembers since when tasks have been hot or cold."""

    def __init__(self, settings: ReshapeSettings) -> None:
        self._settings = settings
        self._hot: dict[int, float] = {}  # task -> since
        self._cold: dict[tuple[int, int], float] = {}  # neighbours -> since
        self._requested: set[tuple[int, int]] = set()  # merges; those of operators are not cancelled

    def changes(self, rows: Sequence[TaskRow], reports: Mapping[int, TaskReport], now_s: float) -> list[Change]:
        """The changes to request. `reports`: of the current owners, at their current epochs."""
        data = sorted((row for row in rows if row.kind is TaskKind.DATA), key=lambda row: (row.tenant, row.range))
        hot: dict[int, float] = {}
        cold: dict[tuple[int, int], float] = {}
        changes: list[Change] = []
        for _, group in groupby(data, key=lambda row: row.tenant):
            group_tasks = list(group)
            hot |= {row.task_id: self._hot.get(row.task_id, now_s) for row in group_tasks if self._is_hot(row, reports)}
            cold |= {
                _ids(pair): self._cold.get(_ids(pair), now_s)
                for pair in pairwise(group_tasks)
                if self._is_cold(*pair, reports)
            }
            change = next(self._of_tenant(group_tasks, reports, hot, cold, now_s), None)
            changes += [] if change is None else [change]
        there = {row.task_id for row in data}
        self._requested = {pair for pair in self._requested if there.issuperset(pair)}
        self._requested |= {(change.left.task_id, change.right.task_id) for change in changes if _is_fresh(change)}
        self._hot, self._cold = hot, cold
        return changes

    def _of_tenant(
        self,
        rows: Sequence[TaskRow],
        reports: Mapping[int, TaskReport],
        hot: Mapping[int, float],
        cold: Mapping[tuple[int, int], float],
        now_s: float,
    ) -> Iterator[Change]:
        settings = self._settings
        under_way = [pair for pair in pairwise(rows) if pair[0].merge_with == pair[1].task_id]
        for left, right in under_way:
            pair = left.task_id, right.task_id
            if pair in self._requested and pair not in cold and reports.keys() >= set(pair):
                yield Cancel(task=left)
            elif left.owner != right.owner and left.error is None and right.error is None:
                yield Merge(left=left, right=right)
        due = [row for row in rows if row.task_id in hot and now_s - hot[row.task_id] >= settings.split_after_s]
        if len(rows) < settings.tasks_max:
            for row in sorted(due, key=lambda row: (-reports[row.task_id].bytes_per_s, row.task_id)):
                key = reports[row.task_id].split_key
                if row.merge_with is None and key is not None and key in row.range and key != row.range.start:
                    yield Split(task=row, key=key)
        if len(rows) - len(under_way) > settings.tasks_min and not under_way:
            for left, right in pairwise(rows):
                if now_s - cold.get((left.task_id, right.task_id), now_s) >= settings.merge_after_s:
                    yield Merge(left=left, right=right)

    def _is_hot(self, row: TaskRow, reports: Mapping[int, TaskReport]) -> bool:
        bound = self._settings.split_bytes_per_s
        return 0 < bound <= _rate(row, reports, otherwise=0.0)

    def _is_cold(self, left: TaskRow, right: TaskRow, reports: Mapping[int, TaskReport]) -> bool:
        bound, unknown = self._settings.merge_bytes_per_s, float("inf")
        if not bound or left.range.end != right.range.start or left.start_ts != right.start_ts:
            return False
        return sum(_rate(row, reports, otherwise=unknown) for row in (left, right)) <= bound


def _is_fresh(change: Change) -> TypeGuard[Merge]:
    """Whether it is a merge that was not requested before."""
    return isinstance(change, Merge) and change.left.merge_with != change.right.task_id


def _rate(row: TaskRow, reports: Mapping[int, TaskReport], *, otherwise: float) -> float:
    report = reports.get(row.task_id)
    return otherwise if report is None or row.owner is None or row.error is not None else report.bytes_per_s


def _ids(pair: tuple[TaskRow, TaskRow]) -> tuple[int, int]:
    return pair[0].task_id, pair[1].task_id
