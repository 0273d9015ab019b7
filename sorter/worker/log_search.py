"""Finds versions in the committed log of a task: whether rows that a store may not send any more are repeated ones.

A search is asked for again until it is complete, and reads STEP_BYTES at a time: the loop of the sorter serves other
tasks in between. It goes from one wanted commit_ts to the next, so what lies between them is not read. A store that
keeps its promises never causes one.

After SEGMENTS_MAX segments it ends: what was not found by then counts as missing, and the store is quarantined.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from sorter.core.contradictions import LogQuestion
from sorter.worker.stored_core import RowsOutOfReach
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.segments import SegmentRow
from tistream.errors import ObjectNotFound, StoreError
from tistream.ids import Tenant
from tistream.log.committed_log import SegmentSource
from tistream.model.change import COMMITTED
from tistream.objectstore.protocol import ObjectStore

STEP_BYTES = 8 << 20  #: stored bytes that one call reads; one segment more at most
SEGMENTS_MAX = 1000
_LISTED = 64  # segments in one statement, at first


class SearchIncomplete(Exception):
    """A search takes another step: ask again. Nothing has changed."""


class LogSearch:
    """The searches of one task. Used from one thread."""

    def __init__(self, catalog: Catalog, store: ObjectStore, tenant: Tenant, kind: str) -> None:
        self._catalog, self._tenant, self._kind = catalog, tenant, kind
        self._source = SegmentSource(store)
        self._search: _Search | None = None

    def __call__(self, question: LogQuestion) -> pa.Table:
        """The rows (change.COMMITTED) of the log with these versions. SearchIncomplete: ask again; RowsOutOfReach: ask
        later."""
        if self._search is None or self._search.asked != question:
            self._search = _Search(question)
        search, left = self._search, STEP_BYTES
        while left > 0 and not search.complete:
            if not search.segments:
                self._list(search)
                continue
            segment = search.segments.popleft()
            try:
                search.take(self._source.rows(segment))
            except ObjectNotFound:  # replaced by a compaction since it was listed: its rows are elsewhere
                search.restart()
                break
            except StoreError as e:
                search.segments.appendleft(segment)
                raise RowsOutOfReach(object=segment.object_key, part="committed log", cause=str(e)) from e
            left -= segment.length
        if not search.complete:
            raise SearchIncomplete
        self._search = None
        return search.found()

    def _list(self, search: _Search) -> None:
        """List the segments that may hold the lowest version not looked for yet, and later ones."""
        lowest, limit = search.at, _LISTED
        while True:
            listed = find_segments(
                self._catalog, self._tenant, after_ts=lowest - 1, upto_ts=search.highest, kind=self._kind, limit=limit
            )
            covered = search.highest if len(listed) < limit else listed[-1].lo_ts - 1
            if covered >= lowest:
                break
            limit *= 2  # all of them begin at one commit_ts
        search.listed([segment for segment in listed if segment.lo_ts <= covered], covered)


class _Search:
    def __init__(self, question: LogQuestion) -> None:
        self.asked = question
        self.restart()
        self.read = 0  #: segments so far

    def restart(self) -> None:
        """Look for all of them again."""
        self._wanted = sorted(zip(self.asked.commit_ts, self.asked.keys, strict=True))
        self._values = pa.array(self.asked.commit_ts, pa.uint64()), pa.array(self.asked.keys, pa.binary())
        self._found: list[pa.Table] = []
        self.segments: deque[SegmentRow] = deque()

    @property
    def complete(self) -> bool:
        return (not self._wanted and not self.segments) or self.read >= SEGMENTS_MAX

    @property
    def at(self) -> int:
        return self._wanted[0][0]

    @property
    def highest(self) -> int:
        return self._wanted[-1][0]

    def listed(self, segments: list[SegmentRow], covered: int) -> None:
        """These segments have all that lies at or below `covered`; keep those that may hold a wanted version."""
        here = [version for version in self._wanted if version[0] <= covered]
        self._wanted = self._wanted[len(here) :]
        self.segments.extend(segment for segment in segments if may_hold(segment, here))

    def take(self, rows: pa.Table) -> None:
        self.read += 1
        self._found.append(matching(rows, *self._values))

    def found(self) -> pa.Table:
        return pa.concat_tables([COMMITTED.empty_table(), *self._found])


def matching(rows: pa.Table, commit_ts: pa.Array, keys: pa.Array) -> pa.Table:
    """The rows with one of these commit_ts and one of these keys."""
    return rows.filter(pc.and_(pc.is_in(rows["commit_ts"], commit_ts), pc.is_in(rows["key"], keys)))


def may_hold(segment: SegmentRow, versions: list[tuple[int, bytes]]) -> bool:
    """Whether one of the versions, which are sorted, lies within the bounds of the segment."""
    low = bisect_left(versions, segment.lo_ts, key=itemgetter(0))
    high = bisect_right(versions, segment.hi_ts, key=itemgetter(0))
    return any(segment.start_key <= key <= segment.end_key for _, key in versions[low:high])
