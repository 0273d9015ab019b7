"""How much memory the tasks of a sorter may hold, what goes to the disk because of it, and which tasks take nothing.

What the tasks hold (rows, numbers, indexes, inboxes, flushes under way) is counted exactly when an durable watermark
bound of it reaches the budget, and then once for each step; what exceeds three quarters of the budget is moved out,
the largest task's oldest rows first, a bounded number of bytes for each step.

While the tasks hold more than the budget and something could still be moved out, because the disk takes nothing or is
slower than the feed, a task that holds more than its share of the budget takes no batches: its inbox fills, its readers
wait, the feed waits. Others go on up to their share. So all tasks together hold at most twice the budget and a batch
each, for as long as that lasts.

For memory no task waits for ever unless the disk never takes a row again: what a task holds can all be moved out but
for what `relief` names; once nothing is left to be moved out, tasks take one batch for each step whatever they hold,
because only further batches can lift a watermark and so let rows leave. Deciding and flushing never wait for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sorter.core.eviction import Disk
from sorter.worker.spill import Spill
from tistream.errors import StoreUnavailable

STEP_BYTES = 128 << 20  #: that one step moves out, about
SLICE_BYTES = 48 << 20  #: that deciding a slice may add, at most


class Evictable(Protocol):
    """A task's rows."""

    def evict(self, disk: Disk, wanted: int) -> int:
        """Have so many bytes moved out; how many it were."""
        ...


class Memory:
    """The budget. Used from the loop thread."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._held: dict[int, int] = {}  # task -> bytes, when last counted
        self._total = 0
        self._since = 0  # bytes that may have come since
        self._stuck = False  # what could be moved out was not
        self._over = False

    def is_due(self) -> bool:
        """Whether the tasks may hold more than they should."""
        return self._over or self._total + self._since > self._spill.budget_bytes

    def room(self, task_id: int) -> int:
        """How many bytes of batches a task may take in now."""
        left = self._spill.budget_bytes - self._total - self._since
        share = self._spill.budget_bytes // max(1, len(self._held)) - self._held.get(task_id, 0)
        if not self._over or self._stuck:
            return max(left, share, 0 if self._stuck else 1)
        return 1  # one batch with each step

    def took(self, nbytes: int, *, settling: bool) -> None:
        """A task has taken in so many bytes."""
        self._since += 3 * nbytes + (SLICE_BYTES if settling else 0)  # rows, and the numbers and copies of small ones

    def release(self) -> None:
        """Give back the memory of what was read from the disk lately."""
        self._spill.release()

    def evict(self, tasks: Sequence[tuple[int, int, Evictable]], others: int) -> None:
        """Count, and move out what exceeds. `tasks`: (id, bytes held, rows); `others`: held by nobody of them.
        StoreUnavailable when the disk does not take it."""
        budget = self._spill.budget_bytes
        self._held = {task_id: held for task_id, held, _ in tasks}
        self._total, self._since = sum(self._held.values()) + others, 0
        self._over = self._total > budget
        self._stuck = False
        if not self._over:
            return
        wanted = min(self._total - budget * 3 // 4, STEP_BYTES)
        try:
            for task_id, _, rows in sorted(tasks, key=lambda t: t[1], reverse=True):
                moved = rows.evict(self._spill, wanted)
                self._held[task_id] -= moved
                self._total -= moved
                wanted -= moved
                if wanted <= 0:
                    break
        except StoreUnavailable:
            self._stuck = True
            raise
        self._over = self._total > budget
        self._stuck = self._over and wanted <= 0
