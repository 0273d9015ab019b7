"""Numbered slots over a task's range, and the promises that lie on them.

Slot i is [bounds[i], bounds[i+1]); the last one ends with the range. A promise is kept as numbers: the slots that it
covers (`lo` to `hi`) and two timestamps. So a store that lists the same regions again costs a few passes over arrays
and no key comparison.

Slots are cut where a row begins or ends, and stay while a row has that bound, even when neighbours have the same W.
Equal neighbours are joined only when most bounds belong to no row any more (`join_unexplained`), so an unchanged region
list keeps its numbers.

Relations:

- `bounds` rise strictly from the start of the range;
- `w` never falls, except by `lower`; `uncovered` counts the slots that are not covered;
- a promise may raise a slot once checkpoint_ts <= max(w, floor) held there; as w never falls this is final, and only
  the others (`waiting`) are tested again.

It does not know whose promises they are, nor which is the newest.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sorter.rows.key_kernels import find_keys, raise_to, slots_of_keys
from sorter.rows.payload import RowRefs, Segment
from tistream.errors import invariant
from tistream.keyrange import KeyRange
from tistream.model.arrays import I64, Mask

Stamps = npt.NDArray[np.uint64]


class Bounds:
    """The keys at which slots begin. Immutable: cutting or joining slots makes a new object."""

    __slots__ = ("keys", "refs")

    def __init__(self, keys: pa.BinaryArray) -> None:
        self.keys = keys
        self.refs = RowRefs.whole(Segment(keys))

    def __len__(self) -> int:
        return len(self.keys)

    def slots_of(self, refs: RowRefs) -> I64:
        """The slot of each row's key, which lies in the range."""
        out: I64 = slots_of_keys(self.refs.addresses, refs.addresses)
        return out

    def find(self, keys: pa.BinaryArray) -> tuple[I64, Mask]:
        """How many bounds are smaller than each key, and whether the key is a bound."""
        slots: tuple[I64, Mask] = find_keys(self.refs.addresses, RowRefs.whole(Segment(keys)).addresses)
        return slots


class Promises:
    """Rows (checkpoint_ts, resolved_ts] on slots [lo, hi). A resolved_ts of 0 promises nothing yet."""

    __slots__ = ("checkpoint", "hi", "lo", "resolved", "row_of", "seq", "slot", "waiting")

    def __init__(self, *, checkpoint: Stamps, resolved: Stamps, seq: Stamps, lo: I64, hi: I64, slots: Slots) -> None:
        self.checkpoint = checkpoint
        self.resolved = resolved
        self.seq = seq  #: of the file that carried `resolved`; kept only while something waits
        self.lo = lo
        self.hi = hi
        self.place(slots)

    def place(self, slots: Slots) -> None:
        """Renumber the (row, slot) pairs after slots were cut or joined, or rows were replaced."""
        self.slot = self.lo
        self.row_of: I64 | None = None  #: the row of each pair; None when every row is one slot
        if (self.hi - self.lo != 1).any():
            self.row_of, self.slot = _pairs(self.lo, self.hi)
        self.waiting = np.flatnonzero(~slots.reaches(self._of_pairs(self.checkpoint), self.slot))

    def admit(self, slots: Slots) -> I64:
        """The pairs that no longer have to wait."""
        pairs = self.waiting
        rows = pairs if self.row_of is None else self.row_of[pairs]
        may = slots.reaches(self.checkpoint[rows], self.slot[pairs])
        self.waiting = pairs[~may]
        return pairs[may]

    def admitted(self) -> I64 | None:
        """The pairs that do not wait; None for all."""
        if not len(self.waiting):
            return None
        free = np.ones(len(self.slot), np.bool_)
        free[self.waiting] = False
        return np.flatnonzero(free)

    def targets(self, pairs: I64 | None) -> tuple[I64, Stamps]:
        """Slots and resolved_ts of the given pairs."""
        if pairs is None:
            return self.slot, self._of_pairs(self.resolved)
        return self.slot[pairs], self.resolved[pairs if self.row_of is None else self.row_of[pairs]]

    def rows_waiting(self, slots: Slots) -> I64:
        """The waiting rows that could still raise a slot."""
        slot, resolved = self.targets(self.waiting)
        pairs = self.waiting[resolved > slots.w[slot]]
        return pairs if self.row_of is None else np.unique(self.row_of[pairs])

    def on(self, lo: int, hi: int) -> I64:
        return np.flatnonzero((self.lo < hi) & (self.hi > lo))

    def _of_pairs(self, column: Stamps) -> Stamps:
        return column if self.row_of is None else column[self.row_of]


