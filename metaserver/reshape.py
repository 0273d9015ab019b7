"""Which tasks are split and which are merged: the decision alone.

    split    a data task that has had at least split_bytes_per_s for split_after_s, where its report says that half of
             the traffic lies on either side, while its tenant has fewer than tasks_max
    merge    two neighbours that together have had at most merge_bytes_per_s for merge_after_s, while their tenant has
             more than tasks_min; and again, when their owners differ by now
    cancel   a merge wished here that is not done yet, when the two are cold no more

At most one of them for a tenant at a time. A task that has just come has no past, so it is left alone for as long as
any other must have been hot or cold; between the two bounds nothing happens. A task of which its present owner says
nothing is neither. DDL tasks, stopped ones and what has no owner stay as they are.

What a report says is a claim: at worst the wrong task is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeGuard

from tistream.catalog.tenancy.tenants import TaskKind
from tistream.catalog.work.reports import TaskReport
from tistream.catalog.work.tasks import TaskRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshapeSettings:
    """When tasks are split and merged. A rate of 0 = never."""

    split_bytes_per_s: float = 0.0
    split_after_s: float = 30.0
    merge_bytes_per_s: float = 0.0
    merge_after_s: float = 600.0
    tasks_min: int = 1  #: data tasks of a tenant that are not merged further
    tasks_max: int = 64  #: that are not split further


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Cut the task there."""

    task: TaskRow
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Ask for one task in the place of these."""

    left: TaskRow
    right: TaskRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Leave the task and its neighbour as they are after all."""

    task: TaskRow


Wish = Split | Merge | Cancel


class Reshaper:
    """Remembers since when tasks have been hot or cold."""

    def __init__(self, settings: ReshapeSettings) -> None:
        self._settings = settings
        self._hot: dict[int, float] = {}  # task -> since
        self._cold: dict[tuple[int, int], float] = {}  # neighbours -> since
        self._wished: set[tuple[int, int]] = set()  # merges; those that people ask for are not cancelled

    def wishes(self, rows: Sequence[TaskRow], reports: Mapping[int, TaskReport], now_s: float) -> list[Wish]:
        """What is to be done. `reports` are those of the present owners, at their present epochs."""
        data = sorted((row for row in rows if row.kind is TaskKind.DATA), key=lambda row: (row.tenant, row.range))
        hot: dict[int, float] = {}
        cold: dict[tuple[int, int], float] = {}
        found: list[Wish] = []
        for _, group in groupby(data, key=lambda row: row.tenant):
            mine = list(group)
            hot |= {row.task_id: self._hot.get(row.task_id, now_s) for row in mine if self._is_hot(row, reports)}
            cold |= {
                _ids(pair): self._cold.get(_ids(pair), now_s)
                for pair in pairwise(mine)
                if self._is_cold(*pair, reports)
            }
            wish = next(self._of_tenant(mine, reports, hot, cold, now_s), None)
            found += [] if wish is None else [wish]
        there = {row.task_id for row in data}
        self._wished = {pair for pair in self._wished if there.issuperset(pair)}
        self._wished |= {(wish.left.task_id, wish.right.task_id) for wish in found if _is_fresh(wish)}
        self._hot, self._cold = hot, cold
        return found

    def _of_tenant(
        self,
        rows: Sequence[TaskRow],
        reports: Mapping[int, TaskReport],
        hot: Mapping[int, float],
        cold: Mapping[tuple[int, int], float],
        now_s: float,
    ) -> Iterator[Wish]:
        settings = self._settings
        under_way = [pair for pair in pairwise(rows) if pair[0].merge_with == pair[1].task_id]
        for left, right in under_way:
            pair = left.task_id, right.task_id
            if pair in self._wished and pair not in cold and reports.keys() >= set(pair):
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


def _is_fresh(wish: Wish) -> TypeGuard[Merge]:
    """Whether it is a merge that nobody has asked for before."""
    return isinstance(wish, Merge) and wish.left.merge_with != wish.right.task_id


def _rate(row: TaskRow, reports: Mapping[int, TaskReport], *, otherwise: float) -> float:
    report = reports.get(row.task_id)
    return otherwise if report is None or row.owner is None or row.error is not None else report.bytes_per_s


def _ids(pair: tuple[TaskRow, TaskRow]) -> tuple[int, int]:
    return pair[0].task_id, pair[1].task_id
