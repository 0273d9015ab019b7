"""The catalog on SQLite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import event

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.catalog.tenancy.tenants import list_tenants, register_tenant
from tistream.errors import CatalogUnavailable, ConfigError
from tistream.ids import Tenant

_MIGRATE = "import sys; from tistream.catalog.database.engine import Catalog; Catalog(sys.argv[1]).migrate()"


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
class TestCatalogOnSQLite:
    def test_what_was_committed_survives_a_power_failure(self, catalog: Catalog) -> None:
        with catalog.reading() as conn:
            assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert conn.exec_driver_sql("PRAGMA synchronous").scalar() == 2

    def test_a_reader_does_not_wait_for_a_writer(self, catalog: Catalog) -> None:
        with catalog.transaction():
            assert list_tenants(catalog) == []

    def test_an_error_while_committing_is_indeterminate(self, catalog: Catalog) -> None:
        # A deferred foreign key is the one thing that SQLite tests only at COMMIT.
        event.listen(catalog._engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys=ON").close())
        catalog.close()
        with catalog.transaction() as conn:
            conn.exec_driver_sql("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
            conn.exec_driver_sql("CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(CatalogUnavailable) as caught, catalog.transaction() as conn:
            conn.exec_driver_sql("INSERT INTO child VALUES (1)")
        assert caught.value.determinate is False
        assert register_tenant(catalog, Tenant(1, 1)).tenant == Tenant(1, 1), "the catalog goes on"


def test_the_newest_revision_is_the_one_that_alembic_ends_at() -> None:
    scripts = ScriptDirectory(MIGRATIONS.folder)
    assert MIGRATIONS.newest == scripts.get_current_head()
    assert MIGRATIONS.revisions == {script.revision for script in scripts.walk_revisions()}


def test_a_catalog_of_this_version_is_opened_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    Catalog(url).migrate()
    script = f"{_MIGRATE}; print([name for name in sys.modules if name == 'alembic'])"
    again = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == "[]"


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnavailable, match="unable to open database file") as caught:
        Catalog(f"sqlite:///{tmp_path}/no/such/folder.db").migrate()
    assert caught.value.determinate is True


@pytest.mark.parametrize(
    "address", ["sqlite://", "sqlite:///:memory:", "postgresql://u@h/d", "mysql://u@h/d", "nonsense"]
)
def test_other_addresses_are_refused_with_the_known_ones(address: str) -> None:
    with pytest.raises(ConfigError):
        Catalog(address)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        Catalog("postgresql://user:secret@host/db")
    assert "secret" not in str(caught.value)
