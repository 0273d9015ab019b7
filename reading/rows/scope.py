"""Scopes: a tenant, one of its databases, or one table; which tables and DDL of a schema history they cover."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from schemas.actions import Action
from schemas.history import History
from schemas.limited import ids_of_limit
from schemas.model import DdlEvent, Table
from schemas.names import folded
from tistream.errors import TableRenamed
from tistream.ids import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a pull covers: a tenant, one of its databases, or one table."""

    tenant: Tenant
    database: str | None = None
    table: str | None = None
    within: tuple[str, ...] | None = None  #: rules of the tables that the reader's key may read; None = all

    def __str__(self) -> str:
        return "/".join([str(self.tenant), self.database or "*", self.table or "*"])


def wanted(table: Table, scope: Scope) -> bool:
    """Whether rows of this table belong to the scope."""
    if table.kind != "table":
        return False
    if scope.database is not None and folded(table.db) != folded(scope.database):
        return False
    return scope.table is None or folded(table.name) == folded(scope.table)


def table_ids(history: History, scope: Scope, after: int, upto: int) -> Collection[int] | None:
    """The physical table ids that the scope had in (after, upto]; None for a whole tenant."""
    return (
        ids_of_limit(history)
        if scope.database is None
        else history.physical_ids(scope.database, scope.table, after, upto)
    )


def check_names(history: History, scope: Scope, after: int, upto: int) -> None:
    """Refuse a database or table that did not exist at any time of the interval. NotFound with a suggestion."""
    if scope.database is None or history.existed(scope.database, scope.table, after, upto):
        return
    if scope.table is None:
        history.database(scope.database, after)
    else:
        history.find(scope.database, scope.table, after)


def check_renamed(history: History, scope: Scope, after: int, upto: int) -> None:
    """TableRenamed when a read resumes at or above the RENAME that took the scope's name from a table, and no table
    had the name since."""
    if scope.database is None or scope.table is None or table_ids(history, scope, after, upto):
        return
    if history.named(scope.database, scope.table, after) is not None:
        return
    name = (folded(scope.database), folded(scope.table))
    for event in reversed(history.events(history.start_ts, after)):
        if event.type == Action.DROP_TABLE and (folded(event.db), folded(event.table)) == name:
            return
        if (folded(event.old_db), folded(event.old_table)) != name:
            continue
        table = history.table_at(event.version.id, upto) if event.version is not None else None
        if table is not None:
            raise TableRenamed(
                f"Table {scope.database}.{scope.table} is {table.db}.{table.name} since {event.commit_ts}.",
                database=table.db,
                table=table.name,
                table_id=table.id,
                renamed_ts=str(event.commit_ts),
            )
        return


def concerns(event: DdlEvent, scope: Scope) -> bool:
    """Whether the DDL belongs to the scope: a rename concerns both names, an exchange both tables, a dropped
    database all its tables."""
    if scope.database is None:
        return True
    names = {(folded(event.db), folded(event.table)), (folded(event.old_db), folded(event.old_table))}
    names |= {(folded(t.db), folded(t.name)) for t in (event.version, event.exchanged) if t is not None}
    database = folded(scope.database)
    if scope.table is None or event.type == Action.DROP_SCHEMA:
        return any(db == database for db, _ in names)
    return (database, folded(scope.table)) in names
