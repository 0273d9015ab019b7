"""Matching and ordering one tick of a task (a batch in, everything up to its watermark out): what makes it slower.

A tick has 100,000 prewrites and as many commits in transactions of five rows; every tenth row is committed one tick
later. Both sides get the same batches, and must write the same rows each tick.

    match-sort/open-rows            time with many open prewrites (5,000 are committed each tick), to that with few
    match-sort/early-commits        time with a million commits whose prewrites have not come, to that with none
    match-sort/stalled-watermark    time of a tick after 45 that could not be written out, to that after 5
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Result, in_turn
from benchmarks.rows import BASE_TS, change_rows
from sorter.core.task_core import TaskCore
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, REGIONS, ROWS, RowKind

ROWS_PER_TICK = 100_000
RUNS = 11
SECOND = 1000 << 18
OLD_HITS = 5_000
OPEN_ROWS = (100_000, 10_000_000)
EARLY = 1_000_000
FAR = BASE_TS + 10_000 * SECOND


class Ticks:
    """Batches of one store, tick after tick: the same keys and values again and again, later each time."""

    def __init__(self, rows: int = ROWS_PER_TICK) -> None:
        rng = np.random.default_rng(11)
        self.rows = rows
        self.data = change_rows(rows, seed=5)
        self.carried = np.arange(rows) % 10 == 0
        txns = np.sort(rng.integers(0, SECOND // 2, rows // 5)).astype(np.uint64)
        self.start = np.repeat(txns, 5)
        self.commit = self.start + np.repeat(rng.integers(1, SECOND // 3, rows // 5), 5).astype(np.uint64)

    def batch(self, n: int, *, stalled: bool = False, also: pa.RecordBatch | None = None) -> FeedBatch:
        """Tick n (from 0). Its watermark is the end of its second; with `stalled` a region without rows holds it."""
        base = np.uint64(BASE_TS + n * SECOND)
        zeros = np.zeros(self.rows, np.uint64)
        prewrites = self._rows(RowKind.PREWRITE, np.arange(self.rows), base + self.start, zeros)
        now = np.flatnonzero(~self.carried)
        commits = [self._rows(RowKind.COMMIT, now, base + self.start[now], base + self.commit[now])]
        if n:
            old = np.flatnonzero(self.carried)
            before = base - np.uint64(SECOND)
            commits.append(self._rows(RowKind.COMMIT, old, before + self.start[old], base + self.commit[old]))
        parts = [prewrites, *commits, *([] if also is None else [also])]
        rows = pa.Table.from_batches(parts, ROWS).combine_chunks().to_batches()[0]
        end = BASE_TS + (n + 1) * SECOND
        return batch_of(rows, n + 1, end, end + SECOND // 2, stalled=stalled)

    def _rows(self, kind: RowKind, at: np.ndarray, start: np.ndarray, commit: np.ndarray) -> pa.RecordBatch:
        data = self.data.take(pa.array(at))
        fixed = {"kind": np.full(len(at), kind, np.uint8), "start_ts": start, "commit_ts": commit}
        if kind == RowKind.COMMIT:
            fixed["value"] = pa.nulls(len(at), pa.binary())
        columns = [pa.array(fixed[n]) if n in fixed else data.column(n) for n in ROWS.names]
        return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def batch_of(rows: pa.RecordBatch, seq: int, resolved_ts: int, cut_ts: int, *, stalled: bool = False) -> FeedBatch:
    """A batch of two regions, of which the second has no rows."""
    numbers: dict[str, list[Any]] = {name: [1, 2] for name in REGIONS.names}
    numbers |= {"start_key": [b"", b"u"], "end_key": [b"u", b""], "checkpoint_ts": [BASE_TS] * 2}
    numbers |= {"resolved_ts": [resolved_ts, BASE_TS if stalled else resolved_ts], "subscription_ready_ts": [2, 2]}
    numbers |= {"row_offset": [0, rows.num_rows], "row_count": [rows.num_rows, 0]}
    regions = pa.RecordBatch.from_pydict(numbers, schema=REGIONS)
    return FeedBatch(store_id=1, incarnation=1, seq=seq, cut_ts=cut_ts, rows=rows, regions=regions)


def held(kind: RowKind, count: int, seed: int) -> pa.RecordBatch:
    """Rows that stay: old prewrites without a commit, or commits far ahead."""
    data = change_rows(count, seed=seed)
    start = np.uint64(BASE_TS - 3600 * SECOND) + np.arange(count, dtype=np.uint64) // np.uint64(5)
    start += np.uint64(seed) << np.uint64(20)
    commit = (
        np.zeros(count, np.uint64) if kind == RowKind.PREWRITE else np.uint64(FAR) + np.arange(count, dtype=np.uint64)
    )
    fixed = {"kind": np.full(count, kind, np.uint8), "start_ts": start, "commit_ts": commit}
    if kind == RowKind.COMMIT:
        fixed["value"] = pa.nulls(count, pa.binary())
    columns = [pa.array(fixed[n]) if n in fixed else data.column(n) for n in ROWS.names]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


class RunSorter:
    """The product's core."""

    def __init__(self) -> None:
        self.core = TaskCore(1, KeyRange(), BASE_TS, BASE_TS)

    def tick(self, batch: FeedBatch) -> pa.Table:
        self.core.handle(batch)
        while self.core.settling:
            self.core.settle()
        w = self.core.pending()
        if w is None:
            return COMMITTED.empty_table()
        rows = self.core.take(w).table()
        self.core.flushed(w)
        return rows


