"""All that changes the state of one task: what a sorter decides, without any I/O.

    FeedBatch --handle--> effects            the rows first, then the file's watermark rows
    settle()  -> effects  while `settling`: W(key) has reached more commits than one step decides
    pending() -> W        how far the task could be written out now; None while it is where it was
    take(W)   -> rows     to be written; they stay until `flushed(W)` says that they are durable

Relations:

- per (store, incarnation) the batches come densely: seq = position + 1. A repeated one is ignored, a gap is refused;
- per store one incarnation begins after the one before has ended; ended ones are forgotten
  (`tistream.model.positions`);
- durable watermark <= attempted_ts, and neither falls. `attempted_ts` is the largest W that `take` was asked for: its fate may be
  unknown, so from then on nothing new may appear at or below it;
- after a restore W may lie below durable watermark, until the replay, or a subscription that begins at or below
  durable watermark, has caught up;
- what W(key) has reached and is not decided holds the watermark, also after a restore;
- state at any time = snapshot + the batches after its positions. Batches that were consumed before a restored snapshot
  of another half may come again: they are duplicates.

An exception from `handle` says that the task cannot go on as it is: FeedGap and CorruptObject leave the state as it
was, UpstreamContractViolated ends the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from sorter.core.eviction import Disk, evict, held_bytes
from sorter.core.prewrite_buffer import Limits, PrewriteBuffer, Undecided
from sorter.core.sort_buffer import SortBuffer
from sorter.core.watermark import RangeWatermarkMap, Stuck
from sorter.rows.batch_rows import Arrivals
from sorter.rows.output import Output
from sorter.rows.run import Run
from sorter.rows.saved import RunState
from tistream.errors import FeedGap, UpstreamContractViolated, invariant
from tistream.feed.protocol import FeedBatch
from tistream.ids import Position
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions, position_of, without_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedResubscribe:
    """A new subscription of the range is needed: only its opening scan can say what this commit committed."""

    task_id: int
    undecided: Undecided


Effect = NeedResubscribe


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSnapshot:
    """A task's whole state at one moment: runs, which never change, with the flags that they had then, and tables."""

    start_ts: int
    durable_ts: int  #: when it was taken; the catalog's may be higher by now
    positions: Positions
    next_row_no: int  #: of the next prewrite that comes
    open: tuple[RunState, ...]  #: prewrites that are not decided
    commits: tuple[RunState, ...]  #: commits that wait
    ready: tuple[RunState, ...]  #: rows that wait for the watermark
    late_ready: pl.DataFrame  #: saved.LATE_READY
    slices: pa.Table  #: watermark.SLICES
    waiting: pa.Table  #: watermark.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStats:
    """How much a task holds, and what it dropped since it started."""

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
    waiting_watermarks: int
    dead_prewrites: int
    forgotten_rollbacks: int
    duplicates: int
    dropped_by_store: Mapping[int, int]  #: commits at or below durable watermark


