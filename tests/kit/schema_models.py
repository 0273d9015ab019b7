"""Columns, tables and DDL events: what a test does not say is that of a plain INT column and of the table `d.t`."""

from __future__ import annotations

from typing import Any

from schemas.history import History
from schemas.model import Column, Database, DdlEvent, Table
from schemas.snapshot import SchemaSnapshot

_COLUMN = {"flag": 0, "flen": 11, "decimal": 0, "charset": "binary", "collate": "binary"}
_TABLE = {"id": 7, "db_id": 1, "db": "d", "name": "t", "charset": "utf8mb4", "collate": "utf8mb4_bin", "indexes": ()}
_EVENT = {"commit_ts": 5, "start_ts": 4, "job_id": 1, "schema_version": 1, "type": 5, "kind": "", "query": "q"}


def a_column(offset: int, name: str, tp: int = 3, **more: Any) -> Column:
    facts: dict[str, Any] = {"id": offset + 1, **_COLUMN, **more}
    return Column(name=name, offset=offset, tp=tp, **facts)


def a_table(*columns: Column, pk_is_handle: bool = False, **more: Any) -> Table:
    facts: dict[str, Any] = {**_TABLE, **more}
    return Table(columns=columns, pk_is_handle=pk_is_handle, is_common_handle=False, **facts)


def an_event(**more: Any) -> DdlEvent:
    facts: dict[str, Any] = {**_EVENT, "db": "d", "table": "t", "db_id": 1, "table_id": 7, **more}
    return DdlEvent(**facts)


def one_table(partition_ids: tuple[int, ...], start_ts: int) -> tuple[History, Table]:
    """The history, known for ever, of a table with these partitions that never changes, and the table."""
    table = a_table(id=1, db="db", partition_ids=partition_ids)
    start = SchemaSnapshot(ts=start_ts, databases={1: Database(id=1, name="db")}, tables={1: table})
    history = History(start, table)
    history.advance(1 << 62)
    return history, table
