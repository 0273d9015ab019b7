"""The tables of a changefeed: those that it means at a timestamp, the lane of each, and those without a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reading.filters import NO_FILTER, Filter, Part, parse_filter
from reading.formats.rows import handle_columns
from reading.scope import Scope, wanted
from schemas.history import History
from schemas.model import Table
from tistream.catalog.work.core.lane_scope import TableScope
from tistream.catalog.work.lanes import LaneRow


def tables_meant(history: History, ts: int, scope: Scope, filter: Filter = NO_FILTER) -> list[Table]:
    """The tables of a changefeed at `ts`, by name."""
    tables = (table for database in history.databases(ts) for table in history.tables(database.name, ts))
    return [t for t in tables if wanted(t, scope) and filter.means(t)]


def tables_without_key(history: History, ts: int, scope: Scope, filter: Filter = NO_FILTER) -> list[Table]:
    """Those that have neither a primary key nor a unique index over NOT NULL columns: a destination gets each of their
    changes at least once."""
    return [table for table in tables_meant(history, ts, scope, filter) if not handle_columns(table)]


def part_of(scope: TableScope) -> Part:
    """A lane's tables, as a filter has them."""
    return Part(number=scope.number, of=scope.of, only=scope.only, without=frozenset(scope.without))


def tables_by_lane(
    history: History, filters: Mapping[str, str], lanes: Sequence[LaneRow], scope: Scope
) -> list[dict[str, Any]]:
    """Each table of a changefeed as the schema is now, with its lane, for people and programs."""
    parts = [(part_of(lane.scope), lane) for lane in lanes if isinstance(lane.scope, TableScope)]
    found = []
    for table in tables_meant(history, history.resolved_ts, scope, parse_filter(dict(filters))):
        for lane in (lane for part, lane in parts if part.has(table.db, table.name)):
            found.append(
                {
                    "database": table.db,
                    "table": table.name,
                    "lane": lane.number,
                    "checkpoint_ts": str(lane.checkpoint_ts),
                    "has_key": bool(handle_columns(table)),
                    "stopped": lane.is_stopped,
                    "error": lane.error,
                }
            )
    return found
