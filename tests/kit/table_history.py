"""A schema history of one table that never changes."""

from __future__ import annotations

from schemas.history import History
from schemas.model import Database, Table
from schemas.snapshot import SchemaSnapshot


def one_table(partition_ids: tuple[int, ...], start_ts: int) -> tuple[History, Table]:
    """The history, known for ever, of `db.t` with these partitions, and the table."""
    table = Table(
        id=1,
        db_id=1,
        db="db",
        name="t",
        charset="utf8mb4",
        collate="utf8mb4_bin",
        columns=(),
        indexes=(),
        pk_is_handle=False,
        is_common_handle=False,
        partition_ids=partition_ids,
    )
    start = SchemaSnapshot(ts=start_ts, databases={1: Database(id=1, name="db")}, tables={1: table})
    history = History(start, table)
    history.advance(1 << 62)
    return history, table
