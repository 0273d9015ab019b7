"""The rows of one feed batch, each with the tenure and the file that brought it, as one polars frame.

Between Arrow (what flows in and out of a task) and polars (what the buffers hold) stand `arrivals`, `to_arrow` and
`from_arrow`; nothing else converts. Values are brought into one form here: a DELETE has no value, a PUT that was sent
without one has an empty value, and an empty value on a COMMIT says nothing and is null.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa

from tistream.change import Op, RowKind
from tistream.errors import CorruptObject
from tistream.feed import FeedBatch
from tistream.keyrange import KeyRange

ARROW_BYTES_MAX = 1 << 30  #: of one output chunk; Arrow's binary columns count in 31 bits

CHUNKS_MAX = 32  #: a buffer in more pieces is copied into one

#: what a row of the feed gains: which tenure sent it, in which file, and its number in the order of arrival
TENURE = ("region_id", "version", "checkpoint_ts", "tenure_open_ts", "tenure_ready_ts")
SOURCE = ("store_id", "incarnation", "seq")

_POLARS: dict[pa.DataType, pl.DataType] = {
    pa.uint64(): pl.UInt64(),
    pa.uint8(): pl.UInt8(),
    pa.bool_(): pl.Boolean(),
    pa.binary(): pl.Binary(),
    pa.int64(): pl.Int64(),
}


def empty(schema: pa.Schema) -> pl.DataFrame:
    """No rows, with the columns of an Arrow schema."""
    return pl.DataFrame(schema={f.name: _POLARS[f.type] for f in schema})


def joined(*frames: pl.DataFrame) -> pl.DataFrame:
    """The frames one behind the other, in not too many chunks."""
    frame = pl.concat(frames)
    return frame.rechunk() if frame.n_chunks() > CHUNKS_MAX else frame


def from_arrow(data: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """The same rows as a polars frame."""
    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame if frame.width else empty(data.schema)


def to_arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """The schema's columns of the frame, in chunks that each fit Arrow's 31-bit binary offsets."""
    frame = frame.select(schema.names)
    binary = [pl.col(f.name).bin.size().fill_null(0) for f in schema if f.type == pa.binary()]
    if not frame.height:
        return schema.empty_table()
    ends = frame.select(pl.sum_horizontal(binary).cast(pl.UInt64).cum_sum()).to_series().to_numpy()
    cuts = np.flatnonzero(np.diff(ends // ARROW_BYTES_MAX)) + 1
    edges = [0, *cuts.tolist(), frame.height]
    parts = [frame.slice(lo, hi - lo).to_arrow().cast(schema) for lo, hi in pairwise(edges)]
    return pa.concat_tables(parts)


def arrivals(batch: FeedBatch, range_: KeyRange, first_row_no: int) -> pl.DataFrame:
    """change.ROWS plus TENURE, SOURCE, `cut_ts` and `row_no`; rows outside the range are left out.

    CorruptObject when a row belongs to no tenure of the batch, or to two.
    """
    rows, regions = batch.rows, batch.regions
    tenure = _tenure_of_rows(batch)
    frame = from_arrow(rows).with_columns(
        *(pl.Series(name, regions.column(name).to_numpy()[tenure], pl.UInt64) for name in TENURE),
        *(pl.lit(getattr(batch, name), pl.UInt64).alias(name) for name in SOURCE),
        pl.lit(batch.cut_ts, pl.UInt64).alias("cut_ts"),
        pl.Series("row_no", np.arange(rows.num_rows, dtype=np.uint64) + np.uint64(first_row_no), pl.UInt64),
        _plain_value(),
    )
    return within(frame, range_)


def within(frame: pl.DataFrame, range_: KeyRange) -> pl.DataFrame:
    """The rows whose key lies in the range."""
    inside = pl.col("key") >= pl.lit(range_.start, pl.Binary)
    if range_.end:
        inside = inside & (pl.col("key") < pl.lit(range_.end, pl.Binary))
    return frame.filter(inside) if range_.start or range_.end else frame


def _tenure_of_rows(batch: FeedBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row the number of its REGIONS row."""
    offset = batch.regions.column("row_offset").to_numpy().astype(np.int64)
    count = batch.regions.column("row_count").to_numpy().astype(np.int64)
    with_rows = np.flatnonzero(count)
    order = with_rows[np.argsort(offset[with_rows], kind="stable")]
    ends = np.cumsum(count[order])
    total = int(ends[-1]) if len(ends) else 0
    if total != batch.rows.num_rows or (offset[order] != ends - count[order]).any():
        facts = {"store": batch.store_id, "incarnation": batch.incarnation, "seq": batch.seq}
        raise CorruptObject("the tenures do not name each row once", rows=batch.rows.num_rows, named=total, **facts)
    return np.repeat(order, count[order])


def _plain_value() -> pl.Expr:
    op, value = pl.col("op"), pl.col("value")
    nothing = pl.lit(None, pl.Binary)
    whole = pl.when(op == Op.PUT).then(value.fill_null(b"")).otherwise(nothing)
    said = pl.when(value.bin.size() > 0).then(value).otherwise(nothing)
    return pl.when(pl.col("kind") == RowKind.COMMIT).then(said).otherwise(whole).alias("value")
