"""One task on this worker: its core, the readers that feed it, and its snapshots. Used from the worker's loop thread.

    load      snapshot and positions as of one moment, or refuse and let the worker try again. The rows stay in their
              objects until they are needed
    absorb    what the readers brought
    save      PUT what no object holds yet and the state, then switch the pointer, the set of objects and the positions
              together, guarded by the epoch

A runner never decides by itself that a task is lost: it raises Fenced, and the worker drops it. When a step of the core
fails half-way, the core is of no use any more (`core_error`): the worker drops it too, and loads it again. What no other
sorter could do better, a broken promise or a state that cannot be read, is `broken`: the task stops, in the catalog.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Set
from dataclasses import dataclass

import structlog

from sorter.core.task_core import CoreSnapshot, Effect, TaskCore
from sorter.core.traffic import Traffic
from sorter.rows.saved import RowsOutOfReach, StateUnreadable
from sorter.state.merge_barrier import is_beyond
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.inbox import Inbox
from sorter.worker.publisher import Publication
from sorter.worker.reader import Read, Reader
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.snapshots import positions, switch_snapshot
from tistream.catalog.work.tasks import TaskRow, get_task, raise_resubscribe, stop_task
from tistream.errors import (
    CatalogUnavailable,
    CorruptObject,
    FeedGap,
    Fenced,
    NotFound,
    ObjectConflict,
    ObjectNotFound,
    StoreUnavailable,
    UpstreamContractViolated,
)
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.model.positions import Positions
from tistream.model.task_state import TaskState
from tistream.objectstore.layout import SnapshotKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service import Problem

log = structlog.get_logger(__name__)

BACKLOG_BYTES_MAX = 16 << 20  #: of rows that could be written out; a task with more takes nothing in
FEW_BATCHES = 8  #: of an idle tenant, which come seldom
PASSED_MAX = 6  #: a snapshot of them is due with every so many of the others ...
SELDOM_MAX = 30  #: ... and where very many tasks are, with so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Absorbed:
    """What a runner has taken in."""

    batches: int
    rows: int
    nbytes: int
    more: bool  #: there is more to do at once


class TaskRunner:
    """A task that this worker owns, at one epoch."""

    def __init__(self, row: TaskRow, core: TaskCore, catalog: Catalog, store: ObjectStore) -> None:
        self.row = row
        self.core = core
        self.publication = Publication(core=core, epoch=row.epoch)
        self.broken: UpstreamContractViolated | StateUnreadable | None = (
            None  #: why it halts; nothing is read or written any more
        )
        self.ended = False  #: the catalog says that it is stopped
        self.inbox = Inbox()
        self.heard: dict[int, int] = {}  #: store -> cut_ts of the newest batch file that the core took
        self.traffic = Traffic(row.task_id)
        self.more = True  #: whether `absorb` has something to do though nothing has come
        self._catalog = catalog
        self._store = store
        self._readers: dict[int, Reader] = {}
        self._leaving: list[Reader] = []
        self.core_error: Exception | None = None  #: why the core is not what its positions say
        self._snapshot_n = row.snapshot_n
        self.durable_n = row.snapshot_n  #: of the newest snapshot that the catalog is known to have
        self._until: Positions | None = None  # behind which nothing is taken
        self._left_out = False  # whether something came from there
        self._counted: tuple[int, int] | None = None  # `durable_ts` and `backlog`, unless something has come since
        self._dirty = False
        self._unsaved_batches = self._unsaved_rows = self._passed = 0  # since the last snapshot; looks without one
        self._resubscribe = False
        self._problem: Problem | None = None

    @classmethod
    def load(cls, row: TaskRow, catalog: Catalog, store: ObjectStore) -> TaskRunner:
        """The task as its last snapshot left it. StateUnreadable when that is gone, damaged or not this task's, Fenced
        when the task changed hands meanwhile; other errors of store and catalog pass through."""
        core = TaskCore(row.task_id, row.range, row.start_ts, row.durable_ts)
        if row.snapshot_key is not None:
            consumed = positions(catalog, row.task_id)
            try:
                core.restore(_state(store, row, row.snapshot_key), consumed)
            except (ObjectNotFound, CorruptObject) as e:
                _still_mine(catalog, row)  # else the object may have gone because another one is the task's by now
                if isinstance(e, StateUnreadable):
                    raise
                raise StateUnreadable(task=row.task_id, object=row.snapshot_key, cause=str(e)) from e
            _still_mine(catalog, row)  # pointer and positions must be from one moment
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
        """Whether nothing may be taken in, written or saved any more."""
        return self.broken is not None or self.core_error is not None

    @property
    def gets_rows(self) -> bool:
        """Whether rows have come since the last snapshot."""
        return self._unsaved_rows > 0

    def follow(self, store_ids: Set[int], read: Read) -> None:
        """Have a reader for each store of the tenant."""
        if store_ids <= self._readers.keys():
            return
        for store_id in sorted(store_ids - self._readers.keys()):
            request = FeedRequest(
                tenant=self.row.tenant,
                store_id=store_id,
                task_id=self.task_id,
                range=self.row.range,
                positions=self.core.positions().get(store_id, {}),
            )
            self._readers[store_id] = read(request, self.inbox)

    def absorb(self, batches_max: int, bytes_max: int, is_late: Callable[[], bool] = lambda: False) -> Absorbed:
        """Give the core what has come, until a bound is reached, or it is late, or W has reached more than one step
        decides: that goes first, a step with each call. Without bytes to take nothing comes in. A broken promise halts
        the task."""
        settled = not self.halted and self.core.settling
        if settled:
            self._step(self.core.settle)
        bytes_max = min(bytes_max, self._room())
        batches = rows = size = 0
        late = False
        while batches < batches_max and size < bytes_max and not self.halted and not self.core.settling:
            batch = self.inbox.take()
            if batch is None:
                break
            batches += 1
            if self._until is not None and is_beyond(batch, self._until):
                self._left_out = True
                continue
            rows += batch.rows.num_rows
            size += batch.nbytes
            self._absorb(batch)
            if late := is_late():
                break
        more = not self.halted and (late or batches == batches_max or 0 < bytes_max <= size or self.core.settling)
        self.more = more
        if settled or batches:
            self._counted = None
        return Absorbed(batches=batches, rows=rows, nbytes=size, more=more)

    @property
    def backlog(self) -> int:
        """Bytes that could be written out. Counted once, until something comes or is written: for rows of a snapshot it
        takes a fetch. When they do not come, it is as if there were many, until a flush has had them."""
        if self.halted:
            return 0
        durable_ts = self.core.durable_ts
        if self._counted is None or self._counted[0] != durable_ts:
            try:
                self._counted = durable_ts, self.core.flushable_bytes()
            except (RowsOutOfReach, StateUnreadable):
                self._counted = durable_ts, BACKLOG_BYTES_MAX  # the flush meets it again, and shows it
        return self._counted[1]

    def held_bytes(self) -> int:
        """Memory that the task takes."""
        return self.core.bytes_held() + self.inbox.bytes

    def check_watermark(self) -> None:
        """Raise what keeps its watermark from being known: rows of undecided commits may have to be fetched."""
        self.core.watermark()

    def report(self) -> TaskState:
        """How it stands."""
        core = self.core
        open_rows, ready_rows, watermark_gaps = core.counts()
        return TaskState(
            task_id=self.task_id,
            tenant=self.row.tenant,
            durable_ts=core.durable_ts,
            watermark=core.watermark(),
            heard=dict(self.heard),
            open_rows=open_rows,
            ready_rows=ready_rows,
            held_bytes=core.bytes_held(),
            spill_bytes=core.bytes_on_disk(),
            inbox_bytes=self.inbox.bytes,
            watermark_gaps=watermark_gaps,
        )

    def act(self) -> None:
        """Tell the catalog what the core asked for. Fenced when it no longer listens to this epoch."""
        if self._resubscribe:
            self._guarded(raise_resubscribe(self._catalog, self.task_id, epoch=self.row.epoch))
            self._resubscribe = False
        if self.broken is not None:
            self._guarded(stop_task(self._catalog, self.task_id, epoch=self.row.epoch, error=str(self.broken)))
            self.ended = True

    def stop_for(self, error: UpstreamContractViolated | StateUnreadable) -> None:
        """The task halts; `act` says so in the catalog."""
        log.error("the task stops", task=self.task_id, error=str(error))
        self.broken = error

    def note_flush(self) -> None:
        """Something was written out: the next snapshot can be smaller."""
        self._dirty = True

    def should_save(self, *, seldom: bool = False) -> bool:
        """Whether a snapshot is worth its requests now. Of a few batches without a row only the positions would move:
        whoever gets the task reads them again at once, and their files may wait a while for being deleted, a longer one
        (`seldom`) where very many tasks are."""
        self._passed += 1
        passed_max = SELDOM_MAX if seldom else PASSED_MAX
        return self._unsaved_rows > 0 or self._unsaved_batches >= FEW_BATCHES or self._passed >= passed_max

    def save(self) -> None:
        """Save the state if it has changed. Fenced when the task is somebody else's; a failed try is repeated under a
        new key the next time."""
        if not self._dirty or self.halted:
            return
        state = self.core.snapshot()
        save = Save(state, self.next_key, secrets.token_hex(16))
        try:
            for key, data in save.objects():
                self._store.put(key, data)
            switched = self._switch(save, state.positions)
        except (ObjectConflict, Fenced) as e:  # an earlier life tried this number and died, or its orphan was collected
            raise StoreUnavailable("a snapshot key is used up", task=self.task_id, cause=str(e)) from e
        self._guarded(switched)
        save.done()
        self.durable_n = save.key.n
        self._dirty = False
        self._unsaved_batches = self._unsaved_rows = self._passed = 0

    def stop_at(self, until: Positions) -> None:
        """Take no batches behind these positions: the task is about to be merged."""
        self._until = until

    def go_on(self) -> None:
        """It is not merged now: write and take what comes again."""
        self.publication.upto = self._until = None
        if self._left_out:  # read again what was left out
            self._left_out = False
            self.ask_to_stop()
            self.inbox = Inbox()

    def ask_to_stop(self) -> None:
        """Tell the readers to stop."""
        self._leaving += self._readers.values()
        self._readers.clear()
        for reader in self._leaving:
            reader.ask_to_stop()

    @property
    def is_stopping(self) -> bool:
        """Whether a reader that was told to stop still runs."""
        return any(reader.is_alive for reader in self._leaving)

    def stop(self) -> None:
        """Stop the readers and wait for them."""
        self.ask_to_stop()
        for reader in self._leaving:
            reader.join()
        self._leaving.clear()

    def problems(self) -> list[Problem]:
        """What is wrong with the task or its feeds now."""
        own = [self._problem] if self._problem is not None else []
        if self.broken is not None:
            own.append(Problem.of(f"task {self.task_id}", self.broken))  # the worker and its other tasks go on
        return own + [p for reader in list(self._readers.values()) for p in reader.problems()]

    def next_key(self) -> SnapshotKey:
        """The key of a snapshot object that was never used, later than those before."""
        self._snapshot_n += 1
        return SnapshotKey(tenant=self.row.tenant, task_id=self.task_id, epoch=self.row.epoch, n=self._snapshot_n)

    def _room(self) -> int:
        """Bytes that it may take in before more is written out: in a flood rows wait where they come from, not here,
        where they would be held long and cost memory. Before a merge it is the other way round: what is missing has to
        come, and what lies above the other's `durable_ts` is not written."""
        return sys.maxsize if self.publication.upto is not None else max(0, BACKLOG_BYTES_MAX - self.backlog)

    def _switch(self, save: Save, consumed: Positions) -> bool:
        try:
            return switch_snapshot(
                self._catalog,
                self.task_id,
                epoch=self.row.epoch,
                snapshot_key=str(save.key),
                snapshot_n=save.key.n,
                objects=save.new,
                keeps=save.keeps,
                positions=consumed,
                seen_n=self.durable_n,
            )
        except CatalogUnavailable as e:
            if e.determinate:
                raise
            found = _newest(self._catalog, self.row)
            if found is not None and found.snapshot_key != str(save.key):
                raise
            return found is not None

    def _absorb(self, batch: FeedBatch) -> None:
        try:
            self._step(lambda: self.core.handle(batch))
        except (FeedGap, CorruptObject) as e:
            self._again(batch.store_id, e)
        else:
            self._problem = None
            if not batch.closes:
                self.heard[batch.store_id] = max(batch.cut_ts, self.heard.get(batch.store_id, 0))
            self._unsaved_batches, self._unsaved_rows = (
                self._unsaved_batches + 1,
                self._unsaved_rows + batch.rows.num_rows,
            )
            self.traffic.note(batch)

    def _step(self, step: Callable[[], list[Effect]]) -> None:
        """A step of the core."""
        try:
            effects = step()
        except (UpstreamContractViolated, StateUnreadable) as e:
            self.stop_for(e)
        except (FeedGap, CorruptObject):
            raise  # the core is as it was
        except Exception as e:  # noqa: BLE001 - whatever it is, the core is half-way and is loaded again
            log.warning("a step failed half-way, loading the task again", task=self.task_id, error=str(e))
            self.core_error = e
        else:
            self._dirty = True
            self._resubscribe = self._resubscribe or bool(effects)

    def _again(self, store_id: int, error: FeedGap | CorruptObject) -> None:
        """The core refused a batch: subscribe again behind the last one that it took."""
        problem = Problem.of(f"task {self.task_id} store {store_id}", error)
        if problem != self._problem:
            log.warning("a batch was refused, subscribing again", task=self.task_id, store=store_id, error=str(error))
        self._problem = problem
        reader = self._readers.pop(store_id, None)
        if reader is not None:
            reader.ask_to_stop()
            self._leaving.append(reader)

    def _guarded(self, matched: bool) -> None:
        if not matched:
            raise Fenced(task=self.task_id, epoch=self.row.epoch)


def _state(store: ObjectStore, row: TaskRow, key: str) -> CoreSnapshot:
    try:
        state = read_state_file(key, store.get(key), store.get_range).state
    except CorruptObject:  # bytes may have been damaged on their way: they are read once more
        state = read_state_file(key, store.get(key), store.get_range).state
    if state.start_ts != row.start_ts or state.durable_ts > row.durable_ts:
        raise CorruptObject("the snapshot is not of this task's past", object=key, task=row.task_id)
    return state


def _still_mine(catalog: Catalog, row: TaskRow) -> None:
    now = _newest(catalog, row)
    if now is None or (now.epoch, now.snapshot_n) != (row.epoch, row.snapshot_n):
        raise Fenced("the task moved on while it was loaded", task=row.task_id, epoch=row.epoch)


def _newest(catalog: Catalog, row: TaskRow) -> TaskRow | None:
    """The task's row; None when other tasks stand in its place."""
    try:
        return get_task(catalog, row.task_id)
    except NotFound:
        return None
