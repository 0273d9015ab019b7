"""Catalogs for tests: one that is emptied instead of made anew, and one over the simulator's short connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from sqlalchemy import Connection, Engine, Table, select

from simulator.dst.connection import QuickConnection
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import Migration
from tistream.catalog.database.tables import metadata


class Emptied:
    """A migrated catalog that each test gets as the migrations left it: making the tables anew takes a hundred times as
    long as emptying them."""

    def __init__(self, url: str) -> None:
        self.catalog = Catalog(url)
        self.catalog.migrate()
        self._first: dict[Table, list[dict[str, Any]]] = {}
        for table in metadata.sorted_tables:
            with self.catalog.reading() as conn:
                self._first[table] = [dict(row) for row in conn.execute(select(table)).mappings()]

    def empty(self) -> Catalog:
        self.catalog.generation = None  # a test may have written another one
        with self.catalog.transaction() as conn:
            for table, rows in self._first.items():
                conn.execute(table.delete())
                if rows:
                    conn.execute(table.insert(), rows)
        self.catalog.migrate()
        return self.catalog


class QuickCatalog(Catalog):
    """A catalog in a file, with the simulator's short connection over each of the pool's."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url
        self.noted: list[str] = []  # statements that took the short way

    def migrate(self, to: str | None = None, note: Callable[[Migration], object] = lambda _: None) -> None:
        """Alembic needs SQLAlchemy's connection."""
        slow = Catalog(self.url)
        slow.migrate(to, note)
        self.generation, self.identity = slow.generation, slow.identity
        slow.close()

    def _connect_writer(self) -> AbstractContextManager[Connection]:
        return self._over(self._engine)

    def _connect_reader(self) -> AbstractContextManager[Connection]:
        return self._over(self._reader)

    @contextmanager
    def _over(self, engine: Engine) -> Iterator[Connection]:
        with engine.connect() as whole:
            whole.begin()
            raw: Any = whole.connection.dbapi_connection
            yield cast("Connection", QuickConnection(raw, whole, self._note))

    def _note(self, statement: str, _args: Any, _many: bool) -> None:
        self.noted.append(statement)
