"""Reads pages of a tenant's committed log: lists segments in the catalog, fetches them with range requests.

A segment takes one request, several run at a time, and each is checked against its checksum in the catalog; a missing
or damaged one fails the page and names the object and the segment. Decoded segments are cached, bounded by bytes,
because consecutive pages read the same segments. Nothing here depends on schemas.

Compaction may replace segments at any time. A page comes from one listing, which is one statement and therefore sees
the log before or after a compaction commit, each row once; rows are sorted by (commit_ts, start_ts, table_id, key), so
the page is the same. A read lease protects what was listed; if it expired while the process slept and an object is
gone, the page is listed again. A page that was listed from below the retention floor is refused, so rows are never
missing silently.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec, TypeVar

import pyarrow as pa

from reading.core import merge, page_rows
from reading.read_leases import ReaderLeases, ReadLease
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log import committed
from tistream.catalog.log.objects import ObjectState, object_states
from tistream.catalog.log.retention import check_listing
from tistream.catalog.log.segments import SegmentRow
from tistream.clock import Clock, SystemClock
from tistream.errors import CorruptObject, LogAmended, ObjectNotFound, StoreUnavailable
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.log.committed_log import SegmentSource
from tistream.model import change
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics

P = ParamSpec("P")
T = TypeVar("T")

_ROWS_IN = metrics.ROWS.labels("api", "in")
_DELETES_NOTHING = metrics.LEFT_OUT.labels("deletes nothing")
_SEGMENTS_PER_QUERY = 2000
_REQUESTS_IN_FLIGHT_MAX = 8
_CACHE_BYTES_MAX = 128 << 20
_PAGE_BYTES_MAX = 64 << 20  # of keys and values, unless one commit_ts holds more
_PAGE_STORED_BYTES_MAX = 16 << 20  # of segments that are read for one page
_EVERY_KEY = KeyRange()
_LISTINGS_MAX = 10  # for one page, when objects disappear after each


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Everything of the scope with commit_ts in (after, upto], by (commit_ts, start_ts, table_id, key)."""

    rows: pa.Table  #: schema change.COMMITTED; consecutive segments stay chunks as read
    upto: int
    has_more: bool


class _Size(NamedTuple):
    """Target size of a page, which ends between two commit timestamps."""

    rows: int
    bytes: int  # of keys and values


