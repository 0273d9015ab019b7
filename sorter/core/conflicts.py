"""Slow path for conflicting prewrites, in polars frames: several prewrites of one (key, start_ts).

`merged` keeps the relevant ones as they arrive; `matched` finds the one that a commit committed, and calls
`conflict_rule.choose` per key where they disagree. All other rows are matched in runs and never come here.

Values have one form in a frame: a DELETE has none, a PUT that was sent without one has an empty value, and an empty
value on a COMMIT means unknown and is null. `frame_of` and `run_of` convert between runs and frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core.conflict_rule import Candidate, choose
from sorter.rows.batch_rows import SOURCE, SUBSCRIPTION, empty
from sorter.rows.payload import RowRefs, segment_of
from sorter.rows.run import RUN_ROWS, SEGMENT_BYTES, Run
from tistream.model.arrays import I64
from tistream.model.change import COMMITTED, Op


def _schema(**types: pa.DataType) -> pa.Schema:
    nullable = ("value", "old_value")
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in types.items()])


#: undecided prewrites
OPEN = _schema(
    key=pa.binary(),
    start_ts=pa.uint64(),
    op=pa.uint8(),
    generation=pa.uint64(),
    value=pa.binary(),
    old_value=pa.binary(),
    expire_ts=pa.uint64(),
    flags=pa.uint8(),
    **{name: pa.uint64() for name in (*SOURCE, *SUBSCRIPTION, "cut_ts", "row_no")},
)
#: commits that wait for W(key) or for a conflict resolution
COMMITS = _schema(
    key=pa.binary(),
    start_ts=pa.uint64(),
    commit_ts=pa.uint64(),
    op=pa.uint8(),
    value=pa.binary(),
    flags=pa.uint8(),
    store_id=pa.uint64(),
    incarnation=pa.uint64(),
    seq=pa.uint64(),
    region_id=pa.uint64(),
    asked=pa.bool_(),
)
#: change.COMMITTED without table_id
READY = pa.schema([field for field in COMMITTED if field.name != "table_id"])

TXN = ["key", "start_ts"]
VERSION = ["key", "commit_ts"]
SUBSCRIPTION_ID = ["store_id", "incarnation", "region_id", "version", "checkpoint_ts", "subscription_open_ts"]
_CONTENT = ["op", "value", "old_value", "expire_ts", "flags"]
_IS_FAKE = (pl.col("op") == Op.PUT) & (pl.col("value").bin.size() == 0)
_BYTES = ("key", "value", "old_value")


def merged(group: pl.DataFrame) -> pl.DataFrame:
    """The prewrites (OPEN) that still count, per (key, start_ts) and subscription, each with its highest cut_ts."""
    group = group.with_columns(full=~_IS_FAKE)
    group = group.filter(pl.col("full") == pl.col("full").max().over(TXN))
    group = group.filter(pl.col("generation") == pl.col("generation").max().over(TXN))
    same = [*TXN, *SUBSCRIPTION_ID]
    group = group.with_columns(
        cut_ts=pl.col("cut_ts").max().over(same), subscription_ready_ts=pl.col("subscription_ready_ts").max().over(same)
    )
    return group.sort("row_no").unique(same, keep="last", maintain_order=True).select(OPEN.names)


def matched(due: pl.DataFrame, open_: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """From commits (COMMITS) and all of their prewrites (OPEN): (READY rows of the decidable ones, the other commits).
    The same input gives the same row order, and so the same snapshot."""
    commits = due.rename({"op": "commit_op", "value": "commit_value", "flags": "commit_flags"})
    commits = commits.select(*TXN, "commit_ts", "commit_op", "commit_value", "commit_flags")
    pairs = commits.join(open_, on=TXN, maintain_order="left")
    able = pairs.filter((pl.col("commit_op") == Op.NONE) | (pl.col("commit_op") == pl.col("op")))
    kinds = able.unique([*VERSION, *_CONTENT], keep="last", maintain_order=True)
    plain = kinds.filter((pl.len().over(VERSION) == 1) & ~(_IS_FAKE & pl.col("commit_value").is_not_null()))
    rows = [_ready(plain)]
    doubtful = due.join(plain, on=VERSION, how="anti")
    if doubtful.height:
        chosen = _choose_each(pairs.join(doubtful, on=VERSION, how="semi"))
        rows.append(_ready(chosen))
        doubtful = doubtful.join(chosen, on=VERSION, how="anti")
    return pl.concat(rows), doubtful


def frame_of(run: Run, rows: I64, schema: pa.Schema) -> pl.DataFrame:
    """Some rows of a run with the columns of OPEN, COMMITS or READY."""
    refs = run.refs.take(rows)
    op = run.numbers["op"][rows]
    columns: dict[str, object] = {name: v[rows] for name, v in run.numbers.items() if name in schema.names}
    is_commit = "asked" in schema.names
    for name in _BYTES:
        if name not in schema.names:
            continue
        only_puts = name == "value" and not is_commit
        nulls = op != Op.PUT if only_puts else None
        columns[name] = refs.series(name, nulls, empty_for_null=only_puts)  # type: ignore[arg-type]
    frame = pl.DataFrame(columns)
    if is_commit:
        value = pl.col("value")
        frame = frame.with_columns(pl.when(value.bin.size() > 0).then(value).otherwise(None).alias("value"))
    if run.origins is not None:
        named = [name for name in run.origins.columns if name in schema.names]
        frame = frame.hstack(run.origins.select(named)[run.numbers["origin"][rows]])
    return frame.select(schema.names)


def frame_of_all(runs: Sequence[Run], schema: pa.Schema) -> pl.DataFrame:
    return pl.concat([empty(schema), *(frame_of(run, run.living(), schema) for run in runs if run.live)])


def run_sized(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The frame in parts that each fit one run and one segment."""
    if not frame.height:
        return
    size = pl.sum_horizontal(pl.col(name).bin.size().fill_null(0) for name in _BYTES if name in frame.columns)
    ends = frame.select(size.cast(pl.Int64).cum_sum()).to_series().to_numpy()
    full = np.diff(ends // SEGMENT_BYTES) + np.diff(np.arange(frame.height) // RUN_ROWS)
    for low, high in pairwise([0, *(int(cut) + 1 for cut in np.flatnonzero(full)), frame.height]):
        yield frame.slice(low, high - low)


def runs_of(frame: pl.DataFrame, schema: pa.Schema) -> list[Run]:
    """Runs with the rows of a frame of that schema (OPEN or COMMITS), however many bytes they have."""
    return [run_of(part, schema) for part in run_sized(frame)]


def run_of(frame: pl.DataFrame, schema: pa.Schema) -> Run:
    """A run with the rows of a frame of that schema (OPEN or COMMITS), which must fit one segment."""
    from_origin = [name for name in (*SOURCE, *SUBSCRIPTION, "cut_ts") if name in schema.names]
    origins = frame.select(from_origin).unique(maintain_order=True).with_row_index("origin")
    origin = frame.select(from_origin).join(origins, on=from_origin, how="left", maintain_order="left")["origin"]
    numbers = {name: frame[name].to_numpy() for name in schema.names if name not in (*from_origin, *_BYTES)}
    numbers = {name: np.ascontiguousarray(values) for name, values in numbers.items()}
    numbers["origin"] = origin.to_numpy().astype(np.uint32)
    if schema is OPEN:
        numbers["fake"] = frame.select(_IS_FAKE.fill_null(value=False)).to_series().to_numpy()
    return Run(RowRefs.whole(segment_of(frame)), numbers, origins.select(from_origin))


def _ready(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.with_columns(flags=pl.col("flags") | pl.col("commit_flags")).select(READY.names)


def _choose_each(pairs: pl.DataFrame) -> pl.DataFrame:
    """For each decidable commit one pair with the chosen content."""
    chosen = []
    for group in pairs.sort([*VERSION, "row_no"]).partition_by(VERSION, maintain_order=True):
        rows = group.to_dicts()
        won = choose([_candidate(row) for row in rows], rows[0]["commit_op"], rows[0]["commit_value"])
        if won is not None:
            chosen.append({**rows[0], **{name: getattr(won, name) for name in _CONTENT}})
    return pl.DataFrame(chosen, schema=pairs.schema)


def _candidate(row: dict[str, int]) -> Candidate:
    content = {name: row[name] for name in (*_CONTENT, "generation", "row_no")}
    subscription = tuple(row[name] for name in SUBSCRIPTION_ID)
    open_ts, ready_ts = row["subscription_open_ts"], row["subscription_ready_ts"]
    return Candidate(subscription=subscription, open_ts=open_ts, ready_ts=ready_ts, **content)  # type: ignore[arg-type]
