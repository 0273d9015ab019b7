"""Where two tasks meet before they become one: at the same file of each store.

    furthest   for each life of a store, how far the one that is ahead has read: there both stop
    is_beyond  a batch behind that place: it is left for the task that will be made of the two
    has_reached   a task has read up to there
    at_barrier   its state, said so that it can be joined with the other's

Two states that have consumed the same files are what one core over both ranges would have; without that the half that
was ahead would get files a second time. Then a prewrite that was written anew could be replaced by its older version
while a watermark row that the half had already heard, and that only waited, makes its commit due.

A life that both have read to its end counts as read by both, wherever they saw its end: a file that arrived late may
lie between. The watermark rows of such a file that wait in the half that read it speak for that half alone. Pure.
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
    """The larger position of each life of each store; an ended one is behind all others."""
    found: dict[int, dict[int, Position]] = {}
    for positions in (left, right):
        for store, lives in positions.items():
            of_store = found.setdefault(store, {})
            for incarnation, at in lives.items():
                of_store[incarnation] = max(of_store.get(incarnation, at), at, key=lambda p: (p.closed, p.seq))
    for store, of_store in found.items():
        lowest = max(min(positions[store]) for positions in (left, right) if positions.get(store))
        kept = {incarnation: at for incarnation, at in of_store.items() if incarnation >= lowest}  # others have ended
        found[store] = without_ended(kept)
    return found


def is_beyond(batch: FeedBatch, until: Positions) -> bool:
    """Whether the batch lies behind the place."""
    lives = until.get(batch.store_id, {})
    at = position_of(lives, batch.incarnation)
    return not at.closed and (batch.incarnation not in lives or batch.closes or batch.seq > at.seq)


def has_reached(positions: Positions, until: Positions) -> bool:
    """Whether all has been read up to there, and nothing behind it."""
    if positions.keys() != until.keys():
        return False
    for store, lives in until.items():
        mine = without_ended(positions[store])
        if mine.keys() != lives.keys():
            return False
        for incarnation, at in lives.items():
            here = mine[incarnation]
            if here.closed != at.closed or (not at.closed and here.seq != at.seq):
                return False
    return True


def at_barrier(state: CoreSnapshot, half: KeyRange, until: Positions) -> CoreSnapshot:
    """The state of a half that has come there: rows that wait say nothing about the other half."""
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
