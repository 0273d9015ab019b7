"""What a catalog is asked, transaction by transaction: for tests that count statements, not milliseconds.

    log = StatementLog(catalog)     before threads use the catalog
    with log:
        commit_flush(catalog, ...)
    log.transactions                [["UPDATE tasks ...", "INSERT INTO objects ..."], ...]

A statement with many sets of parameters counts as often as MariaDB's driver sends it: an INSERT once, anything else
once for each set.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from sqlalchemy import Connection, event

from tistream.catalog.database.engine import Catalog

_BEGIN = ("BEGIN", "PRAGMA")


class StatementLog:
    """What one catalog is asked while a block lasts. Thread-safe. Made before other threads use the catalog, and for
    good: SQLAlchemy's lists of listeners do not bear changes meanwhile."""

    def __init__(self, catalog: Catalog) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, list[str]] = {}  # connection -> statements so far
        self._on = False
        self.transactions: list[list[str]] = []  #: those that ended within the last block, reads among them
        event.listen(catalog._engine, "before_cursor_execute", self._run)
        event.listen(catalog._engine, "commit", self._end)
        event.listen(catalog._engine, "rollback", self._end)

    def __enter__(self) -> Self:
        with self._lock:
            self._on, self.transactions = True, []
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._on = False

    @property
    def count(self) -> int:
        """Statements in all."""
        with self._lock:
            return sum(map(len, self.transactions))

    def with_a(self, beginning: str) -> list[list[str]]:
        """The transactions with a statement that begins so."""
        with self._lock:
            return [one for one in self.transactions if any(sql.startswith(beginning) for sql in one)]

    def _run(self, conn: Connection, _cursor: Any, sql: str, parameters: Any, _context: Any, many: bool) -> None:
        if sql.startswith(_BEGIN):
            return
        times = len(parameters) if many and not sql.startswith("INSERT") else 1
        with self._lock:
            self._open.setdefault(id(conn), []).extend([sql] * times)

    def _end(self, conn: Connection) -> None:
        with self._lock:
            statements = self._open.pop(id(conn), None)
            if statements and self._on:
                self.transactions.append(statements)
