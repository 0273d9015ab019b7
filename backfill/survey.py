"""Reads ahead of the workers what the files promise, and nothing else: their ends, a few kilobytes each.

    watermark rows in the order of cut_ts --> W of each task, by the sorter's own map --> how far a leg will reach

Every part of a task is complete where its watermark rows say so, and W of a task is that of its lowest slice, however
the range is cut. So the timestamp up to which all parts of a task can write is known before any row has been read:
none of them has to wait for the others, or to keep rows because another part is behind. Only a commit that nobody can
decide may hold a part below it; that is seen when it has happened.

A *leg* is a stretch of the backlog: files of all stores in the order of cut_ts (so that no store runs ahead of the
others and little has to be held), at most so many bytes. Each is handed over by itself.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import islice

import polars as pl
import pyarrow as pa

from backfill.backlog import Stream
from backfill.core.plan import Step, own_steps
from sorter.core.watermark import RangeWatermarkMap
from tistream.codec.batch_file import BatchWatermarks, decode_batch_file, decode_watermarks
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS
from tistream.model.positions import Positions
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.protocol import ObjectStore

END_BYTES = 64 << 10  #: of a file that are read first
AHEAD = 16  #: ends that are read ahead, for each store


@dataclass(slots=True)
class Leg:
    """A stretch of the backlog."""

    steps: list[Step] = field(default_factory=list)
    files: int = 0
    nbytes: int = 0  #: of the files
    upto: dict[int, int] = field(default_factory=dict)  #: task -> how far it can be written then
    weights: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)  #: task -> rows by region, see `plan`


@dataclass(frozen=True, slots=True)
class _Seen:
    cut_ts: int  #: the largest of the store so far
    store_id: int
    step: Step
    size: int
    regions: pa.RecordBatch


class Survey:
    """The backlog of one tenant, leg by leg."""

    def __init__(
        self, store: ObjectStore, tenant: Tenant, backlog: Mapping[int, Sequence[Stream]], pool: Executor
    ) -> None:
        self._store, self._tenant, self._pool = store, tenant, pool
        stores = [self._of_store(streams) for streams in backlog.values()]
        self._files = heapq.merge(*stores, key=lambda seen: (seen.cut_ts, seen.store_id))
        self._maps: dict[int, RangeWatermarkMap] = {}
        self._positions: dict[int, Positions] = {}

    def add(self, task_id: int, watermarks: RangeWatermarkMap, positions: Positions) -> None:
        """A task as its snapshot left it."""
        self._maps[task_id], self._positions[task_id] = watermarks, positions

    def take(self, bytes_max: int, until: int | None) -> Leg | None:
        """The next leg, None at the end. It also ends where all tasks have reached `until`."""
        leg = Leg()
        regions: list[pa.RecordBatch] = []
        while leg.nbytes < bytes_max and not self._all_reached(until):
            seen = next(self._files, None)
            if seen is None:
                break
            leg.steps.append(seen.step)
            if not seen.step.closes:
                leg.files += 1
                leg.nbytes += seen.size
                regions.append(seen.regions)
                self._apply(seen)
        if not leg.steps:
            return None
        for task_id, watermarks in self._maps.items():
            w = watermarks.watermark() or 0
            leg.upto[task_id] = w if until is None else min(w, until)
            leg.weights[task_id] = _weights(regions, watermarks.range)
        return leg

    def _all_reached(self, until: int | None) -> bool:
        return until is not None and all((m.watermark() or 0) >= until for m in self._maps.values())

    def _apply(self, seen: _Seen) -> None:
        for task_id, watermarks in self._maps.items():
            if own_steps([seen.step], self._positions[task_id]):
                watermarks.apply(seen.regions, seen.store_id, seen.step.incarnation, seen.step.seq)

    def _of_store(self, streams: Sequence[Stream]) -> Iterator[_Seen]:
        """A store's files in order: an incarnation ends before the next begins."""
        steps = iter([found for stream in streams for found in stream.steps()])
        ahead: deque[tuple[Step, int, Future[BatchWatermarks] | None]] = deque()

        def more(count: int) -> None:
            for step, size in islice(steps, count):
                ahead.append((step, size, None if step.closes else self._pool.submit(self._read, step, size)))

        cut_ts = 0
        more(AHEAD)
        while ahead:
            step, size, promises = ahead.popleft()
            more(1)
            regions = _NO_REGIONS
            if promises is not None:
                found = promises.result()
                cut_ts, regions = max(cut_ts, found.cut_ts), found.regions
            yield _Seen(cut_ts, step.store_id, step, size, regions)

    def _read(self, step: Step, size: int) -> BatchWatermarks:
        key = BatchKey(tenant=self._tenant, store_id=step.store_id, incarnation=step.incarnation, seq=step.seq)
        length = min(size, END_BYTES)
        found = decode_watermarks(key, self._store.get_range(str(key), size - length, length), size)
        if found is not None:
            return found
        file = decode_batch_file(key, self._store.get(str(key)))
        return BatchWatermarks(cut_ts=file.cut_ts, regions=file.regions)


_NO_REGIONS = pa.RecordBatch.from_pylist([], schema=REGIONS)


def _weights(regions: Sequence[pa.RecordBatch], range_: KeyRange) -> list[tuple[bytes, int]]:
    """Where the regions that touch the range begin, and how many rows came with them, by key."""
    names = ["start_key", "end_key", "row_count"]
    table = pa.Table.from_batches(
        [batch.select(names) for batch in regions], pa.schema([REGIONS.field(n) for n in names])
    )
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    touching = (pl.col("end_key") > pl.lit(range_.start, pl.Binary)) | (pl.col("end_key").bin.size() == 0)
    if range_.end:
        touching &= pl.col("start_key") < pl.lit(range_.end, pl.Binary)
    found = frame.filter(touching).group_by("start_key").agg(pl.col("row_count").sum()).sort("start_key")
    return [(max(start, range_.start), rows) for start, rows in found.iter_rows()]
