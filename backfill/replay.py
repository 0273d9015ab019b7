"""What a worker does with one plan row: a sorter's core, fed with files, that writes its log and its state.

    snapshot of the task, cut to the part --> TaskCore <-- files in the order of the plan, cut to the part
                                                 |--> committed files up to `upto`
                                                 |--> a state, as every sorter saves it

`replay_part` depends on its plan row and the store only, so whoever runs it may run it twice, at once or again: every
try writes under keys of its own (`attempt`; snapshot objects under a random number), and nothing is visible until the
driver's transaction names it. What loses is an orphan and goes to the collector. The core and its kernels, the order of
a flush, the format of files and of states are the sorter's.

What it does not do: say when a task may be written up to where (the plan does), or ask for new subscriptions. An
undecided commit holds the part below `upto`; the result says where, and the live sorter resubscribes after the
hand-over.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice

import pyarrow as pa

from backfill.core.plan import PlanRow, Step
from dispatcher.core.router import directory, route
from sorter.core.task_core import TaskCore
from sorter.rows.output import Output
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.memory import Memory
from sorter.worker.publisher import FILE_BYTES_TARGET
from sorter.worker.spill import Spill, default_budget_bytes
from tistream.catalog.log.segments import SegmentRow, segment_in
from tistream.codec.batch_file import decode_batch_file
from tistream.codec.committed_file import CommittedFileWriter
from tistream.errors import CorruptObject
from tistream.feed.protocol import FeedBatch
from tistream.model.change import REGIONS, ROWS
from tistream.objectstore.layout import BatchKey, CommittedKey, SnapshotKey
from tistream.objectstore.protocol import ObjectStore

READERS = 4  #: files that are fetched and decoded at once
_NO_ROWS = pa.RecordBatch.from_pylist([], schema=ROWS)
_NO_REGIONS = pa.RecordBatch.from_pylist([], schema=REGIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """What a worker has written. Nothing of it is visible yet."""

    part: int
    task_id: int
    reached: int  #: everything at or below is in `segments` or was before; below `upto` when a commit is undecided
    log_objects: dict[str, int]  #: committed files -> bytes
    segments: tuple[SegmentRow, ...]  #: in them
    state_key: str  #: of the state
    state_objects: dict[str, int]  #: new ones with rows of it -> bytes
    keeps: tuple[str, ...]  #: objects of the snapshot before to which it refers too
    files: int  #: batch files taken
    bytes: int  #: of their rows that lie in the part, in memory
    rows: int  #: written
    seconds: float


def replay_part(store: ObjectStore, row: PlanRow, attempt: str) -> PartResult:
    """Do one plan row. `attempt` is a name that no other try uses.

    Raises CorruptObject for a damaged file or snapshot, ObjectNotFound for a missing one, UpstreamContractViolated
    as the sorter does, and StoreUnavailable. Nothing has changed then."""
    begun = time.monotonic()
    core = _restored(store, row)
    log = _Log(store, row, attempt)
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
    save = Save(core.snapshot(), _keys(row), secrets.token_hex(16))
    for key, data in save.objects():
        store.put(key, data)
    return PartResult(
        part=row.part,
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
    )


def _restored(store: ObjectStore, row: PlanRow) -> TaskCore:
    core = TaskCore(row.task_id, row.range, row.start_ts, row.durable_ts)
    if row.snapshot_key is not None:
        loaded = read_state_file(row.snapshot_key, store.get(row.snapshot_key), store.get_range)
        if loaded.state.start_ts != row.start_ts or loaded.state.durable_ts > row.durable_ts:
            raise CorruptObject("the snapshot is not of this task's past", object=row.snapshot_key, task=row.task_id)
        core.restore(loaded.state, row.positions)
    return core


def _flush(core: TaskCore, log: _Log, upto: int, *, at_once: bool) -> None:
    """Write what can be written up to `upto`: all of it, or as long as there is enough for a file."""
    while core.durable_ts < upto and (w := core.pending()) is not None:
        w = min(w, upto)
        log.write(core.take(w))
        core.flushed(w)  # to the core; nobody sees it before the hand-over
        if not at_once and core.flushable_bytes() < FILE_BYTES_TARGET:
            return


@dataclass(slots=True)
class _Log:
    """The committed files of a try."""

    store: ObjectStore
    row: PlanRow
    attempt: str
    objects: dict[str, int] = field(default_factory=dict)
    segments: list[SegmentRow] = field(default_factory=list)
    rows: int = 0

    def write(self, output: Output) -> None:
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
        # the name says the try, so that its number is the only one
        name = f"replay-{self.row.task_id}-{self.row.epoch}-{self.attempt}"
        return CommittedKey(tenant=self.row.tenant, sorter=name, incarnation=1, seq=len(self.objects) + 1)


def _keys(row: PlanRow) -> Callable[[], SnapshotKey]:
    """Keys of snapshot objects that nobody else uses: other tries of this epoch begin at other random numbers."""
    numbers = count(secrets.randbits(48) + (1 << 48))
    return lambda: SnapshotKey(tenant=row.tenant, task_id=row.task_id, epoch=row.epoch, n=next(numbers))


def _batches(store: ObjectStore, row: PlanRow) -> Iterator[FeedBatch]:
    """The steps of the plan, in its order; files are read ahead."""

    def read(step: Step) -> FeedBatch:
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


def _read(store: ObjectStore, row: PlanRow, step: Step) -> FeedBatch:
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


def _closing(step: Step) -> FeedBatch:
    return FeedBatch(
        store_id=step.store_id,
        incarnation=step.incarnation,
        seq=step.seq,
        cut_ts=0,
        rows=_NO_ROWS,
        regions=_NO_REGIONS,
        closes=True,
    )
