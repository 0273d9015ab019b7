"""Matched rows that wait for the watermark.

A row comes in when its content is known and leaves when everything up to it has durably been written (`flushed`), not
when it was handed out (`take`): a flush whose fate is unknown is taken again. Until then it is also the memory by which
a second copy of the same (key, commit_ts) is recognised; at or below `upper` the log itself is that memory.

Relations: each (key, commit_ts) is here at most once; every row lies above the last `flushed`.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from sorter.arrivals import empty, from_arrow, joined, to_arrow, within
from tistream.change import COMMITTED
from tistream.codec.table_key import table_ids
from tistream.errors import invariant
from tistream.keyrange import KeyRange

#: change.COMMITTED before its table is looked up
READY = pa.schema([field for field in COMMITTED if field.name != "table_id"])

FLUSH_BYTES_MAX = 256 << 20  #: of the rows of one task in one flush

_VERSION = ["key", "commit_ts"]
_ORDER = ["table_id", "commit_ts", "start_ts", "key"]
_SIZE = pl.sum_horizontal(
    pl.col(name).bin.size().fill_null(0).cast(pl.UInt64) for name in ("key", "value", "old_value")
)


class SortBuffer:
    """Ready rows of one task."""

    def __init__(self) -> None:
        self.rows = empty(READY)
        self.flushed_ts = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows with the columns of READY; a (key, commit_ts) that is here already is merged with it."""
        new = self.unknown(rows).select(READY.names).unique(_VERSION, keep="first", maintain_order=True)
        if new.height:
            self.rows = joined(self.rows, new)

    def unknown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of the rows whose (key, commit_ts) is not here."""
        return rows.join(self.rows, on=_VERSION, how="anti", maintain_order="left") if self.rows.height else rows

    def bytes_due(self, w: int) -> int:
        """Bytes of keys and values of the rows at or below w."""
        if not self.rows.height:
            return 0
        return int(self.rows.filter(pl.col("commit_ts") <= w).select(_SIZE.sum()).item())

    def reach(self, w: int) -> int:
        """The largest watermark up to w whose rows fit one flush; a single commit_ts always does."""
        if self.bytes_due(w) <= FLUSH_BYTES_MAX:
            return w
        sizes = (
            self.rows.filter(pl.col("commit_ts") <= w)
            .select("commit_ts", size=_SIZE)
            .group_by("commit_ts")
            .agg(pl.col("size").sum())
            .sort("commit_ts")
        )
        fits = sizes.filter(pl.col("size").cum_sum() <= FLUSH_BYTES_MAX)
        return int((fits if fits.height else sizes.head(1))["commit_ts"][-1])

    def take(self, w: int) -> pa.Table:
        """All rows at or below w as change.COMMITTED, by (table_id, commit_ts, start_ts, key). They stay here."""
        due = self.rows.filter(pl.col("commit_ts") <= w)
        keys = due.select(pl.col("key")).to_arrow().column(0).combine_chunks().cast(pa.binary())
        due = due.with_columns(pl.Series("table_id", table_ids(keys), pl.Int64))
        return to_arrow(due.sort(_ORDER), COMMITTED)

    def flushed(self, w: int) -> None:
        """Everything at or below w is durably in the log."""
        self.flushed_ts = max(self.flushed_ts, w)
        if self.rows.height:
            self.rows = self.rows.filter(pl.col("commit_ts") > w)

    def snapshot(self) -> pa.Table:
        """The ready rows, schema READY."""
        return to_arrow(self.rows.sort(_VERSION), READY)

    def restore(self, rows: pa.Table, range_: KeyRange, upper: int) -> None:
        """Take over a snapshot, cut to the range; rows at or below `upper` have been written since."""
        self.rows = within(from_arrow(rows), range_)
        self.flushed(upper)

    def check(self) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        invariant(not self.rows.select(pl.struct(_VERSION).is_duplicated().any()).item(), "a row is ready twice")
        invariant(not (self.rows["commit_ts"] <= self.flushed_ts).any(), "a ready row lies below what was flushed")
