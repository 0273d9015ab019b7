"""State machine of one task, without I/O.

    FeedBatch --handle--> effects            rows first, then the watermark rows of the file
    settle()  -> effects  while `settling`: more commits to decide than one step may, or rows to load first
    pending() -> W        the highest watermark that can be written now, or None if it has not moved
    take(W)   -> rows     to write; they stay buffered until `flushed(W)` confirms them

After a restore, rows lie in snapshot objects. A step that reads parts that are not loaded raises NotLoaded, which names
them, and can be repeated; the worker fetches and loads them first. `question(batch)` is asked before
`handle`: what only the committed log can tell; its answer is passed to `handle`.

Relations:

- per (store, incarnation) batches are dense: seq = position + 1. A repeated batch is ignored, a gap is refused;
- the incarnations of a store follow one another; ended ones are forgotten (`tistream.model.positions`);
- durable_ts <= attempted_ts, and neither falls. `attempted_ts` is the highest W ever passed to `take`: the flush may
  have succeeded, so nothing new may appear at or below it;
- after a restore W may lie below durable_ts, until the replay, or a subscription that begins at or below durable_ts,
  catches up;
- undecided commits that W(key) has reached hold the watermark, also after a restore;
- state = snapshot + the batches after its positions. Batches consumed before the snapshot of another half was restored
  may come again as duplicates.

When `handle` raises FeedGap, CorruptObject or PromiseContradicted, the batch has changed nothing.
UpstreamContractViolated ends the task. PromiseContradicted means that the store broke its own promise
(`sorter.core.contradictions`): its files are not taken until an operator has decided: `end_incarnation` ends a rejected
incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core import contradictions
from sorter.core.admission import Limits
from sorter.core.contradictions import LogQuestion, contradicted
from sorter.core.eviction import Disk, evict, held_bytes
from sorter.core.prewrite_buffer import PrewriteBuffer, Undecided, stuck_commit, stuck_prewrite
from sorter.core.promised import Promised
from sorter.core.slots import Stamps
from sorter.core.sort_buffer import SortBuffer
from sorter.core.watermark import RangeWatermarkMap, Stuck
from sorter.rows.batch_rows import IncomingRows
from sorter.rows.output import RowsToWrite
from sorter.rows.run import Run
from sorter.rows.saved import RunState
from tistream.errors import FeedGap, UpstreamContractViolated, invariant
from tistream.feed.protocol import FeedBatch
from tistream.ids import Position
from tistream.keyrange import KeyRange
from tistream.model.arrays import I64
from tistream.model.positions import Positions, position_of, without_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedResubscribe:
    """Only the opening scan of a new subscription of the range can tell what this commit committed."""

    task_id: int
    undecided: Undecided


Effect = NeedResubscribe


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSnapshot:
    """The whole state of a task: immutable runs with their flags at that time, and tables."""

    start_ts: int
    durable_ts: int  #: at that time; the catalog's may be higher by now
    positions: Positions
    next_row_no: int  #: of the next prewrite
    open: tuple[RunState, ...]  #: undecided prewrites
    commits: tuple[RunState, ...]  #: waiting commits
    ready: tuple[RunState, ...]  #: rows waiting for the watermark
    late_ready: pl.DataFrame  #: saved.LATE_READY
    slices: pa.Table  #: watermark.SLICES
    waiting: pa.Table  #: watermark.WAITING
    promised: pa.Table  #: promised.PROMISED


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStats:
    """What a task holds, and what it has dropped since it started."""

    durable_ts: int
    watermark: int | None
    open_prewrites: int
    waiting_commits: int
    undecided_commits: int
    ready_rows: int
    bytes_held: int  #: in memory
    bytes_on_disk: int
    slices: int
    watermark_gaps: int
    duplicates: int
    dropped_by_store: Mapping[int, int]  #: commits at or below durable watermark


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is computed once of a batch."""

    batch: FeedBatch
    rows: IncomingRows
    promised: Stamps | None  #: by earlier files, for each REGIONS row
    suspects: I64  #: rows at or below it


