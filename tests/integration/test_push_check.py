"""`tistream push --check`: what is well, and what each thing that is not looks like; and that nothing stays behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from apiserver.control import push_access
from apiserver.control.push import drop_probes
from apiserver.control.push_access import CredentialIssuer
from apiserver.control.push_policy import PushTerms, session_policy
from pusher.control import HttpControl
from simulator.chaos.servers.s3server import REGION, S3Server
from tests.kit.control_app import control_app
from tests.kit.s3_doubles import BUCKET, FOLDER, ROOT, GuardedS3, careless_s3, guarded_s3
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.tenants import NewTask, TaskKind, TenantState
from tistream.catalog.tenancy import tenants
from tistream.catalog.work.deletion import delete_tenant
from tistream.cli.main import command_line
from tistream.cli.server import HttpServer
from tistream.errors import CredentialsUnavailable
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.factory import open_store
from tistream.objectstore.layout import ProbeKey, buffer_prefix, foreign_probe
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectStore

T = Tenant(1, 1)
RECORDING = str(files("simulator") / "recording")
ALL = ["control plane", "key", "tenant", "credentials", "put", "the service sees it", "create if absent"]
ALL += ["a neighbour's folder", "removed"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedS3]:
    with pytest.MonkeyPatch.context() as patch, guarded_s3(tmp_path_factory.mktemp("s3")) as new_server:
        for name, value in ROOT.items():
            patch.setenv(name, value)
        yield new_server


@pytest.fixture(scope="module")
def terms(server: GuardedS3) -> PushTerms:
    role = server.make_role("pusher", [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}])
    return PushTerms(bucket=BUCKET, prefix=FOLDER, role_arn=role)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not a control plane that does not answer."""
    monkeypatch.setattr(HttpControl, "timeout_s", 60.0)


@pytest.fixture
def catalog(catalog: Catalog) -> Catalog:
    tenants.register_tenant(catalog, T)
    return catalog


@contextmanager
def control_plane(
    catalog: Catalog, store_url: str, store: ObjectStore, issuer: CredentialIssuer | None = None
) -> Iterator[str]:
    """The address of a control plane that names the bucket `store_url` and looks into `store` itself."""
    http = HttpServer(control_app(catalog, store_url, store=store, issuer=issuer), "127.0.0.1", 0)
    http.start()
    try:
        yield http.url
    finally:
        http.stop()


def issuer_of(server: GuardedS3, terms: PushTerms) -> CredentialIssuer:
    return CredentialIssuer(terms, duration_s=900, endpoint=server.endpoint, region=REGION)


