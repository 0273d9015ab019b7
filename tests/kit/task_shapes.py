"""Tasks that are split and merged while they run: a model of it over the sorter's cores.

    split    at any key, at whatever `durable_ts` the task has: both children have its durable watermark, its snapshot
    and the positions
             of that; each loads of the snapshot what lies in its range, and replays
    merge    of two neighbours: the one behind is written out up to the other's durable watermark and no further, both
    write a
             snapshot, and the new task has that one durable watermark, both snapshots and the smaller position of
             each incarnation. The two halves are at different files: what a half had heard counts for that half
             alone, so rows that wait are cut to it. The half that was ahead gets files a second time

Checked beside what `SorterRun` checks: for every key the flushes of all tasks that ever held it join without a gap and
without an overlap. `broken` names a rule to leave out, to show that it is needed.
"""

from __future__ import annotations

import random
from dataclasses import replace

import polars as pl
import pyarrow as pa

from sorter.core import promised
from sorter.core.task_core import CoreSnapshot
from tests.kit.sorter_run import EDGES, KEYS, START_TS, Durable, SorterRun
from tests.kit.sorter_states import SnapshotFiles
from tistream.ids import Position
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions

Half = tuple[KeyRange, CoreSnapshot]

#: name -> what is done instead
BROKEN = {
    "merge-at-the-larger-durable-watermark": "two tasks are merged at the larger of their durable watermarks",
    "merge-at-the-smaller-durable-watermark": "two tasks are merged at the smaller of their durable watermarks",
    "merge-at-the-larger-position": "a merged task continues at the larger position of each incarnation",
    "waiting-rows-for-both": "a watermark row that waited in one half lifts the other one too",
    "merge-keeps-one-snapshot": "a merged task has the snapshot of its left half only",
    "split-without-snapshot": "a new task has the position of its parent, and an empty state",
    "split-at-the-live-position": "a new task has its parent's snapshot, and goes on where the parent was",
}


class TaskShapes(SorterRun):
    """A run in progress, whose tasks change."""

    def __init__(self, broken: str = "") -> None:
        super().__init__()
        self._broken = broken
        self._next_task = max(self.ranges) + 1
        self.written_to = dict.fromkeys(KEYS, START_TS)  #: key -> what its tasks have written out
        self.splits = self.merges = 0

    def split_task(self, task: int, at: bytes) -> None:
        """Split it at this key, if that lies inside."""
        range_ = self.ranges[task]
        if at not in range_ or at == range_.start:
            return
        parent = self.durable[task]
        at_now = self.cores[task].positions()
        refers = self._forget(task)
        for part in (KeyRange(range_.start, at), KeyRange(at, range_.end)):
            child = self._add(part, Durable(parent.durable_ts, self._inherited(parent, at_now)), refers)
            self.cores[child].check()
        self.splits += 1

    def merge_tasks(self, left: int, right: int) -> bool:
        """Merge two tasks if they are neighbours and the one behind can catch up; whether they were merged."""
        a, b = self.ranges[left], self.ranges[right]
        if not a.end or a.end != b.start:
            return False
        goal = max(self.durable[left].durable_ts, self.durable[right].durable_ts)
        if self._broken == "merge-at-the-smaller-durable-watermark":
            goal = min(self.durable[left].durable_ts, self.durable[right].durable_ts)
        elif self._broken != "merge-at-the-larger-durable-watermark" and not (
            self._catch_up(left, goal) and self._catch_up(right, goal)
        ):
            return False
        halves = (a, self.cores[left].snapshot()), (b, self.cores[right].snapshot())
        state = joined(*halves, broken=self._broken)
        refers = self._forget(left) | self._forget(right)
        merged = self._add(KeyRange(a.start, b.end), Durable(goal, state), refers)
        self.cores[merged].check()
        self.merges += 1
        return True

    def landed(self, task: int, after: int, upto: int) -> None:
        for key in self.written_to:
            if key in self.ranges[task]:
                assert self.written_to[key] == after, f"{key!r} was written up to {self.written_to[key]}, not {after}"
                self.written_to[key] = upto

    def random_step(self, rand: random.Random) -> None:
        """As before, and now and then tasks change."""
        if rand.random() < 0.06:
            self.split_task(rand.choice(list(self.ranges)), rand.choice(EDGES))
        elif rand.random() < 0.08:
            self.merge_tasks(rand.choice(list(self.ranges)), rand.choice(list(self.ranges)))
        else:
            super().random_step(rand)

    def finish(self) -> None:
        super().finish()
        for key, upto in self.written_to.items():
            (task,) = [task for task, range_ in self.ranges.items() if key in range_]
            assert upto == self.cores[task].durable_ts

    # -- inside

    def _add(self, range_: KeyRange, durable: Durable, refers: frozenset[str]) -> int:
        """A new task. What it takes over lies in objects that it shares with others."""
        task, self._next_task = self._next_task, self._next_task + 1
        self.files[task] = SnapshotFiles(task, self.bucket)
        self.bucket.refers[task] = refers
        self.ranges[task], self.durable[task] = range_, durable
        self.cores[task] = self._new_core(task)
        return task

    def _forget(self, task: int) -> frozenset[str]:
        """The task is no more; to which objects it referred."""
        del self.ranges[task], self.durable[task], self.cores[task], self.files[task]
        self.oracles.pop(task, None)
        return self.bucket.refers.pop(task, frozenset())

    def _inherited(self, parent: Durable, at_now: Positions) -> CoreSnapshot | None:
        saved = parent.snapshot
        if saved is None:
            return None
        if self._broken == "split-at-the-live-position":
            return replace(saved, positions=at_now)
        if self._broken == "split-without-snapshot":
            return replace(saved, open=(), commits=(), ready=())
        return saved

    def _catch_up(self, task: int, goal: int) -> bool:
        """Write the task out up to there and no further; whether it got there."""
        while self.cores[task].durable_ts < goal and self.cores[task].pending() is not None:
            self.flush(task, at_most=goal)
        return self.cores[task].durable_ts == goal


