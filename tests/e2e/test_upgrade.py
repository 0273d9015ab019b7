"""A running cluster of 0.1.0 is upgraded under load, process by process, goes back, and forward again. What its
clients, consumers and changefeeds get is what TiDB and TiCDC gave, each change once and in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.processes import pull_all, register
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.kit.old_release import MixedCluster, installed
from tests.kit.replica import compare
from tests.kit.ticdc import CANAL, compare_canal, compare_lake
from tests.kit.waiting import eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.work.features import living
from tistream.catalog.work.tasks import frontier
from tistream.ids import Tenant
from tistream.release import THIS_RELEASE, Release

OLD = Release(0, 1, 0)
TENANT = Tenant(1, 1)
PATH = "/v1/clusters/1/tenants/1"
#: docs/compatibility.md: meta servers first, pushers last
ORDER = ("meta-1", "api-1", "dispatcher-1", "sorter-1", "sorter-2", "replicate-1", "push")
LAST = "maintain-1"  #: of the old release until the end, so that the way back stays open
SLOW = "0.2"  #: speed of the recording: its 36 s last three minutes

#: programs of 0.1.0, whose client asks again when a server is replaced
FOLLOW = """
import json, sys
from tistream.client import connect

url, path, upto = sys.argv[1:]
with connect(url, retry_s=120) as client, open(path, "wb") as out:
    cursor, resolved_ts, more = None, 0, True
    while resolved_ts < int(upto) or more:
        page = client.tenant(1, 1).page(
            cursor=cursor, format="canal-json", wait_s=1, options={"enable-tidb-extension": "true"}
        )
        out.write(page.content)
        out.flush()
        cursor, resolved_ts, more = page.next_cursor, page.resolved_ts, page.has_more
"""
CONSUME = """
import json, sys, time
from tistream.client import connect
from tistream.errors import StateForbids

url, path, _ = sys.argv[1:]
with connect(url, retry_s=120) as client, open(path, "w") as out:
    member = client.tenant(1, 1).consumer(
        "warehouse", member="m1", lease_s=60, format="canal-json", limit=500, options={"enable-tidb-extension": "true"}
    )
    while True:
        try:
            batch = member.pull()
        except StateForbids:
            break  # the consumer has reached its target
        if batch is None:
            time.sleep(0.2)
            continue
        print(json.dumps({"after": batch.checkpoint_ts, "rows": batch.page.content.decode()}), file=out, flush=True)
        member.acknowledge(batch)