def look(url: str, *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status, and the checks by name."""
    done = CliRunner().invoke(command_line(), ["push", "--check", "-c", "1", "-t", "1", "--url", url, "--json", *more])
    return done.exit_code, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def not_ok(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: check["verdict"] for name, check in checks.items() if check["verdict"] != "ok"}


def test_session_credentials_that_keep_to_their_folder(server: GuardedS3, terms: PushTerms, catalog: Catalog) -> None:
    bucket = open_store(server.url)
    with control_plane(catalog, server.url, bucket, issuer_of(server, terms)) as url:
        status, checks = look(url, "--capture", RECORDING)
    assert (status, list(checks), not_ok(checks)) == (0, [*ALL, "recording"], {})
    assert checks["credentials"]["facts"]["valid_s"] == 900
    assert checks["a neighbour's folder"]["facts"] == {"refused": True}
    assert "tenant-10/" in checks["a neighbour's folder"]["words"]
    assert [*bucket.list("")] == []


def test_wide_credentials(
    server: GuardedS3, terms: PushTerms, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_slash(*_: object) -> str:
        policy = json.loads(session_policy(terms, T))
        puts = policy["Statement"][0]
        puts["Resource"] = [resource.removesuffix("/*") + "*" for resource in puts["Resource"]]
        return json.dumps(policy, separators=(",", ":"))

    monkeypatch.setattr(push_access, "session_policy", without_the_slash)
    bucket = open_store(server.url)
    with control_plane(catalog, server.url, bucket, issuer_of(server, terms)) as url:
        status, checks = look(url)
    assert (status, not_ok(checks)) == (1, {"a neighbour's folder": "fail"})
    assert [*bucket.list("")] == [], "what was let through was removed"


def test_own_credentials_and_a_role_it_cannot_assume(server: GuardedS3, terms: PushTerms, catalog: Catalog) -> None:
    bucket = open_store(server.url)
    with control_plane(catalog, server.url, bucket) as url:
        status, checks = look(url)
    assert (status, not_ok(checks)) == (0, {"a neighbour's folder": "warn"})
    assert "push.role_arn" in checks["a neighbour's folder"]["words"]
    assert [*bucket.list("")] == []
    absent = PushTerms(bucket=BUCKET, prefix=FOLDER, role_arn=f"{terms.role_arn}-absent")
    with control_plane(catalog, server.url, bucket, issuer_of(server, absent)) as url:
        status, checks = look(url)
    assert (status, list(checks)[-1], not_ok(checks)) == (1, "credentials", {"credentials": "fail"})


def test_an_issuer_uses_the_credentials_of_now(
    server: GuardedS3, terms: PushTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credentials that another client of this process used before are not kept."""
    with monkeypatch.context() as another:
        another.setenv("AWS_ACCESS_KEY_ID", "nobodys")
        with pytest.raises(CredentialsUnavailable):
            issuer_of(server, terms).issue(T)
    assert issuer_of(server, terms).issue(T).session_token


def test_another_bucket_than_the_services(server: GuardedS3, catalog: Catalog) -> None:
    bucket = open_store(server.url)
    with control_plane(catalog, server.url, MemoryStore()) as url:
        status, checks = look(url)
    assert (status, list(checks)[-1], not_ok(checks)) == (1, "the service sees it", {"the service sees it": "fail"})
    (left,) = [info.key for info in bucket.list("")]
    assert left in checks["the service sees it"]["words"]
    bucket.delete(left)


def test_a_store_that_ignores_create_if_absent(server: GuardedS3, catalog: Catalog, tmp_path: Path) -> None:
    with careless_s3(server.endpoint) as endpoint:
        careless = S3Server(endpoint=endpoint).url(BUCKET, FOLDER)
        with control_plane(catalog, careless, open_store(server.url)) as url:
            checks = look(url)[1]
    assert checks["create if absent"]["verdict"] == "fail"


def activate(catalog: Catalog) -> None:
    tenants.activate_tenant(catalog, T, 5, [NewTask(kind=TaskKind.DATA, range=KeyRange(b"t", b"u"))])


def pause(catalog: Catalog) -> None:
    activate(catalog)
    tenants.change_state(catalog, T, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="", actor="ann")


@pytest.mark.parametrize(("prepare", "verdict"), [(activate, "ok"), (pause, "warn")])
def test_states_and_folder(catalog: Catalog, tmp_path: Path, prepare: Callable[[Catalog], None], verdict: str) -> None:
    prepare(catalog)
    store_url = f"file://{tmp_path}/bucket"
    store = open_store(store_url)
    with control_plane(catalog, store_url, store) as url:
        status, checks = look(url)
    assert (status, checks["tenant"]["verdict"]) == (0, verdict)
    assert not_ok({name: check for name, check in checks.items() if name != "tenant"}) == {}
    assert [*store.list("")] == []


def test_a_folder_that_is_not_here_is_not_made(catalog: Catalog, tmp_path: Path) -> None:
    with control_plane(catalog, f"file://{tmp_path}/elsewhere", MemoryStore()) as url:
        status, checks = look(url)
    assert (status, not_ok(checks)) == (1, {"credentials": "fail"})
    assert not (tmp_path / "elsewhere").exists()


def test_nobody_answers_and_a_tenant_that_is_nobodys(catalog: Catalog) -> None:
    status, checks = look("http://127.0.0.1:1")
    assert (status, not_ok(checks)) == (1, {"control plane": "fail"})
    with control_plane(catalog, "memory://", MemoryStore()) as url:
        checks = look(url, "-t", "7")[1]
        assert list(checks) == ["control plane"]
        assert "is not registered" in checks["control plane"]["words"]
        activate(catalog)
        delete_tenant(catalog, T, seen=TenantState.ACTIVE)
        status, checks = look(url)
    assert (status, checks[list(checks)[-1]]["verdict"]) == (1, "fail")


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [("--capture", "recording", "lacks a file"), ("--log-backup", "log backup", "no log backup has written")],
)
def test_sources_that_are_not_there(catalog: Catalog, tmp_path: Path, option: str, name: str, words: str) -> None:
    store_url, empty = f"file://{tmp_path}/bucket", tmp_path / "empty"
    store = open_store(store_url)
    empty.mkdir()
    with control_plane(catalog, store_url, store) as url:
        status, checks = look(url, option, str(empty) if option == "--capture" else f"file://{empty}")
    assert (status, not_ok(checks)) == (1, {name: "fail"})
    assert words in checks[name]["words"]


def test_forgotten_probes_go_with_the_next_check() -> None:
    store = MemoryStore()
    keys = [f"{buffer_prefix(T)}store-1/000001/file-000000000001.seg", str(ProbeKey(tenant=Tenant(1, 2), name="a"))]
    for key in [
        *keys,
        str(ProbeKey(tenant=T, name="a")),
        str(ProbeKey(tenant=T, name="b")),
        str(foreign_probe(T, "b")),
    ]:
        store.put(key, b"x")
    now_ms = next(store.list("")).modified_ms
    drop_probes(store, T, "b", now_ms + 3_599_000)
    assert {info.key for info in store.list("")} == {*keys, str(ProbeKey(tenant=T, name="a"))}
    drop_probes(store, T, "c", now_ms + 3_700_000)
    assert {info.key for info in store.list("")} == set(keys)


def test_the_folder_of_a_spill(catalog: Catalog, tmp_path: Path) -> None:
    """One that can be used, one that is no folder, one on a disk that is too small; nothing stays behind."""
    no_folder, new = tmp_path / "file", tmp_path / "new" / "spill"
    no_folder.write_bytes(b"")
    store = open_store((tmp_path / "bucket").as_uri())
    with control_plane(catalog, (tmp_path / "bucket").as_uri(), store) as url:
        checks = [look(url, "--spill", str(new))[1]["spill"]]
        checks += [look(url, "--spill", str(no_folder))[1]["spill"]]
        checks += [look(url, "--spill", str(tmp_path), "--spill-mib", str(1 << 30))[1]["spill"]]
    assert [check["verdict"] for check in checks] == ["ok", "fail", "warn"]
    assert str(no_folder) in checks[1]["words"]
    assert "--spill-mib" in checks[2]["words"]
    assert not new.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("check-")]
