"""Session credentials of pushers against a server that enforces them.

The server knows no condition on which key a put names: of `push.kms_key_arn` it proves that puts ask for KMS at all.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

from apiserver.control import push_access
from apiserver.control.push_access import CredentialIssuer
from apiserver.control.push_policy import PushTerms, session_policy
from pusher.control import HttpControl, PushCredentials
from pusher.tenant_store import TenantStore
from simulator.chaos.servers.s3server import REGION
from tests.kit.catalog_cases import new_catalog
from tests.kit.control_app import control_app
from tests.kit.manual_clock import ManualClock
from tests.kit.s3_doubles import BUCKET, FOLDER, ROOT, GuardedS3, guarded_s3
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.cli.server import HttpServer
from tistream.errors import CredentialsUnavailable, ObjectConflict, StoreRefused
from tistream.ids import Tenant
from tistream.objectstore.factory import open_session, open_store
from tistream.objectstore.layout import SchemaSnapKey, buffer_prefix, committed_prefix, seeds_prefix
from tistream.objectstore.protocol import ObjectStore
from tistream.objectstore.session import SessionCredentials

T, NEIGHBOUR = Tenant(1, 1), Tenant(1, 10)  # whose name begins alike
OWN = f"{buffer_prefix(T)}store-1/000001/file-000000000001.seg"
FOREIGN = [
    f"{buffer_prefix(NEIGHBOUR)}store-1/000001/file-000000000001.seg",
    f"{buffer_prefix(Tenant(2, 1))}store-1/000001/file-000000000001.seg",
    f"{seeds_prefix(NEIGHBOUR)}00000000000000000001/000001.seg",
    f"{committed_prefix(T)}sorter-1-000001/000000000001.seg",
]
#: wider than any role should be, so that nothing but the session policy keeps a pusher in its folders
ROLE_MAY = [{"Effect": "Allow", "Action": ["s3:*", "kms:*"], "Resource": "*"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedS3]:
    with pytest.MonkeyPatch.context() as patch, guarded_s3(tmp_path_factory.mktemp("s3")) as new_server:
        for name, value in ROOT.items():  # the service's own: this process is the control plane
            patch.setenv(name, value)
        yield new_server


@pytest.fixture(scope="module")
def role(server: GuardedS3) -> str:
    return server.make_role("pusher", ROLE_MAY)


@pytest.fixture(scope="module")
def terms(role: str) -> PushTerms:
    return PushTerms(bucket=BUCKET, prefix=FOLDER, role_arn=role)


def issuer_of(server: GuardedS3, terms: PushTerms) -> CredentialIssuer:
    return CredentialIssuer(terms, duration_s=900, endpoint=server.endpoint, region=REGION)


class Fixed:
    """A session that never changes, and looks for nothing."""

    def __init__(self, session: SessionCredentials, kms_key_arn: str = "") -> None:
        self._found, self.kms_key_arn = session, kms_key_arn

    def credentials(self) -> SessionCredentials:
        return self._found

    def arrived(self, key: str, data: bytes | memoryview) -> bool:
        raise AssertionError(key)


def issued(server: GuardedS3, terms: PushTerms) -> SessionCredentials:
    own = issuer_of(server, terms).issue(T)
    assert own.secret_access_key not in repr(own)
    assert own.session_token not in repr(own)
    return SessionCredentials(
        access_key_id=own.access_key_id, secret_access_key=own.secret_access_key, session_token=own.session_token
    )


def leaks(server: GuardedS3, pusher: ObjectStore) -> list[str]:
    """What these credentials may do beyond what they are for."""
    tag, service = secrets.token_hex(4), open_store(server.url)
    own, neighbours = f"{OWN}-{tag}", f"{FOREIGN[0]}-{tag}-there"
    for key in (own, neighbours):
        service.put(key, b"there")
    tries: dict[str, Any] = {
        **{f"put {key}": lambda key=key: pusher.put(f"{key}-{tag}", b"foreign") for key in FOREIGN},
        "get": lambda: pusher.get(own),
        "get of a neighbour's": lambda: pusher.get(neighbours),
        "list": lambda: list(pusher.list(buffer_prefix(T))),
        "delete": lambda: pusher.delete(own),
    }
    leaked = []
    for name, attempt in tries.items():
        try:
            attempt()
        except StoreRefused:
            continue
        leaked.append(name)
    return leaked


def test_they_put_into_the_tenants_folders_and_do_nothing_else(server: GuardedS3, terms: PushTerms) -> None:
    pusher = open_session(server.url, Fixed(issued(server, terms)))
    pusher.put(OWN, b"mine")
    pusher.put(f"{seeds_prefix(T)}00000000000000000001/000001.seg", b"mine")
    assert leaks(server, pusher) == []
    assert open_store(server.url).get(OWN) == b"mine"


@pytest.mark.parametrize(
    ("action", "resource", "noticed"),
    [
        ("", lambda _: "*", {f"put {key}" for key in FOREIGN}),
        ("s3:*", lambda resource: resource, {"get", "delete"}),
        (
            "",
            lambda resource: [r.removesuffix("/*") + "*" for r in resource],
            {f"put {FOREIGN[0]}", f"put {FOREIGN[2]}"},
        ),
    ],
    ids=["all resources", "all actions", "no slash"],
)
def test_a_policy_that_is_too_wide_is_noticed(
    server: GuardedS3,
    terms: PushTerms,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    resource: Callable[[Any], Any],
    noticed: set[str],
) -> None:
    def widened(*_: object) -> str:
        policy = json.loads(session_policy(terms, T))
        puts = policy["Statement"][0]
        puts |= {"Action": action or puts["Action"], "Resource": resource(puts["Resource"])}
        return json.dumps(policy, separators=(",", ":"))

    monkeypatch.setattr(push_access, "session_policy", widened)
    assert set(leaks(server, open_session(server.url, Fixed(issued(server, terms))))) == noticed


def test_a_role_that_the_service_may_not_take_is_named_to_nobody(server: GuardedS3, terms: PushTerms) -> None:
    absent = replace(terms, role_arn=terms.role_arn + "-absent")
    with pytest.raises(CredentialsUnavailable, match="for tenant 1/1 could not be issued: STS answered") as caught:
        issuer_of(server, absent).issue(T)
    assert "absent" not in str(caught.value)


def test_puts_ask_for_the_key(server: GuardedS3, terms: PushTerms, monkeypatch: pytest.MonkeyPatch) -> None:
    arn = server.client("kms").create_key()["KeyMetadata"]["Arn"]
    keyed = replace(terms, kms_key_arn=arn)

    def without_the_name(*_: object) -> str:
        policy = json.loads(session_policy(keyed, T))
        conditions = policy["Statement"][0]["Condition"]["StringEquals"]
        assert conditions.pop("s3:x-amz-server-side-encryption-aws-kms-key-id") == arn
        return json.dumps(policy, separators=(",", ":"))

    monkeypatch.setattr(push_access, "session_policy", without_the_name)
    session, key = issued(server, keyed), f"{buffer_prefix(T)}store-2/000001/file-000000000001.seg"
    with pytest.raises(StoreRefused, match="AccessDenied"):
        open_session(server.url, Fixed(session)).put(key, b"plain")
    open_session(server.url, Fixed(session, arn)).put(key, b"encrypted")
    head = server.client("s3").head_object(Bucket=BUCKET, Key=f"{FOLDER}/{key}")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", arn)


@pytest.fixture
def control(server: GuardedS3, terms: PushTerms, tmp_path: Path) -> Iterator[HttpControl]:
    """The control plane behind a port, as a pusher of the tenant has it."""
    catalog = new_catalog(tmp_path)
    register_tenant(catalog, T)
    app = control_app(catalog, server.url, store=open_store(server.url), issuer=issuer_of(server, terms))
    http = HttpServer(app, "127.0.0.1", 0)
    http.start()
    new_control = HttpControl(http.url, T)
    yield new_control
    new_control.close()
    http.stop()
    catalog.close()


class Counted:
    """A control plane whose credentials the test may spoil."""

    def __init__(self, control: HttpControl, given: PushCredentials | None = None) -> None:
        self._control, self._given, self.asked = control, given, 0
        self.spoil: Callable[[PushCredentials], PushCredentials] = lambda credentials: credentials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    def push_credentials(self) -> PushCredentials:
        self.asked += 1
        return self.spoil(self._given or self._control.push_credentials())


def test_a_lost_reply_is_settled_by_the_control_plane(server: GuardedS3, control: HttpControl) -> None:
    store, key = TenantStore(server.url, control), f"{buffer_prefix(T)}store-3/000001/file-000000000001.seg"
    for _ in range(2):
        store.put(key, b"the same write")
    with pytest.raises(ObjectConflict):
        store.put(key, b"another one's")
    assert control.compare(f"{key}x", 1, "0" * 64) == "nothing"
    assert control.push_bundle().session
    assert control.has_session


def test_the_schema_of_a_tenant_is_read_through_the_control_plane(server: GuardedS3, control: HttpControl) -> None:
    store = TenantStore(server.url, control)
    packed = {ts: zstandard.ZstdCompressor().compress(b"schema of %d" % ts) for ts in (20, 10)}
    for ts, data in packed.items():
        store.put(str(SchemaSnapKey(tenant=T, ts=ts)), data)
    objects = list(store.list(f"{buffer_prefix(T)}schema_snap/"))
    sizes = [("0010.json.zst", len(packed[10])), ("0020.json.zst", len(packed[20]))]
    assert [(info.key[-13:], info.size) for info in objects] == sizes
    assert store.get(objects[1].key) == packed[20]


def test_wrong_credentials_are_reported_and_replaced(server: GuardedS3, control: HttpControl) -> None:
    clock, counted = ManualClock(), Counted(control)
    store = TenantStore(server.url, counted, clock)

    def put(n: int) -> None:
        store.put(f"{buffer_prefix(T)}store-4/000001/file-{n:012d}.seg", b"x")

    def spoiled(credentials: PushCredentials) -> PushCredentials:
        return replace(credentials, session=replace(credentials.session, session_token="stale"))

    counted.spoil = spoiled
    for _ in range(2):
        with pytest.raises(StoreRefused, match=r"a put of tenant 1/1 .* for data_change_buffer/cluster-1/tenant-1/"):
            put(1)
    assert counted.asked == 1, "new ones that are refused are not asked for again at once"
    clock.advance(60)
    counted.spoil = lambda credentials: credentials
    with pytest.raises(StoreRefused, match="InvalidToken"):
        put(1)
    put(1)
    assert counted.asked == 2
    clock.advance(890)
    put(2)
    assert counted.asked == 3, "old ones are renewed before they expire"


def test_expired_credentials_name_tenant_and_folder(server: GuardedS3, control: HttpControl, terms: PushTerms) -> None:
    sts = server.client("sts", parameter_validation=False)  # S3 itself gives none for less than 15 minutes
    wishes = {"RoleArn": terms.role_arn, "RoleSessionName": "short", "Policy": session_policy(terms, T)}
    keys = sts.assume_role(**wishes, DurationSeconds=1)["Credentials"]
    session = SessionCredentials(
        access_key_id=keys["AccessKeyId"], secret_access_key=keys["SecretAccessKey"], session_token=keys["SessionToken"]
    )
    given = PushCredentials(session=session, valid_s=900, kms_key_arn="")
    counted, n = Counted(control, given), iter(range(1, 10_000))
    store = TenantStore(server.url, counted)
    deadline = time.monotonic() + 60

    def put_until_it_fails() -> None:
        while time.monotonic() < deadline:
            store.put(f"{buffer_prefix(T)}store-5/000001/file-{next(n):012d}.seg", b"x")
            time.sleep(0.05)

    with pytest.raises(StoreRefused, match=r"put of tenant 1/1 .*tenant-1/ and its seeds: .*ExpiredToken"):
        put_until_it_fails()


def test_the_route_keeps_and_shows_nothing(server: GuardedS3, terms: PushTerms, tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    register_tenant(catalog, T)
    path, key = "/v1/clusters/1/tenants/1/push-credentials", {"Idempotency-Key": "once"}
    app = control_app(catalog, server.url, store=open_store(server.url), issuer=issuer_of(server, terms))
    with TestClient(app) as http:
        first, second = (http.post(path, headers=key) for _ in range(2))
        for answer in (first, second):
            assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
            assert answer.json()["valid_s"] == 900
        assert first.json()["access_key_id"] != second.json()["access_key_id"]
        assert "Idempotent-Replayed" not in second.headers
    catalog.close()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert first.json()["secret_access_key"].encode() not in files
    assert os.environ["AWS_ACCESS_KEY_ID"] == ROOT["AWS_ACCESS_KEY_ID"]
