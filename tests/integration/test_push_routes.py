"""What the control plane tells pushers that may not look into the bucket, and what it keeps from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from apiserver.control import push
from apiserver.control.push_access import CredentialIssuer, Issued
from apiserver.control.push_policy import PushTerms
from pusher.control import ControlUnavailable, HttpControl
from pusher.tenant_store import TenantStore, opening
from tests.kit.catalog_cases import new_catalog
from tests.kit.control_app import control_app
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.tenants import NewTask, TaskKind, TenantState
from tistream.catalog.tenancy import tenants
from tistream.catalog.work.deletion import delete_tenant
from tistream.catalog.work.stopped_items import Scope, StoppedItem, record_stopped_item
from tistream.cli import assembly
from tistream.codec.seed_file import manifest_key
from tistream.config import ObjectStoreSettings, PushSettings, Settings
from tistream.errors import ConfigError, InvalidInput
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.log import published_seeds
from tistream.objectstore import bounded
from tistream.objectstore.layout import SchemaSnapKey, buffer_prefix, committed_prefix, seeds_prefix
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import Admit

T, OTHER = Tenant(1, 1), Tenant(1, 10)
BASE = "/v1/clusters/1/tenants/1"
ROLE = "arn:aws:iam::123456789012:role/tistream-pusher"
TERMS = PushTerms(bucket="changes", prefix="production", role_arn=ROLE)


class Issuer(CredentialIssuer):
    """Issues credentials without an STS."""

    def issue(self, tenant: Tenant) -> Issued:
        at = datetime(2026, 11, 22, 6, tzinfo=UTC)
        return Issued(access_key_id=str(tenant), secret_access_key="s", session_token="t", expires_at=at)


@dataclass
class World:
    catalog: Catalog
    store: MemoryStore

    def http(self, issuer: CredentialIssuer | None = None) -> TestClient:
        app = control_app(self.catalog, "s3://changes/production", store=self.store, issuer=issuer)
        return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    catalog = new_catalog(tmp_path)
    tenants.register_tenant(catalog, T)
    yield World(catalog, MemoryStore())
    catalog.close()


def test_the_bundle_says_whose_credentials_count(world: World) -> None:
    with world.http(Issuer(TERMS, duration_s=1800)) as http:
        access = http.get(f"{BASE}/push").json()["credentials"]
        assert (access["by"], access["url"]) == ("service", f"{BASE}/push-credentials")
        assert "30 minutes" in access["words"]
        answer = http.post(access["url"])
        assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
        assert answer.json() == {
            "access_key_id": "1/1",
            "secret_access_key": "s",
            "session_token": "t",
            "expires_time": "2026-11-22T06:00:00.000Z",
            "valid_s": 1800,
            "prefixes": ["data_change_buffer/cluster-1/tenant-1/", "seeds/cluster-1/tenant-1/"],
            "kms_key_arn": "",
        }
        assert http.post("/v1/clusters/1/tenants/2/push-credentials").status_code == 404


def test_without_a_role_there_are_none_and_a_tenant_that_goes_gets_none(world: World) -> None:
    with world.http() as http:
        refused = http.post(f"{BASE}/push-credentials")
        assert (refused.status_code, refused.json()["code"]) == (409, "TS-1014")
        assert "push.role_arn" in refused.json()["hint"]
    tenants.activate_tenant(world.catalog, T, 5, [NewTask(kind=TaskKind.DATA, range=KeyRange())])
    with world.http(Issuer(TERMS, duration_s=900)) as http:
        assert tenants.change_state(world.catalog, T, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="")
        assert http.post(f"{BASE}/push-credentials").status_code == 201
        assert delete_tenant(world.catalog, T, seen=TenantState.PAUSED)
        answer = http.post(f"{BASE}/push-credentials")
        assert (answer.status_code, answer.json()["code"]) == (410, "TS-1016")


def test_comparing_tells_of_the_tenants_folders_only(world: World) -> None:
    data = b"a file"
    right = hashlib.sha256(data).hexdigest()
    foreign = [f"{buffer_prefix(OTHER)}a", f"{seeds_prefix(OTHER)}a", f"{committed_prefix(T)}a"]
    for key in (f"{buffer_prefix(T)}a", f"{seeds_prefix(T)}a", *foreign):
        world.store.put(key, data)

    def there(http: TestClient, key: str, size: int = len(data), sha256: str = right) -> object:
        answer = http.post(f"{BASE}/push-objects:compare", json={"key": key, "bytes": size, "sha256": sha256})
        return answer.json()["there"] if answer.is_success else answer.status_code

    with world.http() as http:
        assert [there(http, f"{folder}a") for folder in (buffer_prefix(T), seeds_prefix(T))] == ["same", "same"]
        own = f"{buffer_prefix(T)}a"
        assert [there(http, own, 7), there(http, own, sha256="0" * 64)] == ["other", "other"]
        assert there(http, f"{own}b") == "nothing"
        assert [there(http, key) for key in foreign] == [400, 400, 400]
        assert [there(http, f"{buffer_prefix(T)}../tenant-10/a"), there(http, own, -1)] == [400, 400]


def test_schema_snapshots_are_listed_and_read_and_nothing_beside_them(world: World) -> None:
    for ts in (30, 4):
        world.store.put(str(SchemaSnapKey(tenant=T, ts=ts)), b"of %d" % ts)
    world.store.put(f"{buffer_prefix(T)}schema_snap/readme.txt", b"no snapshot")
    with world.http() as http:
        listed = http.get(f"{BASE}/push-schemas").json()["items"]
        assert listed == [{"ts": "4", "bytes": 4}, {"ts": "30", "bytes": 5}]
        assert http.get(f"{BASE}/push-schemas/30").content == b"of 30"
        assert http.get(f"{BASE}/push-schemas/31").status_code == 404


def test_a_pusher_with_session_credentials_does_not_even_try_what_it_may_not() -> None:
    control = HttpControl("http://127.0.0.1:9", T)  # nobody listens
    store = TenantStore("s3://changes/production", control)
    key = f"{buffer_prefix(T)}store-1/000001/file-000000000001.seg"
    for attempt in (
        lambda: store.get(key),
        lambda: store.get(str(SchemaSnapKey(tenant=OTHER, ts=1))),
        lambda: store.get_range(key, 0, 1),
        lambda: store.size(key),
        lambda: store.delete(key),
        lambda: list(store.list(buffer_prefix(T))),
    ):
        with pytest.raises(InvalidInput, match="of tenant 1/1 may put objects below data_change_buffer/cluster-1"):
            attempt()
    control.close()


def test_whether_there_are_session_credentials_is_what_the_bundle_said() -> None:
    control = HttpControl("http://127.0.0.1:9", T)
    opening(control)("memory://").put("a", b"")
    control.has_session = True
    with pytest.raises(ControlUnavailable):
        opening(control)("s3://changes/production").put(f"{buffer_prefix(T)}a", b"")
    control.close()


def test_what_the_settings_say_is_what_issues() -> None:
    bucket = ObjectStoreSettings(url="s3://changes/production?region=eu-central-1")
    assert assembly.push_issuer(Settings(object_store=bucket)) is None
    push = PushSettings(role_arn=ROLE, duration_s=1200)
    issuer = assembly.push_issuer(Settings(object_store=bucket, push=push))
    assert issuer is not None
    assert (issuer.terms, issuer.duration_s) == (TERMS, 1200)
    with pytest.raises(ConfigError, match="this store is none"):
        assembly.push_issuer(Settings(object_store=ObjectStoreSettings(url="file:///data"), push=push))


def test_what_a_pusher_put_is_read_within_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "SNAPSHOT_BYTES_MAX", 10)
    monkeypatch.setattr(published_seeds, "MANIFEST_BYTES_MAX", 10)
    monkeypatch.setattr(bounded, "_PART_BYTES", 4)
    key, data = str(SchemaSnapKey(tenant=T, ts=7)), b"eleven byte"
    world.store.put(key, data)
    world.store.put(str(manifest_key(T, 7, 0)), data)
    http, whole = world.http(), world.store.get
    monkeypatch.setattr(world.store, "size", lambda _: len(data))

    def get(key: str, admit: Admit) -> bytes:
        admit(len(data))
        pytest.fail(f"{key} is read whole")

    monkeypatch.setattr(world.store, "get", get)
    answers = [http.get(f"{BASE}/push-schemas/7"), http.post(f"{BASE}/seeds", json={"ts": "7"})]
    refusals = [(a.status_code, a.json()["code"], a.json()["facts"]["bytes"]) for a in answers]
    assert refusals == [(413, "TS-1008", "11")] * 2
    assert key in answers[0].json()["detail"]
    written = {"key": key, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert http.post(f"{BASE}/push-objects:compare", json=written).json() == {"there": "same"}
    assert whole(key) == data


@pytest.mark.parametrize("ts", [0, 1 << 63, 9_999_999_999_999_999_999])
def test_a_seed_of_no_timestamp_is_refused(world: World, ts: int) -> None:
    answer = world.http().post(f"{BASE}/seeds", json={"ts": str(ts)})
    assert (answer.status_code, answer.json()["code"]) == (400, "TS-1001")
    assert list_seeds(world.catalog, T) == []


@pytest.mark.parametrize("ts", [(1 << 63) - 1, tso.compose(4 * 10**12)])
def test_a_seed_ahead_of_the_services_time_is_refused_until_then(world: World, ts: int) -> None:
    answer = world.http().post(f"{BASE}/seeds", json={"ts": str(ts)})
    assert (answer.status_code, answer.json()["code"]) == (503, "TS-1067")
    assert list_seeds(world.catalog, T) == []


def test_a_pusher_is_told_that_its_snapshot_was_refused_and_with_which_the_tenant_began(world: World) -> None:
    http = world.http()
    assert not http.get(f"{BASE}/push").json()["snapshot_refused"]
    key = SchemaSnapKey(tenant=T, ts=7)
    stopped = StoppedItem(
        role="activation", item=str(T), scope=Scope.TENANT, tenant=T, code="TS-1020", message="?", object=str(key),
        tries=1,
    )  # fmt: skip
    record_stopped_item(world.catalog, stopped)
    assert http.get(f"{BASE}/push").json()["snapshot_refused"]
    assert tenants.activate_tenant(world.catalog, T, 9, [NewTask(kind=TaskKind.DATA, range=KeyRange())])
    state = http.get(f"{BASE}/push").json()
    assert (state["snapshot_refused"], state["start_ts"]) == (False, "9")
