"""Batch files of all stores through the sorter's cores, as several tasks would take them, in any order of arrival.

    BatchFile (decoded) -> dispatcher.core.router, once per task -> TaskCore -> rows written out, once each

A task reads the incarnations of a store one after the other, each in `seq` order, and the stores in any order. Now and
then it lags behind, gets a file twice, writes a snapshot, does not learn what became of a flush, or starts again from
its last snapshot file with the positions that were saved with it. Checked on the way: no row is written twice, none
outside of (durable_ts, W], and the relations of the core. What was written is compared by the caller.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dispatcher.core.router import Directory, directory, route
from sorter.core.task_core import NeedResubscribe
from tests.kit.sorter_states import SnapshotFiles
from tistream.codec.batch_file import BatchFile
from tistream.feed.protocol import FeedBatch
from tistream.ids import Position
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, REGIONS, ROWS
from tistream.model.positions import position_of

Life = tuple[int, int]  #: store, incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How likely things are, each time they could happen."""

    lag: float = 0.3  #: a task takes nothing when a file arrives
    again: float = 0.05  #: a file is delivered a second time
    snapshot: float = 0.02
    restart: float = 0.004
    unknown: float = 0.05  #: a flush lands, or not, and the task does not learn it before its next attempt or restart


@dataclass(frozen=True, slots=True)
class Prepared:
    """A file ready for routing."""

    file: BatchFile
    directory: Directory


def prepare(files: Iterable[BatchFile]) -> list[Prepared]:
    """Build what all tasks share of each file."""
    return [Prepared(f, directory(f.rows, f.regions)) for f in files]


class TaskRun:
    """One task: its core, and what of it survives a restart."""

    def __init__(self, task_id: int, range_: KeyRange, start_ts: int, rand: random.Random, trouble: Trouble) -> None:
        self.task_id, self.range, self.start_ts = task_id, range_, start_ts
        self._rand, self._trouble = rand, trouble
        self.durable_ts = start_ts  #: the catalog's
        self._files = SnapshotFiles(task_id)
        self.core = self._files.bucket.core(task_id, range_, start_ts, start_ts)
        self.written: list[pa.Table] = []  #: change.COMMITTED, one for each flush
        self.restarts = 0
        self.resubscribes: list[NeedResubscribe] = []

    def catch_up(self, arrived: Mapping[Life, list[Prepared]], ended: Mapping[Life, int]) -> None:
        """Take every file that has arrived, the streams in random order, and write what can be written."""
        while ready := [life for life in arrived if self._has_next(life, arrived, ended)]:
            self._take(self._next(self._rand.choice(ready), arrived))
            if self._happens(self._trouble.snapshot):
                self._save()
            if self._happens(self._trouble.restart):
                self._restart()

    def flush(self) -> None:
        """Write out, as the catalog would see it."""
        while (w := self.core.pending()) is not None:
            rows = self.core.take(w).table()
            commit_ts = rows["commit_ts"]
            if rows.num_rows:
                low, high = pc.min(commit_ts).as_py(), pc.max(commit_ts).as_py()
                assert self.durable_ts < low <= high <= w, (
                    f"task {self.task_id} writes outside of ({self.durable_ts}, {w}]"
                )
            unknown = self._happens(self._trouble.unknown)
            if not (unknown and self._happens(0.5)):
                self.written.append(rows)
                self.durable_ts = w
            if not unknown:
                self.core.flushed(w)
            elif self.durable_ts < w and not self._happens(0.5):
                return  # it did not land; the owner finds out and takes the same again later
            else:
                self._restart()  # the owner dies before it finds out
                return

    def behind(self, arrived: Mapping[Life, list[Prepared]], ended: Mapping[Life, int]) -> bool:
        """Whether something has arrived that it has not taken."""
        return any(self._has_next(life, arrived, ended) for life in arrived)

    def rows(self) -> pa.Table:
        """Everything written."""
        return pa.concat_tables([COMMITTED.empty_table(), *self.written])

    def _happens(self, probability: float) -> bool:
        return self._rand.random() < probability

    def _position(self, life: Life) -> Position:
        store, incarnation = life
        return position_of(self.core.positions().get(store, {}), incarnation)

    def _has_next(self, life: Life, arrived: Mapping[Life, list[Prepared]], ended: Mapping[Life, int]) -> bool:
        at, (store, incarnation) = self._position(life), life
        before = [other for other in arrived if other[0] == store and other[1] < incarnation]
        if not all(self._position(other).closed for other in before):
            return False
        return not at.closed and (at.seq < len(arrived[life]) or ended.get(life) == at.seq)

    def _next(self, life: Life, arrived: Mapping[Life, list[Prepared]]) -> FeedBatch:
        seq = self._position(life).seq
        return self._routed(arrived[life][seq]) if seq < len(arrived[life]) else closing(*life, seq)

    def _routed(self, prepared: Prepared) -> FeedBatch:
        routed, file = route(prepared.directory, self.range), prepared.file
        return FeedBatch(
            store_id=file.key.store_id,
            incarnation=file.key.incarnation,
            seq=file.key.seq,
            cut_ts=file.cut_ts,
            rows=routed.rows,
            regions=routed.regions,
        )

    def _take(self, batch: FeedBatch) -> None:
        before = self.core.watermark()
        for effect in self.core.handle(batch):
            self.resubscribes.append(effect)
        if self._happens(self._trouble.again):
            positions = self.core.positions()
            assert self.core.handle(batch) == [], "a repeated file does something"
            assert self.core.positions() == positions
            self.core.check()
        after = self.core.watermark()
        assert before is None or (after is not None and after >= min(before, self.durable_ts)), "W fell"
        self.flush()

    def _save(self) -> None:
        self._files.save(self.core, lands=not self._happens(0.1))

    def _restart(self) -> None:
        self.restarts += 1
        self.core = self._files.bucket.core(self.task_id, self.range, self.start_ts, self.durable_ts)
        state = self._files.load()
        if state is not None:
            self.core.restore(state, state.positions)
        self.core.check()


def closing(store_id: int, incarnation: int, seq: int) -> FeedBatch:
    """The news that an incarnation ended with file `seq`."""
    return FeedBatch(
        store_id=store_id,
        incarnation=incarnation,
        seq=seq,
        cut_ts=0,
        rows=pa.RecordBatch.from_pylist([], schema=ROWS),
        regions=pa.RecordBatch.from_pylist([], schema=REGIONS),
        closes=True,
    )


def run_tasks(
    arrivals: Iterable[Prepared],
    ranges: Mapping[int, KeyRange],
    start_ts: int,
    rand: random.Random,
    trouble: Trouble = Trouble(),
    ended: Mapping[Life, int] | None = None,
) -> dict[int, TaskRun]:
    """The tasks (id -> range) after all files have arrived, in the order of `arrivals`, and all were taken.

    `ended` says of each incarnation that is over which file was its last."""
    tasks = {task: TaskRun(task, range_, start_ts, rand, trouble) for task, range_ in ranges.items()}
    arrived: dict[Life, list[Prepared]] = {}
    for file in arrivals:
        key = file.file.key
        stream = arrived.setdefault((key.store_id, key.incarnation), [])
        stream.append(file)
        assert len(stream) == key.seq, "the arrivals break the order of a stream"
        for task in tasks.values():
            if rand.random() >= trouble.lag:
                task.catch_up(arrived, {})
    for task in tasks.values():
        while task.core.pending() is not None or task.behind(arrived, ended or {}):
            task.catch_up(arrived, ended or {})
            task.flush()
        task.core.check()
    return tasks
