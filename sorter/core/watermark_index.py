"""Which rows of a run W(key) has reached, looking only at those whose part of the map has moved far enough.

Each row has a threshold: its commit_ts, or the cut_ts of its file. A run is asked after every move of the map. At first
it is compared as a whole: as long as no slot is above its lowest threshold, nothing is looked at. Then its rows are
grouped by the slot in which they lie, each group with its lowest threshold, and only groups whose slot has come above
that are looked at again. So rows behind a slot that stands still cost nothing, however many they are.

Slots keep their numbers as long as the stores name the same regions; when they are cut or joined, only the rows of
groups whose slot was cut are placed anew. Rows that were reported are reported each time, until they are not alive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sorter.core.slots import Bounds
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows.kernels import I64, U32, U64
from sorter.rows.key_kernels import reached_rows
from sorter.rows.payload import Place, Segment
from sorter.rows.run import Run

_NONE: I64 = np.empty(0, np.int64)
_Groups = tuple[I64, I64, U64, I64]  #: first row, rows, lowest threshold, slot


@dataclass(frozen=True, slots=True)
class Thresholds:
    """That of row r is values[of[r]], or values[r] without `of`; none is smaller than `lowest`."""

    values: U64
    lowest: int
    of: U32 | None = None

    def at(self, rows: I64) -> U64:
        """Those of some rows."""
        found: U64 = self.values[rows if self.of is None else self.of[rows]]
        return found


@dataclass(slots=True)
class Reach:
    """The rows of a run in groups, see `key_kernels.reached_rows`."""

    bounds: Bounds  #: that the slots are counted by
    rows: I64
    groups: _Groups
    reported: I64  #: rows whose threshold was reached before

    @property
    def nbytes(self) -> int:
        """Memory that it takes, without the bounds, which all runs share."""
        return int(self.rows.nbytes + self.reported.nbytes + sum(array.nbytes for array in self.groups))


def may_reach(run: Run, lowest: int, watermarks: RangeWatermarkMap) -> bool:
    """Whether some slot near the run is at or above its lowest threshold, as far as is known without looking at its
    rows. A run that a snapshot holds says between which keys it lies, and is not fetched for nothing."""
    if watermarks.highest() < lowest:
        return False
    keys = run.facts.get("keys")
    if keys is None or isinstance(run.reach, Reach):
        return True
    first, last = watermarks.bounds.slots_of(Place.whole(Segment(pa.array(keys, pa.binary()))))
    return int(watermarks.w[first : last + 1].max()) >= lowest


def reached(run: Run, thresholds: Thresholds, watermarks: RangeWatermarkMap, *, strictly: bool) -> I64:
    """The living rows whose W(key) has reached (strictly: passed) their threshold."""
    known = run.reach
    if not isinstance(known, Reach):
        if watermarks.highest() < thresholds.lowest + strictly:
            return _NONE
        rows = run.living()
        slots = watermarks.bounds.slots_of(run.place.take(rows))
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
    """These rows in groups by slot."""
    order = np.argsort(slots, kind="stable")
    rows, slots = rows[order], slots[order]
    first = np.flatnonzero(np.diff(slots, prepend=-1))
    least = np.minimum.reduceat(thresholds.at(rows), first) if len(rows) else np.empty(0, np.uint64)
    return rows, (first, np.diff(first, append=len(rows)), least, slots[first])


def _renumber(known: Reach, run: Run, thresholds: Thresholds, now: Bounds) -> None:
    """Slots were cut or joined: find those of the groups, and place the rows anew of those that were cut."""
    before, (first, count, least, slot) = known.bounds, known.groups
    low = now.slots_of(before.place.take(slot))
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
    rows, (more, *rest) = _grouped(rows, now.slots_of(run.place.take(rows)), thresholds)
    whole = ~cut & (count > 0)
    old = _rows_of(known.rows, first[whole], count[whole])
    kept = np.cumsum(count[whole]) - count[whole], count[whole], least[whole], low[whole]
    new = more + len(old), *rest
    known.groups = tuple(np.concatenate(both) for both in zip(kept, new, strict=True))  # type: ignore[assignment]
    known.rows = np.concatenate([old, rows])


def _rows_of(rows: I64, first: I64, count: I64) -> I64:
    """The rows of some groups, one group behind the other."""
    at = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    return np.asarray(rows[at])
