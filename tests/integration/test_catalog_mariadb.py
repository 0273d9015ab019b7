"""The catalog on a real MariaDB."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Table, select

from simulator.chaos.servers.mariadb import mariadb, new_database
from tests.kit.catalog_cases import T, activate, together
from tests.kit.catalog_suite import CatalogSuite
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import KEY_BYTES_MAX, metadata
from tistream.catalog.tenancy.tenants import get_tenant, list_tenants, register_tenant
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant
from tistream.limits import LEADER_LEASE_MS, LEASE_MS

_number = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mariadb() as url:
        yield url


@pytest.fixture(scope="module")
def migrated(server: str) -> Iterator[Emptied]:
    made = Emptied(new_database(server, "migrated"))
    yield made
    made.catalog.close()


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
        with self.catalog.transaction() as conn:
            for table, rows in self._first.items():
                conn.execute(table.delete())
                if rows:
                    conn.execute(table.insert(), rows)
        return self.catalog


class TestCatalogOnMariaDB(CatalogSuite):
    @pytest.fixture
    def url(self, server: str) -> str:
        return new_database(server, f"catalog_{next(_number)}")

    @pytest.fixture
    def catalog(self, migrated: Emptied) -> Catalog:  # type: ignore[override]
        return migrated.empty()

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
        with Catalog(str(catalog._engine.url)).transaction() as other:
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

    def test_nobody_listens(self) -> None:
        catalog = Catalog("mysql+pymysql://root@127.0.0.1:1/tistream")
        with pytest.raises(CatalogUnavailable) as caught:
            register_tenant(catalog, Tenant(1, 1))
        assert caught.value.determinate is True


def kill(catalog: Catalog, conn: Connection) -> None:
    number = conn.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
    with catalog.transaction() as other:
        other.exec_driver_sql(f"KILL {number}")
