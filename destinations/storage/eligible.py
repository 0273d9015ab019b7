"""Which tables a storage destination delivers at least once: those whose rows nothing identifies."""

from __future__ import annotations

from reading.filters import NO_FILTER, Filter
from reading.formats.rows import handle_columns
from reading.scope import Scope, wanted
from schemas.history import History
from schemas.model import Table


def tables_without_key(history: History, ts: int, scope: Scope, filter: Filter = NO_FILTER) -> list[Table]:
    """The tables of a changefeed at `ts` that have neither a primary key nor a unique index over NOT NULL columns, by
    name."""
    tables = (table for database in history.databases(ts) for table in history.tables(database.name, ts))
    return [t for t in tables if wanted(t, scope) and filter.means(t) and not handle_columns(t)]
