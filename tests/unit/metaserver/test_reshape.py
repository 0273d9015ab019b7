"""Which tasks are split and merged, from what is reported of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaserver.reshape import Cancel, Change, Merge, Reshaper, ReshapeSettings, Split
from tests.kit.stalled_task import task_of
from tistream.catalog.rows.reports import TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

SETTINGS = ReshapeSettings(
    split_bytes_per_s=100, split_after_s=30, merge_bytes_per_s=10, merge_after_s=60, tasks_min=1, tasks_max=4
)
EDGES = [b"t1", b"t3", b"t5", b"t7"]


def task(task_id: int, edges: tuple[bytes, bytes] | None = None, kind: TaskKind = TaskKind.DATA) -> TaskRow:
    start, end = edges or (EDGES[task_id - 1], EDGES[task_id])
    return task_of(Tenant(1, 1), task_id=task_id, kind=kind, range=KeyRange(start, end))


def told(rates: dict[int, float], key: bytes | None = None) -> dict[int, TaskReport]:
    return {
        task_id: TaskReport(task_id=task_id, epoch=3, bytes_per_s=rate, split_key=key)
        for task_id, rate in rates.items()
    }


def played(
    rows: list[TaskRow], steps: list[tuple[float, dict[int, TaskReport]]], settings: ReshapeSettings = SETTINGS
) -> list[list[Change]]:
    reshaper = Reshaper(settings)
    return [reshaper.changes(rows, reports, now_s) for now_s, reports in steps]


def test_a_task_that_stays_hot_is_split_where_its_traffic_is() -> None:
    rows, hot = [task(1), task(2)], told({1: 20, 2: 100}, b"t4")
    assert played(rows, [(0, hot), (29, hot), (30, hot)]) == [[], [], [Split(task=rows[1], key=b"t4")]]


def test_one_that_was_cooler_for_a_moment_is_not() -> None:
    hot, cool = told({1: 100}, b"t2"), told({1: 99}, b"t2")
    for pause in (cool, {}):
        assert played([task(1)], [(0, hot), (20, pause), (21, hot), (50, hot)]) == [[], [], [], []]


@pytest.mark.parametrize("key", [None, b"t1", b"t3", b"t9", b"a"])
def test_without_a_key_inside_it_stays(key: bytes | None) -> None:
    hot = told({1: 1000}, key)
    assert played([task(1)], [(0, hot), (99, hot)]) == [[], []]


@pytest.mark.parametrize(
    "row",
    [
        task(1, kind=TaskKind.DDL),
        replace(task(1), error="broken"),
        replace(task(1), owner=None),
        replace(task(1), merge_with=2),
    ],
    ids=["ddl", "stopped", "nobody's", "to be merged"],
)
def test_what_is_not_split(row: TaskRow) -> None:
    hot = told({1: 1000}, b"t2")
    assert played([row], [(0, hot), (99, hot)]) == [[], []]


def test_a_tenant_has_so_many_tasks_at_most_and_one_change_at_a_time() -> None:
    rows = [task(1), task(2), task(3)]
    hot = told({1: 200, 2: 300, 3: 200}, b"t4")
    steps = [(0.0, hot), (40.0, hot)]
    assert played(rows, steps)[-1] == [Split(task=rows[1], key=b"t4")]
    assert played(rows, steps, replace(SETTINGS, tasks_max=3))[-1] == []
    assert played(rows, steps, replace(SETTINGS, split_bytes_per_s=0))[-1] == []


def test_neighbours_that_stay_cold_are_merged() -> None:
    rows, cold = [task(1), task(2), task(3)], told({1: 8, 2: 5, 3: 5})
    assert played(rows, [(0, cold), (59, cold), (60, cold)]) == [[], [], [Merge(left=rows[1], right=rows[2])]]
    assert played(rows, [(0, cold), (60, cold)], replace(SETTINGS, tasks_min=3))[-1] == []
    assert played(rows, [(0, cold), (60, cold)], replace(SETTINGS, merge_bytes_per_s=0))[-1] == []


def test_who_says_nothing_is_not_cold_and_what_does_not_touch_is_not_merged() -> None:
    assert played([task(1), task(2)], [(0, told({1: 0})), (99, told({1: 0}))]) == [[], []]
    apart, cold = [task(1), task(3)], told({1: 0, 3: 0})
    assert played(apart, [(0, cold), (99, cold)]) == [[], []]
    other = [task(1), replace(task(2), start_ts=2)]
    assert played(other, [(0, told({1: 0, 2: 0})), (99, told({1: 0, 2: 0}))]) == [[], []]


def test_between_the_bounds_nothing_happens() -> None:
    rows, warm = [task(1), task(2)], told({1: 6, 2: 99}, b"t4")
    assert played(rows, [(0, warm), (1000, warm)]) == [[], []]


def test_a_merge_is_asked_for_again_when_its_tasks_have_two_owners_and_cancelled_when_they_are_cold_no_more() -> None:
    rows, cold = [task(1), task(2)], told({1: 1, 2: 1})
    reshaper = Reshaper(SETTINGS)
    assert reshaper.changes(rows, cold, 0) == []
    assert reshaper.changes(rows, cold, 60) == [Merge(left=rows[0], right=rows[1])]
    merging = [replace(rows[0], merge_with=2), replace(rows[1], merge_with=1)]
    assert reshaper.changes(merging, cold, 62) == []
    apart = [merging[0], replace(merging[1], owner="s2")]
    assert reshaper.changes(apart, cold, 64) == [Merge(left=apart[0], right=apart[1])]
    assert reshaper.changes(merging, told({1: 1, 2: 50}), 66) == [Cancel(task=merging[0])]
    assert reshaper.changes(merging, {}, 68) == [], "nothing is known of them"


def test_what_people_ask_for_is_not_cancelled() -> None:
    merging = [replace(task(1), merge_with=2), replace(task(2), merge_with=1, owner="s2")]
    warm = told({1: 50, 2: 50})
    assert played(merging, [(0, warm), (99, warm)]) == [[Merge(left=merging[0], right=merging[1])]] * 2
