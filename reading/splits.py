"""Plans a read of many changes by many readers: one position per part, each the start of a pull of its own.

    start position, end, rows at most  ->  parts (cursor, end_ts), the next position

The parts together are the changes in (start, end], each once, whoever reads them and however often: what lies at or
below the served watermark does not change. So a plan may be made again with the same start and end and have other
parts, and means the same changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from reading import cursor
from reading.core.cuts import bounded_end, cut_points, guessed_rows
from reading.cursor import Scope
from reading.deps import Services
from reading.position import check_start
from reading.pull import check_names, interval
from tistream.catalog.log import committed
from tistream.catalog.log.retention import check_floor
from tistream.limits import PULL_ROWS_MAX

_SEGMENTS_MAX = 100_000  # of one plan; what lies behind is for the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """A plan as the route understood it. `cursor` wins over `start_ts`."""

    scope: Scope
    start_ts: str | None
    cursor: str | None
    end_ts: str | None
    rows: int | None  #: the plan covers about so many rows at most: it ends with a whole commit_ts
    parts: int
    part_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The changes in (start_ts, end_ts] of the scope; `cursor` stands at start_ts."""

    cursor: str
    start_ts: int
    end_ts: int
    rows: int  #: about, index entries included


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts are in order and leave nothing out."""

    parts: tuple[Part, ...]
    cursor: str
    start_ts: int
    next_cursor: str
    end_ts: int
    resolved_ts: int
    has_more: bool  #: more is served up to what was asked for

    @property
    def rows(self) -> int:
        """About how many rows; 0 only when there is surely no change."""
        return sum(part.rows for part in self.parts)


def plan(services: Services, request: SplitRequest) -> Plan:
    """Plan as of now. Errors as of a pull from the same position."""
    scope = request.scope
    row, history, resolved = services.served(scope.tenant)
    now_ms = services.clock.unix_ms()
    after, upto = interval(request, row, resolved, now_ms)
    table_ids: Collection[int] | None = None
    if history is not None:
        check_start(after, earliest=row.earliest_ts, resolved_ts=resolved, now_ms=now_ms)
        if request.cursor is None:
            check_names(history, scope, min(after, resolved), resolved)
        if scope.database is not None and after < upto:
            table_ids = history.physical_ids(scope.database, scope.table, after, upto)
    if history is None or upto <= after:
        return _plan(scope, [], after, after, resolved, has_more=False, request=request)
    found = committed.find_segments(
        services.catalog, scope.tenant, after_ts=after, upto_ts=upto, table_ids=table_ids, limit=_SEGMENTS_MAX
    )
    check_floor(services.catalog, scope.tenant, after)
    end = upto if len(found) < _SEGMENTS_MAX else max(after, min(upto, found[-1].lo_ts - 1))
    if request.rows is not None:
        end = bounded_end(found, after=after, upto=end, rows=request.rows)
    few = request.rows is not None and request.rows <= PULL_ROWS_MAX
    if end == after or (few and end < upto):
        # counted, which costs little: the readers want the same segments in a moment
        rows = min(request.rows or PULL_ROWS_MAX, PULL_ROWS_MAX)
        page = services.reader.page(scope.tenant, after=after, upto=upto, rows=rows, table_ids=table_ids)
        end = max(end, page.upto)
    return _plan(scope, found, after, end, resolved, has_more=end < upto, request=request)


def _plan(
    scope: Scope,
    found: list[committed.SegmentRow],
    after: int,
    end: int,
    resolved: int,
    *,
    has_more: bool,
    request: SplitRequest,
) -> Plan:
    within = [s for s in found if s.lo_ts <= end]
    cuts = cut_points(within, after=after, upto=end, parts=request.parts, part_bytes=request.part_bytes)
    bounds = [after, *cuts, end] if end > after else []
    return Plan(
        parts=tuple(
            Part(cursor=cursor.encode(scope, a), start_ts=a, end_ts=b, rows=guessed_rows(within, after=a, upto=b))
            for a, b in itertools.pairwise(bounds)
        ),
        cursor=cursor.encode(scope, after),
        start_ts=after,
        next_cursor=cursor.encode(scope, end),
        end_ts=end,
        resolved_ts=resolved,
        has_more=has_more,
    )


def shown(found: Plan) -> dict[str, Any]:
    """A plan as JSON; timestamps are text."""
    return {
        "parts": [
            {"cursor": p.cursor, "start_ts": str(p.start_ts), "end_ts": str(p.end_ts), "rows": p.rows}
            for p in found.parts
        ],
        "cursor": found.cursor,
        "start_ts": str(found.start_ts),
        "next_cursor": found.next_cursor,
        "end_ts": str(found.end_ts),
        "resolved_ts": str(found.resolved_ts),
        "has_more": found.has_more,
        "rows": found.rows,
    }
