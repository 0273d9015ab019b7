"""Batcher: turns the events of one store's change feed into batch files. A pure core: events in, files out.

    SubscriptionOpened, Rows, SubscriptionReady, Resolved, SubscriptionClosed  ->  collected
    Tick(cut_ts)                                                               ->  one BatchFile, or several

- `seq` is dense from 1; `cut_ts` never decreases; one Batcher is one incarnation;
- a tick writes a file even without rows, because watermarks advance;
- `rows` are clustered by subscription, subscriptions in start-key order, arrival order within a subscription;
- `regions` has exactly one row for each subscription that was open at any time since the previous tick. Closed ones are
  included: their closing row has their last resolved ts, without which the next subscription's row would never be
  admissible;
- a subscription's resolved_ts is the largest received and never decreases, although the store's may;
- a resolved ts covers this file and all before it. When a tick is cut into several files, all but the last therefore
  repeat the watermarks of the previous tick;
- subscription_ready_ts is 0 until the subscription's opening scan is complete;
- within a subscription no scanned PREWRITE follows a different live PREWRITE of the same (key, start_ts). A live
  rewrite of a lock (a pipelined transaction flushes the key again) may overtake the scan that read the older lock: the
  scanned row is dropped. It stays if the live row has less: a PUT without its value ("fake prewrite"). A source that
  cannot tell the two apart must ensure this itself.

Data stays columnar: no object per row, nor per region and tick.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pusher.core.source import (
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from tistream import limits
from tistream.errors import invariant
from tistream.model.arrays import U64
from tistream.model.change import REGIONS, ROWS, Op, RowKind

_FIXED_BYTES_PER_ROW = 43  # of a row without key, value and old value


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwrittenFile:
    """One file, ready to encode."""

    seq: int
    cut_ts: int
    rows: pa.RecordBatch  #: schema change.ROWS
    regions: pa.RecordBatch  #: schema change.REGIONS


class Batcher:
    """The batch files of one incarnation."""

    def __init__(self, *, bytes_target: int = limits.BATCH_FILE_BYTES_TARGET) -> None:
        self._bytes_target = bytes_target
        self._seq = 0
        self._cut_ts = 0
        self._subscriptions: dict[int, SubscriptionOpened] = {}
        self._closed: set[int] = set()
        self._rows: dict[int, list[pa.RecordBatch]] = {}
        self._live: dict[int, _LivePrewrites] = {}  # of subscriptions that are still scanning
        self._marks = _Marks()
        self._shape: _Shape | None = None  # the columns of `regions` that depend on topology only

    @property
    def subscriptions(self) -> dict[int, SubscriptionOpened]:
        return {t: opened for t, opened in self._subscriptions.items() if t not in self._closed}

    @property
    def opening(self) -> dict[int, SubscriptionOpened]:
        """The subscriptions that are still scanning."""
        return {t: self._subscriptions[t] for t in self._live}

    def handle(self, event: SourceEvent) -> list[UnwrittenFile]:
        """Apply one event; only a Tick returns files."""
        match event:
            case Rows():
                self._check_open(event.subscription)
                rows = self._in_order(event)
                if rows.num_rows:
                    self._rows.setdefault(event.subscription, []).append(rows)
            case Resolved():
                self._marks.resolve(event.subscriptions, event.resolved_ts)
            case SubscriptionOpened():
                self._marks.add(event.subscription)
                self._subscriptions[event.subscription] = event
                self._live[event.subscription] = _LivePrewrites()
                self._shape = None
            case SubscriptionReady():
                self._check_open(event.subscription)
                self._marks.set_ready(event.subscription, event.ready_ts)
                self._live.pop(event.subscription, None)
            case SubscriptionClosed():
                self._check_open(event.subscription)
                self._closed.add(event.subscription)
                self._live.pop(event.subscription, None)
            case Tick():
                return self._tick(event.cut_ts)
            case _:
                assert_never(event)
        return []

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_open(self, subscription: int) -> None:
        known = subscription in self._subscriptions and subscription not in self._closed
        invariant(known, "an event of a subscription that is not open", subscription=subscription)

    def _in_order(self, event: Rows) -> pa.RecordBatch:
        """The event's rows without scanned prewrites that a live one supersedes."""
        live = self._live.get(event.subscription)
        invariant(
            live is not None or not event.scan,
            "scan rows after the end of the opening scan",
            subscription=event.subscription,
        )
        if live is None:
            return event.rows
        if event.scan:
            return live.without_older(event.rows)
        live.remember(event.rows)
        return event.rows

    def _tick(self, cut_ts: int) -> list[UnwrittenFile]:
        invariant(cut_ts >= self._cut_ts, "cut_ts decreased", cut_ts=cut_ts, before=self._cut_ts)
        self._cut_ts = cut_ts
        if self._shape is None:
            self._shape = _Shape.of(list(self._subscriptions.values()))
        rows, bounds = self._clustered(self._shape)
        files = []
        for start, end in _cuts(rows, self._bytes_target):
            ready, resolved = self._marks.current() if end == rows.num_rows else self._marks.promised()
            self._seq += 1
            files.append(
                UnwrittenFile(
                    seq=self._seq,
                    cut_ts=cut_ts,
                    rows=_one_batch(rows.slice(start, end - start)),
                    regions=self._shape.regions(ready, resolved, np.clip(bounds, start, end) - start),
                )
            )
        self._rows.clear()
        self._marks.commit()
        if self._closed:
            self._marks.remove(self._closed)
            self._subscriptions = self.subscriptions
            self._closed.clear()
            self._shape = None
        return files

    def _clustered(self, shape: _Shape) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """All rows in file order, and the offset of each subscription's rows (with one more entry for the end)."""
        mine = np.fromiter(self._rows, np.int64, len(self._rows))
        ranks = shape.rank[self._marks.slots(mine)]
        counts = np.zeros(len(shape.order) + 1, np.int64)
        batches: list[pa.RecordBatch] = []
        for at in np.argsort(ranks).tolist():
            chunks = self._rows[int(mine[at])]
            batches += chunks
            counts[int(ranks[at]) + 1] = sum(c.num_rows for c in chunks)
        return pa.Table.from_batches(batches, schema=ROWS), np.cumsum(counts)


