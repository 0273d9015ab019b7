"""What an event says to those who see some of its tables only: it is about one table, which was created or dropped.

`schemas.followed` and `schemas.limited` decide which tables these are. The text of such an event names its table only.
"""

from __future__ import annotations

from dataclasses import replace

from schemas import queries
from schemas.actions import Action, action_name
from schemas.model import Database, DdlEvent, Table
from schemas.show_create import Dialect, define


def of_table(event: DdlEvent, table: Table, action: int, query: str) -> DdlEvent:
    """The event as one of this table alone."""
    return replace(
        event,
        type=int(action),
        kind=action_name(action),
        query=query,
        as_written=False,
        db=table.db,
        table=table.name,
        db_id=table.db_id,
        table_id=table.id,
        version=table,
        old_db="",
        old_table="",
        exchanged=None,
        view_select="",
    )


def created(event: DdlEvent, table: Table, db: Database) -> DdlEvent:
    """The event as a CREATE TABLE with the columns."""
    return of_table(event, table, Action.CREATE_TABLE, define(db, table, Dialect.TIDB).create_table)


def dropped(event: DdlEvent, table: Table) -> DdlEvent:
    """The event as a DROP TABLE, or DROP VIEW."""
    is_view = table.kind == "view"
    query = queries.drop("VIEW" if is_view else "TABLE", table.db, table.name)
    return of_table(event, table, Action.DROP_VIEW if is_view else Action.DROP_TABLE, query)
