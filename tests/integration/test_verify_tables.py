"""Tables of the recording by the log against a MariaDB server with the same rows, which stands in for the cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url

from backup.tidb import SqlAddress, TableResult, TableVerifier
from simulator.chaos.servers.mariadb import mariadb
from simulator.chaos.servers.processes import TiStreamProcess
from tests.kit.log_builder import recording_end
from tests.kit.replica import open_server
from tests.kit.served_log import ServedLog, served_log
from tistream.client import connect
from tistream.errors import InvalidInput

DATABASE = "shop"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with served_log(tmp_path_factory.mktemp("verify")) as new_log:
        new_log.log.activate().seed()
        new_log.log.flush(recording_end())
        yield new_log


@pytest.fixture(scope="module")
def server(served: ServedLog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With the tables of the recording, as `tistream restore` writes them."""
    folder = tmp_path_factory.mktemp("restored")
    for name in databases(served):
        command = ("restore", name, "-o", str(folder), "--dialect", "mariadb", "--url", served.url)
        with TiStreamProcess(*command, log=folder.parent / "restore.log") as process:
            assert process.wait(120) == 0, process.output()
    with mariadb() as url:
        files = sorted(
            folder.iterdir(), key=lambda f: ("-schema-create" not in f.name, "-schema" not in f.name, f.name)
        )
        for file in files:
            database = file.name.partition(".")[0] if "-schema-create" not in file.name else "mysql"
            client = ["mariadb", "-h127.0.0.1", f"-P{make_url(url).port}", "-uroot", database]
            with file.open("rb") as text:
                done = subprocess.run(client, stdin=text, capture_output=True, check=False, timeout=60)
            assert done.returncode == 0, (file.name, done.stderr)
        yield url


def databases(served: ServedLog) -> list[str]:
    with connect(served.url) as client:
        return [database["database"] for database in client.tenant(1, 1).databases()]


@contextmanager
def verifying(served: ServedLog, server: str) -> Iterator[TableVerifier]:
    at = SqlAddress(host="127.0.0.1", port=make_url(server).port or 0, snapshot=False)
    with connect(served.url) as client, closing(TableVerifier(client.tenant(1, 1), recording_end(), at)) as verifier:
        yield verifier


def verify(served: ServedLog, server: str) -> dict[str, TableResult]:
    with verifying(served, server) as verifier:
        tables = ((db, t) for db in databases(served) for t in verifier.tenant.tables(db))
        names = [(db, t["table"]) for db, t in tables if t["kind"] == "table"]
        return {f"{db}.{table}": verifier.verify(db, table) for db, table in names}


def test_equal_tables_are_equal_and_rows_that_differ_are_named(served: ServedLog, server: str) -> None:
    """All types of columns are among them."""
    results = verify(served, server)
    assert not [(name, r.problem, r.first) for name, r in results.items() if not r.equal]
    assert len(results) > 70
    assert sum(r.log_rows for r in results.values()) == sum(r.database_rows for r in results.values()) > 1000
    rows = results["shop.acct"].log_rows
    with open_server(server) as sql, sql.cursor() as cursor:
        cursor.execute("SELECT id FROM shop.acct ORDER BY id")
        ids = [int(number) for (number,) in cursor.fetchall()]
        cursor.execute(f"UPDATE shop.acct SET ver = ver + 1 WHERE id = {ids[7]}")
        cursor.execute(f"DELETE FROM shop.acct WHERE id = {ids[4]}")
        cursor.execute("INSERT INTO shop.acct (id, owner, bal, ver) VALUES (987654, 1, 1, 1)")
        sql.commit()
    with verifying(served, server) as verifier:
        changed = verifier.verify("shop", "acct")
        assert verifier.verify("shop", "no_such_table").problem == "the cluster has no such table"
        with pytest.raises(InvalidInput, match="has no tidb_snapshot"):
            replace(verifier, database=replace(verifier.database, snapshot=True))
    assert (changed.differing, changed.log_rows, changed.database_rows) == (3, rows, rows)
    assert changed.first is not None
    assert (changed.first.key, changed.first.database) == ((str(ids[4]),), None)
    at_port = ("--tidb", f"127.0.0.1:{make_url(server).port}", "--no-snapshot", "--as-of", str(recording_end()))
    command = ("verify", *at_port, "--tables", "shop.acct", "--url", served.url, "--json")
    with TiStreamProcess(*command, log=Path(served.store_url.removeprefix("file://")).parent / "verify.log") as process:
        assert process.wait(60) == 1, process.output()
        assert "shop.acct: first row that differs" in process.output()
        assert "cluster  no such row" in process.output()


def test_columns_and_tables_of_one_side_are_named(served: ServedLog, server: str, tmp_path: Path) -> None:
    """A virtual column is in no row of the log, and a view has no rows."""
    with open_server(server) as sql, sql.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE shop.acct ADD COLUMN lost VARCHAR(20), ADD COLUMN twice BIGINT AS (ver * 2) VIRTUAL"
        )
        cursor.execute("CREATE TABLE shop.lost (id INT PRIMARY KEY)")
        cursor.execute("CREATE DATABASE shop_lost")
        cursor.execute("CREATE TABLE shop_lost.t (id INT PRIMARY KEY)")
        cursor.execute("CREATE VIEW shop.lost_view AS SELECT 1")
        cursor.execute("ALTER TABLE shop.acct DROP COLUMN owner")
    at_port = ("--tidb", f"127.0.0.1:{make_url(server).port}", "--no-snapshot", "--as-of", str(recording_end()))

    def results(name: str, tables: str) -> dict[str, str]:
        command = ("verify", *at_port, "--tables", tables, "--url", served.url, "--json")
        with TiStreamProcess(*command, log=tmp_path / name) as process:
            assert process.wait(60) == 1, process.output()
            lines = process.output().splitlines()
        return {row["table"]: row["result"] for row in json.loads("".join(x for x in lines if x[:1] in "[{]} "))}

    assert results("both.log", "shop.acct,shop.lost*,shop_lost.*") == {
        "shop.acct": "the cluster's table has no column owner, the log's table has no column lost",
        "shop.lost": "the log has no such table",
        "shop_lost.t": "the log has no such table",
    }
    assert results("one.log", "shop_lost.*") == {"shop_lost.t": "the log has no such table"}
