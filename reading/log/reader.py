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
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec, TypeVar

import pyarrow as pa

from reading.core import merge, page_rows
from reading.core.inside import Inside
from reading.log.inside import InsidePage, Manner, Room, read_inside
from reading.log.memory import Held, ReadMemory, TransactionTooLarge
from reading.log.read_leases import ReaderLeases, ReadLease
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log import committed
from tistream.catalog.log.objects import ObjectState, object_states
from tistream.catalog.log.retention import check_listing
from tistream.catalog.rows.segments import SegmentRow
from tistream.clock import Clock, SystemClock
from tistream.errors import CorruptObject, ObjectNotFound, StoreUnavailable
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import COMMIT_BYTES_MAX
from tistream.log.committed_log import SegmentSource
from tistream.log.table_rows import RUN_BYTES_MAX
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
_PAGE_BYTES_MAX = 64 << 20  # of keys and values
_PAGE_STORED_BYTES_MAX = 16 << 20  # of segments that are read for one page
_PAGE_RAW_BYTES_MAX = 128 << 20  # and of them unpacked
_AHEAD_RAW_BYTES_MAX = 64 << 20  # of segments that are fetched before they are needed; one may be larger
COPIES = 4  #: of the rows of a page: as read, in order, decoded, as a body
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
    commit_bytes: int  # of a commit_ts that is delivered whole


