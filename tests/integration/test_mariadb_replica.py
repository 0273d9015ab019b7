"""The MariaDB example: killed again and again while the log grows, in the end every table is what TiDB answered."""

from __future__ import annotations

import json
import runpy
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
from tests.kit.recording import EXPECTED, RECORDING, committed_rows, recorded_history
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

    def finish(self, status: int = 0) -> None:
        """Run to what is served now."""
        self.start("--once")
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == status, self.output()

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
        return self.said()[-4000:]

    def said(self) -> str:
        """Everything, of all processes."""
        return self._log.read_text("utf-8")

    def _number(self, words: str) -> int:
        try:
            with self._sql.cursor() as cursor:
                cursor.execute(words)
                (value,) = cursor.fetchone() or (0,)
                return int(value)
        except pymysql.err.Error:  # not made yet
            return 0


@pytest.fixture
def server() -> Iterator[str]:
    with mariadb() as url:
        yield url


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedLog]:
    with served_log(tmp_path) as new_log:
        new_log.log.activate().seed()
        yield new_log


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


def test_a_table_that_is_refused_is_left_out_until_it_fits_and_the_rest_continues(server: str, tmp_path: Path) -> None:
    """shop.customers is wider than a row of MariaDB may be, until a DDL gives it the definition of the recording."""
    with served_log(tmp_path) as served:
        served.log.schema = with_wide_customers(served.log.schema)
        served.log.activate().seed()
        begins, widest = served.log.start_ts, first_ddl_of("customers") - 1
        consumer = Consumer(server, served.url, tmp_path)
        try:
            served.log.flush(begins + 1)
            consumer.finish(status=1)
            assert "shop.customers: left out, MariaDB refuses it: (1118, " in consumer.said()
            assert ("shop", "customers") not in tables_of(server)
            served.log.flush(widest)
            consumer.finish(status=1)
            count = changes_of(118, begins + 1, widest)
            assert count > 0
            assert f"shop.customers is left out, with {count} later changes: (1118, " in consumer.said()
            served.log.flush(recording_end())
            consumer.finish()
        finally:
            consumer.close()
        last = replica.moments(EXPECTED)[-1]
        tables = [t for t in last.tables if t["kind"] == "table"]
        for table in tables:
            replica.same_rows(last, table, rows_of(server, table))
        assert tables_of(server) == {(t["db"], t["table"]) for t in tables}


def test_rows_that_are_refused_leave_out_their_table_and_the_rest_of_their_page_is_there(
    server: str, served: ServedLog, tmp_path: Path
) -> None:
    """A check of the replica's owner, which no row of shop.acct passes any more."""
    cuts = served.log.cuts(6)
    served.log.flush(cuts[3])
    consumer = Consumer(server, served.url, tmp_path)
    try:
        consumer.finish()
        with open_server(server) as sql, sql.cursor() as cursor:
            cursor.execute("SET check_constraint_checks = 0")
            cursor.execute("ALTER TABLE shop.acct ADD CONSTRAINT c CHECK (ver < 0)")
        served.log.flush(recording_end())
        consumer.finish(status=1)
        assert "shop.acct: left out, MariaDB refuses it: (4025, " in consumer.said()
        assert ("shop", "acct") not in tables_of(server)
        last = replica.moments(EXPECTED)[-1]
        for table in last.tables:
            if table["kind"] == "table" and table["table"] != "acct":
                replica.same_rows(last, table, rows_of(server, table))
        consumer.finish()  # it is tried again, and made without the check
        (acct,) = [t for t in last.tables if t["table"] == "acct"]
        replica.same_rows(last, acct, rows_of(server, acct))
    finally:
        consumer.close()


def test_what_tidb_alone_has_is_told_for_each_table(server: str, served: ServedLog, tmp_path: Path) -> None:
    consumer = Consumer(server, served.url, tmp_path)
    try:
        served.log.flush(served.log.start_ts + 1)
        consumer.finish()
        served.log.flush(recording_end())
        consumer.finish()
    finally:
        consumer.close()
    said = set(consumer.said().splitlines())
    assert said >= {
        "shop.k_arand: AUTO_RANDOM(5): left out",
        "shop.k_shard: SHARD_ROW_ID_BITS = 4: left out",
        "shop.k_shard: PRE_SPLIT_REGIONS = 2: left out",
        "shop.autoinc: AUTO_ID_CACHE = 30: left out",
        "shop.ttl_t: TTL = `at` + INTERVAL 1 YEAR: left out",
        "shop.k_rowid: primary key NONCLUSTERED: clustered",
    }


@pytest.mark.parametrize(
    ("statement", "notes"),
    [
        (
            "CREATE TABLE t (id BIGINT AUTO_RANDOM(5, 54)) AUTO_RANDOM_BASE=7",
            ["AUTO_RANDOM(5, 54)", "AUTO_RANDOM_BASE=7"],
        ),
        ("CREATE TABLE t (id BIGINT AUTO_RANDOM PRIMARY KEY, ttl INT)", ["AUTO_RANDOM"]),
        ("ALTER TABLE t PLACEMENT POLICY=`p 1`", ["PLACEMENT POLICY=`p 1`"]),
        ("ALTER TABLE t placement policy p1", ["placement policy p1"]),
        ("CREATE TABLE t (a INT COMMENT 'it''s AUTO_RANDOM \\' TTL') COMMENT \"AUTO_ID_CACHE 1\"", []),
        ("ALTER TABLE t /*T![ttl] REMOVE TTL */", []),
    ],
)
def test_words_of_a_statement_are_told_and_texts_in_it_are_not(statement: str, notes: list[str]) -> None:
    example = runpy.run_path(str(EXAMPLE))
    assert example["TIDB_ONLY"].findall(example["STRINGS"].sub("''", statement)) == notes


def with_wide_customers(schema: bytes) -> bytes:
    """The recording's snapshot with a column of 16,383 characters, which TiDB takes."""
    snapshot = json.loads(schema)
    (info,) = [each["info"] for each in snapshot["tables"] if each["info"]["id"] == 118]
    (column,) = [column for column in info["cols"] if column["name"]["O"] == "name"]
    column["type"]["Flen"] = 16_383
    return json.dumps(snapshot).encode()


def first_ddl_of(table: str) -> int:
    history, begins = recorded_history(), json.loads((RECORDING / "schema_snapshot.json").read_bytes())["ts"]
    events = history.events(int(begins), history.resolved_ts)
    return min(event.commit_ts for event in events if (event.db, event.table) == ("shop", table))


def changes_of(table_id: int, above: int, upto: int) -> int:
    rows = committed_rows()
    ts = rows["commit_ts"].to_numpy()
    return int(((rows["table_id"].to_numpy() == table_id) & (ts > above) & (ts <= upto)).sum())


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
