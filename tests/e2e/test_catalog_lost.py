"""The catalog's database is lost under load and restored from the newest export, while the processes of the lost one
still run over it: they end, nothing is lost, and readers with a cursor of their own get each change once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.processes import pull_all, register
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.e2e.test_upgrade import CONSUME, FOLLOW, PATH, TENANT
from tests.kit.old_release import MixedCluster
from tests.kit.replica import compare
from tests.kit.ticdc import CANAL, compare_canal, compare_lake
from tests.kit.waiting import eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.generation import CatalogState
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.keys import get_key
from tistream.catalog.work.exports import export_status
from tistream.catalog.work.tasks import frontier, list_tasks
from tistream.ids import Tenant

#: a member whose acknowledgement is refused, as its partition was taken since, pulls again
MEMBER = CONSUME.replace("import StateForbids", "import Fenced, StateForbids").replace(
    "        member.acknowledge(batch)",
    "        try:\n            member.acknowledge(batch)\n        except Fenced:\n            pass",
)
SERVICES = ("meta-1", "api-1", "dispatcher-1", "sorter-1", "sorter-2", "replicate-1")
FENCED = 5  #: the exit status of a process that must not continue


def told(messages: bytes) -> set[bytes]:
    """The changes, without the time at which each message was made."""
    lines = (line for line in messages.splitlines() if b"TIDB_WATERMARK" not in line)
    return {re.sub(rb'"ts":\d+,', b"", line) for line in lines}


class Deployment:
    """A cluster of processes over a database that is lost."""

    def __init__(self, folder: Path, stack: ExitStack, recording: Path, upto: int) -> None:
        self.folder, self.upto, self._stack = folder, upto, stack
        s3 = stack.enter_context(s3_server())
        s3.create_bucket("tistream")
        server = stack.enter_context(mariadb())
        self.databases = new_database(server, "lost"), new_database(server, "restored")
        self.settings = {
            **CREDENTIALS,
            "TISTREAM_CATALOG_URL": self.databases[0],
            "TISTREAM_OBJECT_STORE_URL": s3.url("tistream", "e2e"),
            "TISTREAM_SERVER_AUTH": "none",
            "TISTREAM_EXPORTS_INTERVAL_S": "4",
            "TISTREAM_EXPORTS_KEY_FILE": str(folder / "key"),
        }
        (folder / "key").write_text("5a" * 32, "ascii")
        push = ("-c", "1", "-t", "1", "--capture", str(recording), "--speed")
        self.cluster = MixedCluster(folder, self.settings, {}, (*push, "0.4"))
        stack.callback(self.cluster.kill)
        self.fast = (*push, "max")
        self.url = self.cluster.url_of("api-1")
        self.catalogs = [Catalog(url) for url in self.databases]
        for catalog in self.catalogs:
            stack.callback(catalog.close)

    def start(self) -> None:
        self.cluster.run(*SERVICES, old=False)
        register(self.url)
        self.cluster.run("push", old=False)
        eventually(lambda: self.reached(0) > 0, self.cluster.logs)
        uri = f"file://{self.folder}/lake?protocol=canal-json&enable-tidb-extension=true"
        uri += "&enable-partition-separator=false"
        upto = {"start_ts": "earliest", "target_ts": str(self.upto)}
        self.lost_key = httpx2.post(f"{self.url}/v1/keys", json={"name": "lost", "role": "viewer"}, timeout=60).json()
        for path, new in (
            ("changefeeds", {"changefeed_id": "lake", "sink_uri": uri, **upto}),
            ("consumers", {"consumer_id": "warehouse", "partitions": 1, **upto}),
        ):
            made = httpx2.post(f"{self.url}{PATH}/{path}", json=new, timeout=60)
            assert made.status_code == 201, made.text

    def client(self, program: str, name: str) -> subprocess.Popen[bytes]:
        """A program that reads into the file `name`."""
        command = [sys.executable, "-c", program, self.url, str(self.folder / name), str(self.upto)]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def catalog_command(self, *args: str) -> str:
        """What `tistream catalog` prints about the database that the services have now."""
        command = [sys.executable, "-m", "tistream.cli.main", "catalog", *args]
        done = subprocess.run(command, env={**os.environ, **self.settings}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def reached(self, which: int) -> int:
        """Up to where everything is in the log."""
        return min((row.durable_ts for row in frontier(self.catalogs[which], TENANT)), default=0)

    def exported(self) -> int:
        newest = export_status(self.catalogs[0]).newest
        return 0 if newest is None else newest.export_no


@pytest.fixture
def deployment(tmp_path: Path, recording: Path, last_resolved_ts: int) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(tmp_path, stack, recording, last_resolved_ts)


@pytest.mark.timeout(900)
def test_a_lost_catalog_is_restored_while_its_processes_still_run(deployment: Deployment, expected: Path) -> None:
    d = deployment
    d.start()
    follower, member = d.client(FOLLOW, "followed"), d.client(MEMBER, "consumed")
    without = d.exported()  # it may lack the consumer
    eventually(lambda: d.exported() >= without + 2, d.cluster.logs)
    at_export, served = d.exported(), d.reached(0)
    eventually(lambda: d.reached(0) > served, d.cluster.logs)
    assert httpx2.get(f"{d.url}/healthz", timeout=60).json()["catalog_export_age_s"] < 300
    key_id, raw = d.lost_key["key_id"], {"cluster_id": 1, "tenant_id": 9, "kind": "raw"}
    assert httpx2.delete(f"{d.url}/v1/keys/{key_id}", timeout=60).json()["state"] == "revoked"
    assert httpx2.post(f"{d.url}/v1/tenants", json=raw, timeout=60).status_code == 201
    began_s = time.monotonic()
    d.settings["TISTREAM_CATALOG_URL"] = d.databases[1]
    said = json.loads(d.catalog_command("restore", "--json"))
    restored_s = time.monotonic() - began_s
    ended = {name: d.cluster.processes[name].wait(30) for name in SERVICES}
    assert set(ended.values()) == {FENCED}, (ended, d.cluster.logs())
    assert d.reached(0) < d.upto, "under load"
    assert said["export"].endswith(f"-{at_export:012d}.json") or d.exported() > at_export
    repeated = {(reader["kind"], reader["name"]): reader["repeats"] for reader in said["readers"]}
    assert repeated == {("changefeed", "lake"): "files", ("consumer", "warehouse"): "changes"}
    assert all(0 < int(reader["continues_ts"]) < d.upto for reader in said["readers"])
    assert export_status(d.catalogs[1]).state is CatalogState.UNCONFIRMED
    assert get_key(d.catalogs[1], key_id).state == "revoked"
    assert len(list_tasks(d.catalogs[1], Tenant(1, 9))) == 1

    d.cluster.push = d.fast
    d.cluster.run(*SERVICES, "push", old=False)
    for process in (follower, member):
        assert process.wait(300) == 0, (d.folder / "followed.log").read_text() + (d.folder / "consumed.log").read_text()
    assert compare_canal(expected, (d.folder / "followed").read_bytes().splitlines()) > 12_000
    batches = [json.loads(line) for line in (d.folder / "consumed").read_text("utf-8").splitlines()]
    consumed = "".join(
        batch["rows"] for batch in batches
    ).encode()  # what was acknowledged since the export comes again
    assert told(consumed) == told((d.folder / "followed").read_bytes())
    eventually(lambda: CHANGEFEEDS.get(d.catalogs[1], TENANT, "lake").state == "finished", d.cluster.logs)
    assert compare_lake(d.folder / "lake", repeated=True) > 10_000
    verify = (sys.executable, "-m", "tistream.cli.main", "changefeed", "verify", "lake", "-c", "1", "-t", "1")
    verified = subprocess.run([*verify, "--url", d.url], capture_output=True, text=True, timeout=300)
    assert verified.returncode == 0, "all that is there twice is named by an event: " + verified.stdout
    assert compare_canal(expected, pull_all(d.url, d.upto, format="canal-json", **CANAL).splitlines()) > 12_000
    rows = pull_all(d.url, d.upto, format="ndjson")
    assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400
    assert "confirmed" in d.catalog_command("confirm")
    assert '"state": "ready"' in d.catalog_command("status", "--json")
    print(f"restored in {restored_s:.1f} s")
