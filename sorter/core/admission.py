"""Validates and de-duplicates the rows of one file before the buffers take them in.

Removals are recorded, so that a refused file changes nothing.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import polars as pl

from sorter.core.watermark import RangeWatermarkMap
from sorter.rows.batch_rows import SOURCE, SUBSCRIPTION, Arrivals
from sorter.rows.kernels import I64, U64, Flags
from sorter.rows.run import Needles, Run, RunSet
from tistream.errors import UpstreamContractViolated
from tistream.model.change import Op


class Removed:
    """Rows removed while a file is taken in; `undo` restores them."""

    def __init__(self) -> None:
        self._removed: list[tuple[Run, I64]] = []

    def kill(self, runs: RunSet, needles: Needles) -> None:
        """Remove all living rows that equal a needle in (key, start_ts)."""
        for run, _found, there in runs.find(needles, "start_ts"):
            self.rows(run, there)

    def rows(self, run: Run, there: I64) -> I64:
        """Remove these rows; returns them without repeats."""
        there = np.unique(there)
        run.kill(there)
        self._removed.append((run, there))
        return there

    def undo(self) -> None:
        for run, there in self._removed:
            run.alive[there] = True
            run.live += len(there)


def without(rows: I64, others: I64) -> I64:
    kept = np.ones(int(rows[-1]) + 1, np.bool_)
    kept[others] = False
    return rows[kept[rows]]


def one_of_each(rows: Arrivals, live: I64) -> I64:
    """COMMIT rows with one row per (key, commit_ts), preferably one with a value."""
    if not len(live):
        return live
    first = rows.needles(live, "commit_ts").first_equals()
    if (first == np.arange(len(live))).all():
        return live
    live = live[np.argsort(~has_value(rows, live), kind="stable")]
    first = rows.needles(live, "commit_ts").first_equals()
    return np.sort(live[first == np.arange(len(live))])


def has_value(rows: Arrivals, at: I64) -> Flags:
    sizes = np.diff(rows.place.take(at).layout("value")[0])
    return np.asarray(sizes > 0)


def is_fake(rows: Arrivals, at: I64) -> Flags:
    return np.asarray((rows.numbers["op"][at] == Op.PUT) & ~has_value(rows, at))


def late_rows(rows: Arrivals, at: I64, watermarks: RangeWatermarkMap) -> tuple[I64, U64]:
    """(those of the rows at or below W(key), W of every row of the file or 0 where it was not looked up)."""
    w = np.zeros(len(rows), np.uint64)
    near = at[rows.ts("commit_ts")[at] <= np.uint64(watermarks.highest())]
    if len(near):
        w[near] = watermarks.w_at(rows.place.take(near))
    return near[rows.ts("commit_ts")[near] <= w[near]], w


def violations(rows: Arrivals, at: I64, w: U64) -> pl.DataFrame | None:
    """Details of contract violations by these rows; None when there are none."""
    if not len(at):
        return None
    keys = rows.place.take(at).series("key")
    frame = pl.DataFrame({"key": keys, **{n: rows.numbers[n][at] for n in ("start_ts", "commit_ts")}, "w": w[at]})
    return frame.hstack(rows.origins.select(*SOURCE, *SUBSCRIPTION)[rows.numbers["origin"][at]])


def fits(commits: Run, at: I64, prewrites: Run, there: I64) -> Flags:
    """Whether a commit's only prewrite certainly is the committed one."""
    commit_op = commits.numbers["op"][at]
    sure = (commit_op == Op.NONE) | (commit_op == prewrites.numbers["op"][there])
    fake = np.flatnonzero(prewrites.numbers["fake"][there])
    if len(fake):
        sure[fake] &= np.diff(commits.place.take(at[fake]).layout("value")[0]) == 0
    return np.asarray(sure)


def raise_violation(rows: pl.DataFrame) -> NoReturn:
    first = rows.sort("commit_ts").row(0, named=True)
    names = ("key", "start_ts", "commit_ts", "region_id", "store_id", "incarnation", "seq", "w")
    raise UpstreamContractViolated(**{name: first[name] for name in names}, rows=rows.height)
