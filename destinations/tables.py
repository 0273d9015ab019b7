"""The tables of a changefeed: those that it means at a timestamp, the lane of each, and those without a key."""

from __future__ import annotations

from typing import Any

import orjson

from reading.filters import NO_FILTER, Filter, Part, parse_filter
from reading.formats.rows import handle_columns
from reading.rows.scope import Scope, wanted
from schemas.history import History
from schemas.model import Table
from schemas.registry.schema_registry import SchemaRegistry
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.changefeeds import ChangefeedRow
from tistream.catalog.work.core.lane_scope import TableScope
from tistream.catalog.work.lanes import list_lanes


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
    catalog: Catalog, registry: SchemaRegistry, row: TenantRow, feed: ChangefeedRow
) -> list[dict[str, Any]]:
    """Each table that a changefeed writes as the schema is now, with its lane, for people and programs. None for a
    keyspace, and before the first schema snapshot."""
    if row.kind.is_keyspace or not row.has_log:
        return []
    lanes, history = list_lanes(catalog, row.tenant, feed.name), registry.history(row.tenant)
    parts = [(part_of(lane.scope), lane) for lane in lanes if isinstance(lane.scope, TableScope)]
    wanted_tables, tables = parse_filter(orjson.loads(feed.filters)), []
    for table in tables_meant(history, history.resolved_ts, Scope(tenant=row.tenant), wanted_tables):
        for lane in (lane for part, lane in parts if part.has(table.db, table.name)):
            tables.append(
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
    return tables
