"""`tistream doctor` checks a cluster, a catalog and a bucket, and says what is wrong with each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from pusher.tikv.checks import check_cluster
from simulator.chaos.servers.durable_s3 import DurableS3
from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.s3server import CREDENTIALS, S3Server
from simulator.core.mvcc import Version
from simulator.serve.content import cluster_of, recorded_cluster
from simulator.serve.served import ServedCluster
from tests.kit.s3_doubles import ROOT, GuardedS3, careless_s3, guarded_s3
from tistream.catalog.database.checks import check_catalog
from tistream.catalog.database.compatibility import demand
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import MIGRATIONS, Migrations
from tistream.cli.main import command_line
from tistream.clock import SystemClock
from tistream.codec.memcomparable import encode_bytes
from tistream.diagnostics.findings import Finding, Severity
from tistream.model.change import Op
from tistream.objectstore.factory import open_store
from tistream.release import Release
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.ranges import whole_cluster
from tistream.tikv.pd import PdClient

RECORDING = Path(str(files("simulator") / "recording"))
S = 470613530891255808


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    with ServedCluster(recorded_cluster(RECORDING, floor_ts=S, regions=12)) as cluster:
        yield cluster


def look(served: ServedCluster) -> dict[str, Finding]:
    pd = PdClient([served.pd_address], patience_s=1.0)
    try:
        return {f.name: f for f in check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())}
    finally:
        pd.close()


def test_a_cluster_that_is_well(served: ServedCluster) -> None:
    checks = look(served)
    assert {f.verdict for f in checks.values()} == {Severity.OK}, checks
    assert list(checks) == [
        *("pd", "clock", "stores", "store 1", "store 2", "store 3"),
        *("regions", "history", "api version", "read", "locks", "estimate"),
    ]
    assert checks["regions"].facts["regions"] == 12
    assert sum(checks["regions"].facts["leaders"].values()) == 12  # type: ignore[attr-defined]
    assert checks["api version"].facts == {"api_version": "V1"}
    assert checks["history"].facts["safe_point"] == str(S)
    assert checks["estimate"].facts["files_per_month"] == 3 * 30 * 86_400


def test_a_store_that_cannot_be_reached(served: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pusher.tikv.checks._CONNECT_S", 0.3)
    served.pd._store_addresses[2] = "127.0.0.1:1"  # type: ignore[index]
    checks = look(served)
    assert checks["store 2"].verdict is Severity.FAIL
    assert "127.0.0.1:1 cannot be reached" in checks["store 2"].words
    assert checks["store 1"].verdict is Severity.OK


def test_a_server_that_is_no_tikv(served: ServedCluster) -> None:
    served.pd._store_addresses[3] = served.pd_address  # type: ignore[index]
    check = look(served)["store 3"]
    assert check.verdict is Severity.FAIL
    assert "UNIMPLEMENTED" in check.words


def test_a_cluster_without_tidb() -> None:
    with ServedCluster(cluster_of([], floor_ts=S), api=Api.V2) as served:
        checks = look(served)
    assert checks["read"].verdict is Severity.WARN, "a raw or txn tenant needs none"
    assert "no TiDB" in checks["read"].words
    assert checks["api version"].facts == {"api_version": "V2"}
    assert "RawDeleteRange is invisible" in checks["api version"].words


def test_a_server_with_data_of_raw_keys_only_is_refused_with_the_way_out(served: ServedCluster) -> None:
    with ServedCluster(cluster_of([], floor_ts=S), api=Api.V1TTL) as ttl:
        checks = look(ttl)
    assert checks["api version"].verdict is Severity.FAIL
    assert checks["api version"].facts == {"api_version": "V1TTL"}
    assert "RawKV data only" in checks["api version"].words
    assert "--dst-api-version v2" in checks["api version"].words
    assert "storage_api_version: V1ttl" in checks["read"].words


def test_the_command_gives_a_table_json_and_a_status(served: ServedCluster) -> None:
    runner = CliRunner()
    shown = runner.invoke(command_line(), ["doctor", "--pd", served.pd_address])
    assert shown.exit_code == 0
    assert "12 regions would be followed" in " ".join(shown.output.replace("│", " ").split())
    checks = json.loads(runner.invoke(command_line(), ["doctor", "--pd", served.pd_address, "--json"]).output)["checks"]
    assert [c["verdict"] for c in checks] == ["ok"] * 12
    served.pd._store_addresses[3] = served.pd_address  # type: ignore[index]
    assert runner.invoke(command_line(), ["doctor", "--pd", served.pd_address, "--json"]).exit_code == 1


def test_pd_that_does_not_answer_ends_the_examination() -> None:
    pd = PdClient(["127.0.0.1:1"], patience_s=0.1)
    findings = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())
    pd.close()
    assert [(f.name, f.verdict) for f in findings] == [("pd", Severity.FAIL)]


def test_a_keyspace_is_looked_at_in_its_own_keys() -> None:
    prefix = b"x\0\0\7"
    version = Version(1, 2, Op.PUT, b"12", None)
    content = [(prefix + b"m" + encode_bytes(b"SchemaVersionKey") + b"\0" * 7 + b"s", version)]
    spaces = {"one": 7, "two": 8}
    with ServedCluster(cluster_of(content, floor_ts=S), keyspaces=spaces, api=Api.V2) as served:
        pd = PdClient([served.pd_address])
        verdicts_of = {}
        for name in ("one", "two", "three"):
            findings = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock(), keyspace=name)
            verdicts_of[name] = {f.name: f.verdict for f in findings if f.name in ("keyspace", "regions", "read")}
        pd.close()
    ok, fail = Severity.OK, Severity.FAIL
    assert verdicts_of["one"] == {"keyspace": ok, "regions": ok, "read": ok}
    assert verdicts_of["two"] == {"keyspace": ok, "regions": ok, "read": Severity.WARN}  # it may be of RawKV
    assert verdicts_of["three"] == {"keyspace": fail}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--pd", "a:1", "--recording", "x"], "give one of"),
        (["--pd", " , "], "at least one PD server"),
        (["--pd", "a:1", "--cert-path", "x"], "belong together"),
        (["--pd", "a:1", "--ca-path", "/nowhere"], "cannot be read"),
    ],
)
def test_options_that_cannot_be(args: list[str], words: str) -> None:
    assert words in str(CliRunner().invoke(command_line(), ["push", *args]).exception)


OK, WARN, FAIL = Severity.OK, Severity.WARN, Severity.FAIL
STORE = ["object store", "put", "create if absent", "one winner", "read after write", "range", "list", "store clock"]


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db"
    else:
        with mariadb() as server:
            yield new_database(server, "doctor")


def verdicts(findings: list[Finding]) -> dict[str, Severity]:
    return {finding.name: finding.verdict for finding in findings}


def write_revision(url: str, revision: str) -> None:
    catalog = Catalog(url)
    with catalog.transaction() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})
    catalog.close()


def demanded(url: str, lowest: str, *, by: str) -> None:
    catalog = Catalog(url)
    with catalog.transaction() as conn:
        demand(conn, by=Release.parse(by), lowest=Release.parse(lowest))
    catalog.close()


def test_a_catalog_before_and_after_its_migrations(url: str) -> None:
    if url.startswith("sqlite"):
        assert verdicts(check_catalog(url, SystemClock())) == {"catalog": FAIL}
        file = Path(url.removeprefix("sqlite:///"))
        assert not file.exists(), "looking makes nothing"
        file.touch()
    before = check_catalog(url, SystemClock())
    settings = {"durability": OK} if url.startswith("sqlite") else {"durability": OK, "fail-over": OK}
    assert verdicts(before) == {"catalog": OK, "isolation": OK, "catalog clock": OK, **settings, "migrations": WARN}
    catalog = Catalog(url)
    catalog.migrate()
    catalog.close()
    findings = check_catalog(url, SystemClock())
    well = {"catalog": OK, "isolation": OK, "catalog clock": OK, **settings, "migrations": OK, "catalog writes": OK}
    assert verdicts(findings) == well
    assert findings[-2].facts == {"found": MIGRATIONS.newest, "newest": MIGRATIONS.newest}
    write_revision(url, "0000")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Migrations, "revisions", frozenset({"0000", MIGRATIONS.newest}))
        assert verdicts(check_catalog(url, SystemClock())) == {**well, "migrations": WARN}, "of an earlier release"
    write_revision(url, "9999")
    assert verdicts(check_catalog(url, SystemClock())) == well, "a later release that allows this one"
    demanded(url, "8.0.0", by="9.0.0")
    refused = check_catalog(url, SystemClock())
    assert verdicts(refused) == {**well, "migrations": FAIL}
    assert "Start 8.0.0 or later" in refused[-2].words


def test_a_catalog_that_is_away() -> None:
    findings = check_catalog("mysql+pymysql://user:secret-word@127.0.0.1:1/tistream", SystemClock())
    assert verdicts(findings) == {"catalog": FAIL}
    assert "secret-word" not in findings[0].words


def doctor(*args: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status, and the checks by name."""
    done = CliRunner().invoke(command_line(), ["doctor", *args, "--json"])
    return done.exit_code, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableS3]:
    server = DurableS3(tmp_path_factory.mktemp("plain"))
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        server.server.create_bucket("careless")
        yield server
    server.kill()


