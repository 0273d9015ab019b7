"""Where a consumer keeps how far it is.

    FileCursorStore(path)               at least once: a kill between the work and the save gives a page again
    SqlCursorStore(connection, name)    exactly once: the cursor is a row of the consumer's own database, written in the
                                        same transaction as what the page became

A save must be at the expected position: of two consumers under one name the slower one fails and its
transaction is undone, so nothing is written twice (SqlCursorStore only).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tistream.errors import ChangedMeanwhile


class CursorStore(Protocol):
    """What `Client.follow` needs."""

    def load(self) -> str | None:
        """The cursor that was saved last; None before the first time."""

    def save(self, cursor: str) -> None:
        """Keep it for good, with the work that led to it where both are in one place."""


class FileCursorStore:
    """A file of its own, replaced whole, for its owner only. For work that may be done twice."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def load(self) -> str | None:
        with suppress(FileNotFoundError):
            return self._path.read_text("ascii").strip() or None
        return None

    def save(self, cursor: str) -> None:
        new = self._path.with_name(self._path.name + ".new")
        new.unlink(missing_ok=True)  # of one who was killed
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

    `save` commits, so everything that was written by the same connection since the last one is kept with the cursor,
    or lost with it. `load` comes first: it undoes what was not committed, and makes the table if it is missing.
    """

    def __init__(self, connection: Any, name: str, *, table: str = "tistream_cursors", mark: str = "%s") -> None:
        """`name` of the consumer; `table` of the cursors; `mark` is the driver's parameter (`?` for SQLite)."""
        self._connection, self._name, self._table, self._mark = connection, name, table, mark
        self._saves = 0  # how often it was saved, as far as we know

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
        """ChangedMeanwhile, with everything undone, when another consumer has saved under this name; the driver's
        error of a key that is there already, if that was its first time."""
        try:
            if not self._saved(cursor):
                raise ChangedMeanwhile(f"Another consumer {self._name!r} went on meanwhile.", consumer=self._name)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        self._saves += 1

    def _saved(self, cursor: str) -> bool:
        m = self._mark
        if self._saves:
            words = f"UPDATE {self._table} SET saved_cursor = {m}, saves = {m} WHERE name = {m} AND saves = {m}"  # noqa: S608
            return self._execute(words, cursor, self._saves + 1, self._name, self._saves) == 1
        words = f"INSERT INTO {self._table} (name, saved_cursor, saves) VALUES ({m}, {m}, 1)"  # noqa: S608
        return self._execute(words, self._name, cursor) == 1

    def _execute(self, words: str, *values: object) -> int:
        cursor = self._connection.cursor()
        cursor.execute(words, values)
        count = int(cursor.rowcount)
        cursor.close()
        return count
