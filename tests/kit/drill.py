"""What drills share: a deployment under load, readers of each kind, and the judge of what they got."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2

from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.processes import register
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.kit.log_builder import recording_end
from tests.kit.old_release import MixedCluster
from tests.kit.reader_programs import FOLLOW, MEMBER
from tests.kit.recording import EXPECTED, RECORDING
from tests.kit.ticdc import CANAL, compare_canal
from tests.kit.waiting import eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.work.tasks import frontier
from tistream.ids import Tenant

TENANT = Tenant(1, 1)
PATH = "/v1/clusters/1/tenants/1"
_PUSH = ("-c", "1", "-t", "1", "--capture", str(RECORDING), "--speed")
_MEMBER = {"member": "m1", "lease_s": 60, "format": "canal-json", "limit": 500, "options": CANAL}


def on_servers(stack: ExitStack, *databases: str) -> list[dict[str, str]]:
    """Settings over a MariaDB server and an S3 server, for each of the new databases."""
    s3 = stack.enter_context(s3_server())
    s3.create_bucket("tistream")
    server = stack.enter_context(mariadb())
    where = {**CREDENTIALS, "TISTREAM_OBJECT_STORE_URL": s3.url("tistream", "e2e"), "TISTREAM_SERVER_AUTH": "none"}
    return [{**where, "TISTREAM_CATALOG_URL": new_database(server, name)} for name in databases]


def in_folder(folder: Path, *databases: str) -> list[dict[str, str]]:
    """Settings over the folder `data` of `tistream up`, for each of the database files; up's own is `catalog`."""
    where = {"TISTREAM_OBJECT_STORE_URL": f"file://{folder}/data/bucket", "TISTREAM_SERVER_AUTH": "none"}
    return [{**where, "TISTREAM_CATALOG_URL": f"sqlite:///{folder}/data/{name}.db"} for name in databases]


class Drill:
    """Services to which the recording is pushed slowly; a follower with its own cursor, a member of a consumer, and a
    changefeed to a folder read all of it."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        settings: Mapping[str, str],
        *,
        old: Mapping[str, str] | None = None,
        new: Mapping[str, str] | None = None,
        api: str = "api-1",
        speed: str,
    ) -> None:
        """`settings`, `old`, `new` and `api` as of MixedCluster. What is opened is closed by `stack`."""
        self.folder, self.settings, self._old, self._stack = folder, dict(settings), old or {}, stack
        self.upto = recording_end()
        self.cluster = MixedCluster(folder, self.settings, self._old, (*_PUSH, speed), api, new)
        stack.callback(self.cluster.kill)
        self.url = self.cluster.url_of(api)
        self.catalog = self.open_catalog(self.settings["TISTREAM_CATALOG_URL"])
        self._readers: list[subprocess.Popen[bytes]] = []

    def open_catalog(self, url: str) -> Catalog:
        """Closed with the drill."""
        catalog = Catalog(url)
        self._stack.callback(catalog.close)
        return catalog

    def start(self, *services: str, old: bool = False) -> None:
        """The services, the pusher, the changefeed and the consumer; then the readers, by a client of that release."""
        self.cluster.run(*services, old=old)
        register(self.url)
        self.cluster.run("push", old=old)
        eventually(lambda: reached(self.catalog) > 0, self.cluster.logs)
        uri = f"file://{self.folder}/lake?protocol=canal-json&enable-tidb-extension=true"
        uri += "&enable-partition-separator=false"
        upto = {"start_ts": "earliest", "target_ts": str(self.upto)}
        self.create(f"{PATH}/changefeeds", changefeed_id="lake", sink_uri=uri, **upto)
        self.create(f"{PATH}/consumers", consumer_id="warehouse", partitions=1, **upto)
        environment = {**os.environ, **(self._old if old else {})}
        self._read(environment, "followed", FOLLOW, str(self.upto))
        self._read(environment, "consumed", MEMBER, "warehouse", json.dumps(_MEMBER))
        eventually(lambda: all((self.folder / name).exists() for name in ("followed", "consumed")), self.cluster.logs)

    def push_fast(self) -> None:
        """From the next start of the pusher on."""
        self.cluster.push = (*_PUSH, "max")

    def create(self, path: str, **new: Any) -> Any:
        """What the service says of it."""
        made = httpx2.post(f"{self.url}{path}", json=new, timeout=60)
        assert made.status_code == 201, made.text
        return made.json()

    def command(self, *args: str) -> str:
        """What a command of this release prints, with the settings that the services have now."""
        done = subprocess.run(
            [sys.executable, "-m", "tistream.cli.main", *args],
            env={**os.environ, **self.settings},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def consumed(self) -> list[dict[str, Any]]:
        """The batches that the member got: after which timestamp, and its messages."""
        return [json.loads(line) for line in (self.folder / "consumed").read_text("utf-8").splitlines()]

    def judge_readers(self) -> None:
        """They end, and so does the changefeed; the follower got each change once and in order."""
        for reader in self._readers:
            ended = reader.wait(300)
            said = "".join(path.read_text() for path in self.folder.glob("*ed.log"))
            assert ended == 0, said + self.cluster.logs()
        assert compare_canal(EXPECTED, (self.folder / "followed").read_bytes().splitlines()) > 12_000
        eventually(lambda: CHANGEFEEDS.get(self.catalog, TENANT, "lake").state == "finished", self.cluster.logs)

    def _read(self, environment: Mapping[str, str], name: str, program: str, *args: str) -> None:
        command = [sys.executable, "-c", program, self.url, str(self.folder / name), *args]
        with (self.folder / f"{name}.log").open("wb") as log:
            reader = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=log)
        self._readers.append(reader)
        self._stack.callback(reader.wait)
        self._stack.callback(reader.kill)


def reached(catalog: Catalog) -> int:
    """Up to where everything is in the log."""
    return min((row.durable_ts for row in frontier(catalog, TENANT)), default=0)


def compare_consumed(batches: Sequence[dict[str, Any]]) -> None:
    """They have each change once, in order. A batch whose acknowledgement was lost comes again, perhaps with more."""
    once = {batch["after"]: batch["rows"] for batch in batches}
    assert compare_canal(EXPECTED, "".join(once.values()).encode().splitlines()) > 12_000
