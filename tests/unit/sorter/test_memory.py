"""Which tasks may take batches, and what is spilled, as memory grows and the disk fails."""

from __future__ import annotations

import pytest

from sorter.core.eviction import Disk
from sorter.worker import memory
from sorter.worker.memory import Memory
from sorter.worker.spill import Spill
from tistream.errors import StoreUnavailable

BUDGET = 1000


class Rows:
    """A task's rows: so many bytes, of which some can be moved out."""

    def __init__(self, held: int, fixed: int = 0) -> None:
        self.held, self.fixed = held, fixed
        self.asked: list[int] = []
        self.disk_full = False

    def evict(self, disk: Disk, bytes_wanted: int) -> int:
        self.asked.append(bytes_wanted)
        if self.disk_full:
            raise StoreUnavailable("the disk takes no rows")
        moved = min(bytes_wanted, self.held - self.fixed)
        self.held -= moved
        return moved


def counted(budget: Memory, *tasks: Rows) -> None:
    budget.evict([(n, rows.held, rows) for n, rows in enumerate(tasks, 1)], 0)


def test_below_the_budget_nothing_is_moved_and_everybody_takes() -> None:
    budget, a, b = Memory(Spill(BUDGET)), Rows(400), Rows(500)
    counted(budget, a, b)
    assert a.asked == b.asked == []
    assert budget.allowance(1) > 0 < budget.allowance(2)
    assert not budget.is_due()


def test_what_comes_in_is_reckoned_high_until_it_is_counted() -> None:
    budget = Memory(Spill(BUDGET))
    budget.took(200, settling=False)
    assert not budget.is_due()
    budget.took(200, settling=False)
    assert budget.is_due()
    counted(budget, Rows(400))
    assert not budget.is_due()
    budget.took(0, settling=True)
    assert budget.is_due(), "a slice may copy rows"


def test_the_largest_task_is_moved_out_first_down_to_three_quarters() -> None:
    budget, small, large = Memory(Spill(BUDGET)), Rows(300), Rows(900)
    counted(budget, small, large)
    assert (small.asked, large.asked) == ([], [450])
    assert large.held == 450
    assert not budget.is_due()


def test_one_step_moves_a_bounded_number_of_bytes_and_the_large_task_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STEP_BYTES", 100)
    budget, small, large = Memory(Spill(BUDGET)), Rows(100), Rows(2000)
    counted(budget, small, large)
    assert large.asked == [100]
    assert budget.is_due()
    assert budget.allowance(2) == 0
    assert budget.allowance(1) == 400, "up to its share"
    while budget.is_due():
        counted(budget, small, large)
    assert budget.allowance(2) > 0


def test_large_tasks_wait_while_the_disk_rejects_rows_and_continue_when_it_accepts_them() -> None:
    budget, small, large = Memory(Spill(BUDGET)), Rows(100), Rows(2000)
    large.disk_full = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            counted(budget, small, large)
        assert budget.allowance(2) == 0
        assert budget.allowance(1) == 400
    large.disk_full = False
    counted(budget, small, large)
    assert budget.allowance(2) > 0


def test_a_task_that_has_flushed_meanwhile_takes_again_although_the_disk_is_full() -> None:
    budget, rows = Memory(Spill(BUDGET)), Rows(2000)
    rows.disk_full = True
    with pytest.raises(StoreUnavailable):
        counted(budget, rows)
    rows.held = 900
    counted(budget, rows)
    assert budget.allowance(1) > 0


def test_when_nothing_is_left_to_move_every_task_takes_one_batch_at_a_time() -> None:
    budget, rows = Memory(Spill(BUDGET)), Rows(5000, fixed=3000)
    counted(budget, rows)
    assert rows.held == 3000
    assert budget.is_due()
    assert budget.allowance(1) == 1, "only further batches can lift a watermark"


def test_a_zero_budget_stops_no_task() -> None:
    budget, rows = Memory(Spill(0)), Rows(10)
    counted(budget, rows)
    assert budget.allowance(1) >= 1