"""


class Deployment:
    """The cluster, its catalog, and what is read from it meanwhile."""

    def __init__(self, folder: Path, stack: ExitStack, recording: Path, upto: int) -> None:
        self.folder, self.upto = folder, upto
        s3 = stack.enter_context(s3_server())
        s3.create_bucket("tistream")
        self.settings = {
            **CREDENTIALS,
            "TISTREAM_CATALOG_URL": new_database(stack.enter_context(mariadb()), "upgraded"),
            "TISTREAM_OBJECT_STORE_URL": s3.url("tistream", "e2e"),
            "TISTREAM_SERVER_AUTH": "none",
        }
        self.old = installed(str(OLD), folder / "0.1.0")
        push = ("-c", "1", "-t", "1", "--capture", str(recording), "--speed")
        self.cluster = MixedCluster(folder, self.settings, self.old, (*push, SLOW))
        self.fast = (*push, "max")
        stack.callback(self.cluster.kill)
        self.url = self.cluster.url_of("api-1")
        self.catalog = Catalog(self.settings["TISTREAM_CATALOG_URL"])
        stack.callback(self.catalog.close)
        self._stack = stack

    def start(self) -> None:
        """All of 0.1.0, with a changefeed and a consumer."""
        self.cluster.run("meta-1", "api-1", old=True)
        register(self.url)
        self.cluster.run(*ORDER[2:], LAST, old=True)
        eventually(lambda: self.reached() > 0, self.cluster.logs)
        uri = f"file://{self.folder}/lake?protocol=canal-json&enable-tidb-extension=true"
        uri += "&enable-partition-separator=false"
        upto = {"start_ts": "earliest", "target_ts": str(self.upto)}
        for path, new in (
            ("changefeeds", {"changefeed_id": "lake", "sink_uri": uri, **upto}),
            ("consumers", {"consumer_id": "warehouse", "partitions": 1, **upto}),
        ):
            made = httpx2.post(f"{self.url}{PATH}/{path}", json=new, timeout=60)
            assert made.status_code == 201, made.text

    def client(self, program: str, name: str) -> subprocess.Popen[bytes]:
        """A program of 0.1.0 that writes to the file `name`."""
        command = [sys.executable, "-c", program, self.url, str(self.folder / name), str(self.upto)]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env={**os.environ, **self.old}, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def upgrade(self, *args: str) -> Any:
        """What `tistream upgrade` of this release says."""
        command = [sys.executable, "-m", "tistream.cli.main", "upgrade", *args, "--json"]
        done = subprocess.run(command, env={**os.environ, **self.settings}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def replace(self, names: tuple[str, ...], release: Release) -> None:
        """One after the other, while changes come: the log grows under each mix."""
        for name in names:
            before = self.reached()
            self.cluster.run(name, old=release == OLD)
            if name.startswith(("sorter", "dispatcher", "replicate", "maintain")):
                assert living(self.catalog)[name] == release
            if before < self.upto:
                eventually(lambda before=before: self.reached() > before, self.cluster.logs)  # type: ignore[misc]
            self.all_live()

    def reached(self) -> int:
        """Up to where everything is in the log."""
        return min((row.durable_ts for row in frontier(self.catalog, TENANT)), default=0)

    def all_live(self) -> None:
        dead = [name for name, process in self.cluster.processes.items() if process.ended_by_itself]
        assert [name for name in dead if name != "push"] == [], self.cluster.logs()


@pytest.fixture
def deployment(tmp_path: Path, recording: Path, last_resolved_ts: int) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(tmp_path, stack, recording, last_resolved_ts)


@pytest.mark.timeout(1200)
def test_a_cluster_of_0_1_0_goes_forward_back_and_forward_under_load(deployment: Deployment, expected: Path) -> None:
    d = deployment
    d.start()
    follower, member = d.client(FOLLOW, "followed"), d.client(CONSUME, "consumed")
    eventually(lambda: all((d.folder / name).exists() for name in ("followed", "consumed")))
    before = d.upgrade("--check")
    assert (before["revision"], before["min_release"], before["done"]) == ("0001", str(OLD), False)
    assert before["processes"].keys() == {str(OLD)}
    assert d.catalog.revision() == "0001", "nothing was changed"
    assert d.upgrade("--run")["revision"] == MIGRATIONS.newest
    d.replace(ORDER, THIS_RELEASE)
    assert d.upgrade("--check")["older_processes"] == [LAST], "which keeps features off"
    d.replace(tuple(reversed(ORDER)), OLD)
    assert d.upgrade("--check")["processes"].keys() == {str(OLD)}
    assert d.reached() < d.upto, "all of it under load"
    d.cluster.push = d.fast
    d.replace((*ORDER[:-1], LAST, ORDER[-1]), THIS_RELEASE)
    assert d.upgrade("--run", "--wait", "--timeout", "120")["done"]

    for process in (follower, member):
        assert process.wait(300) == 0, (d.folder / "followed.log").read_text() + (d.folder / "consumed.log").read_text()
    assert compare_canal(expected, (d.folder / "followed").read_bytes().splitlines()) > 12_000
    batches = [json.loads(line) for line in (d.folder / "consumed").read_text("utf-8").splitlines()]
    once = {batch["after"]: batch["rows"] for batch in batches}  # one whose acknowledgement was lost comes again
    assert compare_canal(expected, "".join(once.values()).encode().splitlines()) > 12_000
    eventually(lambda: CHANGEFEEDS.get(d.catalog, TENANT, "lake").state == "finished", d.cluster.logs)
    assert compare_lake(d.folder / "lake") > 10_000
    assert compare_canal(expected, pull_all(d.url, d.upto, format="canal-json", **CANAL).splitlines()) > 12_000
    rows = pull_all(d.url, d.upto, format="ndjson")
    assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400