def test_a_store_that_ignores_create_if_absent_is_refused(plain: DurableS3) -> None:
    with careless_s3(plain.server.endpoint) as endpoint:
        status, checks = doctor("--object-store", S3Server(endpoint=endpoint).url("careless", "prefix"))
    assert status == 1
    refused = {name: check for name, check in checks.items() if check["verdict"] == "fail"}
    assert set(refused) == {"create if absent", "one winner"}, checks
    assert "ignores If-None-Match (expected 412)" in refused["create if absent"]["words"]
    assert refused["one winner"]["facts"]["winners"] > 1
    assert [*open_store(plain.server.url("careless", "prefix")).list("")] == [], "all of it was removed"


def test_a_bucket_that_is_not_there(plain: DurableS3) -> None:
    status, checks = doctor("--object-store", plain.server.url("absent"))
    assert (status, list(checks), checks["object store"]["verdict"]) == (1, ["object store"], "fail")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedS3]:
    with pytest.MonkeyPatch.context() as patch, guarded_s3(tmp_path_factory.mktemp("s3")) as new_store:
        for name, value in ROOT.items():
            patch.setenv(name, value)
        yield new_store


def test_a_good_store_and_the_pushers_role(guarded: GuardedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = guarded.make_role("doctors", [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}])
    monkeypatch.setenv("TISTREAM_PUSH_STS_ENDPOINT", guarded.endpoint)
    config = tmp_path / "tistream.toml"
    config.write_text(f'[object_store]\nurl = "{guarded.url}"\n[push]\nrole_arn = "{role}"\n')
    status, checks = doctor("--config", str(config))
    assert {name: check["verdict"] for name, check in checks.items()} == dict.fromkeys(
        [*STORE, "delete", "push credentials"], "ok"
    )
    assert status == 0
    assert [*open_store(guarded.url).list("doctor/")] == []
    monkeypatch.setenv("TISTREAM_PUSH_ROLE_ARN", f"{role}-absent")
    status, checks = doctor("--config", str(config))
    assert (status, checks["push credentials"]["verdict"]) == (1, "fail")


def test_credentials_that_the_store_refuses(guarded: GuardedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    role = guarded.make_role("writers", [{"Effect": "Allow", "Action": "s3:PutObject", "Resource": "*"}])
    credentials = guarded.client("sts").assume_role(RoleArn=role, RoleSessionName="doctor")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", credentials["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", credentials["SessionToken"])
    status, checks = doctor("--object-store", guarded.url)
    assert (status, list(checks)) == (1, ["object store"])
    assert "the store refused" in checks["object store"]["words"]


def test_nothing_to_look_at(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    failed = CliRunner().invoke(command_line(), ["doctor", "--config", str(tmp_path / "empty.toml")])
    assert "Say what to check" in str(failed.exception)
