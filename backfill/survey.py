"""Surveys a backlog: reads the watermark rows at the end of each file, a few kilobytes each, ahead of the workers.

    watermark rows in order of cut_ts --> W of each task, by the sorter's own map --> the timestamp that a batch reaches

W of a task is that of its lowest slice, however its range is cut. So the timestamp up to which all partitions of a task
can write is known before any row is read: none waits for the others, or keeps rows because another one is behind. Only
a commit that cannot be decided may hold a partition below it, which its result shows.

A *batch* is a stretch of the backlog: files of all stores in order of cut_ts (so that no store runs ahead of the others
and little must be held), limited in bytes. Each is handed over separately.

A store's files count up to the first one ahead of the service's time; it and those behind it are left to the live
dispatcher, which holds them.

The newest incarnation of each store is read before its folders are listed. An older incarnation therefore ends at its
last contiguous file, as for a dispatcher that has learned of a newer one (see `dispatcher.tail`). The newest is taken
up to its last contiguous file and stays open: later files are left to the live sorter. A file missing from a LIST is
not taken and stays in the bucket.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from itertools import islice

import polars as pl
import pyarrow as pa
import structlog

from backfill.core.plan import ReplayRead, own_steps
from sorter.core.watermark import RangeWatermarkMap
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.snapshots import ALL_CONSUMED
from tistream.catalog.work.stores import list_stores, reclaimed
from tistream.codec.batch_file import BatchWatermarks, decode_batch_file, decode_watermarks
from tistream.errors import FeedGap
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS
from tistream.model.positions import Positions, position_of
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service_time import ServiceTime

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The files of one incarnation of a store, from the task that is furthest behind."""

    store_id: int
    incarnation: int
    after_seq: int
    sizes: tuple[int, ...]  #: of the files after_seq + 1, + 2, ..., bytes
    closes: bool  #: a newer incarnation exists: no more files follow

    def steps(self) -> list[tuple[ReplayRead, int]]:
        """(step, size of its file)"""
        begin = ReplayRead(store_id=self.store_id, incarnation=self.incarnation, seq=self.after_seq)
        files = [(replace(begin, seq=seq), size) for seq, size in enumerate(self.sizes, self.after_seq + 1)]
        last = replace(begin, seq=self.after_seq + len(self.sizes), closes=True)
        return [*files, (last, 0)] if self.closes else files


def find_backlog(
    catalog: Catalog, store: ObjectStore, tenant: Tenant, positions: Mapping[int, Positions]
) -> dict[int, list[Stream]]:
    """store id -> its streams, oldest first. `positions` of each task. FeedGap when files that a task has not consumed
    were reclaimed."""
    backlog: dict[int, list[Stream]] = {}
    for row in list_stores(catalog, tenant):
        reclaimed_seqs = reclaimed(catalog, tenant, row.store_id)
        forgotten_below = min(reclaimed_seqs, default=1)  # every task had closed these incarnations
        backlog[row.store_id] = []
        consumed = [of_task.get(row.store_id, {}) for of_task in positions.values()]
        for incarnation in range(min((min(of, default=1) for of in consumed), default=1), row.incarnation + 1):
            at = [position_of(of, incarnation) for of in consumed]
            open_seqs = [position.seq for position in at if not position.closed]
            if not open_seqs:
                continue
            after = min(open_seqs)
            gone = ALL_CONSUMED if incarnation < forgotten_below else reclaimed_seqs.get(incarnation, 0)
            if after < gone:
                raise FeedGap(
                    "a task has not consumed files that were reclaimed: its snapshot is lost",
                    store=row.store_id,
                    incarnation=incarnation,
                    seq=after + 1,
                    reclaimed_seq=gone,
                )
            sizes = _contiguous(store, tenant, row.store_id, incarnation, after)
            closes = incarnation < row.incarnation
            backlog[row.store_id].append(
                Stream(
                    store_id=row.store_id, incarnation=incarnation, after_seq=after, sizes=tuple(sizes), closes=closes
                )
            )
    return backlog


def _contiguous(store: ObjectStore, tenant: Tenant, store_id: int, incarnation: int, after: int) -> list[int]:
    """The sizes of the files behind `after`, up to the first missing one."""
    sizes: list[int] = []
    first = BatchKey(tenant=tenant, store_id=store_id, incarnation=incarnation, seq=after)
    for info in store.list(incarnation_prefix(tenant, store_id, incarnation), after=str(first)):
        key = parse(info.key)
        if not isinstance(key, BatchKey):
            continue
        if key.seq != after + len(sizes) + 1:
            log.warning("files behind a missing one are not replayed", behind=info.key, seq=after + len(sizes) + 1)
            break
        sizes.append(info.size)
    return sizes


END_BYTES = 64 << 10  #: read first, from the end of a file
AHEAD = 16  #: files whose ends are read ahead, per store ...
AHEAD_OF_ALL = 64  #: ... and of all stores together, but one of each: a file has a row for each region of its store
WEIGHED_ROWS_MAX = 100_000  #: watermark rows that are kept until they are added up


@dataclass(slots=True)
class Batch:
    """A stretch of the backlog."""

    steps: list[ReplayRead] = field(default_factory=list)
    files: int = 0
    nbytes: int = 0  #: of the files
    upto: dict[int, int] = field(default_factory=dict)  #: task -> timestamp up to which it can be written
    weights: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)  #: task -> rows by region, see `plan`


