"""Finds the rows of a run that W(key) has reached, without re-reading rows whose slice has not moved.

Each row has a threshold: its commit_ts, or the cut_ts of its file. At first the run is compared as a whole: while no
slot is above its lowest threshold, no row is read. Then its rows are grouped by slot, each group with its lowest
threshold, and only groups whose slot has risen above that are read again.

Slots keep their numbers while the stores name the same regions; when slots are cut or joined, only the rows of cut
slots are regrouped. A reported row is reported again each time until it is dead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sorter.core.slots import Bounds
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows.key_kernels import reached_rows
from sorter.rows.payload import RowRefs, Segment
from sorter.rows.run import Run
from tistream.model.arrays import I64, U32, U64

_NONE: I64 = np.empty(0, np.int64)
_Groups = tuple[I64, I64, U64, I64]  #: first row, rows, lowest threshold, slot


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The threshold of row r is values[of[r]], or values[r] without `of`; none is below `lowest`."""

    values: U64
    lowest: int
    of: U32 | None = None

    def at(self, rows: I64) -> U64:
        thresholds: U64 = self.values[rows if self.of is None else self.of[rows]]
        return thresholds


@dataclass(slots=True)
class Reach:
    """The rows of a run in groups, see `key_kernels.reached_rows`."""

    bounds: Bounds  #: of the slots
    rows: I64
    groups: _Groups
    reported: I64  #: rows whose threshold was reached before

    @property
    def nbytes(self) -> int:
        """Memory without the bounds, which all runs share."""
        return int(self.rows.nbytes + self.reported.nbytes + sum(array.nbytes for array in self.groups))


def may_reach(run: Run, lowest: int, watermarks: RangeWatermarkMap) -> bool:
    """Whether some slot within the run's keys may be at or above its lowest threshold. Reads no rows, so a run that
    lies in a snapshot object is not fetched for nothing."""
    if watermarks.highest() < lowest:
        return False
    keys = run.facts.get("keys")
    if keys is None or isinstance(run.reach, Reach):
        return True
    first, last = watermarks.bounds.slots_of(RowRefs.whole(Segment(pa.array(keys, pa.binary()))))
    return int(watermarks.w[first : last + 1].max()) >= lowest


def reached(run: Run, thresholds: Thresholds, watermarks: RangeWatermarkMap, *, strictly: bool) -> I64:
    """The living rows whose W(key) has reached (`strictly`: passed) their threshold."""
    known = run.reach
    if not isinstance(known, Reach):
        if watermarks.highest() < thresholds.lowest + strictly:
            return _NONE
        rows = run.living()
        slots = watermarks.bounds.slots_of(run.refs.take(rows))
        hit = thresholds.at(rows) + np.uint64(strictly) <= watermarks.w[slots]
        rest = np.flatnonzero(~hit)
        run.reach = Reach(watermarks.bounds, *_grouped(rows[rest], slots[rest], thresholds), rows[hit])
        return run.reach.reported
    if known.bounds is not watermarks.bounds:
        _renumber(known, run, thresholds, watermarks.bounds)
    of = np.empty(0, np.uint32) if thresholds.of is None else thresholds.of
    passed = np.uint64(strictly)
    hits = reached_rows(known.rows, known.groups, watermarks.w, thresholds.values, of, run.alive, passed)
    known.reported = np.concatenate([known.reported[run.alive[known.reported]], hits])
    return known.reported


def _grouped(rows: I64, slots: I64, thresholds: Thresholds) -> tuple[I64, _Groups]:
    order = np.argsort(slots, kind="stable")
    rows, slots = rows[order], slots[order]
    first = np.flatnonzero(np.diff(slots, prepend=-1))
    least = np.minimum.reduceat(thresholds.at(rows), first) if len(rows) else np.empty(0, np.uint64)
    return rows, (first, np.diff(first, append=len(rows)), least, slots[first])


def _renumber(known: Reach, run: Run, thresholds: Thresholds, now: Bounds) -> None:
    """Update the groups after slots were cut or joined, and regroup the rows of those that were cut."""
    before, (first, count, least, slot) = known.bounds, known.groups
    low = now.slots_of(before.refs.take(slot))
    high = np.full(len(slot), len(now))
    inner = np.flatnonzero(slot + 1 < len(before))
    high[inner] = now.find(before.keys.take(pa.array(slot[inner] + 1)))[0]
    known.bounds = now
    cut = high - low > 1
    if not cut.any():
        known.groups = first, count, least, low
        return
    rows = _rows_of(known.rows, first[cut], count[cut])
    rows = rows[run.alive[rows]]
    rows, (more, *rest) = _grouped(rows, now.slots_of(run.refs.take(rows)), thresholds)
    uncut = ~cut & (count > 0)
    old = _rows_of(known.rows, first[uncut], count[uncut])
    kept = np.cumsum(count[uncut]) - count[uncut], count[uncut], least[uncut], low[uncut]
    new = more + len(old), *rest
    known.groups = tuple(np.concatenate(both) for both in zip(kept, new, strict=True))  # type: ignore[assignment]
    known.rows = np.concatenate([old, rows])


def _rows_of(rows: I64, first: I64, count: I64) -> I64:
    at = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    return np.asarray(rows[at])
