"""Surveys a backlog: reads the watermark rows at the end of each file, a few kilobytes each, ahead of the workers.

    watermark rows in order of cut_ts --> W of each task, by the sorter's own map --> the timestamp that a batch reaches

W of a task is that of its lowest slice, however its range is cut. So the timestamp up to which all partitions of a task
can write is known before any row is read: none waits for the others, or keeps rows because another one is behind. Only
a commit that cannot be decided may hold a partition below it, which its result shows.

A *batch* is a stretch of the backlog: files of all stores in order of cut_ts (so that no store runs ahead of the others
and little must be held), limited in bytes. Each is handed over separately.

A store's files count up to the first one ahead of the service's time; it and those behind it are left to the live
dispatcher, which holds them.
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
import structlog

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
from tistream.runtime.service_time import ServiceTime

log = structlog.get_logger(__name__)

END_BYTES = 64 << 10  #: read first, from the end of a file
AHEAD = 16  #: files whose ends are read ahead, per store


@dataclass(slots=True)
class Batch:
    """A stretch of the backlog."""

    steps: list[Step] = field(default_factory=list)
    files: int = 0
    nbytes: int = 0  #: of the files
    upto: dict[int, int] = field(default_factory=dict)  #: task -> timestamp up to which it can be written
    weights: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)  #: task -> rows by region, see `plan`


@dataclass(frozen=True, slots=True)
class _Seen:
    cut_ts: int  #: the largest of the store so far
    store_id: int
    step: Step
    size: int
    regions: pa.RecordBatch


class Survey:
    """Splits the backlog of one tenant into batches."""

    def __init__(
        self,
        store: ObjectStore,
        tenant: Tenant,
        backlog: Mapping[int, Sequence[Stream]],
        pool: Executor,
        time: ServiceTime,
    ) -> None:
        self._store, self._tenant, self._pool, self._time = store, tenant, pool, time
        stores = [self._of_store(streams) for streams in backlog.values()]
        self._files = heapq.merge(*stores, key=lambda seen: (seen.cut_ts, seen.store_id))
        self._maps: dict[int, RangeWatermarkMap] = {}
        self._positions: dict[int, Positions] = {}

    def add(self, task_id: int, watermarks: RangeWatermarkMap, positions: Positions) -> None:
        """Add a task, in the state of its snapshot."""
        self._maps[task_id], self._positions[task_id] = watermarks, positions

    def take(self, bytes_max: int, until: int | None) -> Batch | None:
        """The next batch; None at the end, or when all tasks have reached `until`."""
        batch = Batch()
        regions: list[pa.RecordBatch] = []
        while batch.nbytes < bytes_max and not self._all_reached(until):
            seen = next(self._files, None)
            if seen is None:
                break
            batch.steps.append(seen.step)
            if not seen.step.closes:
                batch.files += 1
                batch.nbytes += seen.size
                regions.append(seen.regions)
                self._apply(seen)
        if not batch.steps:
            return None
        for task_id, watermarks in self._maps.items():
            w = watermarks.watermark() or 0
            batch.upto[task_id] = w if until is None else min(w, until)
            batch.weights[task_id] = _weights(regions, watermarks.range)
        return batch

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
                if held := self._time.ahead(found.latest_ts, "batch file", object=str(self._key(step))):
                    log.warning("the store is replayed up to this file", error=str(held))
                    return
                cut_ts, regions = max(cut_ts, found.cut_ts), found.regions
            yield _Seen(cut_ts, step.store_id, step, size, regions)

    def _read(self, step: Step, size: int) -> BatchWatermarks:
        key = self._key(step)
        length = min(size, END_BYTES)
        found = decode_watermarks(key, self._store.get_range(str(key), size - length, length), size)
        if found is not None:
            return found
        file = decode_batch_file(key, self._store.get(str(key)))
        return BatchWatermarks(cut_ts=file.cut_ts, regions=file.regions)

    def _key(self, step: Step) -> BatchKey:
        return BatchKey(tenant=self._tenant, store_id=step.store_id, incarnation=step.incarnation, seq=step.seq)


_NO_REGIONS = pa.RecordBatch.from_pylist([], schema=REGIONS)


def _weights(regions: Sequence[pa.RecordBatch], range_: KeyRange) -> list[tuple[bytes, int]]:
    """(start key, rows) of the regions that overlap the range, by key."""
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
