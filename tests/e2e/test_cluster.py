"""A process per role on MariaDB and an S3 server, with API keys: one address, that of the API server, does everything,
with the same answers as in one process. The feed is encrypted with certificates of both sides, and the service token is
replaced every two seconds."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import (
    TiStreamProcess,
    client,
    owner_key,
    pull_all,
    register,
    running,
    wait_until_ready,
)
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.kit.certificates import feed_tls
from tests.kit.replica import compare
from tests.kit.ticdc import CANAL, compare_canal
from tests.kit.waiting import eventually

SECRET = re.compile(r"tsk_[a-z2-7]{13}_[a-z2-7]{46}|ts[ls]_[a-z2-7]{39}")  #: a key, a login code, a session
TENANT = "/v1/clusters/1/tenants/1"


def test_separate_processes_and_a_sorter_killed_on_the_way(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mariadb() as database, s3_server() as s3:
        s3.create_bucket("tistream")
        where = ("--catalog", new_database(database, "e2e"), "--object-store", s3.url("tistream", "e2e"))
        probes, url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        settings = {**CREDENTIALS, "TISTREAM_SERVER_AUTH": "keys"}

        def process(name: str, *args: str, **env: str) -> TiStreamProcess:
            return TiStreamProcess(*args, log=tmp_path / f"{name}.log", env={**settings, **env})

        rotation = {"TISTREAM_META_SERVICE_TOKEN_HOURS": str(2 / 3600)}
        meta = process(
            "meta", "meta", "--name", "meta-1", "--metrics-port", probes.rpartition(":")[2], *where, **rotation
        )
        api = process("api", "serve", "--port", url.rpartition(":")[2], *where)
        tls = feed_tls(tmp_path, "sorter")
        sorters = [process(f"sorter-{n}", "sort", "--name", f"sorter-{n}", *where, **tls) for n in (1, 2)]
        tls = feed_tls(tmp_path, "dispatcher")
        dispatcher = process("dispatcher", "dispatch", "--name", "dispatcher-1", *where, **tls)
        with running([meta, api, dispatcher, *sorters]):
            wait_until_ready(meta, probes)
            wait_until_ready(api, url)
            owner = owner_key("--catalog", where[1])
            monkeypatch.setenv("TISTREAM_KEY", owner)
            register(url)
            args = ("push", "--capture", str(recording), "--url", url, "-c", "1", "-t", "1", "--speed", "max")
            with process("push", *args, TISTREAM_KEY=owner) as pusher:
                time.sleep(6)
                sorters[1].kill()
                sorters[1].start()
                assert pusher.wait(240) == 0, pusher.output()
            canal = pull_all(url, last_resolved_ts, format="canal-json", **CANAL)
            assert compare_canal(expected, canal.splitlines()) > 12_000
            rows = pull_all(url, last_resolved_ts, format="ndjson")
            assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400
            with client(url) as c:
                tasks = c.get(TENANT)["tasks"]
            assert {t["owner"] for t in tasks} == {"sorter-1", "sorter-2"}
            assert sorted(t["kind"] for t in tasks) == ["data", "data", "ddl", "ddl"]
            assert meta.output().count("made a service token") >= 4
            assert "an exchange has outlived its service token" in dispatcher.output()
            _operate(url, owner)
            _only_probes(probes, owner)
        logs = {file.name: file.read_text("utf-8") for file in tmp_path.glob("*.log")}
        assert len(logs) == 6
        secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        leaking = [name for name, text in logs.items() if SECRET.search(text) or secret in text]
        assert not leaking, "a reader of the logs could use them"


def _operate(url: str, owner: str) -> None:
    """Everything that pushers and operators ask for, at the one address; the other processes act on it."""
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {owner}"}) as http:

        def ask(method: str, path: str, status: int, **more: Any) -> Any:
            answer = http.request(method, path, **more)
            assert answer.status_code == status, answer.text
            return answer.json() if "json" in answer.headers.get("content-type", "") else answer

        assert http.get("/overview", headers={"Authorization": ""}).status_code == 401
        (seed,) = ask("GET", f"{TENANT}/seeds", 200)["items"]
        assert seed["rows"] > 100
        again = {"ts": seed["ts"], "table_id": seed["table_id"]}
        assert ask("POST", f"{TENANT}/seeds", 200, json=again) == seed
        assert ask("PATCH", TENANT, 200, json={"retention_s": 86400})["retention_s"] == 86400
        feed = {"consumer_id": "warehouse", "start_ts": "earliest"}
        started = ask("POST", f"{TENANT}/consumers", 201, json=feed)["start_ts"]
        holds = ask("GET", f"{TENANT}/retention", 200)["holds"]
        assert ("consumer warehouse (normal)", started) in [(hold["by"], hold["ts"]) for hold in holds]
        ask("PUT", f"{TENANT}/safe-point/backfill", 200, json={"safe_ts": started})
        assert ask("POST", f"{TENANT}/push-credentials", 409)["code"] == "TS-1014"  # no role is configured
        ask("POST", f"{TENANT}/stores/9/incarnations", 201)
        key = ask("POST", "/v1/keys", 201, json={"name": "reader", "role": "viewer"})
        ask("DELETE", f"/v1/keys/{key['key_id']}", 200)
        # a button of the console: the meta server, a process of its own, moves what the worker has
        assert ask("POST", "/workers/sorter-2/drain", 303).headers["location"] == "/workers/sorter-2"
        eventually(lambda: {t["owner"] for t in ask("GET", TENANT, 200)["tasks"]} == {"sorter-1"})


def _only_probes(probes: str, owner: str) -> None:
    """A meta server answers Prometheus without a key, and no API; it says where that is."""
    assert "tistream_tenants" in httpx2.get(f"{probes}/metrics").text
    answer = httpx2.post(f"{probes}/v1/tenants", json={}, headers={"Authorization": f"Bearer {owner}"})
    assert (answer.status_code, answer.json()["code"]) == (404, "TS-1010")
    assert "tistream serve" in answer.json()["hint"]
