"""Every view of the service for tenants that are keyspaces: no schema, no tables, no DDL task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from compactor.base_job import BaseSettings, build_tenant_bases
from metaserver.core.maintenance import MaintenanceRules
from metaserver.maintenance import MaintenanceScheduler
from metaserver.retention import Retention
from schemas.registry.schema_registry import SchemaRegistry
from tests.kit.auth_site import fill
from tests.kit.catalog_cases import elected
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tistream import ts as tso
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.cli import assembly
from tistream.cli.running import Parts
from tistream.clock import SystemClock
from tistream.config import CatalogSettings, ObjectStoreSettings, Settings
from tistream.http.auth.access import every_route
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

_GIVEN = {"start_ts": "earliest", "as_of": "latest", "from_ts": "earliest", "to_ts": "latest", "why": "true"}
WITH_ROWS, NEW, UNBOUND = Tenant(1, 1), Tenant(1, 2), Tenant(1, 3)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    folder = tmp_path_factory.mktemp("keyspaces")
    (folder / "bucket").mkdir()
    settings = Settings(
        catalog=CatalogSettings(url=f"sqlite:///{folder}/catalog.db"),
        object_store=ObjectStoreSettings(url=f"file://{folder}/bucket"),
    )
    parts = assembly.open_parts(settings)
    catalog, raw = parts.catalog, TenantKind.RAW
    register_tenant(catalog, WITH_ROWS, kind=raw, keyspace=Keyspace(id=1), user_keys=KeyRange(b"a", b"n"))
    register_tenant(catalog, NEW, kind=TenantKind.TXN, keyspace=Keyspace(id=7))
    register_tenant(catalog, UNBOUND, kind=raw, keyspace=Keyspace(name="orders"))
    _write(parts, tso.compose(parts.clock.unix_ms() - 5000))
    yield parts
    catalog.close()


def _write(parts: Parts, ts: int) -> None:
    """A put and a delete, in the log up to just above `ts`."""
    issue_incarnation(parts.catalog, WITH_ROWS, 1)
    rows = entry_rows([Entry(ts, b"k1", b"v"), Entry(ts + 1, b"k2", None)])
    EntryLog(parts.catalog, parts.store, tenant=WITH_ROWS, rows=rows).flush(ts + 9)


@pytest.fixture(scope="module")
def http(parts: Parts) -> Iterator[TestClient]:
    with TestClient(assembly._api(parts, []), raise_server_exceptions=False) as http:
        yield http


def _addresses(http: TestClient, tenant: Tenant) -> list[str]:
    """Everything that is read of the tenant: the console's pages, and the API's routes without and with parameters.
    Streams have no end."""
    routes = [r for r in every_route(http.app) if isinstance(r, APIRoute)]  # type: ignore[arg-type]
    paths = {r.path for r in routes if "GET" in (r.methods or ()) and not r.path.startswith("/v1/")}
    addresses = [fill(path, tenant) for path in paths if "{tenant_id}" in path]
    for path, methods in http.get("/openapi.json").json()["paths"].items():
        if "{tenant_id}" in path and "get" in methods and not path.endswith(":stream"):
            takes = {p["name"] for p in methods["get"].get("parameters", ())}
            given = "&".join(f"{name}={value}" for name, value in _GIVEN.items() if name in takes)
            addresses += [fill(path, tenant), f"{fill(path, tenant)}?{given}"]
    return sorted(addresses)


@pytest.mark.parametrize("tenant", [WITH_ROWS, NEW, UNBOUND], ids=str)
def test_no_address_fails_for_a_keyspace(http: TestClient, tenant: Tenant) -> None:
    statuses: Counter[int] = Counter()
    for address in _addresses(http, tenant):
        answer = http.get(address)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (address, answer.text)
        if address.startswith("/v1/") and answer.status_code >= 400:
            assert len(answer.json()["detail"]) > 20, (address, answer.text)
    assert statuses[200] > 30, statuses


def test_tables_of_a_keyspace_are_refused_with_what_it_has(http: TestClient) -> None:
    base = "/v1/clusters/1/tenants/1"
    for path in (
        "/changes?start_ts=earliest",
        "/databases",
        "/databases/a/tables/b/rows",
        "/databases/a/changes?start_ts=earliest",
        "/changes/splits?start_ts=earliest",
        "/ddl",
        "/seeds",
        "/seeds/wanted",
    ):
        answer = http.get(base + path)
        assert (answer.status_code, answer.json()["code"]) == (400, "TS-1093"), (path, answer.text)
        assert "/v1/clusters/1/tenants/1/kv/changes" in answer.json()["detail"]


def test_a_keyspace_is_shown_as_one(http: TestClient) -> None:
    tenants = {item["tenant_id"]: item for item in http.get("/v1/tenants").json()["items"]}
    assert [tenants[n]["kind"] for n in (1, 2, 3)] == ["raw", "txn", "raw"]
    assert tenants[1]["keyspace"] == {"id": 1, "name": None}
    assert tenants[3]["keyspace"] == {"id": None, "name": "orders"}
    assert (tenants[1]["start_key"], tenants[1]["end_key"]) == (b"a".hex(), b"n".hex())
    assert (tenants[2]["start_key"], tenants[2]["end_key"]) == ("", "")
    assert (tenants[1]["state"], tenants[1]["lag_s"] > 4) == ("ACTIVE", True)
    assert (tenants[2]["state"], tenants[2]["lag_s"]) == ("ACTIVE", None)


def test_what_waits_is_said_in_the_words_of_a_keyspace(http: TestClient) -> None:
    def why(tenant: int) -> str:
        sentence: str = http.get(f"/v1/clusters/1/tenants/{tenant}/lag?why=true").json()["sentence"]
        return sentence

    assert "asks PD for the id of keyspace orders" in why(3)
    assert "keyspace 1, key a to key n has no sorter" in why(1)
    assert "all keys of keyspace 7" in why(2)
    assert not any("schema" in why(n) for n in (1, 2, 3))


def test_upkeep_of_keyspaces_meets_nothing_that_it_lacks(parts: Parts) -> None:
    registry = SchemaRegistry(parts.catalog, parts.store)
    retention = Retention(parts.catalog, registry, default_hours=0.001, grace_ms=0)
    maintenance = MaintenanceScheduler(
        parts.catalog, parts.store, registry, SystemClock(), MaintenanceRules(), default_hours=1
    )
    retention.step()
    maintenance.step(elected(parts.catalog))
    assert retention.problems() == maintenance.problems() == []
    assert get_tenant(parts.catalog, WITH_ROWS).earliest_ts == 0, "the only versions of its keys are kept"
    for tenant in (WITH_ROWS, NEW, UNBOUND):
        assert not build_tenant_bases(
            parts.catalog, registry, tenant, lambda _: iter(()), BaseSettings(), SystemClock()
        ).tables
