"""The watermark map in a plain form, the reference for sorter.core.watermark: one Python object per watermark row.

A row may lift a slice from w to max(w, resolved_ts) only if checkpoint_ts <= max(w, durable_ts), where
`durable_ts` is that of the task when the map was made; otherwise it waits until another row has lifted the slice that
far. Every file is looked at row by row, slices are coalesced after each; nothing is kept from one file to the next
but the slices and the rows that wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sorter.core.watermark import SLICES, WAITING, Stuck, WatermarkRow
from tistream.errors import invariant
from tistream.keyrange import KeyRange, end_before, gaps, min_end


class PlainWatermarkMap:
    """W(key) over the range of one task."""

    def __init__(self, range_: KeyRange, start_ts: int, *, durable_ts: int = 0) -> None:
        self.range = range_
        self.start_ts = start_ts
        self.floor = np.uint64(max(start_ts, durable_ts))
        self._bounds: list[bytes] = [range_.start]
        self._w: npt.NDArray[np.uint64] = np.array([start_ts], np.uint64)
        self._covered: npt.NDArray[np.bool_] = np.zeros(1, np.bool_)
        self._waiting: dict[tuple[object, ...], WatermarkRow] = {}
        self._spoken: dict[tuple[int, int], tuple[int, pa.RecordBatch]] = {}  # newest file of each (store, incarnation)

    def apply(self, regions: pa.RecordBatch, store_id: int, incarnation: int, seq: int) -> bool:
        """Take the watermark rows (change.REGIONS) of one file whose data has been applied; whether any slice moved."""
        self._spoken[store_id, incarnation] = (seq, regions)
        rows = self._admissible(regions, store_id, incarnation, seq)
        for row in rows:
            known = self._waiting.get(row.promise)
            if known is None or known.resolved_ts <= row.resolved_ts:
                self._waiting[row.promise] = row
        return bool(rows) and self._advance()

    def forget(self, store_id: int, incarnation: int) -> None:
        """An incarnation has ended: no longer use its last file to explain. Its promises stay as they are."""
        self._spoken.pop((store_id, incarnation), None)

    def watermark(self) -> int | None:
        """The task's watermark: the lowest slice; None while there is a hole."""
        return int(self._w.min()) if self._covered.all() else None

    def highest(self) -> int:
        """The highest slice: no key has a larger W."""
        return int(self._w.max())

    def w_of(self, keys: pa.BinaryArray | pl.Series) -> npt.NDArray[np.uint64]:
        """W of each key. The keys must lie in the range."""
        if len(self._bounds) == 1:
            return np.full(len(keys), self._w[0], np.uint64)
        series = keys if isinstance(keys, pl.Series) else pl.Series(pl.from_arrow(keys), dtype=pl.Binary)
        bounds = pl.Series(self._bounds, dtype=pl.Binary)
        found = bounds.search_sorted(series, side="right").to_numpy().astype(np.int64)
        out: npt.NDArray[np.uint64] = self._w[found - 1]
        return out

    def watermark_gaps(self) -> list[KeyRange]:
        """The ranges that no row ever lifted, in key order."""
        return [self._slice(int(i)) for i in np.flatnonzero(~self._covered)]

    def slices(self) -> Iterator[tuple[KeyRange, int | None]]:
        """All slices in key order; None for a hole."""
        for i in range(len(self._bounds)):
            yield self._slice(i), int(self._w[i]) if self._covered[i] else None

    def waiting(self) -> list[WatermarkRow]:
        """The rows that wait, in a fixed order."""
        return [self._waiting[k] for k in sorted(self._waiting, key=str)]

    def explain(self) -> list[Stuck]:
        """For each hole, or (without holes) each lowest slice: what it waits for."""
        low = ~self._covered if not self._covered.all() else self._w == self._w.min()
        return [stuck for i in np.flatnonzero(low) for stuck in self._explain(int(i))]

    def snapshot(self) -> tuple[pa.Table, pa.Table]:
        """(slices, waiting rows), schemas SLICES and WAITING."""
        ends = [*self._bounds[1:], self.range.end]
        # Arrow would share the array's memory, and the map goes on changing it.
        slices = pa.table([self._bounds, ends, self._w.copy(), self._covered.copy()], schema=SLICES)
        rows = self.waiting()
        waiting = pa.table([[getattr(r, name) for r in rows] for name in WAITING.names], schema=WAITING)
        return slices, waiting

    def restore(self, slices: pa.Table, waiting: pa.Table) -> None:
        """Take over a snapshot, cut to this map's range. Parts of the range that it does not speak of stay holes."""
        for row in slices.to_pylist():
            for i in self._cut(row["start_key"], row["end_key"]):
                self._w[i] = max(self._w[i], row["w"])
                self._covered[i] = self._covered[i] or row["covered"]
        for row in waiting.to_pylist():
            kept = WatermarkRow(**row)
            if self._clip(kept.start_key, kept.end_key):
                self._waiting[kept.promise] = kept
        self._coalesce()
        self._advance()

    def check(self) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        bounds, size = self._bounds, len(self._bounds)
        invariant(len(self._w) == size == len(self._covered), "slices and timestamps differ in number")
        invariant(bounds[0] == self.range.start, "the map does not begin with the range")
        invariant(all(a < b for a, b in pairwise(bounds)), "bounds do not rise")
        invariant(all(b in self.range for b in bounds), "a bound lies outside the range")
        invariant(bool((self._w >= np.uint64(self.start_ts)).all()), "W below start_ts")
        same = (self._w[1:] == self._w[:-1]) & (self._covered[1:] == self._covered[:-1])
        invariant(not same.any(), "neighbours are not coalesced")
        for row in self._waiting.values():
            span = self._overlapping(row.start_key, row.end_key)
            low = [i for i in span if self._w[i] < row.resolved_ts]
            stuck = [i for i in low if max(self._w[i], self.floor) < row.checkpoint_ts]
            invariant(bool(stuck), "a waiting row waits for nothing", row=row)

    def _admissible(self, regions: pa.RecordBatch, store_id: int, incarnation: int, seq: int) -> list[WatermarkRow]:
        """The rows that can move something at all: ready, with a promise, and in the range."""
        ready = regions.column("tenure_ready_ts").to_numpy() != 0
        promised = regions.column("resolved_ts").to_numpy() != 0
        chosen = regions.take(pa.array(np.flatnonzero(ready & promised)))
        columns = ("region_id", "version", "checkpoint_ts", "resolved_ts", "start_key", "end_key")
        found = zip(*(chosen.column(name).to_pylist() for name in columns), strict=True)
        return [
            WatermarkRow(
                store_id=store_id,
                incarnation=incarnation,
                seq=seq,
                region_id=region_id,
                version=version,
                checkpoint_ts=checkpoint_ts,
                resolved_ts=resolved_ts,
                start_key=start_key,
                end_key=end_key,
            )
            for region_id, version, checkpoint_ts, resolved_ts, start_key, end_key in found
            if self._clip(start_key, end_key)
        ]

    def _advance(self) -> bool:
        """Let every waiting row lift what it may, until nothing moves; whether anything moved."""
        rows = list(self._waiting.values())
        if not rows:
            return False
        self._cut_all(edge for r in rows for edge in (r.start_key, r.end_key))
        spans = [self._span(r.start_key, r.end_key) for r in rows]
        lengths = np.array([hi - lo for lo, hi in spans], np.int64)
        row_of = np.repeat(np.arange(len(rows)), lengths)
        first = np.repeat(np.array([lo for lo, _ in spans], np.int64), lengths)
        slot = first + np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        checkpoint = np.array([r.checkpoint_ts for r in rows], np.uint64)[row_of]
        resolved = np.array([r.resolved_ts for r in rows], np.uint64)[row_of]
        left = np.ones(len(row_of), np.bool_)
        before = self._w.copy()
        covered_before = int(self._covered.sum())
        while True:
            may = left & (checkpoint <= np.maximum(self._w[slot], self.floor))
            if not may.any():
                break
            np.maximum.at(self._w, slot[may], resolved[may])
            self._covered[slot[may]] = True
            left &= ~may
        left &= resolved > self._w[slot]  # the others have nothing more to give
        still = set(row_of[left].tolist())
        self._waiting = {r.promise: r for i, r in enumerate(rows) if i in still}
        moved = bool((self._w != before).any()) or int(self._covered.sum()) != covered_before
        self._coalesce()
        return moved

    def _clip(self, start: bytes, end: bytes) -> bool:
        """Whether [start, end) and the range have a key in common."""
        low = max(start, self.range.start)
        high = min_end(end, self.range.end)
        return not high or low < high

    def _cut(self, start: bytes, end: bytes) -> range:
        """Cut the slices at both edges; the slices in between. Empty when nothing of it lies in the range."""
        if not self._clip(start, end):
            return range(0)
        self._cut_all((start, end))
        return range(*self._span(start, end))

    def _cut_all(self, edges: Iterable[bytes]) -> None:
        """Cut the slices at these keys, as far as they lie inside the range. An empty key is no edge: the map begins
        with the range, and as an end it is plus infinity."""
        known = set(self._bounds)
        new = sorted(e for e in set(edges) if e not in known and e in self.range and e > self.range.start)
        if not new:
            return
        parent = np.array([bisect_right(self._bounds, e) - 1 for e in new], np.int64)
        at = parent + 1
        self._w = np.insert(self._w, at, self._w[parent])
        self._covered = np.insert(self._covered, at, self._covered[parent])
        self._bounds = sorted([*self._bounds, *new])

    def _span(self, start: bytes, end: bytes) -> tuple[int, int]:
        """First and last + 1 of the slices of [start, end), whose edges have been cut."""
        lo = bisect_left(self._bounds, max(start, self.range.start))
        return lo, bisect_left(self._bounds, end) if end_before(end, self.range.end) else len(self._bounds)

    def _overlapping(self, start: bytes, end: bytes) -> range:
        """The slices that have a key in common with [start, end)."""
        lo = bisect_right(self._bounds, max(start, self.range.start)) - 1
        return range(lo, bisect_left(self._bounds, end) if end_before(end, self.range.end) else len(self._bounds))

    def _coalesce(self) -> None:
        keep = np.ones(len(self._bounds), np.bool_)
        keep[1:] = (self._w[1:] != self._w[:-1]) | (self._covered[1:] != self._covered[:-1])
        if not keep.all():
            self._bounds = [self._bounds[i] for i in np.flatnonzero(keep)]
            self._w, self._covered = self._w[keep], self._covered[keep]

    def _slice(self, i: int) -> KeyRange:
        return KeyRange(self._bounds[i], self._bounds[i + 1] if i + 1 < len(self._bounds) else self.range.end)

    def _explain(self, i: int) -> list[Stuck]:
        """What the newest files say of slice i."""
        where = self._slice(i)
        w = int(self._w[i]) if self._covered[i] else None
        out: list[Stuck] = []
        spoken: list[KeyRange] = []
        for (store_id, incarnation), (seq, regions) in sorted(self._spoken.items()):
            for row in regions.to_pylist():
                end = row["end_key"]
                if (end and end <= where.start) or (where.end and row["start_key"] >= where.end):
                    continue
                spoken.append(KeyRange(row["start_key"], end))
                stuck = Stuck(
                    range=where,
                    w=w,
                    region_id=row["region_id"],
                    version=row["version"],
                    store_id=store_id,
                    incarnation=incarnation,
                    seq=seq,
                    reason=_reason(row, max(int(self._w[i]), int(self.floor))),
                )
                out.append(stuck)
        waiting = [r for r in self.waiting() if i in self._overlapping(r.start_key, r.end_key)]
        told = {(s.store_id, s.incarnation, s.region_id, s.version) for s in out}
        for r in waiting:
            if (r.store_id, r.incarnation, r.region_id, r.version) not in told:
                facts = {name: getattr(r, name) for name in ("region_id", "version", "store_id", "incarnation", "seq")}
                reason = f"waits for W to reach its checkpoint_ts {r.checkpoint_ts}"
                spoken.append(KeyRange(r.start_key, r.end_key))
                out.append(Stuck(range=where, w=w, reason=reason, **facts))
        silent = gaps(where, spoken)
        return out + [Stuck(range=part, w=w, reason="no store covers this range") for part in silent]


def _reason(row: dict[str, int], w: int) -> str:
    if not row["tenure_ready_ts"]:
        return "its opening scan has not finished"
    if not row["resolved_ts"]:
        return "it has sent no resolved ts yet"
    if row["checkpoint_ts"] > w:
        return f"waits for W to reach its checkpoint_ts {row['checkpoint_ts']}"
    return f"its resolved ts is stalled at {row['resolved_ts']}"
