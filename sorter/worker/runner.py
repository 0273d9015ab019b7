"""One task on this worker: its core, the readers that feed it, and its snapshots. Used from the worker's loop thread.

    load      read snapshot and positions as of one moment, or refuse so that the worker retries. Rows stay in their
              objects until needed
    absorb    take the batches of the readers; one whose rows cannot be matched, because those of the snapshot cannot be
              fetched, goes back and is taken later
    save      PUT new rows and the state, then switch the pointer, the set of objects and the positions together,
              guarded by the epoch

A runner never decides that a task is lost: it raises Fenced, and the worker drops it. When a step of the core fails
unexpectedly, the core is unusable (`core_error`): the worker drops it and loads it again. An error that no other sorter
could handle better (an upstream contract violation, an unreadable state) is `broken`: the task stops in the catalog.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial

import structlog

from sorter.core.contradictions import found_by
from sorter.core.task_core import CoreSnapshot, Effect
from sorter.core.traffic import Traffic
from sorter.state.merge_barrier import is_beyond
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.inbox import Inbox
from sorter.worker.log_search import LogSearch, SearchIncomplete
from sorter.worker.publisher import Publication
from sorter.worker.pump import Read, Reader
from sorter.worker.stored_core import RowsOutOfReach, StateUnreadable, StoredCore, loaded
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.snapshots import NewSnapshot, positions, switch_snapshot
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work.quarantines import record_quarantine
from tistream.catalog.work.tasks import get_task, raise_resubscribe, stop_task
from tistream.errors import (
    CorruptObject,
    FeedGap,
    Fenced,
    NotFound,
    ObjectConflict,
    ObjectNotFound,
    PromiseContradicted,
    StoreUnavailable,
    UpstreamContractViolated,
)
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.model.positions import Positions, position_of
from tistream.model.problem import Problem
from tistream.model.task_state import TaskState
from tistream.objectstore.layout import SnapshotKey
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

Switch = Callable[[NewSnapshot], bool]  #: makes a snapshot the task's state; False when this epoch has ended

BACKLOG_BYTES_MAX = 16 << 20  #: of rows that could be written; a task with more takes no batches
FEW_BATCHES = 8  #: batches that an idle tenant may accumulate
PASSED_MAX = 6  #: rounds of snapshots that such a task skips ...
PASSED_MAX_MANY = 30  #: ... and where tasks are many


@dataclass(frozen=True, slots=True, kw_only=True)
class Absorbed:
    batches: int
    rows: int
    nbytes: int
    more: bool  #: more can be done at once
    error: RowsOutOfReach | None = None  #: why it stopped early; repeat it later


class TaskRunner:
    """A task that this worker owns, at one epoch."""

    def __init__(self, row: TaskRow, core: StoredCore, catalog: Catalog, store: ObjectStore) -> None:
        self.row = row
        self.core = core
        self.publication = Publication(core=core, epoch=row.epoch)
        self.broken: UpstreamContractViolated | StateUnreadable | None = None  #: why it halts
        self.ended = False  #: it is stopped in the catalog
        self.inbox = Inbox()
        self.cut_timestamps: dict[int, int] = {}  #: store -> cut_ts of the newest file taken
        self.traffic = Traffic(row.task_id)
        self.more = True  #: whether `absorb` has work without new batches
        self._catalog = catalog
        self._store = store
        self._readers: dict[int, Reader] = {}
        self._leaving: list[Reader] = []
        self.core_error: Exception | None = None  #: why the core does not match its positions
        self._snapshot_n = row.snapshot_no
        self.durable_n = row.snapshot_no  #: of the newest snapshot known to be in the catalog
        self._until: Positions | None = None  # nothing behind it is taken
        self._skipped = False  # whether batches behind it were skipped
        self._counted: tuple[int, int] | None = None  # `durable_ts` and `backlog`, until batches arrive
        self._dirty = False
        self._unsaved_batches = self._unsaved_rows = self._passed = 0  # since the last snapshot; rounds without one
        self._resubscribe = False
        self.contradicted: dict[int, PromiseContradicted] = {}  #: store -> what is not recorded in the catalog yet
        self._problem: Problem | None = None

    @classmethod
    def load(cls, row: TaskRow, catalog: Catalog, store: ObjectStore) -> TaskRunner:
        """The task as of its last snapshot. StateUnreadable when that is missing, damaged or of another task, Fenced
        when the task changed hands meanwhile; other store and catalog errors pass through."""
        search = LogSearch(catalog, store, row.tenant, row.kind)
        core = StoredCore(row.task_id, row.range, row.start_ts, row.durable_ts, store.get_range, search)
        if row.snapshot_key is not None:
            consumed = positions(catalog, row.task_id)
            try:
                core.restore(_state(store, row, row.snapshot_key), consumed)
            except (ObjectNotFound, CorruptObject) as e:
                _check_unchanged(catalog, row)  # else the object may be gone because the task has a newer one
                if isinstance(e, StateUnreadable):
                    raise
                raise StateUnreadable(task=row.task_id, object=row.snapshot_key, cause=str(e)) from e
            _check_unchanged(catalog, row)  # pointer and positions must be consistent
        log.info(
            "task started",
            tenant=str(row.tenant),
            task=row.task_id,
            epoch=row.epoch,
            durable_ts=row.durable_ts,
            snapshot=row.snapshot_key,
        )
        return cls(row, core, catalog, store)

    @property
    def task_id(self) -> int:
        return self.row.task_id

    @property
    def halted(self) -> bool:
        return self.broken is not None or self.core_error is not None

    @property
    def gets_rows(self) -> bool:
        return self._unsaved_rows > 0

    def follow(self, store_ids: Set[int], read: Read) -> None:
        """Open a reader for each store of the tenant."""
        store_ids = store_ids - self.contradicted.keys()
        if store_ids <= self._readers.keys():
            return
        for store_id in sorted(store_ids - self._readers.keys()):
            request = FeedRequest(
                tenant=self.row.tenant,
                store_id=store_id,
                task_id=self.task_id,
                epoch=self.row.epoch,
                worker_id=self.row.owner or "",
                range=self.row.range,
                positions=self.core.positions().get(store_id, {}),
            )
            self._readers[store_id] = read(request, self.inbox)

    def apply_quarantines(self, held: Set[int], rejected: Set[tuple[int, int]]) -> None:
        """Take no file of the `held` stores of the tenant, and end the incarnations that an operator has rejected."""
        for store_id in held & self._readers.keys():
            self._leave_store(store_id)
        for store_id, incarnation in sorted(rejected):
            positions = self.core.positions().get(store_id, {})
            if self.halted or position_of(positions, incarnation).closed:
                continue
            self._leave_store(store_id)
            self._step(partial(self.core.end_incarnation, store_id, incarnation))
            self.contradicted.pop(store_id, None)
            self._unsaved_batches += 1
            log.warning("incarnation given up", task=self.task_id, store=store_id, incarnation=incarnation)

    def absorb(self, batches_max: int, bytes_max: int, is_late: Callable[[], bool] = lambda: False) -> Absorbed:
        """Take batches into the core up to a bound, or until `is_late`, or until W has reached more commits than one
        step decides: those go first, one step per call. With `bytes_max` 0 nothing is taken. An upstream contract
        violation halts the task."""
        settled = not self.halted and self.core.settling
        batches = rows = size = 0
        late, error, searching = False, None, False
        try:
            if settled:
                self._step(self.core.settle)
            bytes_max = min(bytes_max, self._allowance())
            while batches < batches_max and size < bytes_max and not self.halted and not self.core.settling:
                batch = self.inbox.take()
                if batch is None:
                    break
                if self._until is not None and is_beyond(batch, self._until):
                    self._skipped = True
                else:
                    self._absorb(batch)
                    rows += batch.rows.num_rows
                    size += batch.nbytes
                batches += 1
                if late := is_late():
                    break
        except RowsOutOfReach as e:
            error = e
        except SearchIncomplete:
            searching = True
        full = batches == batches_max or 0 < bytes_max <= size
        more = not self.halted and (late or full or searching or self.core.settling)
        self.more = more
        if settled or batches:
            self._counted = None
        return Absorbed(batches=batches, rows=rows, nbytes=size, more=more, error=error)

    @property
    def backlog(self) -> int:
        """Bytes that could be written now. Cached until something arrives or is written, because rows of a snapshot
        must be fetched to count them. If that fails the backlog counts as full until a flush has fetched them."""
        if self.halted:
            return 0
        durable_ts = self.core.durable_ts
        if self._counted is None or self._counted[0] != durable_ts:
            try:
                self._counted = durable_ts, self.core.flushable_bytes()
            except (RowsOutOfReach, StateUnreadable):
                self._counted = durable_ts, BACKLOG_BYTES_MAX  # the flush fails too, and shows it
        return self._counted[1]

    def held_bytes(self) -> int:
        return self.core.bytes_held() + self.inbox.bytes

    def check_watermark(self) -> None:
        """Raise whatever prevents reading the watermark, so that it concerns this task alone."""
        self.core.watermark()

    def report(self) -> TaskState:
        """The state of the task for metrics and the API."""
        core = self.core
        open_rows, ready_rows, watermark_gaps = core.counts()
        return TaskState(
            task_id=self.task_id,
            tenant=self.row.tenant,
            durable_ts=core.durable_ts,
            watermark=core.watermark(),
            cut_timestamps=dict(self.cut_timestamps),
            open_rows=open_rows,
            ready_rows=ready_rows,
            held_bytes=core.bytes_held(),
            spill_bytes=core.bytes_on_disk(),
            inbox_bytes=self.inbox.bytes,
            watermark_gaps=watermark_gaps,
        )

    def act(self) -> None:
        """Persist the core's effects. Fenced when the catalog does not accept this epoch."""
        if self._resubscribe:
            self._guarded(raise_resubscribe(self._catalog, self.task_id, epoch=self.row.epoch))
            self._resubscribe = False
        for store_id, e in list(self.contradicted.items()):
            self._guarded(record_quarantine(self._catalog, self.row.tenant, self.task_id, self.row.epoch, found_by(e)))
            del self.contradicted[store_id]
        if self.broken is not None:
            self._guarded(stop_task(self._catalog, self.task_id, epoch=self.row.epoch, error=str(self.broken)))
            self.ended = True

    def stop_for(self, error: UpstreamContractViolated | StateUnreadable) -> None:
        """Halt the task; `act` stops it in the catalog."""
        log.error("task stopped", task=self.task_id, error=str(error))
        self.broken = error

    def note_flush(self) -> None:
        """A flush has made the next snapshot smaller."""
        self._dirty = True

    def should_save(self, *, many_tasks: bool = False) -> bool:
        """Whether a snapshot is worth its requests now. A few batches without rows only move the positions: the next
        owner rereads them quickly, so saving waits a few rounds, longer where tasks are many (`many_tasks`)."""
        self._passed += 1
        passed_max = PASSED_MAX_MANY if many_tasks else PASSED_MAX
        return self._unsaved_rows > 0 or self._unsaved_batches >= FEW_BATCHES or self._passed >= passed_max

    def save(self) -> None:
        """Save the state if it has changed. Fenced when another worker owns the task; a failed attempt is repeated
        under a new key."""
        if self._dirty and not self.halted:
            self._save(partial(switch_snapshot, self._catalog, self.task_id, self.row.epoch))

    def _save(self, switch: Switch) -> None:
        state = self.core.snapshot()
        save = loaded(partial(Save, state, self.next_key, secrets.token_hex(16)), self._store.get_range)
        try:
            for key, data in save.objects():
                self._store.put(key, data)
            switched = self._switch(save, state.positions, switch)
        except (ObjectConflict, Fenced) as e:  # used by an earlier incarnation, or its orphan was collected
            raise StoreUnavailable("snapshot key already used", task=self.task_id, cause=str(e)) from e
        self._guarded(switched)
        save.done()
        self.durable_n = save.key.n
        self._dirty = False
        self._unsaved_batches = self._unsaved_rows = self._passed = 0

    def stop_at(self, until: Positions) -> None:
        """Take no batches behind these positions: the task is about to be merged."""
        self._until = until

    def abort_merge(self) -> None:
        """Abort the merge: write and take everything again."""
        self.publication.upto = self._until = None
        if self._skipped:  # reread what was skipped
            self._skipped = False
            self.ask_to_stop()
            self.inbox = Inbox()

    def ask_to_stop(self) -> None:
        self._leaving += self._readers.values()
        self._readers.clear()
        for reader in self._leaving:
            reader.ask_to_stop()

    @property
    def is_stopping(self) -> bool:
        return any(reader.is_alive for reader in self._leaving)

    def stop(self) -> None:
        """Stop the readers and wait for them."""
        self.ask_to_stop()
        for reader in self._leaving:
            reader.join()
        self._leaving.clear()

    def problems(self) -> list[Problem]:
        own = [self._problem] if self._problem is not None else []
        if self.broken is not None:
            own.append(Problem.of(f"task {self.task_id}", self.broken))  # the worker and its other tasks continue
        return own + [p for reader in list(self._readers.values()) for p in reader.problems()]

    def next_key(self) -> SnapshotKey:
        """An unused key for a snapshot object, later than those before."""
        self._snapshot_n += 1
        return SnapshotKey(tenant=self.row.tenant, task_id=self.task_id, epoch=self.row.epoch, n=self._snapshot_n)

    def _allowance(self) -> int:
        """Bytes that it may take before more is written: in a flood rows wait at the source, not here, where they would
        cost memory. Before a merge the limit is off, because nothing above the barrier is written."""
        return sys.maxsize if self.publication.upto is not None else max(0, BACKLOG_BYTES_MAX - self.backlog)

    def _switch(self, save: Save, consumed: Positions, switch: Switch) -> bool:
        new = NewSnapshot(
            key=str(save.key),
            n=save.key.n,
            objects=save.new,
            keeps=save.keeps,
            positions=consumed,
            seen_n=self.durable_n,
        )

        def read_back() -> bool | None:
            row = _current_row(self._catalog, self.row)
            if row is None:
                return False
            return True if row.snapshot_key == str(save.key) else None

        return commit_or_read_back(lambda: switch(new), read_back)

    def _absorb(self, batch: FeedBatch) -> None:
        try:
            self._step(lambda: self.core.handle(batch))
        except (RowsOutOfReach, SearchIncomplete):
            self.inbox.put_back(batch)
            raise
        except PromiseContradicted as e:
            log.error("store contradicts its promise", tenant=str(self.row.tenant), error=str(e))
            self.contradicted[batch.store_id] = e
            self._leave_store(batch.store_id)
        except (FeedGap, CorruptObject) as e:
            self._resubscribe_store(batch.store_id, e)
        else:
            self._problem = None
            if not batch.closes:
                self.cut_timestamps[batch.store_id] = max(batch.cut_ts, self.cut_timestamps.get(batch.store_id, 0))
            self._unsaved_batches, self._unsaved_rows = (
                self._unsaved_batches + 1,
                self._unsaved_rows + batch.rows.num_rows,
            )
            self.traffic.note(batch)

    def _step(self, step: Callable[[], list[Effect]]) -> None:
        try:
            effects = step()
        except (UpstreamContractViolated, StateUnreadable) as e:
            self.stop_for(e)
        except (RowsOutOfReach, SearchIncomplete, FeedGap, CorruptObject, PromiseContradicted):
            raise  # the core is unchanged
        except Exception as e:  # noqa: BLE001 - the core may be half-way and is loaded again
            log.warning("core step failed, reloading the task", task=self.task_id, error=str(e))
            self.core_error = e
        else:
            self._dirty = True
            self._resubscribe = self._resubscribe or bool(effects)

    def _resubscribe_store(self, store_id: int, error: FeedGap | CorruptObject) -> None:
        """The core refused a batch: subscribe again behind the last one taken."""
        problem = Problem.of(f"task {self.task_id} store {store_id}", error)
        if problem != self._problem:
            log.warning("batch refused, resubscribing", task=self.task_id, store=store_id, error=str(error))
        self._problem = problem
        self._stop_reader(store_id)

    def _leave_store(self, store_id: int) -> None:
        """Take nothing more of a store."""
        self._stop_reader(store_id)
        self.inbox.drop(store_id)

    def _stop_reader(self, store_id: int) -> None:
        reader = self._readers.pop(store_id, None)
        if reader is not None:
            reader.ask_to_stop()
            self._leaving.append(reader)

    def _guarded(self, matched: bool) -> None:
        if not matched:
            raise Fenced(task=self.task_id, epoch=self.row.epoch)


def _state(store: ObjectStore, row: TaskRow, key: str) -> CoreSnapshot:
    try:
        state = read_state_file(key, store.get(key)).state
    except CorruptObject:  # possibly damaged in transit: read again
        state = read_state_file(key, store.get(key)).state
    if state.start_ts != row.start_ts or state.durable_ts > row.durable_ts:
        raise CorruptObject("the snapshot belongs to another history of the task", object=key, task=row.task_id)
    return state


def _check_unchanged(catalog: Catalog, row: TaskRow) -> None:
    now = _current_row(catalog, row)
    if now is None or (now.epoch, now.snapshot_no) != (row.epoch, row.snapshot_no):
        raise Fenced("the task changed while it was loaded", task=row.task_id, epoch=row.epoch)


def _current_row(catalog: Catalog, row: TaskRow) -> TaskRow | None:
    """The task's row; None when it was split or merged."""
    try:
        return get_task(catalog, row.task_id)
    except NotFound:
        return None
