"""Matched rows that wait for the watermark.

A row enters when its content is known and leaves when everything up to it is durable (`flushed`), not when it is handed
out (`take`), because a flush with an unknown outcome is repeated. Until then the buffer also recognises a second copy
of the same (key, commit_ts); at or below `durable_ts` the log does.

Rows lie unordered in runs, as they were matched; their bytes stay where they arrived. A flush reads the runs whose
commit timestamps begin at or below W; `output` orders them and copies each row's bytes once, piece by piece.

Relations: each (key, commit_ts) is here at most once; every row lies above the last `flushed`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from sorter.core.conflicts import READY, VERSION, frame_of_all, run_sized
from sorter.rows.output import NUMBERS, RowsToWrite
from sorter.rows.payload import RowRefs, Segment, segment_of
from sorter.rows.run import SEGMENT_BYTES, LookupKeys, Numbers, Run, RunSet, require
from sorter.rows.saved import RunState, cut, states_of
from tistream.errors import invariant
from tistream.keyrange import KeyRange
from tistream.model.arrays import I64, U64, Mask
from tistream.model.change import Op

FLUSH_BYTES_MAX = 256 << 20  #: of the rows of one task in one flush

_BYTES = ("key", "value", "old_value")


class SortBuffer:
    def __init__(self) -> None:
        self.runs = RunSet(_BYTES)
        self.flushed_ts = 0

    @property
    def count(self) -> int:
        return self.runs.live

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows with the columns of READY; a (key, commit_ts) that is here already is ignored."""
        for part in run_sized(rows):
            refs = RowRefs.whole(segment_of(part))
            numbers = {name: np.ascontiguousarray(part[name].to_numpy()) for name in NUMBERS}
            self.add_rows(refs, numbers, refs.hashes(), merge=True)

    def add_rows(
        self, refs: RowRefs, numbers: Numbers, hashes: U64, *, young: Segment | None = None, merge: bool = False
    ) -> None:
        """Add rows in place. Without `merge` none of them may be here yet."""
        if merge:
            lookup_keys = LookupKeys(refs, hashes, numbers["commit_ts"])
            new = np.flatnonzero(~self.known(lookup_keys) & (lookup_keys.first_equals() == np.arange(len(refs))))
            refs, hashes, numbers = refs.take(new), hashes[new], {name: v[new] for name, v in numbers.items()}
        if not len(refs):
            return
        size = refs.sizes(numbers["op"] == Op.PUT)
        cuts = np.flatnonzero(np.diff(np.cumsum(size) // SEGMENT_BYTES)) + 1
        if not len(cuts):
            looked_up = {"table": refs.tables(), "size": size}
            self.runs.add(Run(refs, {**numbers, **looked_up}, hashes=hashes, young=young))
            return
        for at in np.split(np.arange(len(refs)), cuts):
            part = refs.take(at)
            of_part = {name: values[at] for name, values in numbers.items()}
            looked_up = {"table": part.tables(), "size": size[at]}
            self.runs.add(Run(part, {**of_part, **looked_up}, hashes=hashes[at], young=young))

    def known(self, lookup_keys: LookupKeys) -> Mask:
        return self.runs.known(lookup_keys, "commit_ts")

    def unknown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of the rows whose (key, commit_ts) is not here."""
        if not rows.height:
            return rows
        refs = RowRefs.whole(segment_of(rows.select("key")))
        known = self.known(LookupKeys(refs, refs.hashes(), np.ascontiguousarray(rows["commit_ts"].to_numpy())))
        return rows.filter(pl.Series(~known))

    def bytes_due(self, w: int) -> int:
        """Bytes of keys and values of the rows at or below w."""
        runs = [run for run in self.runs if run.live and run.span("commit_ts")[0] <= w]
        require(runs, ("numbers",))
        return sum(_bytes_due(run, w) for run in runs)

    def compact(self, w: int | None) -> None:
        """Put small runs together. The next flush takes what lies at or below w and copies it then."""
        self.runs.compact(lambda run: w is not None and run.span("commit_ts")[0] <= w)

    def reach(self, w: int) -> int:
        """The highest watermark up to `w` whose rows fit one flush; a single commit_ts always fits."""
        if self.bytes_due(w) <= FLUSH_BYTES_MAX:
            return w
        commit_ts, sizes = [], []
        for run, at in self._due(w):
            distinct, group = np.unique(run.ts("commit_ts")[at], return_inverse=True)
            commit_ts.append(distinct)
            sizes.append(np.bincount(group, weights=run.numbers["size"][at]))
        all_ts, order = np.concatenate(commit_ts), np.argsort(np.concatenate(commit_ts), kind="stable")
        ends = np.cumsum(np.concatenate(sizes)[order])
        of_ts = all_ts[order]
        last = np.append(of_ts[1:] != of_ts[:-1], True)  # of each commit_ts
        fits = of_ts[last][ends[last] <= FLUSH_BYTES_MAX]
        return int(fits[-1] if len(fits) else of_ts[0])

    def take(self, w: int) -> RowsToWrite:
        """All rows at or below `w`, by (table_id, commit_ts, start_ts, key), to be written in pieces."""
        return RowsToWrite(list(self._due(w)))

    def flushed(self, w: int) -> None:
        """Drop the rows at or below `w`: they are durable."""
        self.flushed_ts = max(self.flushed_ts, w)
        for run, at in self._due(w):
            run.kill(at)
        self.runs.runs = [run for run in self.runs if run.live]

    def snapshot(self) -> tuple[RunState, ...]:
        return states_of(self.runs)

    def restrict(self, range_: KeyRange, durable_ts: int) -> None:
        """After a restore: drop the rows outside of the range, and those at or below `durable_ts`, which have been
        written since."""
        cut(self.runs, range_)
        self.flushed(durable_ts)

    def check(self) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        rows = frame_of_all(self.runs.runs, READY)
        invariant(not rows.select(pl.struct(VERSION).is_duplicated().any()).item(), "a row is ready twice")
        invariant(not (rows["commit_ts"] <= self.flushed_ts).any(), "a ready row lies below what was flushed")

    def _due(self, w: int) -> Iterator[tuple[Run, I64]]:
        due = [run for run in self.runs if run.live and run.span("commit_ts")[0] <= w]
        require((run for run in due if run.span("commit_ts")[1] > w), ("numbers",))
        for run in due:
            if run.span("commit_ts")[1] <= w:
                yield run, run.living()
            else:
                at = np.flatnonzero(run.alive & (run.ts("commit_ts") <= np.uint64(w)))
                if len(at):
                    yield run, at


def _bytes_due(run: Run, w: int) -> int:
    """Bytes of the run's living rows at or below `w`; cached when the whole run is due."""
    if run.live < len(run) or run.span("commit_ts")[1] > w:
        return int(run.numbers["size"][run.alive & (run.ts("commit_ts") <= np.uint64(w))].sum())
    if "bytes" not in run.facts:
        run.facts["bytes"] = int(run.numbers["size"].sum())
    return int(run.facts["bytes"])
