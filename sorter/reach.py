"""Which rows of a run W(key) has reached, looking only at those whose part of the map has moved far enough.

Each row has a threshold: its commit_ts, or the cut_ts of its file. A run is asked after every move of the map. At first
it is compared as a whole: as long as no slice is above its lowest threshold, nothing is looked at. Then its rows are
grouped by the slice in which they lie, each group with its lowest threshold, and only groups in whose range some slice
has come above that are looked at again. So rows behind a slice that stands still cost nothing, however many they are.

Rows that were reported stay in a group that is looked at each time, until they are no longer alive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from sorter.kernels import I64, U64
from sorter.run import Run
from sorter.watermark import RangeWatermarkMap


@dataclass(frozen=True, slots=True)
class Reach:
    """The rows of a run in groups. Group i is rows[bounds[i]:bounds[i + 1]] and lies in [starts[i], ends[i])."""

    rows: I64
    counts: I64
    least: U64  #: lowest threshold of each group
    starts: pl.Series
    ends: pl.Series
    reported: I64  #: rows whose threshold was reached before


def may_reach(run: Run, lowest: int, watermarks: RangeWatermarkMap) -> bool:
    """Whether some slice near the run is at or above its lowest threshold, as far as is known without looking at its
    rows. A run that a snapshot holds says between which keys it lies, and is not fetched for nothing."""
    if watermarks.highest() < lowest:
        return False
    keys = run.facts.get("keys")
    if keys is None or isinstance(run.reach, Reach):
        return True
    first, last = (pl.Series([key], dtype=pl.Binary) for key in (keys[0], keys[1] + b"\0"))
    return int(watermarks.highest_between(first, last)[0]) >= lowest


def reached(run: Run, thresholds: U64, lowest: int, watermarks: RangeWatermarkMap, *, strictly: bool) -> I64:
    """The living rows whose W(key) has reached (strictly: passed) their threshold. `lowest` is no larger than any."""
    known = run.reach
    highest = watermarks.highest()
    none = np.empty(0, np.int64)
    if not isinstance(known, Reach):
        if highest < lowest + strictly:
            return none
        rows, kept, reported = run.living(), None, none
    else:
        touched = _touched(known, highest, watermarks, strictly)
        reported = known.reported[run.alive[known.reported]]
        if not touched.any():
            run.reach = Reach(known.rows, known.counts, known.least, known.starts, known.ends, reported)
            return reported
        at = np.repeat(touched, known.counts)
        rows, kept = known.rows[at], (known, ~touched, ~at)
        rows = rows[run.alive[rows]]
    slices = _slices(run, rows, watermarks)
    w = watermarks.w_of_slices(slices)
    hit = thresholds[rows] < w if strictly else thresholds[rows] <= w
    reported = np.concatenate([reported, rows[hit]])
    run.reach = _grouped(rows[~hit], slices[~hit], thresholds, watermarks, kept, reported)
    return reported


def _slices(run: Run, rows: I64, watermarks: RangeWatermarkMap) -> I64:
    if watermarks.is_one_slice:
        return np.zeros(len(rows), np.int64)
    keys = pl.Series(pl.from_arrow(run.place.take(rows).column("key")), dtype=pl.Binary)
    return watermarks.slices_of(keys)


def _touched(known: Reach, highest: int, watermarks: RangeWatermarkMap, strictly: bool) -> np.ndarray:
    least = known.least + np.uint64(strictly)
    touched = least <= np.uint64(highest)
    if touched.any():
        at = np.flatnonzero(touched)
        touched[at] = least[at] <= watermarks.highest_between(known.starts[at], known.ends[at])
    return touched


def _grouped(
    rows: I64,
    slices: I64,
    thresholds: U64,
    watermarks: RangeWatermarkMap,
    kept: tuple[Reach, np.ndarray, np.ndarray] | None,
    reported: I64,
) -> Reach:
    """Groups of these rows by slice, behind the groups that were not touched."""
    order = np.argsort(slices, kind="stable")
    rows, slices = rows[order], slices[order]
    first = np.flatnonzero(np.diff(slices, prepend=-1))
    counts = np.diff(first, append=len(rows))
    least = np.minimum.reduceat(thresholds[rows], first) if len(rows) else np.empty(0, np.uint64)
    starts, ends = watermarks.edges(slices[first])
    if kept is not None:
        known, groups, at = kept
        rows = np.concatenate([known.rows[at], rows])
        counts = np.concatenate([known.counts[groups], counts])
        least = np.concatenate([known.least[groups], least])
        still = np.flatnonzero(groups)
        starts, ends = known.starts[still].append(starts), known.ends[still].append(ends)
    return Reach(rows, counts, least, starts, ends, reported)
