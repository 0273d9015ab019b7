"""The MariaDB example: killed again and again while the log grows, in the end every table is what TiDB answered."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import make_url

from simulator.chaos.servers.mariadb import mariadb
from tests.kit import replica
from tests.kit.log_builder import recording_end
from tests.kit.recording import EXPECTED
from tests.kit.replica import open_server, selected
from tests.kit.served_log import ServedLog, served_log

EXAMPLE = Path(__file__).parents[2] / "examples" / "to_mariadb.py"
PATIENCE_S = 120


class Consumer:
    """The example as a process, and what a second connection sees of its work."""

    def __init__(self, server: str, url: str, folder: Path) -> None:
        self._command = [sys.executable, str(EXAMPLE), server.replace("mysql+pymysql", "mysql"), "--url", url]
        self._log = folder / "consumer.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._sql = pymysql.connect(  # sees what is not committed yet as well
            host="127.0.0.1", port=make_url(server).port or 0, user="root", autocommit=True,
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
        )  # fmt: skip

    def start(self, *more: str) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, "--rows", "3000", *more], stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self.kill()
        self._sql.close()

    def finish(self) -> None:
        """Run to what is served now."""
        self.start("--once")
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, self.output()

    def state(self) -> tuple[int, int]:
        """(tables that are being made, how often a cursor was saved)."""
        return (
            self._number("SELECT count(*) FROM tistream_replica.tables WHERE made_as = ''"),
            self._number("SELECT coalesce(sum(saves), 0) FROM tistream_replica.cursors"),
        )

    def wait_for_news(self, saves: int, *, hasty: bool) -> None:
        """Until it fills the tables that it made, or is about to commit; if `hasty`, until it begins to make some."""
        deadline, most = time.monotonic() + PATIENCE_S, 0
        while True:
            making, now = self.state()
            most = max(most, making)
            if now > saves or 0 < making < most or (hasty and making):
                return
            assert self._process is not None
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.005)

    def output(self) -> str:
        return self._log.read_text("utf-8")[-4000:]

    def _number(self, words: str) -> int:
        try:
            with self._sql.cursor() as cursor:
                cursor.execute(words)
                (found,) = cursor.fetchone() or (0,)
                return int(found)
        except pymysql.err.Error:  # not made yet
            return 0


@pytest.fixture
def server() -> Iterator[str]:
    with mariadb() as url:
        yield url


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedLog]:
    with served_log(tmp_path) as made:
        made.log.activate().seed()
        yield made


def test_a_replica_equals_tidb_however_often_it_was_killed(server: str, served: ServedLog, tmp_path: Path) -> None:
    consumer = Consumer(server, served.url, tmp_path)
    killed: list[str] = []

    def kill_at_news(saves: int, *, hasty: bool) -> int:
        consumer.wait_for_news(saves, hasty=hasty)
        consumer.kill()
        now = consumer.state()[1]
        killed.append("committed" if now > saves else "half done")
        return now

    try:
        consumer.start()
        saves = kill_at_news(0, hasty=True)
        for number, cut in enumerate(served.log.cuts(6)[:-1]):
            consumer.start()
            served.log.flush(cut)
            saves = kill_at_news(saves, hasty=number % 2 == 1)
        served.log.flush(recording_end())
        consumer.finish()
    finally:
        consumer.close()
    assert len(killed) == 5
    assert "half done" in killed
    last = replica.moments(EXPECTED)[-1]
    tables = [t for t in last.tables if t["kind"] == "table"]
    for table in tables:
        replica.same_rows(last, table, rows_of(server, table))
    assert len(tables) > 70
    assert tables_of(server) == {(t["db"], t["table"]) for t in tables}, "and no other table"


def test_a_replica_that_lost_its_cursor_begins_with_fresh_rows(server: str, served: ServedLog, tmp_path: Path) -> None:
    served.log.flush(recording_end())
    consumer = Consumer(server, served.url, tmp_path)
    try:
        consumer.finish()
        with open_server(server) as sql, sql.cursor() as cursor:
            cursor.execute("DELETE FROM shop.acct WHERE id > 3")
            cursor.execute("DELETE FROM tistream_replica.cursors")
            sql.commit()
        consumer.finish()
    finally:
        consumer.close()
    last = replica.moments(EXPECTED)[-1]
    (table,) = [t for t in last.tables if t["table"] == "acct"]
    replica.same_rows(last, table, rows_of(server, table))


def test_what_somebody_else_made_stays(server: str, served: ServedLog, tmp_path: Path) -> None:
    served.log.flush(recording_end())
    with open_server(server) as sql, sql.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.acct AS SELECT 7 AS mine")
        sql.commit()
    consumer = Consumer(server, served.url, tmp_path)
    try:
        with pytest.raises(AssertionError, match="is there already, and not made from here"):
            consumer.finish()
    finally:
        consumer.close()
    with open_server(server) as sql, sql.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.acct")
        assert cursor.fetchall() == (("7",),)
    assert tables_of(server) == {("shop", "acct")}


def rows_of(server: str, table: dict[str, Any]) -> list[dict[str, Any]]:
    with open_server(server) as connection:
        return selected(connection, table)


def tables_of(server: str) -> set[tuple[str, str]]:
    own = "('tistream_replica', 'mysql', 'sys', 'performance_schema', 'information_schema', 'tistream')"
    with open_server(server) as sql, sql.cursor() as cursor:
        cursor.execute(
            f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN {own}"
        )
        return {(db, name) for db, name in cursor.fetchall()}
