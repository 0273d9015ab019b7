"""The steps that migrations are made of. Each may be taken again.

MariaDB and MySQL commit every DDL statement by itself, so a migration that is killed half-way leaves its first
statements done and its revision not written. The next start takes all its steps again: a step that fails because its
table, column, index or row is there already is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op


def create_table(name: str, *columns: sa.Column[Any]) -> None:
    """Create a table. Its indexes are steps of their own."""
    _take(
        lambda: op.create_table(name, *columns, mysql_charset="utf8mb4"),
        lambda: sa.inspect(op.get_bind()).has_table(name),
    )


def create_index(name: str, table: str, columns: Sequence[str], *, unique: bool = False) -> None:
    """Create an index."""
    _take(lambda: op.create_index(name, table, list(columns), unique=unique), lambda: name in _indexes(table))


def drop_index(name: str, table: str) -> None:
    """Drop an index."""
    _take(lambda: op.drop_index(name, table), lambda: name not in _indexes(table))


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column."""
    name = column.name
    _take(
        lambda: op.add_column(table, column),
        lambda: name in {each["name"] for each in sa.inspect(op.get_bind()).get_columns(table)},
    )


def insert_rows(table: str, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
    """Insert the rows whose `key` is not there yet."""
    names = sorted(rows[0])
    into = sa.table(table, *(sa.column(name) for name in names))
    for row in rows:
        there = sa.select(into.c[key]).where(into.c[key] == row[key])
        if op.get_bind().execute(there).first() is None:
            op.get_bind().execute(into.insert().values(**row))


def _indexes(table: str) -> set[str | None]:
    return {each["name"] for each in sa.inspect(op.get_bind()).get_indexes(table)}


def _take(step: Callable[[], object], is_done: Callable[[], bool]) -> None:
    try:
        step()
    except sa.exc.DBAPIError:
        if not is_done():
            raise
