"""The simulator's short way to SQLite does what SQLAlchemy's own connection does: the whole catalog runs over it."""

from __future__ import annotations

import pytest
from sqlalchemy import BindParameter, bindparam, exc, select

from tests.kit.catalog_backends import QuickCatalog
from tests.kit.catalog_cases import T
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import tenants
from tistream.catalog.tenancy.tenants import list_tenants, register_tenant
from tistream.errors import TiStreamError
from tistream.ids import Tenant


@pytest.mark.parametrize("backend", ["simulator"], indirect=True)
class TestSimulatorConnection:
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

    def test_a_list_of_parameters_has_a_text_for_each_length(self, catalog: Catalog) -> None:
        assert isinstance(catalog, QuickCatalog)
        ids_param: BindParameter[int] = bindparam("asked", expanding=True)
        statement = select(tenants.c.tenant_id).where(tenants.c.tenant_id.in_(ids_param)).order_by(tenants.c.tenant_id)
        for number in (1, 2, 3):
            register_tenant(catalog, Tenant(1, number))
        before = len(catalog.noted)
        lists: list[list[int]] = [[1], [2], [3, 1], [1, 2], [], [3]]
        with catalog.reading() as conn:
            results = [list(conn.execute(statement, {"asked": ids}).scalars()) for ids in lists]
        assert results == [sorted(ids) for ids in lists]
        assert len(catalog.noted) - before == 4, "not the first use, and not the empty list"

    def test_an_error_of_the_driver_is_sqlalchemys(self, catalog: Catalog) -> None:
        statement = tenants.update().values(state=None)
        register_tenant(catalog, T)
        for _ in range(2):  # SQLAlchemy's way first, then the short one
            with pytest.raises(TiStreamError, match="refused a statement") as caught, catalog.transaction() as conn:
                conn.execute(statement)
            assert isinstance(caught.value.__cause__, exc.IntegrityError)
        assert [row.tenant for row in list_tenants(catalog)] == [T]
