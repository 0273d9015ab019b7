"""A tenant's schema history as dictionaries: DDL in commit order, and differences between two timestamps."""

from __future__ import annotations

from typing import Any

from reading.served.position import parse_ts
from reading.served.services import Services
from schemas.diff import ColumnDiff, TableDiff
from schemas.history import History
from schemas.model import Column, DdlEvent
from schemas.types import full_type
from tistream import ts as tso
from tistream.errors import CursorInvalid
from tistream.ids import Tenant


def history_of(services: Services, tenant: Tenant, within: tuple[str, ...] | None) -> tuple[History, int]:
    """The schema history as far as these tables go, and the served watermark. NotFound before the first schema
    snapshot."""
    served = services.served(tenant).within(within)
    return served.known_history, max(served.resolved, served.known_history.start_ts)


def moment(services: Services, history: History, resolved: int, text: str | None, missing: int) -> int:
    """The TSO of `text`, clamped to the served part of the history; `missing` without text."""
    if text is None:
        return missing
    ts = parse_ts(text, earliest=history.start_ts, latest=resolved, now_ms=services.clock.unix_ms())
    return min(max(ts, history.start_ts), resolved)


def ddl_page(
    services: Services, tenant: Tenant, within: tuple[str, ...] | None, *, limit: int, cursor: str | None = None
) -> dict[str, Any]:
    """A page of DDL events, the newest first. `cursor` counts newer events, so it shifts when DDL is added."""
    history, resolved = history_of(services, tenant, within)
    events = history.events(history.start_ts, resolved)[::-1]
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 12):
        raise CursorInvalid("The cursor is invalid.", cursor=cursor[:40])
    first = int(cursor or 0)
    more = len(events) > first + limit
    return {
        "items": [event_view(event) for event in events[first : first + limit]],
        "total": len(events),
        "next_cursor": str(first + limit) if more else None,
        "start_ts": str(history.start_ts),
        "resolved_ts": str(resolved),
    }


def schema_diff(
    services: Services, tenant: Tenant, within: tuple[str, ...] | None, from_ts: str | None, to_ts: str | None
) -> dict[str, Any]:
    """Changes between two timestamps, by default of the whole history."""
    history, resolved = history_of(services, tenant, within)
    start = moment(services, history, resolved, from_ts, history.start_ts)
    end = moment(services, history, resolved, to_ts, resolved)
    changed = history.diff(start, end)
    return {
        "from_ts": str(start),
        "to_ts": str(end),
        "databases_added": list(changed.databases_added),
        "databases_dropped": list(changed.databases_dropped),
        "tables": [_table_view(table) for table in changed.tables],
    }


def event_view(event: DdlEvent) -> dict[str, Any]:
    """A DDL event as JSON."""
    return {
        "commit_ts": str(event.commit_ts),
        "commit_time": tso.to_text(event.commit_ts),
        "finished_ts": str(event.finished_ts) if event.finished_ts else None,
        "job_id": event.job_id,
        "kind": event.kind,
        "database": event.db,
        "table": event.table or None,
        "table_id": event.table_id or None,
        "query": event.statement,
        "schema_version": event.schema_version,
    }


def _table_view(table_diff: TableDiff) -> dict[str, Any]:
    table = table_diff.after or table_diff.before
    assert table is not None
    change = "dropped" if table_diff.after is None else "created" if table_diff.before is None else "changed"
    shown = table_diff.after if table_diff.before is None else table_diff.before if table_diff.after is None else None
    return {
        "database": table.db,
        "table": table.name,
        "change": change,
        "was": f"{table_diff.before.db}.{table_diff.before.name}" if table_diff.renamed and table_diff.before else None,
        "new_ids": table_diff.new_ids,
        "columns": [_column_view(column) for column in table_diff.columns]
        + [{"name": c.name, "change": change, "before": None, "after": _type(c)} for c in _all(shown)],
    }


def _all(table: Any) -> tuple[Column, ...]:
    return () if table is None else tuple(table.visible_columns)


def _column_view(column_diff: ColumnDiff) -> dict[str, Any]:
    column = column_diff.after or column_diff.before
    assert column is not None
    change = "dropped" if column_diff.after is None else "added" if column_diff.before is None else "changed"
    return {
        "name": column.name,
        "change": change,
        "before": _type(column_diff.before),
        "after": _type(column_diff.after),
    }


def _type(column: Column | None) -> str | None:
    if column is None:
        return None
    return f"{full_type(column)}{' not null' if column.not_null else ''}"
