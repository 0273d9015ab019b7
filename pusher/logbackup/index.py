"""Index of a log backup directory: metadata is read once, entries on demand.

Listing is bounded: names start with the flush time, so a scan starts an hour before the timestamp up to which
everything was read. That finds late files too: what is new in them lies above the global checkpoint of the previous
scan, and the flush was at most a moment before its newest entry. Where names have no time (TiKV before 8.5.3) the whole
listing is read each time, and processed metadata is reduced to name and timestamp for as long as it is listed.

The row of a large value may have been flushed long before its transaction's commit: `older` reads metadata further back
when a row is missing.

Memory: metadata that is not processed and that of the hour before, one unpacked slice at a time, and cached rows of the
default column family (`_VALUES_BYTES_MAX`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

import numpy as np
import pyarrow as pa

from pusher.logbackup.core.entries import read_values, unpack
from pusher.logbackup.core.metadata import DEFAULT_CF, META_PREFIX, WRITE_CF, Flush, LogSlice, parse_name, read_metadata
from tistream.codec.table_key import table_ids
from tistream.objectstore.protocol import ObjectStore
from tistream.ts import LOGICAL_BITS

_MARGIN = 3_600_000 << LOGICAL_BITS  # an hour, as a difference of timestamps
_VALUES_BYTES_MAX = 64 << 20
_REQUEST_BYTES_MAX = 16 << 20  # neighbouring slices are fetched together


class LogIndex:
    """The metadata of one directory. Used from one thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._flushes: dict[str, Flush] = {}
        self._done: dict[str, int] = {}  # processed flushes whose names have no time -> newest_ts
        self._floor: str | None = None  # every later name has been read
        self._dated: bool | None = None  # whether names begin with the flush time, judged by the oldest name
        self._values: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()
        self._values_bytes = 0

    @property
    def flushes(self) -> Collection[Flush]:
        return self._flushes.values()

    def refresh(self, after_ts: int) -> None:
        """Read new metadata for a reader of everything above `after_ts`, and forget older metadata."""
        floor = self._floor_of(after_ts)
        listed = self._read(floor, "")
        for key in [k for k in self._flushes if k <= floor]:
            del self._flushes[key]
        self._floor = floor
        if not self._dated:
            self._done = {key: newest_ts for key, newest_ts in self._done.items() if key in listed}
            old = {k: f.newest_ts for k, f in self._flushes.items() if f.newest_ts < after_ts - _MARGIN}
            self._done |= old
            for key in old:
                del self._flushes[key]

    def older(self, down_to_ts: int) -> bool:
        """Read metadata of flushes back to this timestamp; False when that was done already."""
        assert self._floor is not None
        if not self._dated:
            wanted = [key for key, newest_ts in self._done.items() if newest_ts >= down_to_ts - _MARGIN]
            for key in wanted:
                self._flushes[key] = read_metadata(key, self._store.get(key))
                del self._done[key]
            return bool(wanted)
        floor = self._floor_of(down_to_ts)
        if floor >= self._floor:
            return False
        self._read(floor, self._floor)
        self._floor = floor
        return True

    def writes(self, after_ts: int, upto_ts: int) -> list[LogSlice]:
        """The slices that may have versions with a commit_ts in (after_ts, upto_ts]."""
        return [
            s
            for s in self._slices()
            if s.cf == WRITE_CF and not s.deletes and s.max_ts > after_ts and s.min_ts <= upto_ts
        ]

    def values(self, wanted: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows of the default column family (schema entries.VALUES) that may include these (key, start_ts)."""
        at = np.unique(wanted["start_ts"].to_numpy())
        tables = set(table_ids(wanted["key"]).tolist())
        for piece in list(self._slices()):
            if piece.cf == DEFAULT_CF and not piece.deletes and piece.table_id in tables:
                place = int(np.searchsorted(at, np.uint64(piece.min_ts)))
                if place < len(at) and int(at[place]) <= piece.max_ts:
                    yield self._rows(piece)

    def entries(self, slices: Iterable[LogSlice]) -> Iterator[tuple[LogSlice, bytes]]:
        """The slices with their entries; adjacent slices of an object are fetched together."""
        placed = sorted(set(slices), key=lambda s: (s.object, s.offset))
        for name, of_object in groupby(placed, key=lambda s: s.object):
            run: list[LogSlice] = []
            for piece in of_object:
                together = run and run[-1].offset + run[-1].stored_bytes == piece.offset
                if run and (not together or piece.offset - run[0].offset >= _REQUEST_BYTES_MAX):
                    yield from self._fetched(name, run)
                    run = []
                run.append(piece)
            yield from self._fetched(name, run)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _slices(self) -> Iterator[LogSlice]:
        for flush in self._flushes.values():
            yield from flush.slices

    def _floor_of(self, ts: int) -> str:
        """Names of flushes that matter for `ts` are greater than this one."""
        if self._dated is None:
            first = next(iter(self._store.list(META_PREFIX)), None)
            if first is None:
                return ""
            self._dated = parse_name(first.key).flush_ts > 0
        return f"{META_PREFIX}{max(0, ts - _MARGIN):016X}" if self._dated else ""

    def _read(self, after: str, upto: str) -> set[str]:
        """Read new metadata in (after, upto] of the listing; returns all names there."""
        listed: set[str] = set()
        for info in self._store.list(META_PREFIX, after):
            if upto and info.key > upto:
                break
            listed.add(info.key)
            if info.key.endswith(".meta") and info.key not in self._flushes and info.key not in self._done:
                self._flushes[info.key] = read_metadata(info.key, self._store.get(info.key))
        return listed

    def _fetched(self, name: str, run: list[LogSlice]) -> Iterator[tuple[LogSlice, bytes]]:
        start = run[0].offset
        data = memoryview(self._store.get_range(name, start, run[-1].offset + run[-1].stored_bytes - start))
        for piece in run:
            at = piece.offset - start
            yield piece, unpack(piece, data[at : at + piece.stored_bytes])

    def _rows(self, piece: LogSlice) -> pa.RecordBatch:
        key = (piece.object, piece.offset)
        if (known := self._values.get(key)) is not None:
            self._values.move_to_end(key)
            return known
        ((_, entries),) = self._fetched(piece.object, [piece])
        rows = read_values(piece, entries)
        self._values[key] = rows
        self._values_bytes += rows.nbytes
        while self._values_bytes > _VALUES_BYTES_MAX and len(self._values) > 1:
            self._values_bytes -= self._values.popitem(last=False)[1].nbytes
        return rows
