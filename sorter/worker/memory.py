"""Memory budget of a sorter: what its tasks may hold, what is spilled to disk, and which tasks must wait.

Usage (rows, numbers, indexes, inboxes, flushes in progress) is counted exactly when its upper bound reaches the budget,
and then once per step; the excess over three quarters of the budget is spilled, the largest task's oldest rows first, a
bounded number of bytes per step.

While usage exceeds the budget and rows could still be spilled (the disk is full or slower than the feed), a task that
holds more than its share of the budget takes no batches: its inbox fills, its readers wait, the feed waits. Other tasks
continue up to their share. So all tasks together hold at most twice the budget and a batch each.

No task waits for memory forever unless the disk never accepts rows again: nearly everything a task holds can be spilled
(`eviction` lists the exceptions); once nothing is left to spill, tasks take one batch per step whatever they hold,
because only further batches can raise a watermark and so release rows. Deciding and flushing never wait for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sorter.core.eviction import Disk
from sorter.worker.spill import Spill
from tistream.errors import StoreUnavailable

STEP_BYTES = 128 << 20  #: spilled by one step, about
SLICE_BYTES = 48 << 20  #: added by deciding a slice, at most


class Evictable(Protocol):
    def evict(self, disk: Disk, wanted: int) -> int:
        """Spill `wanted` bytes; the bytes freed."""
        ...


class Memory:
    """The budget. Used from the loop thread."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._held: dict[int, int] = {}  # task -> bytes, when last counted
        self._total = 0
        self._since = 0  # upper bound of bytes added since
        self._blocked = False  # rows could be spilled and were not
        self._over = False

    def is_due(self) -> bool:
        """Whether the tasks may exceed the budget."""
        return self._over or self._total + self._since > self._spill.budget_bytes

    def allowance(self, task_id: int) -> int:
        """How many bytes of batches a task may take now."""
        left = self._spill.budget_bytes - self._total - self._since
        share = self._spill.budget_bytes // max(1, len(self._held)) - self._held.get(task_id, 0)
        if not self._over or self._blocked:
            return max(left, share, 0 if self._blocked else 1)
        return 1  # one batch per step

    def took(self, nbytes: int, *, settling: bool) -> None:
        self._since += 3 * nbytes + (SLICE_BYTES if settling else 0)  # rows, their numbers, and copies of small ones

    def release(self) -> None:
        """Give back the memory of pages read from disk."""
        self._spill.release()

    def evict(self, tasks: Sequence[tuple[int, int, Evictable]], others: int) -> None:
        """Count the usage and spill the excess. `tasks`: (id, bytes held, rows); `others`: bytes held outside tasks.
        StoreUnavailable when the disk rejects the rows."""
        budget = self._spill.budget_bytes
        self._held = {task_id: held for task_id, held, _ in tasks}
        self._total, self._since = sum(self._held.values()) + others, 0
        self._over = self._total > budget
        self._blocked = False
        if not self._over:
            return
        wanted = min(self._total - budget * 3 // 4, STEP_BYTES)
        try:
            for task_id, _, rows in sorted(tasks, key=lambda t: t[1], reverse=True):
                freed = rows.evict(self._spill, wanted)
                self._held[task_id] -= freed
                self._total -= freed
                wanted -= freed
                if wanted <= 0:
                    break
        except StoreUnavailable:
            self._blocked = True
            raise
        self._over = self._total > budget
        self._blocked = self._over and wanted <= 0
