"""What each subscription has promised in the files taken so far, per incarnation of a store.

A subscription is (region_id, version, checkpoint_ts, tenure_open_ts) of a store's incarnation. Its highest resolved_ts
is a promise: no later file of it brings a commit at or below. `RangeWatermarkMap` knows which slices promises raise,
this knows whose they are, and keeps them when W passes on.

A store lists all its subscriptions in every file, mostly the same ones, so `note` compares a few columns and takes a
maximum. A subscription that a file omits has ended. Its promise stays, because a store might name it again: of the
ended ones of an incarnation those opened last, as many as are listed or ENDED_MIN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core.slots import Stamps
from sorter.core.watermark import resolved_of
from sorter.rows.batch_rows import from_arrow

ENDED_MIN = 4096  #: promises of ended subscriptions that are always kept, per incarnation

_ID = ["region_id", "version", "checkpoint_ts", "tenure_open_ts"]
_LIFE = ["store_id", "incarnation"]
#: a promise in a snapshot
PROMISED = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in (*_LIFE, *_ID, "resolved_ts")])
_NONE = pl.DataFrame(schema=dict.fromkeys((*_ID, "resolved_ts"), pl.UInt64))


@dataclass(slots=True)
class _Subscriptions:
    """Of one incarnation of a store."""

    listed: pa.RecordBatch  #: the newest file's watermark rows
    resolved: Stamps  #: the promise of each of them
    ended: pl.DataFrame  #: of subscriptions that it omits
    once: bool  #: whether it names no subscription twice

    def frame(self) -> pl.DataFrame:
        """All promises; of each subscription the highest."""
        listed = _ids(self.listed).with_columns(resolved_ts=pl.Series(self.resolved))
        return pl.concat([listed, self.ended]).group_by(_ID, maintain_order=True).agg(pl.col("resolved_ts").max())


class Promised:
    """The promises of all stores of a task."""

    def __init__(self) -> None:
        self._lives: dict[tuple[int, int], _Subscriptions] = {}

    def before(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> Stamps | None:
        """For each subscription of the next file what earlier files have promised, 0 for nothing; None when no
        subscription has promised anything."""
        known = self._lives.get((store_id, incarnation))
        if known is None or not regions.num_rows:
            return None
        if known.once and _same(known.listed, regions):
            return known.resolved
        found = _ids(regions).join(known.frame(), on=_ID, how="left", maintain_order="left")
        out: Stamps = found["resolved_ts"].fill_null(0).to_numpy()
        return out

    def note(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        """The file with these watermark rows has been taken."""
        at, resolved = (store_id, incarnation), resolved_of(regions, None)
        known = self._lives.get(at)
        if known is not None and known.once and _same(known.listed, regions):
            np.maximum(known.resolved, resolved, out=known.resolved)
            known.listed = regions
            return
        ids = _ids(regions)
        ended = _NONE
        if known is not None:
            before = self.before(regions, store_id, incarnation)
            resolved = resolved if before is None else np.maximum(before, resolved)
            ended = known.frame().join(ids, on=_ID, how="anti").filter(pl.col("resolved_ts") > 0)
            ended = ended.top_k(max(ENDED_MIN, regions.num_rows), by="tenure_open_ts")
        once = not ids.is_duplicated().any()
        self._lives[at] = _Subscriptions(regions, np.ascontiguousarray(resolved), ended, once)

    def forget(self, store_id: int, incarnation: int) -> None:
        """The incarnation has ended: no more files of it are taken."""
        self._lives.pop((store_id, incarnation), None)

    def snapshot(self) -> pa.Table:
        """All promises, with schema PROMISED."""
        frames = [
            known.frame()
            .filter(pl.col("resolved_ts") > 0)
            .with_columns(store_id=pl.lit(store_id, pl.UInt64), incarnation=pl.lit(incarnation, pl.UInt64))
            for (store_id, incarnation), known in self._lives.items()
        ]
        if not frames:
            return PROMISED.empty_table()
        rows = pl.concat(frames).select(PROMISED.names).sort(PROMISED.names)
        return rows.to_arrow().cast(PROMISED)

    def restore(self, promises: pa.Table) -> None:
        """Take over a snapshot."""
        for (store_id, incarnation), rows in from_arrow(promises).group_by(_LIFE, maintain_order=True):
            listed = pa.RecordBatch.from_pylist([], schema=pa.schema([(name, pa.uint64()) for name in _ID]))
            ended = rows.select(*_ID, "resolved_ts")
            self._lives[int(store_id), int(incarnation)] = _Subscriptions(listed, np.empty(0, np.uint64), ended, True)


def joined(tables: list[pa.Table]) -> pa.Table:
    """The promises of several parts of a range that have taken the same files: of each subscription the highest."""
    rows = from_arrow(pa.concat_tables(tables)).group_by([*_LIFE, *_ID]).agg(pl.col("resolved_ts").max())
    return rows.select(PROMISED.names).sort(PROMISED.names).to_arrow().cast(PROMISED)


def _ids(regions: pa.RecordBatch) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(name, regions.column(name).to_numpy(), pl.UInt64) for name in _ID])


def _same(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """Whether both name the same subscriptions, in the same order."""
    return a.num_rows == b.num_rows and all(a.column(name).equals(b.column(name)) for name in _ID)
