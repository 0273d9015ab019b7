"""Rows of a file that contradict what its store had promised, and which rows are only repeated.

    suspects     COMMIT, COMMITTED and RAW rows at or below a resolved_ts that an earlier file of the same store,
                 incarnation and subscription promised. Prewrites below it are ordinary
    unheld       those of them that no buffer holds with equal bytes
    question     those at or below `durable_ts`: only the committed log can tell; the shell reads it
    remaining    what the log does not hold with equal bytes either: the store contradicts itself

A row is equal when transaction, timestamps and whatever both say of operation and value agree. A COMMIT may bring no
value, and an old value may be unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core.conflicts import COMMITS, READY, VERSION, frame_of
from sorter.core.slots import Stamps
from sorter.rows.batch_rows import IncomingRows, from_arrow
from sorter.rows.run import RunSet
from tistream.errors import PromiseContradicted, invariant
from tistream.model.arrays import I64
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, Op, RowKind
from tistream.model.contradiction import SAMPLE_ROWS_MAX, ContradictingRow, Contradiction

_NUMBERS = ("start_ts", "commit_ts", "op", "expire_ts", "flags")
_NONE: I64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LogQuestion:
    """Which of these versions does the log hold, and with which bytes?"""

    keys: list[bytes]
    commit_ts: list[int]

    def __len__(self) -> int:
        return len(self.keys)


def contradicted(task_id: int, contradiction: Contradiction) -> PromiseContradicted:
    """The error for these rows; `found_by` gives them back."""
    first = contradiction.sample[0]
    error = PromiseContradicted(
        task=task_id,
        store=contradiction.store_id,
        incarnation=contradiction.incarnation,
        seq=contradiction.seq,
        rows=contradiction.rows,
        good_ts=contradiction.good_ts,
        key=first.key,
        commit_ts=first.commit_ts,
        promised_ts=first.promised_ts,
    )
    error.found = contradiction
    return error


def found_by(error: PromiseContradicted) -> Contradiction:
    """The rows that an error of a core is about."""
    contradiction = error.found
    invariant(isinstance(contradiction, Contradiction), "the error of a core names its rows")
    assert isinstance(contradiction, Contradiction)
    return contradiction


def suspects(rows: IncomingRows, promised: Stamps | None) -> I64:
    """The outcomes at or below what `promised` says of their subscription (a number for each REGIONS row)."""
    if promised is None or not len(rows):
        return _NONE
    of_origin = promised[rows.subscriptions]
    commit_ts = rows.ts("commit_ts")
    # rows of other kinds have a commit_ts of 0, which wraps around
    near: I64 = np.flatnonzero(commit_ts - np.uint64(1) < of_origin.max())
    if not len(near):
        return near
    near = near[commit_ts[near] <= of_origin[rows.numbers["origin"][near]]]
    kinds = rows.kind[near]
    out: I64 = near[(kinds == RowKind.COMMIT) | (kinds >= RowKind.COMMITTED)]
    return out


def unheld(rows: IncomingRows, at: I64, ready: RunSet, commits: RunSet) -> I64:
    """Those of the rows that are neither ready nor waiting with equal bytes."""
    held = _NONE
    mine = _outcomes_of(rows, at)
    for run, _, there in ready.find(rows.lookup_keys(at, "commit_ts"), "commit_ts", whole=True):
        held = np.union1d(held, _equal(mine, frame_of(run, np.unique(there), READY)))
    for run, _, there in commits.find(rows.lookup_keys(at, "commit_ts"), "commit_ts", whole=True):
        waiting = frame_of(run, np.unique(there), COMMITS).select(*VERSION, "start_ts", "op")
        held = np.union1d(held, _equal(mine, waiting))
    return np.setdiff1d(at, held)


def question(rows: IncomingRows, at: I64, durable_ts: int) -> LogQuestion:
    """What the log must be asked about these rows."""
    old = at[rows.ts("commit_ts")[at] <= np.uint64(durable_ts)]
    keys = rows.refs.take(old).column("key").to_pylist()
    return LogQuestion(keys, rows.ts("commit_ts")[old].tolist())


def remaining(rows: IncomingRows, at: I64, logged: pa.Table | None) -> I64:
    """The rows that the log does not hold. `logged`: what was read of the log, with schema change.COMMITTED."""
    if logged is None or not logged.num_rows or not len(at):
        return at
    held = from_arrow(logged).select(READY.names)
    return np.setdiff1d(at, _equal(_outcomes_of(rows, at), held))


def described(rows: IncomingRows, at: I64, promised: Stamps) -> Contradiction:
    """The record of these rows, which contradict a promise."""
    commit_ts = rows.ts("commit_ts")
    lowest = at[np.argsort(commit_ts[at], kind="stable")]
    sample = lowest[:SAMPLE_ROWS_MAX]
    keys = rows.refs.take(sample).column("key").to_pylist()
    origins = rows.numbers["origin"]
    source = rows.origins.row(int(origins[sample[0]]), named=True)
    return Contradiction(
        store_id=source["store_id"],
        incarnation=source["incarnation"],
        seq=source["seq"],
        good_ts=int(commit_ts[lowest[0]]) - 1,
        promised_ts=int(promised[rows.subscriptions[origins[at]]].max()),
        rows=len(at),
        sample=[
            ContradictingRow(
                key=key,
                start_ts=int(rows.ts("start_ts")[row]),
                commit_ts=int(commit_ts[row]),
                region_id=int(rows.origins["region_id"][int(origins[row])]),
                promised_ts=int(promised[rows.subscriptions[origins[row]]]),
            )
            for key, row in zip(keys, sample.tolist(), strict=True)
        ],
    )


def _outcomes_of(rows: IncomingRows, at: I64) -> pl.DataFrame:
    """The rows with the columns of READY, their number and whether they are complete. Where a row
    has no value, it is null."""
    refs, op = rows.refs.take(at), rows.numbers["op"][at]
    complete = rows.kind[at] != RowKind.COMMIT
    value = pl.col("value")
    said = pl.when(pl.col("complete")).then(
        pl.when(pl.col("op") == Op.PUT).then(value.fill_null(b"")).otherwise(None)
    ).otherwise(pl.when(value.bin.size() > 0).then(value).otherwise(None))  # fmt: skip
    return pl.DataFrame(
        {
            "row": at,
            "complete": complete,
            **{name: rows.numbers[name][at] for name in _NUMBERS},
            **{name: refs.series(name) for name in ("key", "value", "old_value")},
        }
    ).with_columns(said.alias("value"), op=pl.Series(op))


def _equal(mine: pl.DataFrame, held: pl.DataFrame) -> I64:
    """The numbers of the rows that are among the held ones, which may lack values (waiting commits)."""
    both = mine.join(held, on=VERSION, suffix="_held").filter(pl.col("start_ts") == pl.col("start_ts_held"))
    no_op = (pl.col("op") == Op.NONE) | (pl.col("op_held") == Op.NONE)
    both = both.filter(no_op | (pl.col("op") == pl.col("op_held")))
    if "value_held" in both.columns:
        complete = pl.col("complete")
        unknown = ((pl.col("flags") | pl.col("flags_held")) & FLAG_OLD_VALUE_UNKNOWN) != 0
        same_value = pl.col("value").eq_missing(pl.col("value_held"))
        same_old = unknown | pl.col("old_value").eq_missing(pl.col("old_value_held"))
        whole = same_value & same_old & (pl.col("expire_ts") == pl.col("expire_ts_held"))
        both = both.filter(pl.when(complete).then(whole).otherwise(pl.col("value").is_null() | same_value))
    out: I64 = np.unique(both["row"].to_numpy())
    return out
