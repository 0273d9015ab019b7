"""Fair scheduling of many tasks that share one loop."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sorter.worker.fair_schedule import IDLE_AT_ONCE, IDLE_S, TAKE_S, FairSchedule
from sorter.worker.owned import MANY_TASKS
from sorter.worker.publisher import Publisher
from sorter.worker.runner import TaskRunner
from tests.kit.manual_clock import ManualClock
from tistream.ids import Tenant

ROWS = (3, MANY_TASKS - 2)  #: tasks that get rows
WRITING = (2, 3, MANY_TASKS - 2, MANY_TASKS - 1)  #: all tasks of their tenants


def runner(task_id: int, *, ready: bool = True) -> TaskRunner:
    inbox = SimpleNamespace(count=int(ready))
    stub = SimpleNamespace(
        task_id=task_id,
        row=SimpleNamespace(tenant=Tenant(1, task_id // 2)),
        more=False,
        inbox=inbox,
        gets_rows=task_id in ROWS,
        publication=f"of {task_id}",
    )
    return cast(TaskRunner, stub)


def took(schedule: FairSchedule, clock: ManualClock, runners: Mapping[int, TaskRunner], each_s: float) -> list[int]:
    """The tasks of a turn, each of which takes so long."""
    taken_ids = []
    for one in schedule.tasks(runners):
        taken_ids.append(one.task_id)
        clock.advance(each_s)
    return taken_ids


def test_few_tasks_take_in_their_order_however_long_it_takes() -> None:
    clock = ManualClock()
    schedule, runners = FairSchedule(clock), {n: runner(n, ready=n != 2) for n in (5, 2, 4)}
    assert took(schedule, clock, runners, TAKE_S * 9) == [5, 4]
    assert not schedule.waiting


def test_with_many_tasks_those_of_writing_tenants_run_every_round_and_the_others_in_rotation() -> None:
    clock = ManualClock()
    schedule, runners = FairSchedule(clock), {n: runner(n) for n in range(MANY_TASKS)}
    turns = [took(schedule, clock, runners, TAKE_S / 10) for _ in range(30)]
    others = []
    for turn in turns:
        assert tuple(turn[: len(WRITING)]) == WRITING
        assert 10 <= len(turn) - len(WRITING) <= 11, "for so long"
        others += turn[len(WRITING) :]
    assert schedule.waiting
    idle = [n for n in range(MANY_TASKS) if n not in WRITING]
    assert others == (idle * 9)[: len(others)], "round and round"


def test_a_round_in_which_all_tasks_ran_leaves_none_waiting() -> None:
    clock = ManualClock()
    schedule, runners = FairSchedule(clock), {n: runner(n, ready=n < 8) for n in range(MANY_TASKS)}
    assert took(schedule, clock, runners, TAKE_S / 9) == [2, 3, 0, 1, 4, 5, 6, 7]
    assert not schedule.waiting


class Quiet:
    """A publisher that knows who is quiet."""

    def __init__(self, busy: set[Tenant], unreadable: set[Tenant]) -> None:
        self._busy, self._unreadable = busy, unreadable

    def is_idle(self, tenant: Tenant, publications: list[Any]) -> bool:
        assert publications == [f"of {tenant.tenant_id}"]
        return tenant not in self._busy | self._unreadable


@pytest.mark.parametrize("whole", [False, True])
def test_tenants_with_rows_are_written_every_round_and_idle_ones_for_a_bounded_time(whole: bool) -> None:
    clock = ManualClock()
    schedule = FairSchedule(clock)
    tenants = [Tenant(1, n) for n in range(IDLE_AT_ONCE * 3 + 3)]
    busy, unreadable = {tenants[70]}, {tenants[-1]}
    publisher = cast(Publisher, Quiet(busy, unreadable))
    by_tenant = {tenant: [runner(tenant.tenant_id)] for tenant in tenants}

    def written() -> list[list[Tenant]]:
        groups = []
        for group in schedule.groups(by_tenant, publisher, everything=whole):
            groups.append(list(group))
            clock.advance(IDLE_S * 0.9)
        return groups

    alone = [[tenants[70]], [tenants[-1]]]
    quiet = [tenant for tenant in tenants if [tenant] not in alone]
    first, second, third, rest = (quiet[at : at + IDLE_AT_ONCE] for at in range(0, len(quiet), IDLE_AT_ONCE))
    if whole:
        assert written() == [*alone, first, second, third, rest]
        assert not schedule.skipped()
        return
    assert written() == [*alone, first, second]
    assert list(schedule.skipped()) == third + rest
    again = quiet[-len(third + rest) :] + quiet[: -len(third + rest)]
    assert written() == [*alone, again[:IDLE_AT_ONCE], again[IDLE_AT_ONCE : 2 * IDLE_AT_ONCE]]
