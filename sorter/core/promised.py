"""What each subscription has promised in the files taken so far, per incarnation of a store.

A subscription is (region_id, version, checkpoint_ts, subscription_open_ts) of a store's incarnation. Its highest
resolved_ts is a promise: no later file of it brings a commit at or below. `RangeWatermarkMap` knows which slices
promises raise, this knows whose they are, and keeps them when W passes on.

A store lists all its subscriptions in every file, mostly the same ones, so `note` compares a few columns and takes a
maximum. A subscription that a file omits has ended. Its promise stays, because a store might name it again: of the
ended ones of an incarnation those opened last, as many as are listed or ENDED_MIN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sorter.core.slots import Stamps
from sorter.core.watermark import resolved_of
from tistream.model.arrays import I64

ENDED_MIN = 4096  #: promises of ended subscriptions that are always kept, per incarnation

_ID = ["region_id", "version", "checkpoint_ts", "subscription_open_ts"]
_INCARNATION = ["store_id", "incarnation"]
#: a promise in a snapshot
PROMISED = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in (*_INCARNATION, *_ID, "resolved_ts")])

_Matrix = npt.NDArray[np.uint64]  #: a row for each promise, with columns of PROMISED: some identify it, the last is it
_NONE: _Matrix = np.empty((0, len(_ID) + 1), np.uint64)


@dataclass(slots=True)
class _Subscriptions:
    """Of one incarnation of a store."""

    listed: pa.RecordBatch  #: the newest file's watermark rows
    resolved: Stamps  #: the promise of each of them
    ended: _Matrix  #: of subscriptions that it omits
    once: bool  #: whether it names no subscription twice

    def promises(self) -> _Matrix:
        """All of them; of a subscription that the file names twice, two."""
        return np.vstack([np.column_stack([_matrix(self.listed, _ID), self.resolved]), self.ended])


class Promised:
    """The promises of all stores of a task."""

    def __init__(self) -> None:
        self._by_incarnation: dict[tuple[int, int], _Subscriptions] = {}

    def before(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> Stamps | None:
        """For each subscription of the next file what earlier files have promised, 0 for nothing; None when no
        subscription has promised anything."""
        known = self._by_incarnation.get((store_id, incarnation))
        if known is None or not regions.num_rows:
            return None
        if known.once and _same(known.listed, regions):
            return known.resolved
        promises, asked = known.promises(), _matrix(regions, _ID)
        of, _ = _same_rows(np.vstack([promises[:, :-1], asked]))
        return _highest(of, promises[:, -1])[of[len(promises) :]]

    def note(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        """The file with these watermark rows has been taken."""
        at, resolved = (store_id, incarnation), resolved_of(regions, None)
        known = self._by_incarnation.get(at)
        if known is not None and known.once and _same(known.listed, regions):
            np.maximum(known.resolved, resolved, out=known.resolved)
            known.listed = regions
            return
        ids, ended = _matrix(regions, _ID), _NONE
        if known is not None:
            before = self.before(regions, store_id, incarnation)
            resolved = resolved if before is None else np.maximum(before, resolved)
            ended = _ended(known.promises(), ids)
        _, different = _same_rows(ids)
        once = len(different) == len(ids)
        self._by_incarnation[at] = _Subscriptions(regions, np.ascontiguousarray(resolved), ended, once)

    def forget(self, store_id: int, incarnation: int) -> None:
        """The incarnation has ended: no more files of it are taken."""
        self._by_incarnation.pop((store_id, incarnation), None)

    def snapshot(self) -> pa.Table:
        """All promises, with schema PROMISED."""
        parts = []
        for incarnation, known in self._by_incarnation.items():
            rows = known.promises()
            parts.append(np.column_stack([np.tile(np.array(incarnation, np.uint64), (len(rows), 1)), rows]))
        return _table(parts)

    def restore(self, promises: pa.Table) -> None:
        """Take over a snapshot."""
        rows = _matrix(promises, PROMISED.names)
        listed = pa.RecordBatch.from_pylist([], schema=pa.schema([(name, pa.uint64()) for name in _ID]))
        of, firsts = _same_rows(rows[:, : len(_INCARNATION)])
        for number, first in enumerate(firsts):
            ended = rows[of == number, len(_INCARNATION) :]
            incarnation = int(rows[first, 0]), int(rows[first, 1])
            self._by_incarnation[incarnation] = _Subscriptions(listed, np.empty(0, np.uint64), ended, True)


def joined(tables: list[pa.Table]) -> pa.Table:
    """The promises of several parts of a range that have taken the same files: of each subscription the highest."""
    return _table([_matrix(table, PROMISED.names) for table in tables])


def _table(parts: list[_Matrix]) -> pa.Table:
    """With schema PROMISED, in its order; of each subscription the highest promise, of those that have one."""
    rows = np.vstack([np.empty((0, len(PROMISED)), np.uint64), *parts])
    of, firsts = _same_rows(rows[:, :-1])
    whole = np.column_stack([rows[firsts, :-1], _highest(of, rows[:, -1])])
    return pa.Table.from_arrays([pa.array(column) for column in whole[whole[:, -1] > 0].T], schema=PROMISED)


def _ended(promises: _Matrix, listed: _Matrix) -> _Matrix:
    """Of the subscriptions that have promised something and are not in `listed` those opened last, each once."""
    of, firsts = _same_rows(np.vstack([promises[:, :-1], listed]))
    omitted = np.ones(len(firsts), bool)
    omitted[of[len(promises) :]] = False
    highest = _highest(of, promises[:, -1])
    numbers = np.flatnonzero(omitted & (highest > 0))
    ended = np.column_stack([promises[firsts[numbers], :-1], highest[numbers]])
    opened_ts = ended[:, _ID.index("subscription_open_ts")]
    return ended[np.argsort(opened_ts, kind="stable")[-max(ENDED_MIN, len(listed)) :]]


def _matrix(rows: pa.RecordBatch | pa.Table, names: list[str]) -> _Matrix:
    return np.column_stack([rows.column(name).to_numpy() for name in names]).astype(np.uint64, copy=False)


def _same_rows(rows: _Matrix) -> tuple[I64, I64]:
    """For each row the number of its equals, which are numbered in the order of rows; and of all equals the first."""
    order = np.lexsort(rows.T[::-1])
    ordered, new = rows[order], np.ones(len(rows), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    of = np.empty(len(rows), np.int64)
    of[order] = np.cumsum(new) - 1
    return of, order[new]


def _highest(of: I64, resolved: Stamps) -> Stamps:
    """The highest promise of each number in `of`, whose first ones belong to `resolved`; 0 without one."""
    out = np.zeros(of.max(initial=-1) + 1, np.uint64)
    np.maximum.at(out, of[: len(resolved)], resolved)
    return out


def _same(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """Whether both name the same subscriptions, in the same order."""
    return a.num_rows == b.num_rows and all(a.column(name).equals(b.column(name)) for name in _ID)
