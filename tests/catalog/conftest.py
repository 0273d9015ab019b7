"""One catalog for each backend: SQLite, SQLite over the simulator's short connection, and a real MariaDB."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.chaos.servers.mariadb import mariadb, new_database
from tests.kit.catalog_backends import Emptied, QuickCatalog
from tests.kit.catalog_cases import activate, catalog_of
from tests.kit.catalog_locks import locked_after_events
from tests.kit.granted_database import granted_database
from tistream.catalog.database.engine import Catalog

_number = itertools.count(1)


@pytest.fixture(params=["sqlite", "simulator", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The SQLAlchemy address of an empty database of this test."""
    if backend == "mariadb":
        return new_database(request.getfixturevalue("server"), f"catalog_{next(_number)}")
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture
def catalog(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """A migrated, empty catalog."""
    if backend == "mariadb":
        yield request.getfixturevalue("migrated").empty()
        return
    catalog = catalog_of(QuickCatalog if backend == "simulator" else Catalog, tmp_path)
    yield catalog
    catalog.close()


@pytest.fixture
def low(catalog: Catalog) -> int:
    """The first task of tenant T, which has three."""
    return activate(catalog)[0]


@pytest.fixture
def empty(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """A catalog in an empty database: one without tables, or of MariaDB with those that a migration leaves."""
    if backend == "mariadb":
        catalog = request.getfixturevalue("to_restore").empty()
        catalog.generation = None
        yield catalog
        return
    catalog = Catalog(f"sqlite:///{tmp_path / 'restored.db'}")
    yield catalog
    catalog.close()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with mariadb() as url:
        yield url


@pytest.fixture(scope="session")
def migrated(server: str) -> Iterator[Emptied]:
    """Its catalog has the rights of a service, and no more."""
    urls = granted_database(server, "migrated")
    of_migrations = Catalog(urls.migrations)
    of_migrations.migrate()
    of_migrations.close()
    emptied = Emptied(urls.services)
    yield emptied
    emptied.catalog.close()


@pytest.fixture(scope="session")
def to_restore(server: str) -> Iterator[Emptied]:
    emptied = Emptied(new_database(server, "to_restore"))
    yield emptied
    emptied.catalog.close()


@pytest.fixture(autouse=True)
def events_come_last() -> Iterator[list[str]]:
    """See `tests.kit.catalog_locks`."""
    broken = locked_after_events()
    yield broken
    assert not broken
