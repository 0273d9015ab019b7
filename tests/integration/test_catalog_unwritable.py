"""A real MariaDB that takes no writes: services on it say so, serve reads, and are ready again afterwards."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pymysql
import pytest
from starlette.testclient import TestClient

from simulator.chaos.servers.mariadb import MariaDBServer
from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, wait_until_ready
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.manual_clock import ManualClock
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import idempotency_keys
from tistream.catalog.database.write_check import check_writes
from tistream.catalog.tenancy.tenants import list_tenants
from tistream.errors import CatalogUnavailable
from tistream.http.probes import probe_app
from tistream.http.readiness import REFUSED_S, WRITE_CHECK_S, Probes, catalog_answers
from tistream.objectstore.local import LocalStore

_number = itertools.count(1)
pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(120)]

PATIENCE_S = 3 * WRITE_CHECK_S
FILE_BYTES = 96 << 20  #: more than any file of the server has with an empty catalog
SMALL_LOG = ("--innodb-log-file-size=8M",)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A served log, its catalog's server, and the catalog as a service's account sees it."""

    database: MariaDBServer
    catalog: Catalog
    url: str

    def admin(self, *statements: str) -> None:
        with pymysql.connect(host="127.0.0.1", port=self.database.port, user="root") as conn, conn.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def ready(self) -> tuple[int, dict[str, str]]:
        """(status, what it says of each part)."""
        answer = httpx2.get(f"{self.url}/readyz", timeout=30)
        return answer.status_code, answer.json()["checks"]

    def wait_for(self, status: int) -> dict[str, str]:
        """What it says of each part, once the answer has this status."""
        end = time.monotonic() + PATIENCE_S
        while (said := self.ready())[0] != status:
            assert time.monotonic() < end, said
            time.sleep(0.2)
        return said[1]

    def read(self) -> list[bytes]:
        """The first changes of the log."""
        params = {"start_ts": "earliest", "format": "ndjson", "limit": "50"}
        answer = httpx2.get(f"{self.url}/v1/clusters/1/tenants/1/changes", params=params, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.content.splitlines()


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """An account without rights over the server, as a service has; the log is built with it too."""
    (folder / "db").mkdir()
    database = MariaDBServer(folder / "db")
    database.start()
    try:
        with pymysql.connect(host="127.0.0.1", port=database.port, user="root") as conn, conn.cursor() as cursor:
            cursor.execute("CREATE USER app@'%'")
            cursor.execute("GRANT ALL ON tistream.* TO app@'%'")
        at = database.url().replace("root@", "app@")
        catalog = Catalog(at)
        catalog.migrate()
        LogBuilder(catalog, LocalStore(folder / "bucket")).register().build(2, upto=recording_end())
        port = free_port()
        where = ("--catalog", at, "--object-store", f"file://{folder}/bucket")
        server = TiStreamProcess("serve", "--port", str(port), "--auth", "none", *where, log=folder / "serve.log")
        try:
            server.start()
            wait_until_ready(server, url := f"http://127.0.0.1:{port}")
            yield Deployment(database, catalog, url)
            assert not server.ended_by_itself, server.output()
        finally:
            server.kill()
            catalog.close()
    finally:
        database.stop()


def test_a_read_only_server_is_named_and_reads_go_on(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        assert deployment.ready()[0] == 200
        before = deployment.read()
        deployment.admin("SET GLOBAL read_only = 1")
        said = deployment.wait_for(503)
        assert "read-only" in said["catalog"] or "read_only" in said["catalog"], said
        assert {name for name, state in said.items() if state != "ok"} == {"catalog"}
        assert deployment.ready()[0] == 503, "until a write succeeds"
        assert before
        assert deployment.read() == before
        deployment.admin("SET GLOBAL read_only = 0")
        assert set(deployment.wait_for(200).values()) == {"ok"}
        assert deployment.read() == before


def test_a_full_server_is_named_where_it_refuses_writes(tmp_path: Path) -> None:
    """Its files may not grow: that is what the server sees of a full disk or of a quota. What is free in the table that
    the check writes to still takes its row."""
    (tmp_path / "db").mkdir()
    database, clock = MariaDBServer(tmp_path / "db", options=SMALL_LOG), ManualClock()
    database.start()
    catalog = Catalog(database.url())
    try:
        catalog.migrate()
        with TestClient(probe_app(Probes(checks={"catalog": catalog_answers(catalog, clock)}))) as http:
            assert http.get("/readyz").status_code == 200
            resource.prlimit(database.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))
            for at_once in (500, 1):
                with pytest.raises(CatalogUnavailable, match="is full"):
                    fill(catalog, at_once)
            check_writes(catalog)
            for _ in range(2):
                said = http.get("/readyz")
                assert said.status_code == 503
                assert "is full" in said.json()["checks"]["catalog"]
                clock.advance(REFUSED_S / 2 - 1)
            assert len(list_tenants(catalog)) == 0, "it answers reads"
            with pytest.raises(CatalogUnavailable, match="is full"):
                fill(catalog, 1)
            clock.advance(2)
            assert http.get("/readyz").status_code == 503, "it was refused again"
            resource.prlimit(database.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            clock.advance(REFUSED_S)
            assert http.get("/readyz").status_code == 200
    finally:
        catalog.close()
        database.stop()


def fill(catalog: Catalog, at_once: int) -> None:
    """Keep rows for ever that are no larger than a page: MariaDB 10.11 may end when it has no room for larger ones."""
    row = {"request_hash": "", "attempt": "", "status": 0, "media_type": "", "started_ms": 0, "body": bytes(3_000)}
    for _ in range(10_000):
        rows = [{**row, "key_hash": f"z{next(_number):06d}"} for _ in range(at_once)]
        with catalog.transaction() as conn:
            conn.execute(idempotency_keys.insert(), rows)