class TaskCore:
    """One task: a key range, its watermark map and its buffers."""

    def __init__(self, task_id: int, range_: KeyRange, start_ts: int, durable_ts: int) -> None:
        self.task_id = task_id
        self.range = range_
        self.start_ts = start_ts
        self._durable_ts = durable_ts
        self._attempted_ts = durable_ts
        self._watermarks = RangeWatermarkMap(range_, start_ts, durable_ts=durable_ts)
        self._promised = Promised()
        self._prewrites = PrewriteBuffer()
        self._ready = SortBuffer()
        self._positions: dict[int, dict[int, Position]] = {}
        self._next_row_no = 0
        self._prepared: _Prepared | None = None
        self.batches = 0  #: taken since the start
        self._resubscribe_for: list[Undecided] = []  # undecided commits, until a step returns them as effects
        self._uncovered_by = "its snapshot"

    @property
    def durable_ts(self) -> int:
        """Every change at or below it is durable."""
        return self._durable_ts

    def handle(self, batch: FeedBatch, logged: pa.Table | None = None) -> list[Effect]:
        """Take one batch and decide a bounded number of commits; `settle` or the next batch decides the rest. `logged`
        answers `question`. Errors as described in the module docstring."""
        if not self._is_next(batch):
            return []
        self._settle_all()
        store, incarnation = batch.store_id, batch.incarnation
        if batch.closes:
            at = self._positions.get(store, {}).get(incarnation, Position(seq=batch.seq))
            self._set_position(store, incarnation, replace(at, closed=True))
            self._watermarks.forget(store, incarnation)
            self._promised.forget(store, incarnation)
            self.batches += 1
            return self._resubscribe()
        self._uncovered_by = f"store {store} file {incarnation}/{batch.seq}"
        try:
            if batch.rows.num_rows:
                self._refuse_contradictions(batch, logged)
            self._prewrites.note_ready(batch.regions, store, incarnation)
            if batch.rows.num_rows:
                self._take_rows(batch)
            moved = self._watermarks.apply(batch.regions, store, incarnation, batch.seq)
            self._promised.note(batch.regions, store, incarnation)
            if moved or batch.rows.num_rows:
                self._resubscribe_for += self._prewrites.settle(self._watermarks, self._ready)
        except UpstreamContractViolated as e:
            raise self._with_task(e) from e
        self._set_position(store, incarnation, Position(seq=batch.seq))
        self.batches += 1
        return self._resubscribe()

    @property
    def settling(self) -> bool:
        """Whether `settle` has work: commits that W(key) has reached (they hold the watermark), or dead prewrites and
        sparse runs that were not loaded."""
        return self._prewrites.settling

    def question(self, batch: FeedBatch) -> LogQuestion | None:
        """What only the committed log can tell about this batch: whether it holds rows that the store may not send any
        more. Nearly always None. Errors as of `handle`."""
        at = self._contradicting(batch, None)
        question = contradictions.question(self._incoming(batch), at, self._durable_ts) if len(at) else ()
        return question or None

    def end_incarnation(self, store: int, incarnation: int) -> list[Effect]:
        """An operator has rejected this incarnation of a store: it ends where it was taken to, and its promises do not
        count any more. W falls to what has been handed to a flush or others promise; new subscriptions of the store,
        which begin at or below `durable_ts`, raise it again and bring what is missing."""
        self._settle_all()
        at = position_of(self._positions.get(store, {}), incarnation)
        if not at.closed:
            self._set_position(store, incarnation, replace(at, closed=True))
            self._watermarks.withdraw(store, incarnation, self._attempted_ts)
            self._promised.forget(store, incarnation)
        return self._resubscribe()

    def settle(self) -> list[Effect]:
        """Decide a bounded number of reached commits. Raises UpstreamContractViolated."""
        try:
            self._resubscribe_for += self._prewrites.decide_next(self._watermarks, self._ready)
        except UpstreamContractViolated as e:
            raise self._with_task(e) from e
        return self._resubscribe()

    def watermark(self) -> int | None:
        """The highest timestamp up to which the task is complete and decided; None while its range has a gap."""
        w = self._watermarks.watermark()
        hold = self._prewrites.hold()
        return w if w is None or hold is None else min(w, hold)

    def pending(self) -> int | None:
        """A watermark above `durable_ts` that a flush of bounded size can reach now, or None."""
        w = self.watermark()
        return self._ready.reach(w) if w is not None and w > self._durable_ts else None

    def flushable_bytes(self) -> int:
        """Bytes of keys and values that a flush could write now."""
        w = self.watermark()
        return self._ready.bytes_due(w) if w is not None and w > self._durable_ts else 0

    def take(self, w: int) -> RowsToWrite:
        """The rows in (durable_ts, w], by (table_id, commit_ts, start_ts, key), to be written in pieces."""
        limit = self.watermark()
        invariant(limit is not None and self._durable_ts < w <= limit, "take above the watermark", w=w, limit=limit)
        rows = self._ready.take(w)
        self._attempted_ts = max(self._attempted_ts, w)
        return rows

    def flushed(self, w: int) -> None:
        """Everything up to `w` is durable in the catalog. `w` must have been passed to `take`."""
        invariant(
            self._durable_ts <= w <= self._attempted_ts,
            "flushed without take",
            w=w,
            attempted_ts=self._attempted_ts,
        )
        self._durable_ts = w
        self._ready.flushed(w)

    def positions(self) -> dict[int, dict[int, Position]]:
        """The position in each incarnation of each store; incarnations below the lowest entry have ended."""
        return {store: dict(incarnations) for store, incarnations in self._positions.items()}

    def explain(self, range_: KeyRange | None = None) -> list[Stuck]:
        """What blocks the watermark of the range, or of the whole task: undecided commits if they hold it, else regions
        and gaps. The last entry is the oldest open transaction of the task, because resolved timestamps wait for its
        outcome."""
        wanted = self.range if range_ is None else self.range.intersect(range_)
        if wanted is None:
            return []
        stuck = self._watermarks.explain(wanted)
        undecided = [stuck_commit(*entry) for entry in self._prewrites.undecided(wanted)]
        lowest = min((s.w for s in stuck if s.w is not None), default=None)
        if undecided and lowest is not None:
            held = [s for s in undecided if s.w is not None and s.w <= lowest]
            stuck = held or stuck
        oldest = self._prewrites.oldest_open()
        if oldest is not None and range_ is None:
            stuck.append(stuck_prewrite(*oldest, self.watermark()))
        return stuck

    def open_rows(self) -> int:
        """Number of rows that wait for a commit or for the watermark."""
        return self._prewrites.open_count + self._prewrites.waiting_count + self._ready.count

    def bytes_held(self) -> int:
        """Memory of the rows with their indexes."""
        return held_bytes(self._runs())

    def bytes_on_disk(self) -> int:
        return held_bytes(self._runs(), on_disk=True)

    def evict(self, disk: Disk, wanted: int) -> int:
        """Spill the oldest rows until `wanted` bytes of memory are free or nothing is left to spill; the bytes freed.
        An error of `disk` leaves the remaining rows unchanged."""
        return evict(self._runs(), disk, wanted)

    def snapshot(self) -> CoreSnapshot:
        open_, commits = self._prewrites.snapshot()
        slices, waiting = self._watermarks.snapshot()
        return CoreSnapshot(
            start_ts=self.start_ts,
            durable_ts=self._durable_ts,
            positions=self.positions(),
            next_row_no=self._next_row_no,
            open=open_,
            commits=commits,
            ready=self._ready.snapshot(),
            late_ready=self._prewrites.late_ready,
            slices=slices,
            waiting=waiting,
            promised=self._promised.snapshot(),
        )

    def restore(self, snapshot: CoreSnapshot, positions: Positions) -> None:
        """Load a snapshot into a new core, cut to its range. `positions` come from the catalog, which switches them
        together with the snapshot. W keeps its old value until the replay raises it, because prewrites must not die
        early. Undecided commits hold it at once, and the next batch requests a new subscription for them."""
        self._watermarks.restore(snapshot.slices, snapshot.waiting)
        self._promised.restore(snapshot.promised)
        self._prewrites.late_ready = snapshot.late_ready
        buffers = self._prewrites.buffers(self._ready)
        for runs, states in (
            (buffers.open, snapshot.open),
            (buffers.commits, snapshot.commits),
            (buffers.ready.runs, snapshot.ready),
        ):
            for state in states:
                runs.add(state.revive())
        self._restrict()
        self._positions = {store: dict(incarnations) for store, incarnations in positions.items()}
        self._next_row_no = snapshot.next_row_no

    def _restrict(self) -> None:
        """Drop the rows of a snapshot that belong to other tasks or were written since. Can be repeated."""
        self._resubscribe_for = self._prewrites.restrict(self.range, self._durable_ts)
        self._ready.restrict(self.range, self._durable_ts)
        self._prewrites.look(self._watermarks)

    def check(self) -> None:
        """Raise when a relation does not hold. For tests: it reads every row."""
        self._watermarks.check()
        self._ready.check()
        self._prewrites.check(self._limits(), self._ready)
        invariant(
            self._durable_ts <= self._attempted_ts,
            "durable_ts above attempted_ts",
            durable_ts=self._durable_ts,
            attempted_ts=self._attempted_ts,
        )

    def counts(self) -> tuple[int, int, int]:
        """(undecided prewrites, ready rows, watermark gaps); cheap enough for every report."""
        return self._prewrites.open_count, self._ready.count, self._watermarks.watermark_gap_count

    def stats(self) -> CoreStats:
        prewrites, ready = self._prewrites, self._ready
        return CoreStats(
            durable_ts=self._durable_ts,
            watermark=self.watermark(),
            open_prewrites=prewrites.open_count,
            waiting_commits=prewrites.waiting_count,
            undecided_commits=prewrites.undecided_count,
            ready_rows=ready.count,
            bytes_held=self.bytes_held(),
            bytes_on_disk=self.bytes_on_disk(),
            slices=self._watermarks.slice_count(),
            watermark_gaps=len(self._watermarks.watermark_gaps()),
            duplicates=prewrites.duplicates,
            dropped_by_store=dict(prewrites.dropped),
        )

    def _runs(self) -> list[Run]:
        """All runs, in the order in which they are evicted."""
        return [*self._prewrites.open, *self._ready.runs, *self._prewrites.commits]

    def _take_rows(self, batch: FeedBatch) -> None:
        self._prewrites.take_in(self._incoming(batch), self._watermarks, self._limits(), self._ready)
        self._prepared = None
        self._next_row_no += batch.rows.num_rows

    def _prepare(self, batch: FeedBatch) -> _Prepared:
        """What is computed once of the next batch; `question` and `handle` share it."""
        if self._prepared is None or self._prepared.batch is not batch:
            rows = IncomingRows(batch, self.range, self._next_row_no)
            promised = self._promised.before(batch.regions, batch.store_id, batch.incarnation)
            self._prepared = _Prepared(batch, rows, promised, contradictions.suspects(rows, promised))
        return self._prepared

    def _incoming(self, batch: FeedBatch) -> IncomingRows:
        return self._prepare(batch).rows

    def _contradicting(self, batch: FeedBatch, logged: pa.Table | None) -> I64:
        """The rows of the batch that contradict a promise and are not held with equal bytes."""
        if batch.closes or not batch.rows.num_rows or not self._is_next(batch):
            return np.empty(0, np.int64)
        rows, at = self._incoming(batch), self._prepare(batch).suspects
        if not len(at):
            return at
        at = contradictions.unheld(rows, at, self._ready.runs, self._prewrites.commits)
        return contradictions.remaining(rows, at, logged)

    def _refuse_contradictions(self, batch: FeedBatch, logged: pa.Table | None) -> None:
        """Raise PromiseContradicted when there are such rows."""
        at, prepared = self._contradicting(batch, logged), self._prepare(batch)
        if len(at):
            self._prepared = None
            assert prepared.promised is not None
            raise contradicted(self.task_id, contradictions.described(prepared.rows, at, prepared.promised))

    def _settle_all(self) -> None:
        """Decide all reached commits, before a step. What becomes undecided stays noted if the step fails."""
        while self.settling:
            self._resubscribe_for += self._prewrites.decide_next(self._watermarks, self._ready)

    def _resubscribe(self) -> list[Effect]:
        undecided, self._resubscribe_for = self._resubscribe_for, []
        return [NeedResubscribe(task_id=self.task_id, undecided=each) for each in undecided]

    def _with_task(self, error: UpstreamContractViolated) -> UpstreamContractViolated:
        """The same error with the task and the file that revealed it."""
        return UpstreamContractViolated(
            error.message, task=self.task_id, uncovered_by=self._uncovered_by, **error.facts
        )

    def _limits(self) -> Limits:
        return Limits(durable_ts=self._durable_ts, attempted_ts=self._attempted_ts)

    def _set_position(self, store: int, incarnation: int, at: Position) -> None:
        self._positions[store] = without_ended({**self._positions.get(store, {}), incarnation: at})

    def _is_next(self, batch: FeedBatch) -> bool:
        """Whether the batch is the next one; False if it was taken already."""
        incarnations = self._positions.get(batch.store_id, {})
        if incarnations and batch.incarnation < min(incarnations):
            return False  # a late file of an ended incarnation is ignored
        at = position_of(incarnations, batch.incarnation)
        expected = at.seq if batch.closes else at.seq + 1
        if batch.closes and batch.seq <= at.seq:
            return not at.closed
        if batch.seq < expected:
            return False
        if at.closed or batch.seq > expected:
            raise FeedGap(
                task=self.task_id,
                store=batch.store_id,
                incarnation=batch.incarnation,
                expected=expected,
                found=batch.seq,
                closed=at.closed,
            )
        return True
