"""A table as it was, by the command line: seeds come with the push, snapshots equal TiDB, a restore loads elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from simulator.chaos.servers.mariadb import mariadb
from simulator.chaos.servers.processes import TiStreamProcess, Up, client, register
from tests.kit import replica
from tests.kit.replica import open_server, selected


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, recording: Path) -> Iterator[Up]:
    """A service that holds the whole recording, pushed in two goes."""
    folder = tmp_path_factory.mktemp("asof")
    args = ("push", "--capture", str(recording), "--cluster", "1", "--tenant", "1", "--speed", "max")
    with Up(folder) as up:
        register(up.url)
        for _ in range(2):
            with TiStreamProcess(*args, "--url", up.url, log=folder / "push.log") as pusher:
                assert pusher.wait(240) == 0, pusher.output()
        yield up


def run(up: Up, *args: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tistream.cli.main", *args, "--url", up.url]
    return subprocess.run(command, capture_output=True, check=False, timeout=120)


def test_pushing_twice_leaves_one_seed(pushed: Up) -> None:
    with client(pushed.url) as c:
        seeds = c.get("/v1/clusters/1/tenants/1/seeds")["items"]
    assert [(seed["table_id"], seed["rows"] > 100) for seed in seeds] == [(0, True)]


@pytest.mark.parametrize("label", ["S", "m-ddl", "end"])
def test_snapshots_equal_what_tidb_answered(pushed: Up, expected: Path, label: str) -> None:
    moment = next(m for m in replica.moments(expected) if m.label == label)
    with client(pushed.url) as c:
        for table in moment.tables:
            if table["kind"] == "table":
                rows = c.tenant(1, 1).table(table["table"], database=table["db"]).rows(as_of=moment.ts)
                replica.same_rows(moment, table, [*rows])


def test_a_snapshot_can_be_seeded_and_read_again(pushed: Up, expected: Path, tmp_path: Path) -> None:
    moment = next(m for m in replica.moments(expected) if m.label == "end")
    at, file = str(moment.ts), tmp_path / "rows.parquet"

    def snapshot(name: str) -> bytes:
        done = run(pushed, "snapshot", "shop.k_int", "--as-of", at, "--format", "parquet", "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        return (tmp_path / name).read_bytes()

    before = snapshot("rows.parquet")
    for _ in range(2):
        done = run(pushed, "seed", "shop.k_int", "--ts", at, "--file", str(file))
        assert done.returncode == 0, done.stderr
    assert snapshot("again.parquet") == before
    with client(pushed.url) as c:
        seeds = c.get("/v1/clusters/1/tenants/1/seeds")["items"]
    assert next((seed["ts"], seed["table_id"] > 0) for seed in seeds) == (at, True)


def test_the_command_writes_a_whole_file_or_none(pushed: Up, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    done = run(pushed, "snapshot", "shop.customers", "--format", "csv", "-o", str(out))
    assert (done.returncode, done.stdout) == (0, b"")
    assert out.read_bytes().startswith(b'"id","name"')
    missing = run(pushed, "snapshot", "shop.customerz", "-o", str(tmp_path / "none"))
    assert missing.returncode == 3
    assert b"did you mean 'customers'" in missing.stderr
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".part"] == ["rows.csv"]
    early = run(pushed, "snapshot", "shop.customers", "--as-of", "9")
    assert (early.returncode, b"TS-1005" in early.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sql", "csv"])
def test_a_restore_into_mariadb_selects_what_tidb_selected(
    pushed: Up, expected: Path, tmp_path: Path, form: str
) -> None:
    moment = next(m for m in replica.moments(expected) if m.label == "m-mix2")
    databases = sorted({t["db"] for t in moment.tables if t["kind"] == "table"})
    for database in databases:
        how = ("--as-of", str(moment.ts), "--dialect", "mariadb", "--format", form)
        done = run(pushed, "restore", database, *how, "-o", str(tmp_path))
        assert done.returncode == 0, done.stderr
    with mariadb() as url:
        for pattern in ("*-schema-create.sql", "*.*-schema.sql", "*.000000000.sql"):
            for file in sorted(tmp_path.glob(pattern)):
                load(url, file)
        compared = 0
        connection = open_server(url)
        for table in moment.tables:
            if table["kind"] == "table":
                replica.same_rows(moment, table, selected(connection, table))
                compared += 1
    assert compared == len([t for t in moment.tables if t["kind"] == "table"]) > 70


def load(url: str, file: Path) -> None:
    """By the server's own command line client."""
    port = make_url(url).port
    command = ["mariadb", "-h127.0.0.1", f"-P{port}", "-uroot", "--default-character-set=utf8mb4", "--local-infile=1"]
    with file.open("rb") as source:
        done = subprocess.run(command, stdin=source, capture_output=True, check=False, timeout=120, cwd=file.parent)
    assert done.returncode == 0, f"{file.name}: {done.stderr.decode(errors='replace')[-600:]}"
