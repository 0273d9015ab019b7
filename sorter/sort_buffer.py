"""Matched rows that wait for the watermark.

A row comes in when its content is known and leaves when everything up to it has durably been written (`flushed`), not
when it was handed out (`take`): a flush whose fate is unknown is taken again. Until then it is also the memory by which
a second copy of the same (key, commit_ts) is recognised; at or below `upper` the log itself is that memory.

Rows lie in runs as they were matched, in no order; their bytes stay where they arrived. A flush looks at the runs whose
commit timestamps begin at or below W, orders numbers, and copies each row's bytes once, into their place in the output.

Relations: each (key, commit_ts) is here at most once; every row lies above the last `flushed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sorter.doubt import READY, VERSION, frame_of_all, run_sized
from sorter.kernels import I64, U64, Flags, fix_ties, radix_order
from sorter.payload import Place, Segment, segment_of, stacked
from sorter.run import SEGMENT_BYTES, Needles, Numbers, Run, RunSet
from sorter.saved import RunState, cut, states_of
from tistream.change import COMMITTED, Op
from tistream.errors import invariant
from tistream.keyrange import KeyRange

FLUSH_BYTES_MAX = 256 << 20  #: of the rows of one task in one flush
PIECE_BYTES = 1 << 30  #: of the output; Arrow's binary columns count in 31 bits

_BYTES = ("key", "value", "old_value")
_NUMBERS = ("op", "start_ts", "commit_ts", "expire_ts", "flags")


class SortBuffer:
    """Ready rows of one task."""

    def __init__(self) -> None:
        self.runs = RunSet(_BYTES)
        self.flushed_ts = 0

    @property
    def count(self) -> int:
        """How many rows wait."""
        return self.runs.live

    def nbytes(self) -> int:
        """Memory that they hold."""
        return self.runs.nbytes()

    def disk_bytes(self) -> int:
        """What of them was written out."""
        return self.runs.disk_bytes()

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows with the columns of READY; a (key, commit_ts) that is here already is merged with it."""
        for part in run_sized(rows):
            place = Place.whole(segment_of(part))
            numbers = {name: np.ascontiguousarray(part[name].to_numpy()) for name in _NUMBERS}
            self.add_rows(place, numbers, place.hashes(), merge=True)

    def add_rows(
        self, place: Place, numbers: Numbers, hashes: U64, *, young: Segment | None = None, merge: bool = False
    ) -> None:
        """Add rows as they lie. Unless told to `merge` them, none may be here yet."""
        if merge:
            needles = Needles(place, hashes, numbers["commit_ts"])
            new = np.flatnonzero(~self.known(needles) & (needles.first_equals() == np.arange(len(place))))
            place, hashes, numbers = place.take(new), hashes[new], {name: v[new] for name, v in numbers.items()}
        if not len(place):
            return
        size = place.sizes(numbers["op"] == Op.PUT)
        cuts = np.flatnonzero(np.diff(np.cumsum(size) // SEGMENT_BYTES)) + 1
        if not len(cuts):
            looked_up = {"table": place.tables(), "size": size}
            self.runs.add(Run(place, {**numbers, **looked_up}, hashes=hashes, young=young))
            return
        for at in np.split(np.arange(len(place)), cuts):
            part = place.take(at)
            of_part = {name: values[at] for name, values in numbers.items()}
            looked_up = {"table": part.tables(), "size": size[at]}
            self.runs.add(Run(part, {**of_part, **looked_up}, hashes=hashes[at], young=young))

    def known(self, needles: Needles) -> Flags:
        """Whether each (key, commit_ts) is here."""
        return self.runs.known(needles, "commit_ts")

    def unknown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of the rows whose (key, commit_ts) is not here."""
        if not rows.height:
            return rows
        place = Place.whole(segment_of(rows.select("key")))
        known = self.known(Needles(place, place.hashes(), np.ascontiguousarray(rows["commit_ts"].to_numpy())))
        return rows.filter(pl.Series(~known))

    def bytes_due(self, w: int) -> int:
        """Bytes of keys and values of the rows at or below w."""
        return sum(int(run.numbers["size"][at].sum()) for run, at in self._due(w))

    def reach(self, w: int) -> int:
        """The largest watermark up to w whose rows fit one flush; a single commit_ts always does."""
        if self.bytes_due(w) <= FLUSH_BYTES_MAX:
            return w
        low, high = min(run.span("commit_ts")[0] for run in self.runs) - 1, w
        while high - low > 1:
            middle = (low + high) // 2
            if self.bytes_due(middle) <= FLUSH_BYTES_MAX:
                low = middle
            else:
                high = middle
        fits = [int(run.ts("commit_ts")[at].max()) for run, at in self._due(low)]
        return max(fits, default=high)

    def take(self, w: int) -> pa.Table:
        """All rows at or below w as change.COMMITTED, by (table_id, commit_ts, start_ts, key). They stay here."""
        due = list(self._due(w))
        if not due:
            return COMMITTED.empty_table()
        place = stacked([run.place.take(at) for run, at in due])
        columns = (*_NUMBERS, "table", "size")
        numbers = {name: np.concatenate([run.numbers[name][at] for run, at in due]) for name in columns}
        order = _order(place, numbers)
        ends = np.cumsum(numbers["size"][order])
        cuts = np.flatnonzero(np.diff(ends // PIECE_BYTES)) + 1
        return pa.Table.from_batches([_piece(place, numbers, at) for at in np.split(order, cuts)], COMMITTED)

    def flushed(self, w: int) -> None:
        """Everything at or below w is durably in the log."""
        self.flushed_ts = max(self.flushed_ts, w)
        for run, at in self._due(w):
            run.kill(at)
        self.runs.runs = [run for run in self.runs if run.live]

    def snapshot(self) -> tuple[RunState, ...]:
        """The ready rows."""
        return states_of(self.runs)

    def restore(self, rows: Sequence[Run], range_: KeyRange, upper: int) -> None:
        """Take over a snapshot, cut to the range; rows at or below `upper` have been written since."""
        for run in rows:
            cut(run, range_)
            self.runs.add(run)
        self.flushed(upper)

    def check(self) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        rows = frame_of_all(self.runs.runs, READY)
        invariant(not rows.select(pl.struct(VERSION).is_duplicated().any()).item(), "a row is ready twice")
        invariant(not (rows["commit_ts"] <= self.flushed_ts).any(), "a ready row lies below what was flushed")

    def _due(self, w: int) -> Iterator[tuple[Run, I64]]:
        """The living rows at or below w, by run."""
        for run in self.runs:
            first, last = run.span("commit_ts")
            if not run.live:
                continue
            if last <= w:
                yield run, run.living()
            elif first <= w:
                at = np.flatnonzero(run.alive & (run.ts("commit_ts") <= np.uint64(w)))
                if len(at):
                    yield run, at


def _order(place: Place, numbers: dict[str, npt.NDArray[Any]]) -> I64:
    """The rows by (table_id, commit_ts, start_ts, key)."""
    first = _table_and_ts(numbers["table"], numbers["commit_ts"])
    order: I64 = radix_order(first)
    found, bounds = fix_ties(order, first, numbers["start_ts"], place.addresses)
    if found:
        groups = bounds[:found].reshape(-1, 2)
        lengths = groups[:, 1] - groups[:, 0]
        at = np.repeat(groups[:, 0] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        rows = order[at]
        keys = pl.Series(pl.from_arrow(place.take(rows).column("key")), dtype=pl.Binary)
        frame = pl.DataFrame({"first": first[rows], "start": numbers["start_ts"][rows], "key": keys})
        order[at] = rows[frame.select(pl.arg_sort_by("first", "start", "key")).to_series().to_numpy()]
    return order


def _table_and_ts(table: I64, commit_ts: U64) -> U64:
    """One number for each row by which rows sort as by (table, commit_ts), equal where both are."""
    ts: U64 = commit_ts - commit_ts.min()
    tables = np.unique(table[np.flatnonzero(np.diff(table, prepend=table[0] - 1))])  # equal ones mostly lie together
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


def _piece(place: Place, numbers: dict[str, npt.NDArray[Any]], at: I64) -> pa.RecordBatch:
    """These rows, in this order, as change.COMMITTED."""
    place, op = place.take(at), numbers["op"][at]
    columns = {name: pa.array(numbers[name][at]) for name in _NUMBERS}
    columns["table_id"] = pa.array(numbers["table"][at])
    columns["key"] = place.column("key")
    columns["value"] = place.column("value", op != Op.PUT, empty_for_null=True)
    columns["old_value"] = place.column("old_value")
    return pa.RecordBatch.from_arrays([columns[name] for name in COMMITTED.names], schema=COMMITTED)
