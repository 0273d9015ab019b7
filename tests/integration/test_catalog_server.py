"""Settings of the catalog's server: Galera is refused, and a server that may lose what it has confirmed is named.

On real MariaDB servers, one of them a Galera node of its own cluster. MySQL cannot be installed here: the names by
which it shows its settings are given by hand, from its manual.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
import structlog
from typer.testing import CliRunner

from metaserver.loop import MetaWorker
from simulator.chaos.servers.mariadb import MariaDBServer
from simulator.chaos.servers.processes import TiStreamProcess
from tests.kit.manual_clock import ManualClock
from tests.kit.open_folder import OpenFolder
from tistream.catalog.database.checks import check_catalog
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.server_settings import GaleraRefused, fail_over, lost_in_a_crash
from tistream.cli.main import command_line
from tistream.cli.running import Parts, Running
from tistream.clock import SystemClock
from tistream.config import Settings
from tistream.diagnostics.findings import Finding, Severity
from tistream.objectstore.generations import FIRST, GenerationWatch

PROVIDER = "/usr/lib/galera/libgalera_smm.so"
FLUSH = "innodb_flush_log_at_trx_commit"
DURABLE = {FLUSH: "1", "sync_binlog": "1", "rpl_semi_sync_master_enabled": "OFF"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDBServer]:
    """A server that writes a binary log, as one with replicas does."""
    started = MariaDBServer(tmp_path_factory.mktemp("logged"), options=["--log-bin=binlog", "--server-id=1"])
    try:
        started.start()
        catalog = Catalog(started.url())
        catalog.migrate()
        catalog.close()
        yield started
    finally:
        started.stop()


@pytest.fixture
def catalog(server: MariaDBServer) -> Iterator[Catalog]:
    opened = Catalog(server.url())
    yield opened
    opened.close()


def put(server: MariaDBServer, **settings: str) -> None:
    """Settings of the running server; those not named are durable, and no commit waits for a replica."""
    with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as conn, conn.cursor() as cursor:
        for name, value in (DURABLE | settings).items():
            cursor.execute(f"SET GLOBAL {name} = {value}")


def looked_at(url: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_catalog(url, SystemClock())}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, []),
        ({FLUSH: "3"}, []),
        ({FLUSH: "2"}, [f"{FLUSH}=2"]),
        ({FLUSH: "0", "sync_binlog": "0"}, [f"{FLUSH}=0", "sync_binlog=0"]),
        ({"sync_binlog": "1000"}, ["sync_binlog=1000"]),
    ],
)
def test_the_doctor_names_what_a_crash_takes_back(
    server: MariaDBServer, changed: dict[str, str], named: list[str]
) -> None:
    put(server, **changed)
    finding = looked_at(server.url())["durability"]
    assert finding.verdict is (Severity.WARN if named else Severity.OK)
    assert [word for word in finding.words.replace(",", "").split() if "=" in word and "ON" not in word] == named


@pytest.mark.parametrize(
    ("enabled", "wait_point", "verdict", "words"),
    [
        ("OFF", "AFTER_SYNC", Severity.WARN, "failing over to it is a restore"),
        ("ON", "AFTER_COMMIT", Severity.WARN, "failing over to it is a restore"),
        ("ON", "AFTER_SYNC", Severity.OK, "confirmed when a replica has it"),
    ],
)
def test_the_doctor_says_what_a_fail_over_would_lose(
    server: MariaDBServer, enabled: str, wait_point: str, verdict: Severity, words: str
) -> None:
    put(server, rpl_semi_sync_master_enabled=enabled, rpl_semi_sync_master_wait_point=wait_point)
    finding = looked_at(server.url())["fail-over"]
    assert (finding.verdict, words in finding.words) == (verdict, True), finding


def test_a_server_without_a_binary_log_has_no_replica(tmp_path: Path) -> None:
    plain = MariaDBServer(tmp_path)
    try:
        plain.start()
        findings = looked_at(plain.url())
    finally:
        plain.stop()
    assert findings["fail-over"].verdict is Severity.OK
    assert "no binary log" in findings["fail-over"].words
    assert findings["durability"].verdict is Severity.OK
    assert findings["durability"].facts["wsrep_on"] == "OFF", "a server without Galera shows so"


def test_the_leader_reports_it_until_it_is_mended(server: MariaDBServer, catalog: Catalog) -> None:
    clock = ManualClock()
    meta = MetaWorker(catalog, OpenFolder(), clock, "m1")

    def codes() -> list[str]:
        meta.assign()
        return [problem.code for problem in meta.problems()]

    put(server, sync_binlog="0")
    assert codes() == ["TS-1044"]
    (problem,) = meta.problems()
    assert "sync_binlog=0" in problem.message
    put(server)
    clock.advance(61)
    assert codes() == []


def test_each_service_says_it_at_its_start(server: MariaDBServer, catalog: Catalog) -> None:
    store = OpenFolder()
    watch = GenerationWatch(store, FIRST, SystemClock())

    def logged() -> list[str]:
        running = Running(Parts(Settings(), catalog, store, SystemClock(), watch), [])
        with structlog.testing.capture_logs() as entries:
            running.start()
        return [f"{entry['log_level']} {entry['code']} {entry['setting']}" for entry in entries]

    put(server, innodb_flush_log_at_trx_commit="2")
    assert logged() == ["warning TS-1044 innodb_flush_log_at_trx_commit=2, must be 1"]
    put(server)
    assert logged() == []


# ---- Galera


@pytest.fixture(scope="module")
def galera(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the only node of a new Galera cluster."""
    options = [
        *("--wsrep-on=ON", f"--wsrep-provider={PROVIDER}", "--wsrep-cluster-address=gcomm://"),
        *("--binlog-format=ROW", "--wsrep-node-address=127.0.0.1"),
        "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:0;gcache.size=1M",
    ]
    node = MariaDBServer(tmp_path_factory.mktemp("galera"), options=options)
    try:
        node.start()
        yield node.url()
    finally:
        node.stop()


