"""Merge barrier: two tasks stop at the same file of each store before they are joined.

    furthest     for each incarnation of each store, the position of the task that is ahead: both stop there
    is_beyond    a batch behind the barrier, which is left for the merged task
    has_reached  a task has read up to the barrier
    at_barrier   its state, ready to be joined with the other's

Two states that have consumed the same files are what one core over both ranges would have; otherwise the half that was
ahead would get files a second time. Then a replayed prewrite could be replaced by its older version while a waiting
watermark row of that half makes its commit due.

An incarnation that both have read to its end counts as read by both, wherever they saw its end: a late file may lie in
between. Waiting watermark rows of such a file apply only to the half that read it. Pure.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pyarrow as pa

from sorter.core.task_core import CoreSnapshot
from sorter.core.watermark import WAITING
from sorter.rows.batch_rows import from_arrow
from tistream.feed.protocol import FeedBatch
from tistream.ids import Position
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions, position_of, without_ended


def furthest(left: Positions, right: Positions) -> dict[int, dict[int, Position]]:
    """The larger position in each incarnation of each store; an ended one is behind all others."""
    by_store: dict[int, dict[int, Position]] = {}
    for positions in (left, right):
        for store, incarnations in positions.items():
            of_store = by_store.setdefault(store, {})
            for incarnation, at in incarnations.items():
                of_store[incarnation] = max(of_store.get(incarnation, at), at, key=lambda p: (p.closed, p.seq))
    for store, of_store in by_store.items():
        lowest = max(min(positions[store]) for positions in (left, right) if positions.get(store))
        kept = {incarnation: at for incarnation, at in of_store.items() if incarnation >= lowest}  # others have ended
        by_store[store] = without_ended(kept)
    return by_store


def is_beyond(batch: FeedBatch, until: Positions) -> bool:
    incarnations = until.get(batch.store_id, {})
    at = position_of(incarnations, batch.incarnation)
    return not at.closed and (batch.incarnation not in incarnations or batch.closes or batch.seq > at.seq)


def has_reached(positions: Positions, until: Positions) -> bool:
    """Whether the task has read up to the barrier and no further."""
    if positions.keys() != until.keys():
        return False
    for store, incarnations in until.items():
        mine = without_ended(positions[store])
        if mine.keys() != incarnations.keys():
            return False
        for incarnation, at in incarnations.items():
            here = mine[incarnation]
            if here.closed != at.closed or (not at.closed and here.seq != at.seq):
                return False
    return True


def at_barrier(state: CoreSnapshot, half: KeyRange, until: Positions) -> CoreSnapshot:
    """The state of a half at the barrier, with waiting rows cut to its range."""
    return replace(state, positions=until, waiting=_cut(state.waiting, half))


def _cut(waiting: pa.Table, half: KeyRange) -> pa.Table:
    if not waiting.num_rows:
        return waiting
    start, end = pl.col("start_key"), pl.col("end_key")
    low = pl.when(start < pl.lit(half.start, pl.Binary)).then(pl.lit(half.start, pl.Binary)).otherwise(start)
    rows = from_arrow(waiting).with_columns(start_key=low)
    if half.end:
        last = pl.lit(half.end, pl.Binary)
        rows = rows.with_columns(end_key=pl.when((end == b"") | (end > last)).then(last).otherwise(end))
    return rows.filter((end == b"") | (start < end)).select(WAITING.names).to_arrow().cast(WAITING)
