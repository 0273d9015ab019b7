"""Orders the rows of a flush as the log needs them, in pieces of bounded size.

`RowsToWrite` is made when rows are taken and does not change with the buffer: it holds row numbers, not bytes. Few rows
are one piece, up to twice the usual size. Many are sorted run by run (`prepare`, a few runs per call, 4 bytes per row)
and cut into pieces at rows sampled from all runs: a piece is a part of the order, merged from the rows of each run that
are in it. Besides the buffer itself, only one piece's bytes are in memory.

Relations: the pieces together are all rows, once, by (table_id, commit_ts, start_ts, key); they are the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sorter.rows.kernels import fix_ties, lower_bounds, radix_order
from sorter.rows.payload import RowRefs, stacked
from sorter.rows.run import Run, require
from tistream.model.arrays import I64, U32, U64
from tistream.model.change import COMMITTED, Op

PIECE_ROWS = 1 << 18  #: of one piece, about
PIECE_BYTES = 16 << 20  #: of its keys and values, about

NUMBERS = ("op", "start_ts", "commit_ts", "expire_ts", "flags")

Columns = dict[str, npt.NDArray[Any]]


class RowsToWrite:
    """Rows to be written. `rows` and `nbytes` (keys and values) are totals."""

    def __init__(self, due: Sequence[tuple[Run, I64]]) -> None:
        self._runs = [run for run, _ in due]
        require(self._runs, ("keys", "values", "numbers"))
        self._rows: list[U32] = [at.astype(np.uint32) for _, at in due]
        self._sorted = 0  # number of sorted runs
        self._cuts: I64 | None = None  # per run the start of each piece, and the end of the last one
        self.rows = sum(len(at) for at in self._rows)
        self.nbytes = sum(int(run.numbers["size"][at].sum()) for run, at in due)

    @property
    def prepared(self) -> bool:
        return self._cuts is not None

    def prepare(self) -> None:
        """Do a bounded part of the ordering."""
        if self._cuts is not None:
            return
        if self._weight(self.rows, self.nbytes) <= 2:  # one piece: sorting it twice would cost more
            lengths = np.array([len(at) for at in self._rows], np.int64)
            self._cuts = np.stack([np.zeros(len(lengths), np.int64), lengths], axis=1)
            return
        left = PIECE_ROWS
        while self._sorted < len(self._runs):
            at = self._rows[self._sorted]
            if len(at) > left and left < PIECE_ROWS:
                return
            self._rows[self._sorted] = at[in_order(*_gathered([(self._runs[self._sorted], at)], _ORDERING))]
            self._sorted += 1
            left -= len(at)
        self._cuts = self._cut()

    @property
    def piece_count(self) -> int:
        return self._cuts.shape[1] - 1 if self._cuts is not None and self.rows else 0

    def pieces(self, first: int = 0) -> Iterator[pa.RecordBatch]:
        """The rows from piece number `first` on, schema change.COMMITTED."""
        while self._cuts is None:
            self.prepare()
        for number in range(first, self.piece_count):
            bounds = zip(self._runs, self._rows, self._cuts[:, number : number + 2].tolist(), strict=True)
            yield _piece(*_gathered([(run, at[lo:hi]) for run, at, (lo, hi) in bounds if lo < hi], _ALL))

    def table(self) -> pa.Table:
        """All rows at once; for few rows."""
        return pa.Table.from_batches(self.pieces(), COMMITTED)

    def held_bytes(self) -> int:
        """Memory of the row numbers."""
        return sum(int(at.nbytes) for at in self._rows)

    def _weight(self, rows: Any, nbytes: Any) -> Any:
        return rows / PIECE_ROWS + nbytes / PIECE_BYTES

    def _cut(self) -> I64:
        """Where the pieces begin: at samples dense enough that a piece is off by half at most."""
        each = 0.5 / len(self._runs)
        sampled: list[tuple[Run, U32]] = []
        weights: list[npt.NDArray[np.float64]] = []
        for run, at in zip(self._runs, self._rows, strict=True):
            ends = np.cumsum(self._weight(np.ones(len(at)), run.numbers["size"][at]))
            # sample the first row of each stretch of this weight
            first = np.flatnonzero(np.diff(ends // each, prepend=-1.0))
            sampled.append((run, at[first]))
            weights.append(np.diff(np.append(ends[first - 1] * (first > 0), ends[-1])))
        samples = _gathered(sampled, _ORDERING)
        order = in_order(*samples)
        before = np.cumsum(np.concatenate(weights)[order]) - np.concatenate(weights)[order]
        new = np.flatnonzero(np.diff(before // 0.5, prepend=0.0))
        at_ = order[new]
        refs, numbers = samples[0].take(at_), {name: values[at_] for name, values in samples[1].items()}
        wanted = (numbers["table"], numbers["commit_ts"], numbers["start_ts"])
        cuts = np.zeros((len(self._runs), len(new) + 2), np.int64)
        for i, (run, rows) in enumerate(zip(self._runs, self._rows, strict=True)):
            own = (run.numbers["table"], run.ts("commit_ts"), run.ts("start_ts"))
            cuts[i, 1:-1] = lower_bounds(rows, own, run.refs.addresses, wanted, refs.addresses)
            cuts[i, -1] = len(rows)
        return cuts


_ORDERING = ("table", "commit_ts", "start_ts")
_ALL = (*NUMBERS, "table")


def _gathered(parts: Sequence[tuple[Run, npt.NDArray[np.integer]]], names: Sequence[str]) -> tuple[RowRefs, Columns]:
    refs = stacked([run.refs.take(at) for run, at in parts])
    return refs, {name: np.concatenate([run.numbers[name][at] for run, at in parts]) for name in names}


def _piece(refs: RowRefs, numbers: Columns) -> pa.RecordBatch:
    """These rows in order, as change.COMMITTED."""
    at = in_order(refs, numbers)
    refs, op = refs.take(at), numbers["op"][at]
    columns = {name: pa.array(numbers[name][at]) for name in NUMBERS}
    columns["table_id"] = pa.array(numbers["table"][at])
    columns["key"] = refs.column("key")
    columns["value"] = refs.column("value", op != Op.PUT, empty_for_null=True)
    columns["old_value"] = refs.column("old_value")
    return pa.RecordBatch.from_arrays([columns[name] for name in COMMITTED.names], schema=COMMITTED)


def in_order(refs: RowRefs, numbers: dict[str, npt.NDArray[Any]]) -> I64:
    """The rows by (table_id, commit_ts, start_ts, key)."""
    first = _table_and_ts(numbers["table"], numbers["commit_ts"])
    order: I64 = radix_order(first)
    ordered, bounds = fix_ties(order, first, numbers["start_ts"], refs.addresses)
    if ordered:
        groups = bounds[:ordered].reshape(-1, 2)
        lengths = groups[:, 1] - groups[:, 0]
        at = np.repeat(groups[:, 0] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        rows = order[at]
        keys = refs.take(rows).series("key")
        frame = pl.DataFrame({"first": first[rows], "start": numbers["start_ts"][rows], "key": keys})
        order[at] = rows[frame.select(pl.arg_sort_by("first", "start", "key")).to_series().to_numpy()]
    return order


def _table_and_ts(table: I64, commit_ts: U64) -> U64:
    """One sort key per row, equivalent to (table, commit_ts)."""
    ts: U64 = commit_ts - commit_ts.min()
    tables = np.unique(table[np.flatnonzero(np.diff(table, prepend=table[0] - 1))])  # equal tables mostly lie together
    if len(tables) == 1:
        return ts
    number: U64 = np.searchsorted(tables, table).astype(np.uint64)
    bits = int(ts.max()).bit_length()
    if bits + len(tables).bit_length() <= 64:
        both: U64 = number << np.uint64(bits) | ts
        return both
    by_ts = radix_order(ts)
    order = by_ts[radix_order(number[by_ts])]
    new = (np.diff(number[order], prepend=number[order[0]]) != 0) | (np.diff(ts[order], prepend=ts[order[0]]) != 0)
    out = np.empty(len(order), np.uint64)
    out[order] = np.cumsum(new)
    return out
