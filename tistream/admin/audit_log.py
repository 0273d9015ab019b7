"""The audit log for people and programs: the same for the API, the console's page and the command line."""

from __future__ import annotations

from typing import Any

from tistream import ts as tso
from tistream.admin.views import ids_of, number_of_cursor
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.audit import AuditEntry
from tistream.catalog.tenancy.audit_log import EntryFilter, list_entries
from tistream.errors import CursorInvalid


def entries_page(
    catalog: Catalog, which: EntryFilter, *, limit: int, cursor: str | None = None, after: str | None = None
) -> dict[str, Any]:
    """Entries, the newest first and on to older ones by `cursor`; with `after` (an entry's number) newer ones, in
    order."""
    above = None if after is None else number_of_cursor(after)
    rows = list_entries(catalog, which, limit=limit + 1, before=_place(cursor), above=above)
    items, more = rows[:limit], len(rows) > limit
    newest = max([entry.entry_no for entry in items], default=above or 0)
    return {
        "items": [entry_fact(entry) for entry in items],
        "next_cursor": f"{items[-1].at_ms}.{items[-1].entry_no}" if more and above is None else None,
        "newest": str(newest),
    }


def entry_fact(entry: AuditEntry) -> dict[str, Any]:
    """One entry."""
    return {
        "entry_no": str(entry.entry_no),
        "time": tso.to_text(tso.compose(entry.at_ms)),
        "last_time": tso.to_text(tso.compose(entry.last_ms)),
        "times": entry.times,
        "principal": entry.principal,
        "key_id": entry.key_id or None,
        "role": entry.role or None,
        "address": entry.address,
        "operation": entry.operation,
        **ids_of(entry.tenant),
        "target": entry.target or None,
        "result": entry.result,
        "status": entry.status or None,
        "code": entry.code or None,
        "request_id": entry.request_id or None,
    }


def _place(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    at_ms, dot, entry_no = cursor.partition(".")
    if not dot:
        raise CursorInvalid("This is not a cursor of this list.", cursor=cursor[:40])
    return number_of_cursor(at_ms), number_of_cursor(entry_no)