def run() -> Iterator[Result]:
    """Three ratios."""
    ticks = Ticks()
    yield _growth(ticks)
    yield _early(ticks)
    yield _stalled(ticks)


def _growth(ticks: Ticks) -> Result:
    small, large = RunSorter(), RunSorter()
    olds = []
    part = OPEN_ROWS[0]
    for seq in range(OPEN_ROWS[1] // part):
        rows = held(RowKind.PREWRITE, part, seq)
        olds.append(rows)
        for side, most in zip((small, large), OPEN_ROWS, strict=True):
            if seq * part < most:
                side.core.handle(batch_of(rows, seq + 1, BASE_TS, FAR))
        olds = olds[:1]
    firsts = [side.core.positions()[1][1].seq for side in (large, small)]
    order = np.random.default_rng(9).permutation(part)

    def batches(n: int) -> Sequence[FeedBatch]:
        at = np.sort(order[n * OLD_HITS : (n + 1) * OLD_HITS])
        data = olds[0].take(pa.array(at))
        commit = np.full(len(at), BASE_TS + n * SECOND + SECOND // 2, np.uint64)
        fixed = {"kind": np.full(len(at), RowKind.COMMIT, np.uint8), "commit_ts": commit}
        columns = [pa.array(fixed[c]) if c in fixed else data.column(c) for c in ROWS.names]
        columns[ROWS.names.index("value")] = pa.nulls(len(at), pa.binary())
        batch = ticks.batch(n, also=pa.RecordBatch.from_arrays(columns, schema=ROWS))
        return [_at(batch, first + n + 1) for first in firsts]

    pairs = _paired([large.tick, small.tick], batches, RUNS + 2)
    return Result.of(
        f"match-sort/open-rows {OPEN_ROWS[1]:.0e}/{OPEN_ROWS[0]:.0e}", [a / b for a, b in pairs[2:]], 1.2, "lower"
    )


def _early(ticks: Ticks) -> Result:
    none, many = RunSorter(), RunSorter()
    part = 100_000
    for seq in range(EARLY // part):
        many.core.handle(batch_of(held(RowKind.COMMIT, part, seq), seq + 1, BASE_TS, FAR))
    first = EARLY // part
    pairs = _paired(
        [many.tick, none.tick], lambda n: [_at(b := ticks.batch(n), first + n + 1), _at(b, n + 1)], RUNS + 2
    )
    return Result.of("match-sort/early-commits 1e6/0", [a / b for a, b in pairs[2:]], 1.2, "lower")


def _stalled(ticks: Ticks) -> Result:
    """All commits are decided, nothing can be written. Each of the ticks 43 to 53 of one sorter by one of 3 to 13 of
    another, in turn: a tick in which runs are put together costs two to five times as much, early and late."""
    late, early = RunSorter(), RunSorter()
    for side, before in ((late, 42), (early, 2)):
        for n in range(before):
            side.tick(ticks.batch(n, stalled=True))
    pairs = _paired(
        [late.tick, early.tick], lambda n: [ticks.batch(first + n, stalled=True) for first in (42, 2)], RUNS
    )
    return Result.of("match-sort/stalled-watermark 45th/5th", [a / b for a, b in pairs], 1.2, "lower")


def _paired(
    sides: Sequence[Callable[[FeedBatch], pa.Table]], batches: Callable[[int], Sequence[FeedBatch]], count: int
) -> list[tuple[float, float]]:
    """Seconds of both sides, tick by tick, the order changing. ValueError when their outputs differ."""
    out = []
    for n in range(count):
        given = batches(n)
        (a, rows), (b, others) = in_turn(n, *(partial(_seconds, *one) for one in zip(sides, given, strict=True)))
        if not rows.equals(others):
            raise ValueError(f"tick {n}: the two sides do not write the same rows")
        out.append((a, b))
    return out


def _seconds(side: Callable[[FeedBatch], pa.Table], batch: FeedBatch) -> tuple[float, pa.Table]:
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        rows = side(batch)
        return time.perf_counter() - start, rows
    finally:
        gc.enable()


def _at(batch: FeedBatch, seq: int) -> FeedBatch:
    return FeedBatch(store_id=1, incarnation=1, seq=seq, cut_ts=batch.cut_ts, rows=batch.rows, regions=batch.regions)
