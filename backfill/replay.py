"""Replays one partition of a task: a sorter's core that reads batch files and writes its log and state.

    snapshot of the task, cut to the partition --> TaskCore <-- files in plan order, cut to the partition
                                                      |--> committed files up to `upto`
                                                      |--> a state, as a sorter saves it

`replay_partition` depends on its plan row and the store only, so it may run twice: each attempt writes under its own
keys (`attempt`; snapshot objects under a random number), and nothing is visible until the driver's transaction names
it. The other objects are orphans, and are collected. Core, kernels, flush order and formats are the sorter's.

A store may repeat what the log holds, below what it promised. Such rows are looked for in the log: in the attempt's
own, and below the batch in the segments of the plan row. Without these the partition ends and asks for them
(`asks_above`), and the driver runs it again.

The plan says up to where to write. An undecided commit holds the partition below `upto`; the result says where, and the
live sorter resubscribes after the hand-over.

Executors of plan rows are threads of this process, or Spark. Plan rows and results cross the JVM as text; rows of the
log never do. A worker that runs twice writes twice, under different keys, and the driver takes one result per
partition.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING

import pyarrow as pa

from backfill.core.plan import ReplayPlanRow, ReplayRead
from compactor.local import run_stoppable
from compactor.spark import run_lines
from dispatcher.core.router import directory, route
from sorter.core.contradictions import LogQuestion
from sorter.core.task_core import TaskCore
from sorter.rows.output import RowsToWrite
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.log_search import SEGMENTS_MAX, matching, may_hold
from sorter.worker.memory import Memory
from sorter.worker.publisher import FILE_BYTES_TARGET
from sorter.worker.spill import Spill, default_budget_bytes
from sorter.worker.stored_core import StoredCore, loaded
from tistream.catalog.rows.segments import SegmentRow, segment_in
from tistream.clock import Clock, SystemClock
from tistream.codec.batch_file import decode_batch_file
from tistream.codec.committed_file import CommittedFileWriter
from tistream.codec.wire import decode, encode
from tistream.errors import CorruptObject
from tistream.feed.protocol import FeedBatch
from tistream.log.committed_log import SegmentSource
from tistream.model.change import COMMITTED, REGIONS, ROWS
from tistream.objectstore.factory import open_store
from tistream.objectstore.layout import REPLAY_N_MIN, BatchKey, CommittedKey, SnapshotKey, replay_writer
from tistream.objectstore.protocol import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READERS = 4  #: files that are fetched and decoded at once
_NO_ROWS = pa.RecordBatch.from_pylist([], schema=ROWS)
_NO_REGIONS = pa.RecordBatch.from_pylist([], schema=REGIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """What a worker has written; not visible yet."""

    partition: int
    task_id: int
    reached: int  #: the log is complete up to here; below `upto` when a commit is undecided
    log_objects: dict[str, int] = field(default_factory=dict)  #: committed files -> bytes
    segments: tuple[SegmentRow, ...] = ()  #: in them
    state_key: str = ""
    state_objects: dict[str, int] = field(default_factory=dict)  #: new objects that hold its rows -> bytes
    keeps: tuple[str, ...] = ()  #: objects of the previous snapshot that it also refers to
    files: int = 0  #: batch files taken
    bytes: int = 0  #: of their rows inside the partition, in memory
    rows: int = 0  #: written
    seconds: float = 0.0
    repeated: int = 0  #: rows that the log held already, below what their store had promised
    asks_above: int | None = None  #: nothing was done: run it again with the log above this timestamp


def replay_partition(store: ObjectStore, row: ReplayPlanRow, attempt: str) -> PartitionResult:
    """Run one plan row. `attempt` is a unique name.

    Raises CorruptObject for a damaged file or snapshot, ObjectNotFound for a missing one, UpstreamContractViolated
    as the sorter does, and StoreUnavailable; nothing is visible then."""
    log = _Log(store, row, attempt)
    search = _Search(store, row, log)
    try:
        return _replayed(store, row, log, search)
    except _LogNeeded as asked:
        return PartitionResult(
            partition=row.partition, task_id=row.task_id, reached=row.durable_ts, asks_above=asked.above
        )


def _replayed(store: ObjectStore, row: ReplayPlanRow, log: _Log, search: _Search) -> PartitionResult:
    begun = time.monotonic()
    core = _restored(store, row, search)
    memory = Memory(Spill(row.memory_bytes or default_budget_bytes()))
    taken = 0
    for batch in _batches(store, row):
        core.handle(batch)
        while core.settling:
            core.settle()
        size = batch.nbytes
        taken += size
        memory.took(size, settling=False)
        if core.flushable_bytes() >= FILE_BYTES_TARGET:
            _flush(core, log, row.upto, at_once=False)
        if memory.is_due():
            memory.evict([(row.task_id, core.bytes_held(), core)], 0)
        memory.release()
    _flush(core, log, row.upto, at_once=True)
    save = loaded(partial(Save, core.snapshot(), _keys(row), secrets.token_hex(16)), store.get_range)
    for key, data in save.objects():
        store.put(key, data)
    return PartitionResult(
        partition=row.partition,
        task_id=row.task_id,
        reached=core.durable_ts,
        log_objects=log.objects,
        segments=tuple(log.segments),
        state_key=str(save.key),
        state_objects={key: size for key, size in save.new.items() if key != str(save.key)},
        keeps=tuple(sorted(save.keeps)),
        files=sum(not step.closes for step in row.steps),
        bytes=taken,
        rows=log.rows,
        seconds=time.monotonic() - begun,
        repeated=search.found,
    )


def _restored(store: ObjectStore, row: ReplayPlanRow, search: _Search) -> TaskCore:
    core = StoredCore(row.task_id, row.range, row.start_ts, row.durable_ts, store.get_range, search)
    if row.snapshot_key is not None:
        state = read_state_file(row.snapshot_key, store.get(row.snapshot_key)).state
        if state.start_ts != row.start_ts or state.durable_ts > row.durable_ts:
            raise CorruptObject(
                "the snapshot belongs to another history of the task", object=row.snapshot_key, task=row.task_id
            )
        core.restore(state, row.positions)
    return core


def _flush(core: TaskCore, log: _Log, upto: int, *, at_once: bool) -> None:
    """Write the rows up to `upto`: all (`at_once`), or only whole files."""
    while core.durable_ts < upto and (w := core.pending()) is not None:
        w = min(w, upto)
        log.write(core.take(w))
        core.flushed(w)  # visible to the core only, until the hand-over
        if not at_once and core.flushable_bytes() < FILE_BYTES_TARGET:
            return


@dataclass(slots=True)
class _Log:
    """The committed files of an attempt."""

    store: ObjectStore
    row: ReplayPlanRow
    attempt: str
    objects: dict[str, int] = field(default_factory=dict)
    segments: list[SegmentRow] = field(default_factory=list)
    rows: int = 0

    def write(self, output: RowsToWrite) -> None:
        """Write these rows, in as many files as they need."""
        writer, key = None, ""
        for piece in output.pieces():
            if writer is None:
                at = self._next_key()
                writer, key = CommittedFileWriter(at, secrets.token_hex(16)), str(at)
            writer.add(self.row.task_id, piece)
            if writer.raw_bytes >= FILE_BYTES_TARGET:
                self._put(key, writer)
                writer = None
        if writer is not None:
            self._put(key, writer)
        self.rows += output.rows

    def _put(self, key: str, writer: CommittedFileWriter) -> None:
        data = writer.finish()
        self.store.put(key, data)
        self.objects[key] = len(data)
        self.segments += [segment_in(key, info) for info in writer.segments[self.row.task_id]]

    def _next_key(self) -> CommittedKey:
        name = replay_writer(self.row.task_id, self.row.epoch, self.attempt)
        return CommittedKey(tenant=self.row.tenant, sorter=name, incarnation=1, seq=len(self.objects) + 1)


class _LogNeeded(Exception):
    """Only the log above this timestamp can tell."""

    def __init__(self, above: int) -> None:
        super().__init__(above)
        self.above = above


class _Search:
    """Finds versions in the log of a partition, as `sorter.worker.log_search` does for a task."""

    def __init__(self, store: ObjectStore, row: ReplayPlanRow, log: _Log) -> None:
        self._source, self._row, self._log = SegmentSource(store), row, log
        self.found = 0

    def __call__(self, question: LogQuestion) -> pa.Table:
        lowest, known = min(question.commit_ts), self._row.logged_above
        if lowest <= self._row.durable_ts and (known is None or lowest <= known):
            raise _LogNeeded(lowest - 1)
        versions = sorted(zip(question.commit_ts, question.keys, strict=True))
        wanted = pa.array(question.commit_ts, pa.uint64()), pa.array(question.keys, pa.binary())
        holding = [segment for segment in (*self._row.logged, *self._log.segments) if may_hold(segment, versions)]
        parts = [matching(self._source.rows(segment), *wanted) for segment in holding[:SEGMENTS_MAX]]
        table = pa.concat_tables([COMMITTED.empty_table(), *parts])
        self.found += table.num_rows
        return table


def _keys(row: ReplayPlanRow) -> Callable[[], SnapshotKey]:
    """Unique keys of snapshot objects: other attempts of this epoch start at other random numbers."""
    numbers = count(secrets.randbits(48) + REPLAY_N_MIN)
    return lambda: SnapshotKey(tenant=row.tenant, task_id=row.task_id, epoch=row.epoch, n=next(numbers))


def _batches(store: ObjectStore, row: ReplayPlanRow) -> Iterator[FeedBatch]:
    """The steps of the plan in order; files are read ahead."""

    def read(step: ReplayRead) -> FeedBatch:
        return _closing(step) if step.closes else _read(store, row, step)

    ahead: deque[Future[FeedBatch]] = deque()
    steps = iter(row.steps)
    with ThreadPoolExecutor(READERS, thread_name_prefix="replay-read") as pool:
        try:
            ahead.extend(pool.submit(read, step) for step in islice(steps, READERS))
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(pool.submit(read, step) for step in islice(steps, 1))
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)


def _read(store: ObjectStore, row: ReplayPlanRow, step: ReplayRead) -> FeedBatch:
    key = BatchKey(tenant=row.tenant, store_id=step.store_id, incarnation=step.incarnation, seq=step.seq)
    file = decode_batch_file(key, store.get(str(key)))
    routed = route(directory(file.rows, file.regions), row.range)
    return FeedBatch(
        store_id=step.store_id,
        incarnation=step.incarnation,
        seq=step.seq,
        cut_ts=file.cut_ts,
        rows=routed.rows,
        regions=routed.regions,
    )


def _closing(step: ReplayRead) -> FeedBatch:
    return FeedBatch(
        store_id=step.store_id,
        incarnation=step.incarnation,
        seq=step.seq,
        cut_ts=0,
        rows=_NO_ROWS,
        regions=_NO_REGIONS,
        closes=True,
    )


Progress = Callable[[int, int], None]  #: called with (partitions done, partitions)
Executor = Callable[[Sequence[ReplayPlanRow], Progress], Iterable[PartitionResult]]


class ThreadsExecutor:
    """An Executor over one store. The first error ends it, and what `progress` raises."""

    def __init__(self, store: ObjectStore, *, threads: int = 2, clock: Clock | None = None) -> None:
        self._store, self._threads, self._clock = store, threads, clock or SystemClock()

    def __call__(self, rows: Sequence[ReplayPlanRow], progress: Progress) -> Iterator[PartitionResult]:
        return run_stoppable(self._store, _one, rows, progress, self._clock, threads=self._threads)


def _one(store: ObjectStore, row: ReplayPlanRow) -> PartitionResult:
    return replay_partition(store, row, secrets.token_hex(8))


class SparkReplayExecutor:
    """An Executor over a Spark session. `store_url` must be the same bucket for every worker."""

    def __init__(self, session: SparkSession, store_url: str, clock: Clock) -> None:
        self._session, self._store_url, self._clock = session, store_url, clock

    def __call__(self, rows: Sequence[ReplayPlanRow], progress: Progress) -> Iterator[PartitionResult]:
        """One Spark job for all rows. Spark's own error when a Spark task has failed too often."""
        name = f"tistream-replay-{secrets.token_hex(4)}"
        plan, work = [encode(row) for row in rows], partial(_replay, self._store_url)
        lines = run_lines(self._session, name, plan, work, self._clock, progress, pool=str(rows[0].tenant))
        yield from (decode(PartitionResult, line) for line in lines)


def _replay(store_url: str, line: str) -> str:
    return encode(replay_partition(open_store(store_url), decode(ReplayPlanRow, line), secrets.token_hex(8)))