class TaskCore:
    """One task: a key range, its watermark map and its buffers."""

    def __init__(self, task_id: int, range_: KeyRange, start_ts: int, durable_ts: int) -> None:
        self.task_id = task_id
        self.range = range_
        self.start_ts = start_ts
        self._durable_ts = durable_ts
        self._attempted_ts = durable_ts
        self._watermarks = RangeWatermarkMap(range_, start_ts, durable_ts=durable_ts)
        self._prewrites = PrewriteBuffer()
        self._ready = SortBuffer()
        self._positions: dict[int, dict[int, Position]] = {}
        self._next_row_no = 0
        self.batches = 0  #: taken since it started
        self._ask_again: list[Undecided] = []  # what a snapshot held undecided, until the next batch
        self._uncovered_by = "its snapshot"

    @property
    def durable_ts(self) -> int:
        """Everything at or below is durably written."""
        return self._durable_ts

    def handle(self, batch: FeedBatch) -> list[Effect]:
        """Take one batch. What it lets decide is decided up to a bounded number of commits, the rest by `settle`, or
        by the next batch. FeedGap, CorruptObject, UpstreamContractViolated: see above."""
        if not self._is_next(batch):
            return []
        self.batches += 1
        effects: list[Effect] = []
        while self.settling:
            effects += self.settle()
        store, incarnation = batch.store_id, batch.incarnation
        if batch.closes:
            at = self._positions.get(store, {}).get(incarnation, Position(seq=batch.seq))
            self._stands(store, incarnation, replace(at, closed=True))
            self._watermarks.forget(store, incarnation)
            return effects
        self._uncovered_by = f"store {store} file {incarnation}/{batch.seq}"
        try:
            if batch.rows.num_rows:
                self._take_rows(batch)
            self._prewrites.note_ready(batch.regions, store, incarnation)
            moved = self._watermarks.apply(batch.regions, store, incarnation, batch.seq)
            asking = self._ask_again
            if moved or batch.rows.num_rows:
                asking = asking + self._prewrites.settle(self._watermarks, self._ready)
        except UpstreamContractViolated as e:
            raise self._told(e) from e
        self._stands(store, incarnation, Position(seq=batch.seq))
        self._ask_again = []
        return effects + self._need_resubscribe(asking)

    @property
    def settling(self) -> bool:
        """Whether W(key) has reached commits that are not decided yet. They hold the watermark."""
        return self._prewrites.settling

    def settle(self) -> list[Effect]:
        """Decide a bounded number of them. UpstreamContractViolated: see above."""
        try:
            return self._need_resubscribe(self._prewrites.decide_next(self._watermarks, self._ready))
        except UpstreamContractViolated as e:
            raise self._told(e) from e

    def watermark(self) -> int | None:
        """Up to where the task is complete and decided; None while its range has a hole."""
        w = self._watermarks.watermark()
        hold = self._prewrites.hold()
        return w if w is None or hold is None else min(w, hold)

    def pending(self) -> int | None:
        """A watermark above `durable_ts` up to which the task can be written now, or None. A flush has bounded rows."""
        w = self.watermark()
        return self._ready.reach(w) if w is not None and w > self._durable_ts else None

    def flushable_bytes(self) -> int:
        """Bytes of keys and values that could be written out now."""
        w = self.watermark()
        return self._ready.bytes_due(w) if w is not None and w > self._durable_ts else 0

    def take(self, w: int) -> Output:
        """The rows in (durable_ts, w], by (table_id, commit_ts, start_ts, key), to be written in pieces."""
        limit = self.watermark()
        invariant(limit is not None and self._durable_ts < w <= limit, "taken above the watermark", w=w, limit=limit)
        self._attempted_ts = max(self._attempted_ts, w)
        return self._ready.take(w)

    def flushed(self, w: int) -> None:
        """The catalog says that everything up to w is written. Only a w that was taken can be."""
        invariant(
            self._durable_ts <= w <= self._attempted_ts,
            "flushed what was never taken",
            w=w,
            attempted_ts=self._attempted_ts,
        )
        self._durable_ts = w
        self._ready.flushed(w)

    def positions(self) -> dict[int, dict[int, Position]]:
        """How far each incarnation of each store has been consumed; those below the lowest entry have ended."""
        return {store: dict(lives) for store, lives in self._positions.items()}

    def explain(self, range_: KeyRange | None = None) -> list[Stuck]:
        """What the watermark of the range, or of the whole task, waits for: undecided commits where they hold it, else
        regions and holes. Last, the task's oldest open transaction: resolved timestamps wait for its outcome."""
        wanted = self.range if range_ is None else self.range.intersect(range_)
        if wanted is None:
            return []
        stuck = self._watermarks.explain(wanted)
        undecided = [_undecided(*found) for found in self._prewrites.undecided(wanted)]
        lowest = min((s.w for s in stuck if s.w is not None), default=None)
        if undecided and lowest is not None:
            held = [s for s in undecided if s.w is not None and s.w <= lowest]
            stuck = held or stuck
        oldest = self._prewrites.oldest_open()
        if oldest is not None and range_ is None:
            stuck.append(_undecided_prewrite(*oldest, self.watermark()))
        return stuck

    def open_rows(self) -> int:
        """How many rows wait in it, for their commit or for the watermark."""
        return self._prewrites.open_count + self._prewrites.waiting_count + self._ready.count

    def bytes_held(self) -> int:
        """Memory that its rows take, with all that belongs to them."""
        return held_bytes(self._runs())

    def bytes_on_disk(self) -> int:
        """What of them was written out."""
        return held_bytes(self._runs(), on_disk=True)

    def evict(self, disk: Disk, wanted: int) -> int:
        """Have the oldest rows written out until so many bytes have left the memory, or nothing is left there that
        could; how many it were. What `disk` raises leaves the rest as it was."""
        return evict(self._runs(), disk, wanted)

    def snapshot(self) -> CoreSnapshot:
        """The whole state."""
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
        )

    def restore(self, snapshot: CoreSnapshot, positions: Positions) -> None:
        """Take over a snapshot into a new core, cut to its range. `positions` are the catalog's: they were switched
        together with the snapshot. W stays what it was: the replay lifts it, and prewrites must not die early. What was
        undecided holds it at once, and is asked for again with the next batch."""
        self._watermarks.restore(snapshot.slices, snapshot.waiting)
        open_, commits, ready = (
            [run.revive() for run in of] for of in (snapshot.open, snapshot.commits, snapshot.ready)
        )
        self._ask_again = self._prewrites.restore(open_, commits, snapshot.late_ready, self.range, self._durable_ts)
        self._ready.restore(ready, self.range, self._durable_ts)
        self._prewrites.look(self._watermarks)
        self._positions = {store: dict(lives) for store, lives in positions.items()}
        self._next_row_no = snapshot.next_row_no

    def check(self) -> None:
        """Raise when a relation does not hold. For tests: it looks at everything."""
        self._watermarks.check()
        self._ready.check()
        self._prewrites.check(self._limits(), self._ready)
        invariant(
            self._durable_ts <= self._attempted_ts,
            "durable watermark above attempted_ts",
            durable_ts=self._durable_ts,
            attempted_ts=self._attempted_ts,
        )

    def counts(self) -> tuple[int, int, int]:
        """Undecided prewrites, rows that wait for the watermark or the flush, and holes: cheap enough to ask often."""
        return self._prewrites.open_count, self._ready.count, self._watermarks.watermark_gap_count

    def stats(self) -> CoreStats:
        """How much it holds."""
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
            waiting_watermarks=len(self._watermarks.waiting()),
            dead_prewrites=prewrites.dead,
            forgotten_rollbacks=prewrites.forgotten,
            duplicates=prewrites.duplicates,
            dropped_by_store=dict(prewrites.dropped),
        )

    def _runs(self) -> list[Run]:
        """All of its runs, in the order in which they leave the memory."""
        return [*self._prewrites.open, *self._ready.runs, *self._prewrites.commits]

    def _take_rows(self, batch: FeedBatch) -> None:
        rows = Arrivals(batch, self.range, self._next_row_no)
        self._prewrites.take_in(rows, self._watermarks, self._limits(), self._ready)
        self._next_row_no += batch.rows.num_rows

    def _need_resubscribe(self, asking: list[Undecided]) -> list[Effect]:
        return [NeedResubscribe(task_id=self.task_id, undecided=undecided) for undecided in asking]

    def _told(self, error: UpstreamContractViolated) -> UpstreamContractViolated:
        """The same error with the task and the file whose arrival uncovered it."""
        return UpstreamContractViolated(
            error.message, task=self.task_id, uncovered_by=self._uncovered_by, **error.facts
        )

    def _limits(self) -> Limits:
        return Limits(durable_ts=self._durable_ts, attempted_ts=self._attempted_ts)

    def _stands(self, store: int, incarnation: int, at: Position) -> None:
        self._positions[store] = without_ended({**self._positions.get(store, {}), incarnation: at})

    def _is_next(self, batch: FeedBatch) -> bool:
        """Whether the batch is the one to take now; False for one that was taken already."""
        lives = self._positions.get(batch.store_id, {})
        if lives and batch.incarnation < min(lives):
            return False  # it has ended and is forgotten: a late file of it is not used
        at = position_of(lives, batch.incarnation)
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


def _undecided_prewrite(start_ts: int, count: int, key: bytes, w: int | None) -> Stuck:
    where = f"one locks key {key.hex()}" if count > 1 else f"it locks key {key.hex()}"
    reason = f"the oldest open transaction began at {start_ts}, {count} of its prewrites are here, {where}"
    return Stuck(range=KeyRange(key, key + b"\0"), w=w, start_ts=start_ts, reason=reason)


def _undecided(commit: Undecided, incarnation: int, seq: int, count: int) -> Stuck:
    others = f", and {count - 1} more of this region" if count > 1 else ""
    key = commit.key.hex()
    return Stuck(
        range=KeyRange(commit.key, commit.key + b"\0"),
        w=commit.commit_ts - 1,
        region_id=commit.region_id,
        store_id=commit.store_id,
        incarnation=incarnation,
        seq=seq,
        reason=f"nobody knows what transaction {commit.start_ts} committed at {commit.commit_ts} to key {key}{others}; "
        "a new subscription was asked for",
    )
