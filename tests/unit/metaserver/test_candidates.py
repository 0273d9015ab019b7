"""Which tenants are looked at before tasks are split and merged: all of which anything could become."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from metaserver.candidates import candidates
from metaserver.inventory import Columns
from metaserver.reshape import Cancel, Change, Merge, Reshaper, ReshapeSettings, Split
from tests.kit.stalled_task import task_of
from tistream.catalog.rows.reports import TaskReport
from tistream.catalog.rows.tasks import TaskPlace, TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

SETTINGS = ReshapeSettings(
    split_bytes_per_s=100, split_after_s=4, merge_bytes_per_s=10, merge_after_s=4, tasks_min=2, tasks_max=6
)
Said = list[tuple[str, TaskReport]]


def tasks(tenant: int, count: int, first: int) -> list[TaskRow]:
    """Neighbours of one tenant, the first of them a DDL task."""
    return [
        task_of(
            Tenant(1, tenant),
            task_id=first + n,
            kind=TaskKind.DDL if n == 0 else TaskKind.DATA,
            range=KeyRange(b"%02d" % n, b"%02d" % (n + 1)),
            owner=f"s{n % 2}",
        )
        for n in range(count + 1)
    ]


def columns_of(rows: Sequence[TaskRow]) -> Columns:
    tenants = {tenant: n for n, tenant in enumerate(sorted({row.tenant for row in rows}))}
    groups = [tenants[row.tenant] if row.kind is TaskKind.DATA else -1 for row in rows]
    return Columns(
        rows=[TaskPlace(row.task_id, row.tenant, row.kind, row.epoch, row.owner) for row in rows],
        keys=[row.task_id for row in rows],
        owners=[row.owner for row in rows],
        group=np.array(groups, np.int64),
        index={row.task_id: n for n, row in enumerate(rows)},
    )


def said(rows: Sequence[TaskRow], rates: Sequence[float], *, epoch: int = 3) -> Said:
    return [
        (row.owner or "nobody", TaskReport(task_id=row.task_id, epoch=epoch, bytes_per_s=rate, split_key=b"0%d5" % n))
        for n, (row, rate) in enumerate(zip(rows, rates, strict=True))
    ]


def looked_at(rows: Sequence[TaskRow], reports: Said, settings: ReshapeSettings = SETTINGS) -> list[int]:
    return sorted(tenant.tenant_id for tenant in candidates(columns_of(rows), reports, settings))


def test_hot_and_crowded_cold_tenants_are_looked_at_and_no_others() -> None:
    hot, warm, cold, few = tasks(0, 2, 10), tasks(1, 3, 20), tasks(2, 3, 30), tasks(3, 2, 40)
    rates = [0, 100, 0, 0, 50, 50, 50, 0, 50, 5, 5, 0, 1, 1]
    assert looked_at([*hot, *warm, *cold, *few], said([*hot, *warm, *cold, *few], rates)) == [0, 2]


@pytest.mark.parametrize("wrong", ["another epoch", "another owner", "no such task"])
def test_only_the_present_owner_is_believed(wrong: str) -> None:
    rows = tasks(0, 2, 10)
    reports = said(rows, [0, 500, 0], epoch=2 if wrong == "another epoch" else 3)
    if wrong == "another owner":
        reports = [(f"{owner}x", report) for owner, report in reports]
    if wrong == "no such task":
        reports = [(owner, replace(report, task_id=report.task_id + 90)) for owner, report in reports]
    assert looked_at(rows, reports) == []


def test_a_rate_of_zero_switches_off() -> None:
    rows = tasks(0, 3, 10)
    still, busy = said(rows, [0] * 4), said(rows, [1e9] * 4)
    assert looked_at(rows, still) == [0]
    assert looked_at(rows, still, replace(SETTINGS, merge_bytes_per_s=0.0)) == []
    assert looked_at(rows, busy, replace(SETTINGS, split_bytes_per_s=0.0)) == []


def test_without_reports_or_tasks_there_is_nothing_to_look_at() -> None:
    assert looked_at(tasks(0, 3, 10), []) == []
    assert looked_at([], []) == []


def test_what_is_wished_is_the_same_as_if_all_tasks_were_read() -> None:
    """Random traffic over random tenants; merges that were asked for stay under way, or are undone."""
    kinds: Counter[type] = Counter()
    for seed in range(40):
        rand = random.Random(seed)
        rows = [row for t in range(rand.randint(1, 5)) for row in tasks(t, rand.randint(1, 5), 100 * (t + 1))]
        whole, part = Reshaper(SETTINGS), Reshaper(SETTINGS)
        for now_s in range(0, 60, 2):
            reports = said(rows, [rand.choice((0, 0, 1, 4, 5, 6, 11, 60, 100, 500)) for _ in rows])
            reports = reports[:: rand.choice((1, 1, 2))]
            reports_of = {report.task_id: report for _, report in reports}
            merging = {row.tenant for row in rows if row.merge_with is not None}
            few = candidates(columns_of(rows), reports, SETTINGS) | merging
            changes = part.changes([row for row in rows if row.tenant in few], reports_of, now_s)
            assert changes == whole.changes(rows, reports_of, now_s), seed
            kinds.update(map(type, changes))
            rows = after(rows, changes)
    assert min(kinds[kind] for kind in (Split, Merge, Cancel)) > 0, kinds


def after(rows: list[TaskRow], changes: list[Change]) -> list[TaskRow]:
    """The tasks as they are when merges have been asked for."""
    partner = {change.left.task_id: change.right.task_id for change in changes if isinstance(change, Merge)}
    undone = {change.task.task_id for change in changes if isinstance(change, Cancel)}
    return [
        replace(row, merge_with=None if row.task_id in undone else partner.get(row.task_id, row.merge_with))
        for row in rows
    ]
