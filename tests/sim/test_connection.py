"""The simulator's short way to SQLite does what SQLAlchemy's own connection does: the whole catalog runs over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, exc, select

from simulator.dst.connection import QuickConnection
from tests.kit.catalog_cases import T
from tests.kit.catalog_suite import CatalogSuite
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import tenants
from tistream.catalog.tenancy.tenants import list_tenants, register_tenant
from tistream.errors import TiStreamError


class QuickCatalog(Catalog):
    """A catalog in a file, with a short connection over each of the pool's."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url
        self.noted: list[str] = []  # statements that took the short way

    def migrate(self) -> None:
        """Alembic needs SQLAlchemy's connection."""
        slow = Catalog(self.url)
        slow.migrate()
        slow.close()

    def _connect_writer(self) -> AbstractContextManager[Connection]:
        return self._over(self._engine)

    def _connect_reader(self) -> AbstractContextManager[Connection]:
        return self._over(self._reader)

    @contextmanager
    def _over(self, engine: Engine) -> Iterator[Connection]:
        with engine.connect() as whole:
            whole.begin()
            yield cast("Connection", QuickConnection(_raw(whole), whole, self._note))

    def _note(self, statement: str, _args: Any, _many: bool) -> None:
        self.noted.append(statement)


def _raw(whole: Connection) -> Any:
    return whole.connection.dbapi_connection


class TestCatalogOnQuickConnections(CatalogSuite):
    test_the_schema_is_the_sum_of_the_migrations = None  # type: ignore[assignment]  # Alembic needs SQLAlchemy's
    # statements are counted by SQLAlchemy's events, and the short way has none
    test_a_flush_takes_as_many_statements_whatever_it_holds = None  # type: ignore[assignment]

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'catalog.db'}"

    @pytest.fixture
    def catalog(self, url: str) -> Iterator[Catalog]:
        catalog = QuickCatalog(url)
        catalog.migrate()
        yield catalog
        catalog.close()

    def test_what_is_written_once_takes_the_short_way(self, catalog: Catalog) -> None:
        assert isinstance(catalog, QuickCatalog)
        for _ in range(2):
            register_tenant(catalog, T)
            assert [row.tenant for row in list_tenants(catalog)] == [T]
        assert any(statement.startswith("INSERT INTO tenants") for statement in catalog.noted)
        assert any(statement.startswith("SELECT tenants") for statement in catalog.noted)
        with catalog.reading() as conn:
            before = len(catalog.noted)
            assert conn.execute(select(tenants.c.state)).scalar_one() == "AWAITING_SNAPSHOT"
        assert len(catalog.noted) == before, "built for this use: SQLAlchemy's way"

    def test_an_error_of_the_driver_is_sqlalchemys(self, catalog: Catalog) -> None:
        statement = tenants.update().values(state=None)
        register_tenant(catalog, T)
        for _ in range(2):  # SQLAlchemy's way first, then the short one
            with pytest.raises(TiStreamError, match="refused a statement") as caught, catalog.transaction() as conn:
                conn.execute(statement)
            assert isinstance(caught.value.__cause__, exc.IntegrityError)
        assert [row.tenant for row in list_tenants(catalog)] == [T]
