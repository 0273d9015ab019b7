"""The catalog on a real MariaDB."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Connection

from simulator.chaos.servers.mariadb import new_database
from tests.kit.catalog_cases import T, activate, together
from tistream.catalog.database.columns import KEY_BYTES_MAX
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import metadata
from tistream.catalog.tenancy.tenants import get_tenant, list_tenants, register_tenant
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant
from tistream.limits import LEADER_LEASE_MS, LEASE_MS
from tistream.objectstore.generations import CatalogReplaced


@pytest.mark.parametrize("backend", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
class TestCatalogOnMariaDB:
    def test_the_session_is_set_up(self, catalog: Catalog) -> None:
        with catalog.reading() as conn:
            row = conn.exec_driver_sql("SELECT @@tx_isolation, @@time_zone, @@sql_mode").one()
            waits = conn.exec_driver_sql("SELECT @@innodb_lock_wait_timeout, @@wait_timeout, @@max_sort_length").one()
        assert tuple(row) == ("READ-COMMITTED", "+00:00", "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION")
        lock_wait_s, idle_s, sort_bytes = waits
        assert lock_wait_s * 1000 < LEADER_LEASE_MS, "who waits for a row still renews its election in time"
        assert idle_s * 1000 < LEASE_MS, "a lost host's locks are free when its work is given to others"
        assert sort_bytes >= KEY_BYTES_MAX, "keys are compared whole"

    def test_names_are_compared_as_bytes(self, catalog: Catalog) -> None:
        names = ("owner", "object_key", "worker_id", "dispatcher")
        with catalog.reading() as conn:
            rows = conn.exec_driver_sql(
                "SELECT table_name, column_name, collation_name FROM information_schema.columns "
                f"WHERE table_schema = database() AND column_name IN {names}"
            ).all()
        assert len(rows) == sum(column.name in names for table in metadata.sorted_tables for column in table.c)
        assert {collation for _, _, collation in rows} == {"ascii_bin"}

    def test_a_connection_lost_while_committing_is_indeterminate(self, catalog: Catalog) -> None:
        def lose() -> None:
            with catalog.transaction() as conn:
                conn.exec_driver_sql("UPDATE counters SET value = 5")
                kill(catalog, conn)

        with pytest.raises(CatalogUnavailable) as caught:
            lose()
        assert caught.value.determinate is False
        assert register_tenant(catalog, T).tenant == T, "the pool got a new connection"

    def test_a_connection_lost_before_committing_is_determinate(self, catalog: Catalog) -> None:
        def lose() -> None:
            with catalog.transaction() as conn:
                conn.exec_driver_sql("UPDATE counters SET value = 5")
                kill(catalog, conn)
                conn.exec_driver_sql("UPDATE counters SET value = 6")

        with pytest.raises(CatalogUnavailable) as caught:
            lose()
        assert caught.value.determinate is True
        with catalog.reading() as conn:
            assert conn.exec_driver_sql("SELECT value FROM counters").scalar() == 0

    def test_a_connection_lost_while_idle_is_replaced(self, catalog: Catalog) -> None:
        with catalog.reading() as conn:
            number = conn.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
        with Catalog(catalog._engine.url.render_as_string(hide_password=False)).transaction() as other:
            other.exec_driver_sql(f"KILL {number}")
        assert list_tenants(catalog) == []

    def test_a_deadlock_is_a_determinate_failure(self, catalog: Catalog) -> None:
        activate(catalog)
        low, high = 1, 2

        def cross(i: int) -> CatalogUnavailable | None:
            first, second = (low, high) if i else (high, low)
            try:
                with catalog.transaction() as conn:
                    conn.exec_driver_sql(f"UPDATE tasks SET resubscribe_id = 1 WHERE task_id = {first}")
                    met.wait(30)
                    conn.exec_driver_sql(f"UPDATE tasks SET resubscribe_id = 2 WHERE task_id = {second}")
            except CatalogUnavailable as e:
                return e
            return None

        met = threading.Barrier(2)
        errors = [e for e in together(2, cross) if e is not None]
        assert [e.determinate for e in errors] == [True]
        assert "Deadlock" in str(errors[0])

    def test_a_lock_that_is_held_too_long_is_a_determinate_failure(self, catalog: Catalog) -> None:
        def give_up() -> None:
            with catalog.transaction() as conn:
                conn.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 0")
                conn.exec_driver_sql("UPDATE tenants SET reason = 'mine'")

        register_tenant(catalog, T)
        with catalog.transaction() as holder:
            holder.exec_driver_sql("UPDATE tenants SET reason = 'held'")
            with pytest.raises(CatalogUnavailable) as caught:
                give_up()
        assert caught.value.determinate is True
        assert get_tenant(catalog, T).reason == "held"

    def test_a_database_that_was_dropped_is_another_one(self, catalog: Catalog) -> None:
        """For a process that has begun with it: over the connections that it has, and over new ones."""
        with catalog.reading() as conn:
            url = conn.engine.url.set(username="root", password="")
        name = f"{url.database}_dropped"
        other = Catalog(new_database(url.render_as_string(hide_password=False), name))
        other.migrate()
        register_tenant(other, T)
        with other.transaction() as conn:
            conn.exec_driver_sql(f"DROP DATABASE `{name}`")
        for _ in range(8):
            with pytest.raises(CatalogReplaced):
                get_tenant(other, T)
            with pytest.raises(CatalogReplaced):
                register_tenant(other, T)
        other.close()
        with pytest.raises(CatalogReplaced):
            get_tenant(other, T)


def test_nobody_listens() -> None:
    catalog = Catalog("mysql+pymysql://root@127.0.0.1:1/tistream")
    with pytest.raises(CatalogUnavailable) as caught:
        register_tenant(catalog, Tenant(1, 1))
    assert caught.value.determinate is True


def kill(catalog: Catalog, conn: Connection) -> None:
    number = conn.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
    with catalog.transaction() as other:
        other.exec_driver_sql(f"KILL {number}")
