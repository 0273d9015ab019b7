"""Consumers, safe points, retention and the audit from the command line and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from metaserver.loop import MetaOptions, MetaWorker
from tests.kit.catalog_cases import EDGE, OTHER, START, T, grown_log
from tests.kit.control_app import control_app
from tests.kit.manual_clock import ManualClock
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.retention import raise_floor
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.cli.main import command_line
from tistream.cli.server import HttpServer
from tistream.errors import TiStreamError
from tistream.objectstore.local import LocalStore

BASE = "/v1/clusters/7/tenants/0"
ME = ["-c", "7", "-t", "0"]


@pytest.fixture
def catalog(catalog: Catalog) -> Catalog:
    grown_log(catalog)
    return catalog


@pytest.fixture
def http(catalog: Catalog) -> Iterator[TestClient]:
    with TestClient(control_app(catalog, "memory://")) as client:
        yield client


@pytest.fixture
def url(catalog: Catalog) -> Iterator[str]:
    server = HttpServer(control_app(catalog, "memory://"), "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop()


def run(*words: str, url: str) -> Any:
    shown = ["--json"] if words[0] == "consumer" and words[1] not in ("list", "remove") else []
    done = CliRunner().invoke(command_line(), [*words, *ME, "--url", url, *shown], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout


def test_a_consumers_life(url: str) -> None:
    made = run(
        "consumer", "create", "ware", "--tables", "shop.*", "--partitions", "2", "--target-ts", str(EDGE), url=url
    )
    assert (made["state"], made["checkpoint_ts"]) == ("finished", str(EDGE)), "it begins at what is served"
    assert (made["filters"], len(made["partitions"])) == ({"tables": "shop.*"}, 2)
    run("consumer", "remove", "ware", url=url)
    made = run("consumer", "create", "ware", "--start-ts", str(START + 5), url=url)
    assert (made["state"], made["start_ts"], made["filters"], made["idle_limit_s"]) == (
        "normal",
        str(START + 5),
        {},
        720 * 3600,
    )
    assert run("consumer", "checkpoint", "ware", str(START + 9), url=url)["checkpoint_ts"] == str(START + 9)
    with pytest.raises(TiStreamError, match="cannot move back"):
        run("consumer", "checkpoint", "ware", str(START + 8), url=url)
    assert run("consumer", "pause", "ware", url=url)["state"] == "stopped"
    assert run("consumer", "resume", "ware", url=url)["state"] == "normal"
    assert run("consumer", "query", "ware", url=url)["checkpoint_ts"] == str(START + 9)
    headings, row = run("consumer", "list", url=url).splitlines()
    assert headings.split()[:3] == ["consumer", "state", "checkpoint_ts"]
    assert row.split()[:3] == ["ware", "normal", str(START + 9)]
    assert run("consumer", "list", "--json", url=url)["items"][0]["consumer_id"] == "ware"
    run("consumer", "remove", "ware", url=url)
    assert run("consumer", "list", url=url) == "no consumer\n"


def test_a_request_that_is_repeated_changes_nothing(http: TestClient) -> None:
    for status in (201, 200):
        answer = http.post(f"{BASE}/consumers", json={"consumer_id": "a"})
        assert (answer.status_code, answer.json()["start_ts"]) == (status, str(EDGE))
    assert http.post(f"{BASE}/consumers", json={"consumer_id": "b", "start_ts": "earliest"}).json()["start_ts"] == str(
        START
    )
    for _ in range(2):
        assert http.delete(f"{BASE}/consumers/a").status_code == 204
    assert [row["consumer_id"] for row in http.get(f"{BASE}/consumers").json()["items"]] == ["b"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"consumer_id": "a", "start_ts": str(START - 1)}, 410),
        ({"consumer_id": "a", "start_ts": "9" * 19}, 400),
        ({"consumer_id": "a", "start_ts": "now"}, 400),
        ({"consumer_id": "a/b"}, 400),
        ({"consumer_id": "a", "start_ts": str(START + 9), "target_ts": str(START + 8)}, 400),
        ({}, 400),
    ],
)
def test_a_consumer_that_cannot_be(http: TestClient, body: dict[str, str], status: int) -> None:
    assert http.post(f"{BASE}/consumers", json=body).status_code == status
    assert http.get(f"{BASE}/consumers").json() == {"items": []}


def test_checkpoints_over_http(http: TestClient) -> None:
    http.post(f"{BASE}/consumers", json={"consumer_id": "a", "start_ts": str(START + 5)})
    for ts, status in ((START + 7, 200), (START + 7, 200), (START + 6, 409), (EDGE + 1, 400), ("x", 400)):
        assert http.patch(f"{BASE}/consumers/a", json={"checkpoint_ts": str(ts)}).status_code == status
    assert http.patch(f"{BASE}/consumers/b", json={"checkpoint_ts": str(EDGE)}).status_code == 404
    assert http.post(f"{BASE}/consumers/b:pause").status_code == 404


def test_a_tenant_without_a_log_has_no_consumers_and_no_safe_point(http: TestClient, catalog: Catalog) -> None:
    register_tenant(catalog, OTHER)
    other = "/v1/clusters/7/tenants/1"
    assert http.post(f"{other}/consumers", json={"consumer_id": "a"}).status_code == 400
    assert http.get(f"{other}/safe-point").json()["safe_ts"] is None
    assert http.get("/v1/clusters/7/tenants/9/safe-point").status_code == 404


def test_the_upstream_keeps_what_is_above_the_frontier_and_above_each_service(http: TestClient) -> None:
    assert http.get(f"{BASE}/safe-point").json() == {
        "safe_ts": str(EDGE),
        "safe_time": tso.to_text(EDGE),
        "frontier_ts": str(EDGE),
        "services": [],
    }
    held = http.put(f"{BASE}/safe-point/backfill", json={"safe_ts": str(START + 3)}).json()
    assert held["safe_ts"] == str(START + 3)
    (service,) = held["services"]
    assert 86_000 < service["expires_in_s"] <= 86_400, "a day, unless said otherwise"
    assert http.put(f"{BASE}/safe-point/backfill", json={"safe_ts": "0", "ttl_s": 0}).json()["safe_ts"] == str(EDGE)
    assert http.put(f"{BASE}/safe-point/late", json={"safe_ts": str(START - 1)}).status_code == 410
    for _ in range(2):
        assert http.delete(f"{BASE}/safe-point/backfill").status_code == 204


def test_a_tenants_retention(url: str, catalog: Catalog) -> None:
    assert run("tenant", "retention", "--json", url=url) == {
        "retention_s": None,
        "policy_s": 0,
        "policy_ts": None,
        "policy_time": None,
        "earliest_ts": str(START),
        "earliest_time": tso.to_text(START),
        "holds": [],
        "holds_total": 0,
    }
    run("consumer", "create", "ware", "--start-ts", str(START + 5), url=url)
    found = run("tenant", "retention", "1.5", "--json", url=url)
    assert found["retention_s"] == 5400
    (hold,) = found["holds"]
    assert (hold["kind"], hold["name"], hold["by"]) == ("consumer", "ware", "consumer ware (normal)")
    assert (hold["holding"], hold["since_time"]) == (False, None), "the policy has not passed it yet"
    assert "tistream consumer remove ware" in hold["release"]
    table = run("tenant", "retention", url=url)
    assert "keeps 1.5 hours of its log. It begins" in table
    assert "consumer ware (normal)" in table
    assert "keeps 1 hour of its log. It begins" in run("tenant", "retention", "1", url=url)
    assert run("tenant", "retention", "0", "--json", url=url)["retention_s"] == 0
    assert get_tenant(catalog, T).retention_s == 0
    assert run("tenant", "retention", "--default", "--json", url=url)["retention_s"] is None


def test_a_retention_below_nothing_is_refused(http: TestClient) -> None:
    for seconds in (-1, "week", 1e10):
        assert http.patch(BASE, json={"retention_s": seconds}).status_code == 400


def test_an_audit_from_the_command_line(tmp_path: Path, catalog: Catalog) -> None:
    store = LocalStore(tmp_path / "bucket")
    where = ["audit", "--catalog", f"sqlite:///{tmp_path}/catalog.db", "--object-store", f"file://{tmp_path}/bucket"]
    bad = CliRunner().invoke(command_line(), [*where, "--json"])
    assert bad.exit_code == 1
    assert {fault["object"] for fault in json.loads(bad.stdout)[0]["faults"]} == {"f/1", "f/2"}
    with catalog.transaction() as conn:
        conn.execute(tables.segments.delete())
        conn.execute(tables.objects.delete())
    store.put("committed/cluster-7/tenant-0/s-000001/000000000001.seg", b"nobody's")
    good = CliRunner().invoke(command_line(), [*where, "--grace-s", "0", "--json"])
    assert (good.exit_code, json.loads(good.stdout)[0]["orphans"]) == (0, 1)


def test_the_owner_retires_and_audits(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who is not the owner does nothing; an audit is made once a day."""
    assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 20)
    clock = ManualClock()
    options = MetaOptions(retention_hours=0, audit_interval_s=3600)
    worker = MetaWorker(catalog, LocalStore(tmp_path / "bucket"), clock, "meta-1", options)
    worker.retain()
    worker.audit()
    with catalog.reading() as conn:
        assert len(conn.execute(tables.segments.select()).all()) == 4
    worker.assign()
    worker.retain()
    with catalog.reading() as conn:
        assert len(conn.execute(tables.segments.select()).all()) == 2
    worker.audit()
    assert worker.problems() == [], "it is not a day yet"
    clock.advance(3600)
    worker.audit()
    assert [problem.code for problem in worker.problems()] == ["TS-1077"]
