"""What a stretch of RawKV changes writes: the newest version of each key, once.

    plan = plan_writes(rows)        rows of schema change.COMMITTED, in commit order, with mode and keyspace
    plan.puts(), plan.deletes()     keys of users, which rise

Older versions of a key within the stretch are left out: the destination stamps what it is sent with its own
timestamps, and a key that is in one request only cannot overtake itself.

Pure, and without an object per row.

`cut_ranges` cuts a range of keys into parts, at boundaries of the destination's regions: one part for each lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.raw.keys import user_keys
from tistream.keyrange import KeyRange, end_before
from tistream.model.arrays import Mask
from tistream.model.change import Op
from tistream.tikv.core.raw_messages import Seconds, remaining


def cut_ranges(boundaries: Iterable[bytes], range_: KeyRange, parts: int) -> list[KeyRange]:
    """`range_` as up to `parts` consecutive ranges with about as many regions each; fewer where regions are fewer.
    `boundaries`: first keys of regions, in any order."""
    inside = sorted({key for key in boundaries if key > range_.start and end_before(key, range_.end)})
    regions = len(inside) + 1
    parts = max(min(parts, regions), 1)
    at = [range_.start, *(inside[i * regions // parts - 1] for i in range(1, parts)), range_.end]
    return [KeyRange(start, end) for start, end in pairwise(at)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TikvPlan:
    """The writes of a stretch."""

    keys: pa.BinaryArray  #: of users; they rise
    values: pa.BinaryArray
    expires: Seconds  #: Unix seconds; 0 = never
    deleted: Mask
    record: str = ""  #: the stretch determines everything

    @property
    def rows(self) -> int:
        return len(self.keys)

    @property
    def size(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)

    def puts(self) -> tuple[pa.BinaryArray, pa.BinaryArray, Seconds]:
        """Keys, values and expiries of the entries to put."""
        mask = pa.array(~self.deleted)
        return self.keys.filter(mask), self.values.filter(mask), self.expires[~self.deleted]

    def deletes(self) -> pa.BinaryArray:
        """Keys to delete."""
        return self.keys.filter(pa.array(self.deleted))

    def without_expiry(self, now_s: int) -> tuple[TikvPlan, list[bytes]]:
        """For stores that know none: (the plan with deletes of what has expired, the keys that would have to expire
        there)."""
        _, expired = remaining(self.expires, now_s)
        deleted = self.deleted | expired
        left = np.where(deleted, np.uint64(0), self.expires)
        plan = TikvPlan(keys=self.keys, values=self.values, expires=left, deleted=deleted)
        return plan, self.keys.filter(pa.array(left != 0)).to_pylist()


def plan_writes(rows: pa.Table) -> TikvPlan:
    """The newest version of each key. DecodeError when a key has no mode and keyspace."""
    newest = rows.select(["op", "key", "value", "expire_ts"]).take(newest_rows(rows["key"]))
    deleted = pc.equal(newest["op"], int(Op.DELETE)).to_numpy()
    return TikvPlan(
        keys=user_keys(_one(newest["key"])),
        values=_one(pc.fill_null(newest["value"], b"")),
        expires=np.where(deleted, np.uint64(0), newest["expire_ts"].to_numpy()),
        deleted=deleted,
    )


def newest_rows(keys: pa.ChunkedArray) -> pa.Array:
    """The last row of each key, by key."""
    frame = pl.DataFrame({"key": pl.from_arrow(keys)}).with_row_index("row")
    return frame.unique("key", keep="last").sort("key")["row"].to_arrow()


def _one(column: pa.ChunkedArray) -> pa.BinaryArray:
    """One array; `take` may give several."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