class LogReader:
    """Reads committed segments of any tenant. Safe to use from several threads."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock | None = None,
        *,
        cache_bytes: int = _CACHE_BYTES_MAX,
        memory: ReadMemory | None = None,
    ) -> None:
        """`cache_bytes`: bound of the cache of decoded segments; 0 disables it. `memory`: what reads may hold."""
        self.memory = ReadMemory() if memory is None else memory
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
        commit_bytes: int | None = None,
        held: Held | None = None,
    ) -> LogPage:
        """The next page. Parts without a row of the scope are skipped, so an empty page ends at `upto`, or below a
        commit_ts of more than `commit_bytes`. TransactionTooLarge when such a one comes next; `inside` reads it.

        `held`: what the caller holds of the memory for reads until the page is done."""
        limit = COMMIT_BYTES_MAX if commit_bytes is None else commit_bytes
        at, size = after, _Size(rows, min(page_bytes or _PAGE_BYTES_MAX, limit), limit)
        with self._leases.held() as lease, self.holding(tenant, held) as part:
            while at < upto:
                try:
                    page_, end = self._retried(lambda: self._step(lease, part, tenant, at, upto, size, table_ids))  # noqa: B023
                except TransactionTooLarge:
                    if at == after:
                        raise
                    return LogPage(rows=change.COMMITTED.empty_table(), upto=at, has_more=True)
                if page_.num_rows or end >= upto:
                    _ROWS_IN.inc(page_.num_rows)
                    return LogPage(rows=page_, upto=end, has_more=end < upto)
                at = end
        return LogPage(rows=change.COMMITTED.empty_table(), upto=at, has_more=False)

    def inside(
        self,
        tenant: Tenant,
        at: Inside,
        manner: Manner,
        room: Room,
        *,
        table_ids: Collection[int] | None = None,
        held: Held | None = None,
    ) -> InsidePage:
        """The next page inside a commit_ts."""
        with self._leases.held() as lease, self.holding(tenant, held) as part:
            inside_page = self._retried(lambda: self._inside(lease, part, tenant, at, manner, room, table_ids))
        _ROWS_IN.inc(inside_page.rows.num_rows)
        return inside_page

    def _inside(
        self,
        lease: ReadLease,
        part: Held,
        tenant: Tenant,
        at: Inside,
        manner: Manner,
        room: Room,
        table_ids: Collection[int] | None,
    ) -> InsidePage:
        after, limit = at.commit_ts - 1, _SEGMENTS_PER_QUERY
        while True:
            segments = self._listed(tenant, after, at.commit_ts, table_ids, limit)
            if len(segments) < limit:
                break
            limit *= 2
        largest = max((_raw(segment) for segment in segments), default=0)
        part.take(2 * largest + COPIES * min(room.bytes, sum(map(_raw, segments))))

        def fetch(segment: SegmentRow) -> pa.Table:
            lease.renew()
            return _changes(page_rows.select(self._segment(segment), after, at.commit_ts, table_ids))

        return read_inside(at, segments, fetch, manner, room)

    @contextmanager
    def holding(self, tenant: Tenant, held: Held | None) -> Iterator[Held]:
        """What the caller holds, or what is held for this read alone."""
        if held is not None:
            yield held
            return
        with self.memory.held(tenant) as own:
            yield own

    def _retried(self, read: Callable[[], T]) -> T:
        """Read again when listed objects were replaced."""
        tries = 0
        while True:
            try:
                return read()
            except ObjectNotFound as e:
                tries = self._next_try(e, tries)

    def versions(
        self,
        tenant: Tenant,
        *,
        after: int,
        upto: int,
        table_ids: Collection[int],
        keys: KeyRange = _EVERY_KEY,
        held: Held | None = None,
    ) -> Iterator[pa.Table]:
        """Tables (schema change.COMMITTED) of all rows of these table ids and keys with commit_ts in (after, upto], in
        no order: changes, and rows kept only for reads as of a timestamp. Segments whose keys all lie elsewhere are not
        read. Rows may repeat if compaction replaces a listed segment.

        `held`: what the caller holds of the memory for reads. What is needed while the rows are read and sorted is
        added to it; what the caller then still has of them, one sorted run, stays added at the end."""
        tries = window = run = 0
        with self._leases.held() as lease, self.holding(tenant, held) as part:
            while after < upto:
                listed, end = self._stretch(tenant, after, upto, table_ids)
                listed = [s for s in listed if s.end_key >= keys.start and not (keys.end and s.start_key >= keys.end)]
                raw = sum(map(_raw, listed))
                run = max(run, min(raw, RUN_BYTES_MAX))
                if (needed := _window(listed) + COPIES * run) > window:
                    part.add(needed - window)
                    window = needed
                try:
                    for table in self._ahead(lease, listed, self._uncached):
                        rows = page_rows.select(table, after, end, table_ids, changes_only=False)
                        rows = page_rows.within(rows, keys)
                        if rows.num_rows:
                            yield rows
                except ObjectNotFound as e:
                    tries = self._next_try(e, tries)
                    continue
                after = end
            part.drop(window - run)

    def _stretch(
        self, tenant: Tenant, after: int, upto: int, table_ids: Collection[int]
    ) -> tuple[list[SegmentRow], int]:
        """(the segments with all rows of these tables in (after, end], end)."""
        limit = _SEGMENTS_PER_QUERY
        while True:
            segments = self._listed(tenant, after, upto, table_ids, limit)
            end = upto if len(segments) < limit else min(upto, segments[-1].lo_ts - 1)
            if end > after:
                return [segment for segment in segments if segment.lo_ts <= end], end
            limit *= 2  # every listed segment starts at one commit_ts: list more

    def _step(
        self,
        lease: ReadLease,
        part: Held,
        tenant: Tenant,
        after: int,
        upto: int,
        size: _Size,
        table_ids: Collection[int] | None,
    ) -> tuple[pa.Table, int]:
        limit = _SEGMENTS_PER_QUERY
        while True:
            segments = self._listed(tenant, after, upto, table_ids, limit)
            large = merge.large_commit(segments, after=after, raw_bytes=2 * size.commit_bytes)
            if large is not None and large - 1 <= after:
                raise _too_large(tenant, large, size.commit_bytes)
            count, end = merge.plan(
                segments,
                after=after,
                upto=upto if large is None else min(upto, large - 1),
                rows=size.rows,
                stored_bytes=_PAGE_STORED_BYTES_MAX,
                raw_bytes=_PAGE_RAW_BYTES_MAX,
                truncated=len(segments) == limit,
            )
            if end > after:
                break
            limit *= 2  # every listed segment starts at one commit_ts: list more
        planned = [segment for segment in segments[:count] if segment.lo_ts <= end]
        window = _window(planned)
        part.take(window + COPIES * min(sum(map(_raw, planned)), 2 * size.bytes))
        gathered = page_rows.Gathering(upto=end, rows=size.rows, size=size.bytes, commit_size=size.commit_bytes)
        for table in self._ahead(lease, planned, self._segment):
            gathered.add(_changes(page_rows.select(table, after, gathered.upto, table_ids)), table.nbytes)
            part.take(window + COPIES * gathered.held)  # more for a commit that is larger than a page
            if gathered.upto <= after:
                break
        rows, end = gathered.page()
        if end <= after:
            assert gathered.large is not None
            raise _too_large(tenant, gathered.large, size.commit_bytes)
        return rows, end

    def _ahead(
        self, lease: ReadLease, segments: Sequence[SegmentRow], read: Callable[[SegmentRow], pa.Table]
    ) -> Iterator[pa.Table]:
        """The rows of each segment, in their order; some are fetched before they are asked for."""

        def fetch(segment: SegmentRow) -> pa.Table:
            lease.renew()
            return read(segment)

        waiting: deque[tuple[int, Future[pa.Table]]] = deque()
        at = raw = 0
        try:
            while at < len(segments) or waiting:
                while at < len(segments) and len(waiting) < _REQUESTS_IN_FLIGHT_MAX:
                    size = _raw(segments[at])
                    if waiting and raw + size > _AHEAD_RAW_BYTES_MAX:
                        break
                    waiting.append((size, self._requests.submit(fetch, segments[at])))
                    at, raw = at + 1, raw + size
                size, first = waiting.popleft()
                yield first.result()
                raw -= size
        finally:
            for _, left in waiting:
                left.cancel()

    def _listed(
        self, tenant: Tenant, after: int, upto: int, table_ids: Collection[int] | None, limit: int
    ) -> list[SegmentRow]:
        """The segments. TsExpired when retention may have removed some, BeyondQuarantine when a quarantined store may
        still change some."""
        segments = committed.find_segments(
            self._catalog, tenant, after_ts=after, upto_ts=upto, table_ids=table_ids, limit=limit
        )
        check_listing(self._catalog, tenant, after, upto)  # after the listing: a concurrent removal is noticed
        return segments

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

    def _next_try(self, error: ObjectNotFound, tries: int) -> int:
        """One more try, with a new listing. CorruptObject when the missing object is still live, StoreUnavailable after
        too many tries."""
        key = str(error.facts["object"])
        if object_states(self._catalog, [key]).get(key) is ObjectState.LIVE:
            raise CorruptObject(error.message, **error.facts) from error
        if tries + 1 == _LISTINGS_MAX:
            raise StoreUnavailable("listed segments disappear before they can be read", **error.facts) from error
        return tries + 1


def _raw(segment: SegmentRow) -> int:
    """Bytes of the segment unpacked, as far as they are known."""
    return max(segment.raw_length, segment.length)


def _window(segments: Sequence[SegmentRow]) -> int:
    """Bytes of segments that are unpacked at once while they are read in turn."""
    sizes = [_raw(segment) for segment in segments]
    return max(min(sum(sizes), _AHEAD_RAW_BYTES_MAX), max(sizes, default=0))


def _too_large(tenant: Tenant, commit_ts: int, commit_bytes: int) -> TransactionTooLarge:
    return TransactionTooLarge(
        f"The changes at {tso.described(commit_ts)} hold more than {commit_bytes} bytes.",
        tenant=str(tenant),
        commit_ts=str(commit_ts),
        commit_bytes=commit_bytes,
    )


def _changes(rows: pa.Table) -> pa.Table:
    """The rows without deletes of rows that never were, which are counted; a segment read again counts again."""
    nothing = page_rows.deletes_nothing(rows)
    if not nothing.any():
        return rows
    _DELETES_NOTHING.inc(int(nothing.sum()))
    return page_rows.only(rows, ~nothing)
