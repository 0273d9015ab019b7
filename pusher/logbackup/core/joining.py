"""Joins versions of the write column family with rows of the default one into change rows: pure, columnar.

    versions (many slices)  ->  each version once, without hidden ones
    + rows from the default column family, by (key, start_ts)  ->  change.ROWS, kind COMMITTED

- A log backup has most records several times (leaders move, stores scan again): a version is (key, commit_ts), and
  copies that differ are damage;
- `txn_source` bits 8 to 16 mark what TiKV's change feed never sends: rows rewritten by a lossy MODIFY COLUMN, and
  ingested rows. A table record is kept, flagged FLAG_NOT_A_CHANGE: it is visible to reads as of a timestamp, but is not
  a change. An index entry is dropped;
- a log backup has no old values: every row is flagged FLAG_OLD_VALUE_UNKNOWN.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from pusher.logbackup.core.entries import VALUES, VERSIONS
from tistream.codec.table_key import is_record
from tistream.errors import CorruptObject, invariant
from tistream.model.change import FLAG_NOT_A_CHANGE, FLAG_OLD_VALUE_UNKNOWN, ROWS, RowKind

_HIDDEN_SOURCES = 0x1FF00
_VERSION = ["key", "commit_ts"]
_WRITE = ["key", "start_ts"]


def distinct(versions: list[pa.RecordBatch]) -> pa.Table:
    """Each version once (schema VERSIONS), in file order, without ingested index entries. CorruptObject when copies
    differ."""
    table = pa.Table.from_batches(versions, schema=VERSIONS)
    rows = _frame(table).unique(maintain_order=True)
    copies = rows.filter(rows.select(_VERSION).is_duplicated())
    if len(copies):
        key, commit_ts = copies.select(_VERSION).row(0)
        raise CorruptObject("two records of one version differ in the log backup", key=key, commit_ts=commit_ts)
    table = rows.to_arrow().cast(VERSIONS).combine_chunks()
    hidden = table["txn_source"].to_numpy() & np.uint64(_HIDDEN_SOURCES) != 0
    return table.filter(pa.array(~hidden | is_record(table["key"]))) if hidden.any() else table


def wanting(versions: pa.Table) -> pa.Table:
    """(key, start_ts) of the versions whose value is in the default column family."""
    return versions.filter(versions["needs_value"]).select(_WRITE)


def matching(values: pa.RecordBatch, wanted: pa.Table) -> pa.Table:
    rows = _frame(pa.Table.from_batches([values])).join(_frame(wanted), on=_WRITE, how="semi")
    return rows.to_arrow().cast(VALUES)


def missing(wanted: pa.Table, values: pa.Table) -> pa.Table:
    """The part of `wanted` that is not among the rows."""
    left = _frame(wanted).join(_frame(values.select(_WRITE)), on=_WRITE, how="anti")
    return left.to_arrow().cast(wanted.schema)


def change_rows(versions: pa.Table, values: pa.Table) -> pa.RecordBatch:
    """The versions (distinct) as change rows, in their order; `values` has every row that they need. CorruptObject when
    copies of a row differ."""
    rows = _frame(values).unique()
    if (copies := rows.filter(rows.select(_WRITE).is_duplicated())).height:
        key, start_ts = copies.select(_WRITE).row(0)
        raise CorruptObject("two copies of one row differ in the log backup", key=key, start_ts=start_ts)
    joined = (
        _frame(versions)
        .join(rows, on=_WRITE, how="left", suffix="_stored", maintain_order="left")
        .with_columns(value=pl.when("needs_value").then("value_stored").otherwise("value"))
    )
    put_without = joined.filter(pl.col("needs_value") & pl.col("value").is_null()).height
    invariant(joined.height == versions.num_rows and not put_without, "a put has no value")
    hidden = joined["txn_source"].to_numpy() & np.uint64(_HIDDEN_SOURCES) != 0
    n = joined.height
    columns = {name: joined[name].to_arrow() for name in ("op", "key", "start_ts", "commit_ts", "value")}
    columns |= {
        "kind": pa.array(np.full(n, RowKind.COMMITTED, np.uint8)),
        "generation": pa.array(np.zeros(n, np.uint64)),
        "old_value": pa.nulls(n, pa.binary()),
        "expire_ts": pa.array(np.zeros(n, np.uint64)),
        "flags": pa.array(np.where(hidden, FLAG_NOT_A_CHANGE, 0).astype(np.uint8) | np.uint8(FLAG_OLD_VALUE_UNKNOWN)),
    }
    arrays = [columns[field.name].cast(field.type) for field in ROWS]
    return pa.record_batch(arrays, schema=ROWS)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
