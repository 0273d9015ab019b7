"""Where the state of a key is not known: the gaps that opening scans of RawKV leave in its versions (pure).

A row with FLAG_SCANNED says that versions of its key between its `start_ts` and its `commit_ts` may be missing. A row
without the flag does not say that those before it are there: when a store's last file comes late, its rows at or below
the durable watermark are dropped, and a later one of the same key is not. So a key's state at t is known unless any
flagged row has start_ts < t < commit_ts, not only the next row above t. A version with commit_ts = t makes it known
again, since nothing newer can lie at or below t.

Per row this is one open interval. With the rows of a key in order,

    gap of row i = (max(commit_ts of row i-1, least start_ts of the flagged rows from i on), commit_ts of row i)

and the gaps of one key do not overlap. Proof: let t lie strictly between rows i-1 and i. The flagged rows above t are
those from i on, and t is above the `start_ts` of one of them exactly if it is above the least. So t is unknown exactly
inside the gap of the next row, the nearest known moments are the two ends of this gap, and both are known: the upper
one and a commit as the lower one because a version is there; a `start_ts` as the lower one because a flagged row whose
interval contains it would end between it and t, below which row i-1 is the last, or would have a lower `start_ts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tistream.model.change import FLAG_SCANNED

Stamps = npt.NDArray[np.uint64]

#: what is needed of rows of the log (schema change.COMMITTED)
COLUMNS = ("key", "start_ts", "commit_ts", "flags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The nearest moments at which the state is known; None if the log has none on that side."""

    before: int | None
    after: int | None


def gap_starts(rows: pa.Table) -> Stamps:
    """The lower end of the gap of each row; at or above its `commit_ts` where nothing is missing. `rows` are all
    rows of their keys in the log, by (key, commit_ts)."""
    frame = pl.DataFrame(rows.select(COLUMNS))
    start = pl.when(pl.col("flags") & FLAG_SCANNED != 0).then("start_ts").otherwise("commit_ts")
    least = start.cum_min(reverse=True).over("key")
    previous = pl.col("commit_ts").shift(1, fill_value=0).over("key")
    stamps: Stamps = frame.select(pl.max_horizontal(least, previous)).to_series().to_numpy()
    return stamps


def by_key(rows: pa.Table) -> pa.Table:
    """The rows by (key, commit_ts)."""
    return rows.sort_by([("key", "ascending"), ("commit_ts", "ascending")])


def known_moments(rows: pa.Table, t: int, *, earliest: int) -> Moments:
    """The nearest moments before and after `t` at which the state of every key is known, `t` itself if it is so. `rows`
    are all rows of these keys in the log; nothing is known below `earliest`."""
    ordered = by_key(rows)
    starts, ends = gap_starts(ordered), ordered["commit_ts"].to_numpy()
    real = ends > starts
    starts, ends = starts[real], ends[real]
    order = np.argsort(starts)
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), np.bool_)  # of gaps that overlap; two that share an end do not
    first[1:] = starts[1:] >= reach[:-1]
    lows = starts[first]
    highs = reach[np.append(np.flatnonzero(first)[1:] - 1, len(starts) - 1)] if len(starts) else lows
    at = int(np.searchsorted(lows, np.uint64(t), side="left")) - 1
    if at < 0 or int(highs[at]) <= t:
        return Moments(before=t, after=t)
    low = int(lows[at])
    return Moments(before=low if low >= earliest else None, after=int(highs[at]))
