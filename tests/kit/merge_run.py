"""A SorterRun whose tasks are split and merged as the service does it: both halves stop at the same file of each store.

Each half is sent what a dispatcher cuts for it, so each numbers its own rows. Besides what `TaskShapes` checks, a
task that was made of two has the lower one of their watermarks.
"""

from __future__ import annotations

import random

from sorter.core.task_core import TaskCore
from sorter.state.join_snapshots import joined
from sorter.state.merge_barrier import at_barrier, furthest, has_reached, is_beyond
from tests.kit.sorter_run import KEYS, Durable
from tests.kit.sorter_world import feed_batch
from tests.kit.task_shapes import TaskShapes
from tistream.keyrange import KeyRange


class MergeRun(TaskShapes):
    """A run in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.read_on = 0  #: files that a half had to read before it reached the barrier
        self.held = 0  #: rows that were there when two tasks became one

    def random_step(self, rand: random.Random) -> None:
        """As before, and now and then tasks are merged while they hold several prewrites of each lock."""
        if rand.random() < 0.04:
            self.merge_with_locks_of_two_subscriptions(rand)
        else:
            super().random_step(rand)

    def merge_with_locks_of_two_subscriptions(self, rand: random.Random) -> None:
        """Every key is locked, and a second subscription sends the locks again, some with another value. Then
        neighbours become one, and that one has to say of many keys at once which prewrite was committed."""
        for key in KEYS:
            self.prewrite(key, b"first", old=False)
        self._all_read(9)
        for region in range(len(self.world.leader)):
            self.move(region, rand.choice(list(self.world.stores)), from_its_end=False)
        self._all_read(9)
        for key in KEYS:
            if rand.random() < 0.5:
                self.prewrite(key, b"second", old=False)
        self._all_read(9)
        for left in sorted(self.ranges):
            for right in sorted(self.ranges):
                if left in self.ranges and right in self.ranges and rand.random() < 0.8:
                    self.merge_tasks(left, right)
        for key in KEYS:
            self.decide(key, how="commit")
        self._all_read(9)

    def _all_read(self, scanned: int) -> None:
        """Each store cuts a file, and all tasks read what there is."""
        for store in self.world.stores:
            self.cut(store, scanned)
            for task in list(self.ranges):
                while self.deliver(task, store):
                    pass

    def merge_tasks(self, left: int, right: int) -> bool:
        a, b = self.ranges[left], self.ranges[right]
        if not a.end or a.end != b.start:
            return False
        goal = max(self.durable[left].durable_ts, self.durable[right].durable_ts)
        if not (self._catch_up(left, goal) and self._catch_up(right, goal)):
            return False
        until = furthest(self.cores[left].positions(), self.cores[right].positions())
        for task in (left, right):
            for store in self.world.stores:
                while (file := self._next_file(self.cores[task], store)) and not is_beyond(feed_batch(file), until):
                    self.deliver(task, store)
                    self.read_on += 1
            assert has_reached(self.cores[task].positions(), until)
        halves = [at_barrier(self._saved(task, self.cores[task]), self.ranges[task], until) for task in (left, right)]
        whole = KeyRange(a.start, b.end)
        state = joined(whole, halves)
        watermarks = [self.cores[task].watermark() for task in (left, right)]
        refers = self._forget(left) | self._forget(right)
        merged = self._add(whole, Durable(goal, state), refers)
        self._compare(self.cores[merged], watermarks)
        self.merges += 1
        return True

    def _compare(self, core: TaskCore, watermarks: list[int | None]) -> None:
        """The new core says what the halves said."""
        core.check()
        watermarks_known = [w for w in watermarks if w is not None]
        assert core.watermark() == (min(watermarks_known) if len(watermarks_known) == len(watermarks) else None)
        stats = core.stats()
        self.held += stats.open_prewrites + stats.waiting_commits + stats.ready_rows
