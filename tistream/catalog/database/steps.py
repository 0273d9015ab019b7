"""Restartable steps of migrations.

MariaDB and MySQL commit each DDL statement, so a migration that is killed half-way leaves its first statements done and
its revision unwritten. The next start repeats all steps: one that fails because its table, index or row exists is done.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op


def create_table(name: str, *columns: sa.Column[Any]) -> None:
    """Create a table without its indexes, which are separate steps."""
    _run(
        lambda: op.create_table(name, *columns, mysql_charset="utf8mb4"),
        lambda: sa.inspect(op.get_bind()).has_table(name),
    )


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column, which must have a default that earlier releases may leave to the database."""
    _run(
        lambda: op.add_column(table, column),
        lambda: column.name in {each["name"] for each in sa.inspect(op.get_bind()).get_columns(table)},
    )


def create_index(name: str, table: str, columns: Sequence[str], *, unique: bool = False) -> None:
    """Create an index."""
    _run(lambda: op.create_index(name, table, list(columns), unique=unique), lambda: name in _indexes(table))


def insert_rows(table: str, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
    """Insert the rows whose `key` does not exist yet."""
    into = sa.table(table, *(sa.column(name) for name in sorted(rows[0])))
    for row in rows:
        existing = sa.select(into.c[key]).where(into.c[key] == row[key])
        if op.get_bind().execute(existing).first() is None:
            op.get_bind().execute(into.insert().values(**row))


def number_at_random(table: str, column: str) -> None:
    """Write a random number to each row whose column is 0: it identifies the database."""
    there = sa.table(table, sa.column(column))
    op.get_bind().execute(there.update().where(there.c[column] == 0).values({column: 1 + secrets.randbits(62)}))


def _indexes(table: str) -> set[str | None]:
    return {each["name"] for each in sa.inspect(op.get_bind()).get_indexes(table)}


def _run(step: Callable[[], object], is_done: Callable[[], bool]) -> None:
    try:
        step()
    except sa.exc.DBAPIError:
        if not is_done():
            raise