class _LivePrewrites:
    """The (key, start_ts) of full live prewrites that a subscription received during its opening scan."""

    def __init__(self) -> None:
        self._seen: list[pl.DataFrame] = []

    def remember(self, rows: pa.RecordBatch) -> None:
        full = _prewrites(rows)
        if full.any():
            sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0).to_numpy()
            full &= (sizes > 0) | (rows.column("op").to_numpy() != Op.PUT)  # not a fake prewrite
        if full.any():
            self._seen.append(_identities(rows).filter(pl.Series(full)))

    def without_older(self, scanned: pa.RecordBatch) -> pa.RecordBatch:
        prewrites = _prewrites(scanned)
        if not self._seen or not prewrites.any():
            return scanned
        self._seen = [pl.concat(self._seen).unique()]
        rows = _identities(scanned).with_row_index("row").filter(pl.Series(prewrites))
        older = rows.join(self._seen[0], on=["key", "start_ts"], how="semi")["row"].to_numpy()
        keep = np.ones(scanned.num_rows, np.bool_)
        keep[older] = False
        return scanned.filter(pa.array(keep)) if len(older) else scanned


def _prewrites(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = rows.column("kind").to_numpy() == RowKind.PREWRITE
    return mask


def _identities(rows: pa.RecordBatch) -> pl.DataFrame:
    """The columns that identify a prewrite."""
    return pl.DataFrame(pa.table({name: rows.column(name) for name in ("key", "start_ts")}))


class _Marks:
    """Ready and resolved timestamps of the subscriptions, one slot each, ordered by id."""

    def __init__(self) -> None:
        self._n = 0
        self._ids = np.zeros(16, np.int64)
        self._marks = np.zeros((4, 16), np.uint64)  # ready, resolved; then both as of the last tick

    def add(self, subscription: int) -> None:
        newest = int(self._ids[self._n - 1]) if self._n else -1
        invariant(subscription > newest, "subscription ids must increase", subscription=subscription, newest=newest)
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._marks = np.concatenate([self._marks, np.zeros_like(self._marks)], axis=1)
        self._ids[self._n] = subscription
        self._marks[:, self._n] = 0
        self._n += 1

    def slots(self, subscriptions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        slots = np.searchsorted(self._ids[: self._n], subscriptions)
        known = bool((slots < self._n).all()) and bool((self._ids[slots] == subscriptions).all())
        invariant(known, "an event of a subscription that is not open")
        return slots

    def set_ready(self, subscription: int, ts: int) -> None:
        self._marks[0, self.slots(np.array([subscription], np.int64))] = ts

    def resolve(self, subscriptions: npt.NDArray[np.int64], resolved_ts: U64) -> None:
        slots = self.slots(subscriptions)
        self._marks[1, slots] = np.maximum(self._marks[1, slots], resolved_ts)

    def current(self) -> tuple[U64, U64]:
        return self._marks[0, : self._n], self._marks[1, : self._n]

    def promised(self) -> tuple[U64, U64]:
        return self._marks[2, : self._n], self._marks[3, : self._n]

    def commit(self) -> None:
        self._marks[2:] = self._marks[:2]

    def remove(self, subscriptions: Collection[int]) -> None:
        keep = ~np.isin(self._ids[: self._n], np.fromiter(subscriptions, np.int64, len(subscriptions)))
        self._n = int(keep.sum())
        self._ids[: self._n] = self._ids[: len(keep)][keep]
        self._marks[:, : self._n] = self._marks[:, : len(keep)][:, keep]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The columns of `regions` that change only when a subscription opens or closes, in start-key order."""

    order: npt.NDArray[np.int64]  #: slot of each row of `regions`
    rank: npt.NDArray[np.int64]  #: row of `regions` of each slot
    columns: dict[str, pa.Array]

    @classmethod
    def of(cls, subscriptions: Sequence[SubscriptionOpened]) -> _Shape:
        """`subscriptions`: by id, that is by slot."""
        order = sorted(
            range(len(subscriptions)), key=lambda i: (subscriptions[i].range.start, subscriptions[i].subscription)
        )
        placed = [subscriptions[i] for i in order]
        columns = {
            "region_id": pa.array([t.region_id for t in placed], pa.uint64()),
            "version": pa.array([t.version for t in placed], pa.uint64()),
            "start_key": pa.array([t.range.start for t in placed], pa.binary()),
            "end_key": pa.array([t.range.end for t in placed], pa.binary()),
            "subscription_open_ts": pa.array([t.open_ts for t in placed], pa.uint64()),
            "checkpoint_ts": pa.array([t.checkpoint_ts for t in placed], pa.uint64()),
        }
        slots = np.array(order, np.int64)
        return cls(slots, np.argsort(slots), columns)

    def regions(self, ready: U64, resolved: U64, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """`ready` and `resolved` by slot; `offsets` by row, with one more for the end."""
        moving = {
            "subscription_ready_ts": pa.array(ready[self.order], pa.uint64()),
            "resolved_ts": pa.array(resolved[self.order], pa.uint64()),
            "row_offset": pa.array(offsets[:-1].astype(np.uint64), pa.uint64()),
            "row_count": pa.array(np.diff(offsets).astype(np.uint64), pa.uint64()),
        }
        return pa.record_batch([(self.columns | moving)[name] for name in REGIONS.names], schema=REGIONS)


def _cuts(rows: pa.Table, bytes_target: int) -> Iterator[tuple[int, int]]:
    """Row ranges of the files, each within the target but at least one row; one empty range when there are no rows."""
    if not rows.num_rows:
        yield 0, 0
        return
    ends = np.cumsum(_row_bytes(rows))
    start = 0
    while start < rows.num_rows:
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + bytes_target, side="right")))
        yield start, end
        start = end


def _row_bytes(rows: pa.Table) -> npt.NDArray[np.int64]:
    sizes = np.full(rows.num_rows, _FIXED_BYTES_PER_ROW, np.int64)
    for name in ("key", "value", "old_value"):
        sizes += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy().astype(np.int64)
    return sizes


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.record_batch([pa.array([], f.type) for f in ROWS], schema=ROWS)
