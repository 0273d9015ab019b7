"""The grants of docs/runbooks/create-database.md are enough, and each of them is needed.

That they are enough for the services is shown by all tests of this folder: on MariaDB they have these rights alone.
"""

from __future__ import annotations

import re
from itertools import count

import pymysql
import pytest
from sqlalchemy import make_url

from tests.kit.catalog_cases import T
from tests.kit.granted_database import Granted, granted_database, statements
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.write_check import check_writes
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.workers import heartbeat, register_worker
from tistream.errors import TiStreamError

pytestmark = pytest.mark.mariadb
_number = count(1)
OF_SERVICES, OF_MIGRATIONS = (
    re.fullmatch(r"GRANT (.*) ON .*", line)[1].split(", ")  # type: ignore[index]
    for line in statements()
    if line.startswith("GRANT")
)


@pytest.fixture
def urls(server: str) -> Granted:
    return granted_database(server, f"granted_{next(_number)}")


def revoke(server: str, url: str, privilege: str) -> None:
    user, root = make_url(url), make_url(server)
    with pymysql.connect(host=root.host, port=root.port or 0, user="root") as conn, conn.cursor() as cursor:
        cursor.execute(f"REVOKE {privilege} ON {user.database}.* FROM '{user.username}'@'%'")


def migrate(url: str) -> None:
    catalog = Catalog(url)
    try:
        catalog.migrate()
    finally:
        catalog.close()


def serve(url: str) -> None:
    """What every service does: start, read, add, change and remove rows."""
    catalog = Catalog(url)
    try:
        catalog.migrate()
        register_tenant(catalog, T)
        get_tenant(catalog, T)
        incarnation = register_worker(catalog, "sorter-1", WorkerKind.SORTER, address="")
        heartbeat(catalog, "sorter-1", incarnation)
        check_writes(catalog)
    finally:
        catalog.close()


def test_the_users_have_what_they_need(urls: Granted) -> None:
    migrate(urls.migrations)
    serve(urls.services)


@pytest.mark.parametrize("privilege", OF_SERVICES)
def test_a_service_needs_each_of_its_grants(urls: Granted, server: str, privilege: str) -> None:
    migrate(urls.migrations)
    revoke(server, urls.services, privilege)
    with pytest.raises(TiStreamError, match="denied"):
        serve(urls.services)


#: ALTER is for columns that later migrations add
@pytest.mark.parametrize("privilege", [name for name in OF_MIGRATIONS if name != "ALTER"])
def test_a_migration_needs_each_of_its_grants(urls: Granted, server: str, privilege: str) -> None:
    revoke(server, urls.migrations, privilege)
    with pytest.raises(TiStreamError, match="denied"):
        migrate(urls.migrations)


def test_a_service_makes_no_tables(urls: Granted) -> None:
    with pytest.raises(TiStreamError, match="CREATE command denied"):
        migrate(urls.services)