@dataclass(frozen=True, slots=True)
class _Seen:
    cut_ts: int  #: the largest of the store so far
    store_id: int
    step: ReplayRead
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
        self._ahead = max(1, min(AHEAD, AHEAD_OF_ALL // max(1, len(backlog))))
        stores = [self._of_store(streams) for streams in backlog.values()]
        self._files = heapq.merge(*stores, key=lambda seen: (seen.cut_ts, seen.store_id))
        self._maps: dict[int, RangeWatermarkMap] = {}
        self._positions: dict[int, Positions] = {}

    def add(self, task_id: int, watermarks: RangeWatermarkMap, positions: Positions) -> None:
        """Add a task, in the state of its snapshot."""
        self._maps[task_id], self._positions[task_id] = watermarks, positions

    def take(self, bytes_max: int, until: int | None) -> Batch | None:
        """The next batch; None at the end, or when all tasks have reached `until`."""
        batch, weights = Batch(), _Weights()
        while batch.nbytes < bytes_max and not self._all_reached(until):
            seen = next(self._files, None)
            if seen is None:
                break
            batch.steps.append(seen.step)
            if not seen.step.closes:
                batch.files += 1
                batch.nbytes += seen.size
                weights.add(seen.regions)
                self._apply(seen)
        if not batch.steps:
            return None
        for task_id, watermarks in self._maps.items():
            w = watermarks.watermark() or 0
            batch.upto[task_id] = w if until is None else min(w, until)
            batch.weights[task_id] = weights.of(watermarks.range)
        return batch

    def _all_reached(self, until: int | None) -> bool:
        return until is not None and all((m.watermark() or 0) >= until for m in self._maps.values())

    def _apply(self, seen: _Seen) -> None:
        for task_id, watermarks in self._maps.items():
            if own_steps([seen.step], self._positions[task_id]):
                watermarks.apply(seen.regions, seen.store_id, seen.step.incarnation, seen.step.seq)

    def _of_store(self, streams: Sequence[Stream]) -> Iterator[_Seen]:
        """A store's files in order: an incarnation ends before the next begins."""
        steps = iter([file for stream in streams for file in stream.steps()])
        ahead: deque[tuple[ReplayRead, int, Future[BatchWatermarks] | None]] = deque()

        def more(count: int) -> None:
            for step, size in islice(steps, count):
                ahead.append((step, size, None if step.closes else self._pool.submit(self._read, step, size)))

        cut_ts = 0
        more(self._ahead)
        while ahead:
            step, size, promises = ahead.popleft()
            more(1)
            regions = _NO_REGIONS
            if promises is not None:
                file = promises.result()
                if held := self._time.ahead(file.latest_ts, "batch file", object=str(self._key(step))):
                    log.warning("the store is replayed up to this file", error=str(held))
                    return
                cut_ts, regions = max(cut_ts, file.cut_ts), file.regions
            yield _Seen(cut_ts, step.store_id, step, size, regions)

    def _read(self, step: ReplayRead, size: int) -> BatchWatermarks:
        key = self._key(step)
        length = min(size, END_BYTES)
        watermarks = decode_watermarks(key, self._store.get_range(str(key), size - length, length), size)
        if watermarks is not None:
            return watermarks
        file = decode_batch_file(key, self._store.get(str(key)))
        return BatchWatermarks(cut_ts=file.cut_ts, regions=file.regions)

    def _key(self, step: ReplayRead) -> BatchKey:
        return BatchKey(tenant=self._tenant, store_id=step.store_id, incarnation=step.incarnation, seq=step.seq)


_NO_REGIONS = pa.RecordBatch.from_pylist([], schema=REGIONS)


class _Weights:
    """How many rows each region has in the files so far. Of a file only the regions with rows are kept, and their rows
    are added up again and again: a batch of files of idle stores has many times its own size in watermark rows."""

    def __init__(self) -> None:
        self._found = pl.DataFrame(schema={"start_key": pl.Binary, "end_key": pl.Binary, "row_count": pl.UInt64})
        self._new: list[pl.DataFrame] = []
        self._held = 0

    @property
    def rows_held(self) -> int:
        """Watermark rows in memory."""
        count: int = self._found.height
        return count + self._held

    def add(self, regions: pa.RecordBatch) -> None:
        """The watermark rows of one file."""
        frame = pl.from_arrow(regions.select(self._found.columns))
        assert isinstance(frame, pl.DataFrame)
        busy = frame.filter(pl.col("row_count") > 0)
        if busy.height:
            self._new.append(busy)
            self._held += busy.height
            if self._held >= WEIGHED_ROWS_MAX:
                self._add_up()

    def of(self, range_: KeyRange) -> list[tuple[bytes, int]]:
        """(start key, rows) of the regions that overlap the range, by key."""
        self._add_up()
        touching = (pl.col("end_key") > pl.lit(range_.start, pl.Binary)) | (pl.col("end_key").bin.size() == 0)
        if range_.end:
            touching &= pl.col("start_key") < pl.lit(range_.end, pl.Binary)
        weights = self._found.filter(touching).group_by("start_key").agg(pl.col("row_count").sum()).sort("start_key")
        return [(max(start, range_.start), rows) for start, rows in weights.iter_rows()]

    def _add_up(self) -> None:
        if self._new:
            every = pl.concat([self._found, *(frame.cast(self._found.schema) for frame in self._new)])
            self._found = every.group_by("start_key", "end_key").agg(pl.col("row_count").sum())
            self._new.clear()
            self._held = 0