def joined(left: Half, right: Half, *, broken: str = "") -> CoreSnapshot:
    """One state made of those of two neighbours with the same `durable_ts`, each cut to its range."""
    a, b = left[1], right[1]
    if broken == "merge-keeps-one-snapshot":
        return a
    cut = broken != "waiting-rows-for-both"
    waiting = [_cut(s.waiting, half) if cut else s.waiting for half, s in (left, right)]
    runs = {name: getattr(a, name) + getattr(b, name) for name in ("open", "commits", "ready")}
    choose = max if broken == "merge-at-the-larger-position" else min
    positions = {
        store: {i: choose((lives[i], b.positions[store][i]), key=_how_far) for i in lives if i in b.positions[store]}
        for store, lives in a.positions.items()
        if store in b.positions
    }
    return replace(
        a,
        positions=positions,
        promised=_promised(a, b),
        next_row_no=max(a.next_row_no, b.next_row_no),
        late_ready=pl.concat([a.late_ready, b.late_ready]).unique(),
        slices=pa.concat_tables([a.slices, b.slices]),
        waiting=pa.concat_tables(waiting),
        **runs,
    )


def _promised(a: CoreSnapshot, b: CoreSnapshot) -> pa.Table:
    """The promises of files that both have taken: a file that comes again has not promised anything yet."""
    both = promised.joined([a.promised, b.promised])
    lives = zip(both["store_id"].to_pylist(), both["incarnation"].to_pylist(), strict=True)
    same = [a.positions.get(store, {}).get(i) == b.positions.get(store, {}).get(i) for store, i in lives]
    return both.filter(pa.array(same, pa.bool_()))


def _how_far(at: Position) -> tuple[bool, int]:
    return at.closed, at.seq


def _cut(waiting: pa.Table, half: KeyRange) -> pa.Table:
    """The rows that wait, each no wider than this half."""
    rows = []
    for row in waiting.to_pylist():
        common = half.intersect(KeyRange(row["start_key"], row["end_key"]))
        if common is not None:
            rows.append(row | {"start_key": common.start, "end_key": common.end})
    return pa.Table.from_pylist(rows, schema=waiting.schema)