class LogReader:
    """Reads committed segments of any tenant. Safe to use from several threads."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, clock: Clock | None = None, *, cache_bytes: int = _CACHE_BYTES_MAX
    ) -> None:
        """`cache_bytes`: bound of the cache of decoded segments; 0 disables it."""
        self._catalog, self._cache_bytes_max = catalog, cache_bytes
        self._source = SegmentSource(store)
        self._leases = ReaderLeases(catalog, SystemClock() if clock is None else clock)
        self._cache: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._requests = ThreadPoolExecutor(_REQUESTS_IN_FLIGHT_MAX, thread_name_prefix="log-reader")

    def page(
        self,
        tenant: Tenant,
        *,
        after: int,
        upto: int,
        rows: int,
        table_ids: Collection[int] | None = None,
        page_bytes: int | None = None,
    ) -> LogPage:
        """The next page. Stretches without a row of the scope are skipped, so an empty page ends at `upto`."""
        at, tries, size = after, 0, _Size(rows, page_bytes or _PAGE_BYTES_MAX)
        with self._leases.held() as lease:
            while at < upto:
                try:
                    found, end = self._step(lease, tenant, at, upto, size, table_ids)
                except ObjectNotFound as e:
                    self._check_replaced(e)
                    tries += 1
                    if tries == _LISTINGS_MAX:
                        raise StoreUnavailable("listed segments disappear before they can be read", **e.facts) from e
                    continue
                if found.num_rows or end >= upto:
                    _ROWS_IN.inc(found.num_rows)
                    return LogPage(rows=found, upto=end, has_more=end < upto)
                at = end
        return LogPage(rows=change.COMMITTED.empty_table(), upto=at, has_more=False)

    def versions(
        self,
        tenant: Tenant,
        *,
        after: int,
        upto: int,
        table_ids: Collection[int],
        amended: int,
        keys: KeyRange = _EVERY_KEY,
    ) -> Iterator[pa.Table]:
        """Tables (schema change.COMMITTED) of all rows of these table ids and keys with commit_ts in (after, upto], in
        no order: changes, and rows kept only for reads as of a timestamp. Segments whose keys all lie elsewhere are not
        read. Rows may repeat if compaction replaces a listed segment. LogAmended unless `amended` is the number of the
        log's newest amendment to the end."""
        tries = 0
        with self._leases.held() as lease:
            while after < upto:
                listed, end = self._stretch(tenant, after, upto, table_ids, amended)
                listed = [s for s in listed if s.end_key >= keys.start and not (keys.end and s.start_key >= keys.end)]
                try:
                    for at in range(0, len(listed), _REQUESTS_IN_FLIGHT_MAX):
                        lease.renew()
                        for table in self._requests.map(self._uncached, listed[at : at + _REQUESTS_IN_FLIGHT_MAX]):
                            found = page_rows.select(table, after, end, table_ids, changes_only=False)
                            found = page_rows.within(found, keys)
                            if found.num_rows:
                                yield found
                except ObjectNotFound as e:
                    self._check_replaced(e)
                    tries += 1
                    if tries == _LISTINGS_MAX:
                        raise StoreUnavailable("listed segments disappear before they can be read", **e.facts) from e
                    continue
                after = end

    def _stretch(
        self, tenant: Tenant, after: int, upto: int, table_ids: Collection[int], amended: int
    ) -> tuple[list[SegmentRow], int]:
        """(the segments with all rows of these tables in (after, end], end)."""
        limit = _SEGMENTS_PER_QUERY
        while True:
            segments, number = self._listed(tenant, after, upto, table_ids, limit)
            if number != amended:
                raise LogAmended("Rows were accepted into the log while it was read.", amendment=number)
            end = upto if len(segments) < limit else min(upto, segments[-1].lo_ts - 1)
            if end > after:
                return [segment for segment in segments if segment.lo_ts <= end], end
            limit *= 2  # every listed segment starts at one commit_ts: list more

    def _step(
        self, lease: ReadLease, tenant: Tenant, after: int, upto: int, size: _Size, table_ids: Collection[int] | None
    ) -> tuple[pa.Table, int]:
        limit = _SEGMENTS_PER_QUERY
        while True:
            segments, _ = self._listed(tenant, after, upto, table_ids, limit)
            count, end = merge.plan(
                segments,
                after=after,
                upto=upto,
                rows=size.rows,
                stored_bytes=_PAGE_STORED_BYTES_MAX,
                truncated=len(segments) == limit,
            )
            if end > after:
                break
            limit *= 2  # every listed segment starts at one commit_ts: list more

        def fetch(segment: SegmentRow) -> pa.Table:
            lease.renew()
            return self._segment(segment)

        found = self._requests.map(fetch, segments[:count])
        parts = [_changes(page_rows.select(part, after, end, table_ids)) for part in found]
        return page_rows.page(parts, upto=end, rows=size.rows, size=size.bytes)

    def _listed(
        self, tenant: Tenant, after: int, upto: int, table_ids: Collection[int] | None, limit: int
    ) -> tuple[list[SegmentRow], int]:
        """(the segments, number of the newest amendment that they include). TsExpired when retention may have removed
        some, BeyondQuarantine when a quarantined store may still change some."""
        segments = committed.find_segments(
            self._catalog, tenant, after_ts=after, upto_ts=upto, table_ids=table_ids, limit=limit
        )
        # after the listing, so that a concurrent removal is noticed
        return segments, check_listing(self._catalog, tenant, after, upto)

    def leased(self) -> AbstractContextManager[ReadLease]:
        """A read lease for segments that the caller lists and fetches."""
        return self._leases.held()

    def submit(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a request of the caller in one of the reader's threads."""
        return self._requests.submit(read, *args, **kwargs)

    def _uncached(self, row: SegmentRow) -> pa.Table:
        """The rows of a segment, from the cache if there, without adding to it."""
        with self._lock:
            hit = self._cache.get((row.object_key, row.number))
        return self._source.rows(row) if hit is None else hit

    def _segment(self, row: SegmentRow) -> pa.Table:
        key = (row.object_key, row.number)
        with self._lock:
            if (hit := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                return hit
        table = self._source.rows(row)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = table
                self._cached_bytes += table.nbytes
            while self._cached_bytes > self._cache_bytes_max and len(self._cache) > bool(self._cache_bytes_max):
                self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        return table

    def _check_replaced(self, error: ObjectNotFound) -> None:
        """Raise CorruptObject when the missing object is still live; a replaced one may be missing."""
        key = str(error.facts["object"])
        if object_states(self._catalog, [key]).get(key) is ObjectState.LIVE:
            raise CorruptObject(error.message, **error.facts) from error


def _changes(rows: pa.Table) -> pa.Table:
    """The rows without deletes of rows that never were, which are counted; a segment read again counts again."""
    nothing = page_rows.deletes_nothing(rows)
    if not nothing.any():
        return rows
    _DELETES_NOTHING.inc(int(nothing.sum()))
    return page_rows.only(rows, ~nothing)
