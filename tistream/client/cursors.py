"""Stores for the cursor of a consumer.

    FileCursorStore(path)               at least once: a kill between the work and the save repeats a page
    SqlCursorStore(connection, name)    exactly once: the cursor is a row of the consumer's database, written in the
                                        same transaction as the results of the page

Of two consumers with one name in SQL, the slower one fails and its transaction is rolled back, so nothing is written
twice.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tistream.errors import ChangedMeanwhile


class CursorStore(Protocol):
    """A store for `Client.follow`."""

    def load(self) -> str | None:
        """The last saved cursor; None before the first save."""

    def save(self, cursor: str) -> None:
        """Save durably, with the results of the page if they share a transaction."""


class FileCursorStore:
    """A file, replaced atomically, with mode 0600. For work that may be repeated."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def load(self) -> str | None:
        with suppress(FileNotFoundError):
            return self._path.read_text("ascii").strip() or None
        return None

    def save(self, cursor: str) -> None:
        new = self._path.with_name(self._path.name + ".new")
        new.unlink(missing_ok=True)  # left by a killed process
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(cursor + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        folder = os.open(self._path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class SqlCursorStore:
    """A row in the consumer's database, by its DB-API connection (autocommit off).

    `save` commits everything written by the connection since the last save, with the cursor. Call `load` first: it
    rolls back, and creates the table if it is missing.
    """

    def __init__(self, connection: Any, name: str, *, table: str = "tistream_cursors", mark: str = "%s") -> None:
        """`name` of the consumer; `table` of the cursors; `mark` is the driver's parameter (`?` for SQLite)."""
        self._connection, self._name, self._table, self._mark = connection, name, table, mark
        self._saves = 0  # number of saves, as known here

    def load(self) -> str | None:
        self._connection.rollback()
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            "(name VARCHAR(190) NOT NULL PRIMARY KEY, saved_cursor TEXT NOT NULL, saves BIGINT NOT NULL)"
        )
        self._connection.commit()
        cursor = self._connection.cursor()
        cursor.execute(f"SELECT saved_cursor, saves FROM {self._table} WHERE name = {self._mark}", (self._name,))  # noqa: S608
        row = cursor.fetchone()
        cursor.close()
        self._connection.rollback()  # ends the snapshot of the read
        self._saves = 0 if row is None else int(row[1])
        return None if row is None else str(row[0])

    def save(self, cursor: str) -> None:
        """ChangedMeanwhile, after a rollback, when another consumer has saved under this name; the driver's
        duplicate-key error if that was its first save."""
        try:
            if not self._saved(cursor):
                raise ChangedMeanwhile(f"Another consumer {self._name!r} has saved meanwhile.", consumer=self._name)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        self._saves += 1

    def _saved(self, cursor: str) -> bool:
        m = self._mark
        if self._saves:
            statement = f"UPDATE {self._table} SET saved_cursor = {m}, saves = {m} WHERE name = {m} AND saves = {m}"  # noqa: S608
            return self._execute(statement, cursor, self._saves + 1, self._name, self._saves) == 1
        statement = f"INSERT INTO {self._table} (name, saved_cursor, saves) VALUES ({m}, {m}, 1)"  # noqa: S608
        return self._execute(statement, self._name, cursor) == 1

    def _execute(self, statement: str, *values: object) -> int:
        cursor = self._connection.cursor()
        cursor.execute(statement, values)
        count = int(cursor.rowcount)
        cursor.close()
        return count
