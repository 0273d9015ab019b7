"""What a service would start over, looked at: real catalogs, a real S3 server, and one that ignores If-None-Match."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from simulator.chaos.servers.durable_s3 import DurableS3
from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.s3server import CREDENTIALS, S3Server
from tests.kit.s3_doubles import ROOT, GuardedS3, careless_s3, guarded_s3
from tistream.catalog.database import checks
from tistream.catalog.database.checks import check_catalog
from tistream.catalog.database.engine import Catalog, newest_revision
from tistream.cli.main import command_line
from tistream.clock import SystemClock
from tistream.diagnostics.findings import Finding, Verdict
from tistream.objectstore.factory import open_store

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
STORE = ["object store", "put", "create if absent", "one winner", "read after write", "range", "list", "store clock"]


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db"
    else:
        with mariadb() as server:
            yield new_database(server, "doctor")


def verdicts(found: list[Finding]) -> dict[str, Verdict]:
    return {finding.name: finding.verdict for finding in found}


def write_revision(url: str, revision: str) -> None:
    catalog = Catalog(url)
    with catalog.transaction() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})
    catalog.close()


def test_a_catalog_before_and_after_its_migrations(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if url.startswith("sqlite"):
        assert verdicts(check_catalog(url, SystemClock())) == {"catalog": FAIL}
        file = Path(url.removeprefix("sqlite:///"))
        assert not file.exists(), "looking makes nothing"
        file.touch()
    before = check_catalog(url, SystemClock())
    assert verdicts(before) == {"catalog": OK, "isolation": OK, "catalog clock": OK, "migrations": WARN}
    catalog = Catalog(url)
    catalog.migrate()
    catalog.close()
    found = check_catalog(url, SystemClock())
    well = {"catalog": OK, "isolation": OK, "catalog clock": OK, "migrations": OK, "catalog writes": OK}
    assert verdicts(found) == well
    assert found[3].facts == {"found": newest_revision(), "newest": newest_revision()}
    write_revision(url, "9999")
    assert verdicts(check_catalog(url, SystemClock())) == {**well, "migrations": FAIL}
    write_revision(url, newest_revision())
    monkeypatch.setattr(checks, "newest_revision", lambda: "0002")
    assert verdicts(check_catalog(url, SystemClock())) == {**well, "migrations": WARN}


def test_a_catalog_that_is_away() -> None:
    found = check_catalog("mysql+pymysql://user:secret-word@127.0.0.1:1/tistream", SystemClock())
    assert verdicts(found) == {"catalog": FAIL}
    assert "secret-word" not in found[0].words


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
        status, found = doctor("--object-store", S3Server(endpoint=endpoint).url("careless", "prefix"))
    assert status == 1
    refused = {name: check for name, check in found.items() if check["verdict"] == "fail"}
    assert set(refused) == {"create if absent", "one winner"}, found
    assert "ignores If-None-Match (expected 412)" in refused["create if absent"]["words"]
    assert refused["one winner"]["facts"]["winners"] > 1
    assert [*open_store(plain.server.url("careless", "prefix")).list("")] == [], "all of it was removed"


def test_a_bucket_that_is_not_there(plain: DurableS3) -> None:
    status, found = doctor("--object-store", plain.server.url("absent"))
    assert (status, list(found), found["object store"]["verdict"]) == (1, ["object store"], "fail")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedS3]:
    with pytest.MonkeyPatch.context() as patch, guarded_s3(tmp_path_factory.mktemp("s3")) as made:
        for name, value in ROOT.items():
            patch.setenv(name, value)
        yield made


def test_a_good_store_and_the_pushers_role(guarded: GuardedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = guarded.make_role("doctors", [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}])
    monkeypatch.setenv("TISTREAM_PUSH_STS_ENDPOINT", guarded.endpoint)
    config = tmp_path / "tistream.toml"
    config.write_text(f'[object_store]\nurl = "{guarded.url}"\n[push]\nrole_arn = "{role}"\n')
    status, found = doctor("--config", str(config))
    assert {name: check["verdict"] for name, check in found.items()} == dict.fromkeys(
        [*STORE, "delete", "push credentials"], "ok"
    )
    assert status == 0
    assert [*open_store(guarded.url).list("doctor/")] == []
    monkeypatch.setenv("TISTREAM_PUSH_ROLE_ARN", f"{role}-absent")
    status, found = doctor("--config", str(config))
    assert (status, found["push credentials"]["verdict"]) == (1, "fail")


def test_credentials_that_the_store_refuses(guarded: GuardedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    role = guarded.make_role("writers", [{"Effect": "Allow", "Action": "s3:PutObject", "Resource": "*"}])
    made = guarded.client("sts").assume_role(RoleArn=role, RoleSessionName="doctor")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", made["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", made["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", made["SessionToken"])
    status, found = doctor("--object-store", guarded.url)
    assert (status, list(found)) == (1, ["object store"])
    assert "the store refused" in found["object store"]["words"]


def test_nothing_to_look_at(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    failed = CliRunner().invoke(command_line(), ["doctor", "--config", str(tmp_path / "empty.toml")])
    assert "Say what to check" in str(failed.exception)
