"""A SorterRun whose tasks are now and then replayed in parts: what a bulk replay does to a task, without I/O.

    restart of a task -> its snapshot, cut at random keys, a core for each part -> further files in any order
                      -> all parts written up to one timestamp -> saved, joined -> the task goes on from that

Each is sent what a dispatcher cuts for it. Beside the parts one core does the same with the whole range. They must have
the same watermark, write the same rows, and the joined state must say what that of the one core says, table by table.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa

from sorter.core.task_core import CoreSnapshot, TaskCore
from sorter.state.join_snapshots import joined
from sorter.worker.stored_core import Read
from tests.kit.routed import routed
from tests.kit.sorter_run import EDGES, KEYS, START_TS, SorterRun
from tests.kit.sorter_states import tables_of
from tests.kit.sorter_world import feed_batch, served
from tistream.keyrange import KeyRange


class PartedRun(SorterRun):
    """A run in which every restart is a replay in parts."""

    def __init__(self, rand: random.Random) -> None:
        super().__init__()
        self.rand = rand
        self.replays = 0  #: that wrote rows
        self.shared = 0  #: objects with rows of several parts
        self._late = False  # locks of two subscriptions are decided when the parts have been joined
        self.waited = 0  #: times that watermark rows waited in a part

    def restart(self, task: int) -> None:
        self._something_for_each_part(task)
        self.oracles.pop(task, None)
        parts = [self._core(task, range_) for range_ in self._parts(self.ranges[task])]
        solo = self._core(task, self.ranges[task])
        self._feed(solo, parts)
        marks = [part.watermark() for part in parts]
        w = None if None in marks else min(mark for mark in marks if mark is not None)
        assert w == solo.watermark(), f"parts {marks}, the whole {solo.watermark()}"
        if w is not None and w > solo.durable_ts:
            self._write(task, solo, parts, w)
        states = [self._saved(task, part) for part in parts]
        keys = [{s.saved[0].group.object_key for s in (*state.open, *state.commits, *state.ready)} for state in states]
        self.shared += sum(map(len, keys)) - len(set[str]().union(*keys))
        self.waited += sum(state.waiting.num_rows > 0 for state in states)
        state = joined(self.ranges[task], states)
        in_parts, whole = (_told(state_of, self.bucket.read) for state_of in (state, solo.snapshot()))
        assert in_parts == whole, f"joined {in_parts}, one core has {whole}"
        numbers = tables_of(state, self.bucket.read)["open"]["row_no"].to_pylist()
        assert state.next_row_no > max(numbers, default=-1), "a number would be given twice"
        self.cores[task] = self.bucket.core(task, self.ranges[task], START_TS, solo.durable_ts)
        self.cores[task].restore(state, state.positions)
        self.cores[task].check()
        self.snapshot(task)
        if self._late:
            self._decide_all(task)

    def _something_for_each_part(self, task: int) -> None:
        """Locks in the snapshot, and their commits in the files to come."""
        for key in KEYS:
            self.prewrite(key, b"v", old=False)
        for store in self.world.stores:
            self.cut(store, 9)
            while self.deliver(task, store):
                self.flush(task)
        self.snapshot(task)
        self._late = self.rand.random() < 0.3
        if self._late:
            self._locks_of_two_subscriptions()
            return
        for key in KEYS:
            if self.rand.random() < 0.8:
                self.decide(key, how="commit")
            if self.rand.random() < 0.5:
                self.prewrite(key, b"w", old=False)
        for store in self.world.stores:
            self.cut(store, 9)
        for region in range(len(self.world.leader)):
            if self.rand.random() < 0.5:
                self.move(region, self.rand.choice(list(self.world.stores)), from_its_end=True)
        for store in self.world.stores:
            self.cut(store, self.rand.choice([0, 9]))

    def _locks_of_two_subscriptions(self) -> None:
        """A second subscription sends the locks again, some with another value."""
        for region in range(len(self.world.leader)):
            self.move(region, self.rand.choice(list(self.world.stores)), from_its_end=False)
        for store in self.world.stores:
            self.cut(store, 9)
        for key in KEYS:
            if self.rand.random() < 0.8:
                self.prewrite(key, b"u", old=False)
        for store in self.world.stores:
            self.cut(store, 9)

    def _decide_all(self, task: int) -> None:
        """The locks that the parts held are committed: the joined task decides for all keys at once."""
        for key in KEYS:
            self.decide(key, how="commit")
        for store in self.world.stores:
            self.cut(store, 9)
            while self.deliver(task, store):
                self.flush(task)

    def _core(self, task: int, range_: KeyRange) -> TaskCore:
        core = self.bucket.core(task, range_, START_TS, self.durable[task].durable_ts)
        state = self.durable[task].snapshot
        if state is not None:
            core.restore(state, state.positions)
        return core

    def _parts(self, range_: KeyRange) -> list[KeyRange]:
        inside = [key for key in EDGES if key in range_ and key != range_.start]
        cuts = sorted(self.rand.sample(inside, self.rand.randint(0, len(inside))))
        return [KeyRange(a, b) for a, b in pairwise([range_.start, *cuts, range_.end])]

    def _feed(self, solo: TaskCore, parts: list[TaskCore]) -> None:
        stores = list(self.world.stores)
        sending = stores if self._late else self.rand.choice([stores, stores, stores[:1], stores[1:]])
        for _ in range(99 if self._late else self.rand.randrange(20)):
            file = self._next_file(solo, self.rand.choice(sending))
            if file is None:
                continue
            for core in (solo, *parts):
                core.handle(routed(feed_batch(file), core.range))
                while core.settling:
                    core.settle()

    def _write(self, task: int, solo: TaskCore, parts: list[TaskCore], w: int) -> None:
        rows = served(solo.take(w).table())
        assert sorted(served(pa.concat_tables([part.take(w).table() for part in parts]))) == rows
        assert rows == [row for row in self.world.truth(solo.durable_ts, w) if row.key in self.ranges[task]]
        self.replays += bool(rows)
        self.rows += len(rows)
        self.landed(task, solo.durable_ts, w)
        self.durable[task].durable_ts = w
        for core in (solo, *parts):
            core.flushed(w)


def _told(state: CoreSnapshot, read: Read) -> dict[str, list[dict[str, Any]]]:
    """All that a state holds, without what depends on who else's rows were in the files: of the numbers of arrival only
    the order that they give the rows of one key counts."""
    rows_of_kind = {kind: table.to_pylist() for kind, table in tables_of(state, read).items()}
    rows_of_kind["open"].sort(key=lambda row: (row["key"], row["row_no"]))
    for row in rows_of_kind["open"]:
        del row["row_no"]
    return rows_of_kind