def test_a_galera_node_is_refused_before_anything_is_made(galera: str) -> None:
    catalog = Catalog(galera)
    try:
        with catalog.reading() as conn:
            provider = conn.exec_driver_sql("SHOW STATUS LIKE 'wsrep_provider_name'").one()[1]
        assert provider == "Galera", "it is a real node"
        with pytest.raises(GaleraRefused, match="wsrep_on=ON"):
            catalog.migrate()
        assert catalog.revision() is None
    finally:
        catalog.close()
    finding = looked_at(galera)["durability"]
    assert (finding.verdict, finding.facts["code"]) == (Severity.FAIL, "TS-1043")


def test_no_service_and_no_command_starts_on_galera(galera: str, tmp_path: Path) -> None:
    where = ("--catalog", galera, "--object-store", f"file://{tmp_path}/bucket")
    (tmp_path / "bucket").mkdir()
    with TiStreamProcess("meta", *where, log=tmp_path / "meta.log") as service:
        assert service.wait(120) == 2, service.output()
        assert "[TS-1043]" in service.output()
        assert "semi-synchronous" in service.output(), "what to do"
    assert isinstance(CliRunner().invoke(command_line(), ["audit", *where]).exception, GaleraRefused)
    made = CliRunner().invoke(command_line(), ["key", "owner", "--catalog", galera])
    assert isinstance(made.exception, GaleraRefused)


# ---- MySQL, by its names


def test_the_names_of_mysql_are_understood() -> None:
    mysql = {"innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "1"}
    semi_sync = {"rpl_semi_sync_source_enabled": "ON", "rpl_semi_sync_source_wait_point": "AFTER_SYNC"}
    assert lost_in_a_crash(mysql) == []
    assert lost_in_a_crash(mysql | {"sync_binlog": "0"}) == ["sync_binlog=0 with log_bin=ON, must be 1"]
    assert not fail_over(mysql)[0], "without the plugin there is no setting of it"
    assert fail_over(mysql | semi_sync)[0]
    assert not fail_over(mysql | semi_sync | {"rpl_semi_sync_source_wait_point": "AFTER_COMMIT"})[0]