class Slots:
    """W of each slot of a range."""

    def __init__(self, range_: KeyRange, start_ts: int, floor: int) -> None:
        self.range = range_
        self.floor = np.uint64(floor)  #: everything at or below it is durable, however low `w` is
        self.bounds = Bounds(pa.array([range_.start], pa.binary()))
        self.w: Stamps = np.array([start_ts], np.uint64)
        self.covered: Mask = np.zeros(1, np.bool_)
        self.uncovered = 1
        self._joined: tuple[pa.BinaryArray, Stamps, Mask] | None = None

    def __len__(self) -> int:
        return len(self.w)

    def joined(self) -> tuple[pa.BinaryArray, Stamps, Mask]:
        """Bounds, W and covered with equal neighbours joined; read only."""
        if self._joined is None:
            keep = self._differs()
            self._joined = self.bounds.keys.filter(pa.array(keep)), self.w[keep], self.covered[keep]
        return self._joined

    def reaches(self, checkpoint: Stamps, slot: I64) -> Mask:
        """Whether a promise with this checkpoint_ts may raise that slot."""
        out: Mask = checkpoint <= np.maximum(self.w[slot], self.floor)
        return out

    def lift(self, promises: Promises, pairs: I64 | None) -> bool:
        """Raise the slots of these pairs; whether anything moved."""
        slot, resolved = promises.targets(pairs)
        moved = raise_to(self.w, slot, resolved)
        if self.uncovered:
            fresh = slot[(resolved > 0) & ~self.covered[slot]]
            if len(fresh):
                self.covered[fresh] = True
                self.uncovered = len(self.w) - int(np.count_nonzero(self.covered))
                moved = True
        if moved:
            self._joined = None
        return moved

    def lower(self, ts: int) -> None:
        """W of no slot is above `ts` any more. Promises must be placed and lifted again."""
        np.minimum(self.w, np.uint64(ts), out=self.w)
        self._joined = None

    def locate(self, starts: pa.BinaryArray, ends: pa.BinaryArray, placed: Iterable[Promises] = ()) -> tuple[I64, I64]:
        """The slots [lo, hi) of each row, cut where rows begin and end; `placed` are renumbered."""
        inner_start = _mask(pc.greater(starts, self.range.start))
        inner_end = _mask(pc.not_equal(ends, b""))
        if self.range.end:
            inner_end &= _mask(pc.less(ends, self.range.end))
        lo, known_lo = self.bounds.find(starts)
        hi, known_hi = self.bounds.find(ends)
        new_lo, new_hi = np.flatnonzero(inner_start & ~known_lo), np.flatnonzero(inner_end & ~known_hi)
        if len(new_lo) or len(new_hi):
            first, last = starts.take(pa.array(new_lo)), ends.take(pa.array(new_hi))
            edges = pc.unique(pa.concat_arrays([first, last]))
            now_at = self._cut(edges.take(pc.sort_indices(edges)))
            lo, hi = now_at[lo], now_at[hi]
            lo[new_lo], hi[new_hi] = self.bounds.find(first)[0], self.bounds.find(last)[0]
            for promises in placed:
                promises.lo, promises.hi = now_at[promises.lo], now_at[promises.hi]
                promises.place(self)
        lo[~inner_start] = 0
        hi[~inner_end] = len(self.w)
        return lo, hi

    def numbers(self, part: KeyRange) -> tuple[int, int]:
        """The slots [lo, hi) that a part of the range touches."""
        (lo, hi), (is_bound, _) = self.bounds.find(pa.array([part.start, part.end], pa.binary()))
        return int(lo) - (not is_bound), int(hi) if part.end else len(self.w)

    def restore(self, starts: pa.BinaryArray, ends: pa.BinaryArray, w: Stamps, covered: Mask) -> None:
        """Raise slices to a snapshot's values; they lie in the range and do not overlap."""
        lo, hi = self.locate(starts, ends)
        row, slot = _pairs(lo, hi)
        self.w[slot] = np.maximum(self.w[slot], w[row])
        self.covered[slot] |= covered[row]
        self.uncovered = len(self.w) - int(np.count_nonzero(self.covered))
        self._joined = None

    def join_unexplained(self, placed: Iterable[Promises]) -> None:
        """Join equal neighbours whose common bound belongs to no row, once most bounds are like that."""
        known = list(placed)
        explained = np.zeros(len(self.w) + 1, np.bool_)
        explained[0] = True
        for promises in known:
            explained[promises.lo] = True
            explained[promises.hi] = True
        if len(self.w) <= 2 * int(np.count_nonzero(explained)):
            return
        keep = self._differs() | explained[:-1]
        now_at = np.append(np.cumsum(keep) - 1, np.count_nonzero(keep)).astype(np.int64)
        self.bounds = Bounds(self.bounds.keys.filter(pa.array(keep)))
        self.w, self.covered = self.w[keep], self.covered[keep]
        self.uncovered = len(self.w) - int(np.count_nonzero(self.covered))
        for promises in known:
            promises.lo, promises.hi = now_at[promises.lo], now_at[promises.hi]
            promises.place(self)

    def check(self, start_ts: int, placed: Iterable[Promises]) -> None:
        """Raise when a relation does not hold."""
        bounds, size = self.bounds.keys.to_pylist(), len(self.bounds)
        invariant(len(self.w) == size == len(self.covered), "slices and timestamps differ in number")
        invariant(bounds[0] == self.range.start, "the map does not begin with the range")
        invariant(all(a < b for a, b in pairwise(bounds)), "bounds do not rise")
        invariant(all(b in self.range for b in bounds), "a bound lies outside the range")
        invariant(bool((self.w >= np.uint64(start_ts)).all()), "W below start_ts")
        invariant(self.uncovered == int((~self.covered).sum()), "the number of gaps is wrong")
        for promises in placed:
            invariant(bool((promises.lo < promises.hi).all()), "a promise without a slot")
            slot, resolved = promises.targets(promises.admitted())
            invariant(bool((self.w[slot] >= resolved).all()), "an admitted promise was not kept")
            slot, _ = promises.targets(promises.waiting)
            rows = promises.waiting if promises.row_of is None else promises.row_of[promises.waiting]
            invariant(not self.reaches(promises.checkpoint[rows], slot).any(), "a row waits for nothing")

    def _cut(self, edges: pa.BinaryArray) -> I64:
        """Cut at these new keys (inside the range, rising); the new number of each slot, and of the end."""
        at, _ = self.bounds.find(edges)
        size = len(self.w)
        order = np.insert(np.arange(size), at, size + np.arange(len(at)))
        self.bounds = Bounds(pa.concat_arrays([self.bounds.keys, edges]).take(pa.array(order)))
        self.w = np.insert(self.w, at, self.w[at - 1])
        self.covered = np.insert(self.covered, at, self.covered[at - 1])
        self.uncovered = len(self.w) - int(np.count_nonzero(self.covered))
        slots = np.arange(size + 1)
        return slots + np.searchsorted(at, slots, side="right")

    def _differs(self) -> Mask:
        out = np.ones(len(self.w), np.bool_)
        out[1:] = (self.w[1:] != self.w[:-1]) | (self.covered[1:] != self.covered[:-1])
        return out


def _pairs(lo: I64, hi: I64) -> tuple[I64, I64]:
    """Row and slot of each (row, slot) pair."""
    widths = hi - lo
    row_of = np.repeat(np.arange(len(widths)), widths)
    return row_of, np.arange(len(row_of)) + np.repeat(lo - (np.cumsum(widths) - widths), widths)


def _mask(values: pa.BooleanArray) -> Mask:
    out: Mask = values.to_numpy(zero_copy_only=False)
    return out
