"""Takes the RawKV rows of one file: each is complete, so it waits for the watermark only.

Rows are de-duplicated by (key, commit_ts), which is the timestamp that the store gave the write:

- of equal rows in one file the later one has the value: a request that writes a key twice stamps both alike;
- against a row of an earlier file the later one has the value, too, unless it is a live row and the earlier one is from
  an opening scan: the scan has read what was left in the end;
- the mark of an opening scan (FLAG_SCANNED) stays if any has it, with the lowest `start_ts`. A live row does not
  take it away: its subscription has sent what came before, but that may have been dropped, at or below `attempted_ts`.

A row at or below `attempted_ts` is dropped and counted. That is no contradiction: when a leader moves, the scan of the
new subscription sends the newest version of a key only, and the old store's last file may come later, with versions
before it. The scanned row is marked, and its interval contains the dropped one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from sorter.core.conflicts import READY, VERSION, frame_of
from sorter.core.sort_buffer import SortBuffer
from sorter.rows.batch_rows import IncomingRows
from sorter.rows.undo_log import UndoLog
from tistream.model.arrays import I64
from tistream.model.change import FLAG_SCANNED, Op, RowKind

_READY_NUMBERS = ("op", "start_ts", "commit_ts", "expire_ts", "flags")
_IS_SCANNED = (pl.col("flags") & FLAG_SCANNED) != 0


@dataclass(frozen=True, slots=True)
class RawTaken:
    """What became of the RawKV rows of a file."""

    duplicates: int
    written: int  #: at or below `attempted_ts`


def take_raw(rows: IncomingRows, ready: SortBuffer, attempted_ts: int, log: UndoLog) -> RawTaken:
    """Add the RawKV rows of one file to the rows that wait for the watermark."""
    raw = rows.of_kind(RowKind.RAW)
    fresh = raw[rows.ts("commit_ts")[raw] > np.uint64(attempted_ts)]
    if not len(fresh):
        return RawTaken(0, len(raw))
    lookup_keys = rows.lookup_keys(fresh, "commit_ts")
    first = lookup_keys.first_equals()
    again = first != np.arange(len(fresh))
    doubtful = again.copy()
    doubtful[first[again]] = True
    held = []
    for run, at, there in ready.runs.find(lookup_keys, "commit_ts", whole=True):
        doubtful[at] = True
        there = np.unique(there)
        held.append(frame_of(run, there, READY))
        log.kill(run, there)
    doubtful |= doubtful[first]
    plain = fresh[~doubtful]
    if len(plain):
        numbers = {name: rows.numbers[name][plain] for name in _READY_NUMBERS}
        ready.add_rows(rows.refs.take(plain), numbers, rows.hashes[plain], young=rows.segment)
    kept = _merged(held, _frame(rows, fresh[doubtful])) if doubtful.any() else None
    if kept is not None:
        ready.add(kept)
    new = len(plain) + (0 if kept is None else kept.height) - sum(frame.height for frame in held)
    return RawTaken(len(fresh) - new, len(raw) - len(fresh))


def _frame(rows: IncomingRows, at: I64) -> pl.DataFrame:
    """The rows with the columns of READY."""
    refs, is_put = rows.refs.take(at), rows.numbers["op"][at] == Op.PUT
    values = refs.series("value", ~is_put, empty_for_null=True)
    columns = {name: rows.numbers[name][at] for name in _READY_NUMBERS}
    return pl.DataFrame(
        {**columns, "key": refs.series("key"), "value": values, "old_value": refs.series("old_value")}
    ).select(READY.names)


def _merged(held: list[pl.DataFrame], arrived: pl.DataFrame) -> pl.DataFrame:
    """One row for each (key, commit_ts), by the rules of the module."""
    parts = [frame.with_columns(is_held=pl.lit(value=True)) for frame in held]
    rows = pl.concat([*parts, arrived.with_columns(is_held=pl.lit(value=False))])
    of_version = {"scanned": _IS_SCANNED.any().over(VERSION), "lowest": pl.col("start_ts").min().over(VERSION)}
    held_scanned = (pl.col("is_held") & _IS_SCANNED).any().over(VERSION)
    outdated = held_scanned & ~pl.col("is_held") & ~_IS_SCANNED
    rows = rows.with_columns(outdated=outdated, **of_version).filter(~pl.col("outdated"))
    rows = rows.unique(VERSION, keep="last", maintain_order=True)
    plain = pl.col("flags") & (0xFF - FLAG_SCANNED)
    return rows.with_columns(
        start_ts=pl.when("scanned").then("lowest").otherwise("commit_ts"),
        flags=pl.when("scanned").then(plain | FLAG_SCANNED).otherwise(plain),
    ).select(READY.names)
