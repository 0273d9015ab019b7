"""Plans a long read for many readers: one cursor per part, each the start of a pull.

    start position, end, rows at most  ->  parts (cursor, end_ts), the next position

The parts together hold each change in (start, end] once. What lies at or below the served watermark does not change, so
a plan made again with the same start and end may have other parts but covers the same changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from reading.core.cuts import bounded_end, cut_points, estimated_rows
from reading.log.memory import TransactionTooLarge
from reading.rows.scope import Scope, table_ids
from reading.served.position import Interval, encode_cursor, locate
from reading.served.services import Services
from tistream.catalog.log import committed
from tistream.catalog.log.retention import check_listing
from tistream.catalog.rows.segments import SegmentRow
from tistream.ids import Tenant
from tistream.limits import PULL_ROWS_MAX

_SEGMENTS_MAX = 100_000  # of one plan; the next one continues


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """A parsed request for a plan. `cursor` wins over `start_ts`."""

    scope: Scope
    start_ts: str | None
    cursor: str | None
    end_ts: str | None
    rows: int | None  #: about the most: a plan ends between two commit timestamps
    parts: int
    part_bytes: int
    keys: bool = False  #: of a raw or txn tenant: its keys and values, not tables


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSplit:
    """The changes in (start_ts, end_ts] of the scope; `cursor` is at start_ts."""

    cursor: str
    start_ts: int
    end_ts: int
    rows: int  #: estimated, index entries included


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """Consecutive parts without gaps."""

    parts: tuple[PullSplit, ...]
    cursor: str
    start_ts: int
    next_cursor: str
    end_ts: int
    resolved_ts: int
    has_more: bool  #: more is served below the requested end

    @property
    def rows(self) -> int:
        """Estimated number of rows; 0 only when there is surely no change."""
        return sum(part.rows for part in self.parts)


def plan(services: Services, request: SplitRequest) -> SplitPlan:
    """Plan against the newest served state. Raises as a pull from the same position."""
    scope = request.scope
    served = services.served(scope.tenant).within(scope.within)
    if request.keys:
        served.row.check_keys()
    else:
        served.row.check_tables()
    cursor = partial(encode_cursor, scope)
    interval = locate(request, served, services.clock.unix_ms(), plans=True)
    after, upto, resolved = interval.after, interval.upto, served.resolved
    if not served.row.has_log or upto <= after:
        return _from(request, interval, _plan(cursor, [], after, after, resolved, has_more=False, request=request))
    ids = None if request.keys else table_ids(served.known_history, scope, after, upto)
    segments = committed.find_segments(
        services.catalog, scope.tenant, after_ts=after, upto_ts=upto, table_ids=ids, limit=_SEGMENTS_MAX
    )
    check_listing(services.catalog, scope.tenant, after, upto)
    end = upto if len(segments) < _SEGMENTS_MAX else max(after, min(upto, segments[-1].lo_ts - 1))
    if request.rows is not None:
        end = bounded_end(segments, after=after, upto=end, rows=request.rows)
    few = request.rows is not None and request.rows <= PULL_ROWS_MAX
    if end == after or (few and end < upto):
        # exact count; cheap, because the readers fetch the same segments next
        rows = min(request.rows or PULL_ROWS_MAX, PULL_ROWS_MAX)
        end = max(end, _end_of_page(services, scope.tenant, after, upto, rows, ids))
    return _from(request, interval, _plan(cursor, segments, after, end, resolved, has_more=end < upto, request=request))


def _end_of_page(
    services: Services, tenant: Tenant, after: int, upto: int, rows: int, ids: Collection[int] | None
) -> int:
    """Where a page of that many rows ends: at the commit_ts of the next commit if it does not fit a page."""
    try:
        return services.reader.page(tenant, after=after, upto=upto, rows=rows, table_ids=ids).upto
    except TransactionTooLarge as e:
        return int(str(e.facts["commit_ts"]))


def _from(request: SplitRequest, interval: Interval, plan_: SplitPlan) -> SplitPlan:
    """The plan from the cursor on, also from one inside a commit. The rest of the commit is in the first part; a plan
    without parts stays at the cursor."""
    cursor = request.cursor
    if cursor is None or interval.inside is None:
        return plan_
    if not plan_.parts:
        return replace(plan_, cursor=cursor, next_cursor=cursor)
    first, *others = plan_.parts
    return replace(plan_, parts=(replace(first, cursor=cursor), *others), cursor=cursor)


def _plan(
    cursor: Callable[[int], str],
    segments: list[SegmentRow],
    after: int,
    end: int,
    resolved: int,
    *,
    has_more: bool,
    request: SplitRequest,
) -> SplitPlan:
    within = [s for s in segments if s.lo_ts <= end]
    cuts = cut_points(within, after=after, upto=end, parts=request.parts, part_bytes=request.part_bytes)
    bounds = [after, *cuts, end] if end > after else []
    return SplitPlan(
        parts=tuple(
            PullSplit(cursor=cursor(a), start_ts=a, end_ts=b, rows=estimated_rows(within, after=a, upto=b))
            for a, b in itertools.pairwise(bounds)
        ),
        cursor=cursor(after),
        start_ts=after,
        next_cursor=cursor(end),
        end_ts=end,
        resolved_ts=resolved,
        has_more=has_more,
    )


def shown(plan_: SplitPlan) -> dict[str, Any]:
    """A plan as JSON; timestamps are text."""
    return {
        "parts": [
            {"cursor": p.cursor, "start_ts": str(p.start_ts), "end_ts": str(p.end_ts), "rows": p.rows}
            for p in plan_.parts
        ],
        "cursor": plan_.cursor,
        "start_ts": str(plan_.start_ts),
        "next_cursor": plan_.next_cursor,
        "end_ts": str(plan_.end_ts),
        "resolved_ts": str(plan_.resolved_ts),
        "has_more": plan_.has_more,
        "rows": plan_.rows,
    }
