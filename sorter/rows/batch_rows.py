"""Rows of one feed batch with their subscriptions and file, and conversions between Arrow and polars.

A batch is not copied: `IncomingRows` holds its columns as arrays, references to its bytes, a hash of each key, and one
row of `origins` per subscription that sent rows. Conflicts are resolved in polars frames, snapshots are Arrow tables;
`to_arrow` and `from_arrow` convert.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from sorter.rows.payload import RowRefs, Segment
from sorter.rows.run import LookupKeys, Run
from tistream.errors import CorruptObject
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

ARROW_BYTES_MAX = 1 << 30  #: of one output chunk; Arrow's binary offsets have 31 bits

#: columns added to the rows of a feed: their subscription and file
SUBSCRIPTION = ("region_id", "version", "checkpoint_ts", "subscription_open_ts", "subscription_ready_ts")
SOURCE = ("store_id", "incarnation", "seq")
ORIGIN = (*SOURCE, *SUBSCRIPTION, "cut_ts")

_NUMBERS = ("kind", "op", "start_ts", "commit_ts", "generation", "expire_ts", "flags")

_POLARS: dict[pa.DataType, pl.DataType] = {
    pa.uint64(): pl.UInt64(),
    pa.uint8(): pl.UInt8(),
    pa.bool_(): pl.Boolean(),
    pa.binary(): pl.Binary(),
    pa.int64(): pl.Int64(),
}


def empty(schema: pa.Schema) -> pl.DataFrame:
    """An empty frame with the columns of an Arrow schema."""
    return pl.DataFrame(schema={f.name: _POLARS[f.type] for f in schema})


def from_arrow(data: pa.Table | pa.RecordBatch) -> pl.DataFrame:
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


class IncomingRows:
    """The rows of a batch that lie in the task's range, as arrays of one length. Raises CorruptObject when a row
    belongs to no subscription of the batch, or to two."""

    def __init__(self, batch: FeedBatch, range_: KeyRange, first_row_no: int) -> None:
        subscriptions, origin = _subscription_of_rows(batch)
        rows = batch.rows
        self.segment = Segment(*(rows.column(name) for name in ("key", "value", "old_value")))
        refs = RowRefs.whole(self.segment)
        numbers: dict[str, npt.NDArray[Any]] = {name: rows.column(name).to_numpy() for name in _NUMBERS}
        numbers["origin"] = origin
        numbers["row_no"] = np.arange(rows.num_rows, dtype=np.uint64) + np.uint64(first_row_no)
        inside = rows_inside(rows.column("key"), range_)
        if inside is not None:
            refs, numbers = refs.take(inside), {name: values[inside] for name, values in numbers.items()}
        self.refs = refs
        self.numbers = numbers
        self.kind = numbers.pop("kind")
        self.hashes = refs.hashes()
        self.subscriptions = subscriptions  #: the REGIONS row of each origin
        #: per subscription: SOURCE, SUBSCRIPTION and cut_ts
        of_file = {name: np.full(len(subscriptions), getattr(batch, name), np.uint64) for name in (*SOURCE, "cut_ts")}
        of_subscription = {name: batch.regions.column(name).to_numpy()[subscriptions] for name in SUBSCRIPTION}
        self.origins = pl.DataFrame([pl.Series(name, {**of_file, **of_subscription}[name]) for name in ORIGIN])

    def __len__(self) -> int:
        return len(self.refs)

    def ts(self, name: str) -> npt.NDArray[np.uint64]:
        stamps: npt.NDArray[np.uint64] = self.numbers[name]
        return stamps

    def of_kind(self, *kinds: RowKind) -> npt.NDArray[np.int64]:
        mask = self.kind == kinds[0]
        for kind in kinds[1:]:
            mask |= self.kind == kind
        return np.flatnonzero(mask)

    def lookup_keys(self, rows: npt.NDArray[np.int64], ts: str) -> LookupKeys:
        return LookupKeys(self.refs.take(rows), self.hashes[rows], self.ts(ts)[rows])

    def run(self, rows: npt.NDArray[np.int64], names: Sequence[str], **more: npt.NDArray[Any]) -> Run:
        """Some of the rows as a run with these numbers, and `more`."""
        numbers = {name: self.numbers[name][rows] for name in names}
        refs, hashes = self.refs.take(rows), self.hashes[rows]
        return Run(refs, {**numbers, **more}, self.origins, hashes=hashes, young=self.segment)


def rows_inside(keys: pa.BinaryArray, range_: KeyRange) -> npt.NDArray[np.int64] | None:
    """The rows whose key lies in the range; None for all."""
    if not range_.start and not range_.end:
        return None
    mask = pc.greater_equal(keys, pa.scalar(range_.start, pa.binary()))
    if range_.end:
        mask = pc.and_(mask, pc.less(keys, pa.scalar(range_.end, pa.binary())))
    inside = mask.to_numpy(zero_copy_only=False)
    return None if inside.all() else np.flatnonzero(inside)


def _subscription_of_rows(batch: FeedBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """(REGIONS rows of the subscriptions that sent rows, for each row its index among them)."""
    offset = batch.regions.column("row_offset").to_numpy().astype(np.int64)
    count = batch.regions.column("row_count").to_numpy().astype(np.int64)
    with_rows = np.flatnonzero(count)
    order = with_rows[np.argsort(offset[with_rows], kind="stable")]
    ends = np.cumsum(count[order])
    total = int(ends[-1]) if len(ends) else 0
    if total != batch.rows.num_rows or (offset[order] != ends - count[order]).any():
        facts = {"store": batch.store_id, "incarnation": batch.incarnation, "seq": batch.seq}
        raise CorruptObject(
            "the subscriptions do not name each row once", rows=batch.rows.num_rows, named=total, **facts
        )
    return order, np.repeat(np.arange(len(order), dtype=np.uint32), count[order])
