"""Processes of this release on a catalog that a later one has migrated: each role runs or ends, and says why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.processes import TiStreamProcess, running
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.database.compatibility import demand
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.workers import list_workers
from tistream.release import THIS_RELEASE, Release

LATER, LOWEST = Release(9, 1, 2), Release(9, 0, 0)
SERVICES = ("serve", "meta", "dispatch", "sort", "maintain", "replicate")
KINDS = {
    "serve": WorkerKind.API, "meta": WorkerKind.META, "dispatch": WorkerKind.DISPATCHER, "sort": WorkerKind.SORTER,
    "maintain": WorkerKind.MAINTAIN, "replicate": WorkerKind.REPLICATE,
}  # fmt: skip
COMMANDS = {
    "key": ("key", "owner"),
    "upgrade": ("upgrade", "--run"),
    "compact": ("compact", "--cluster", "1", "--tenant", "1"),
    "audit": ("audit",),
    "replay": ("replay", "--cluster", "1", "--tenant", "1"),
}
_ENDED = 5  # the exit status of what another process has fenced


@pytest.fixture(scope="module", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('mixed')}/catalog.db"
        return
    with mariadb() as server:
        yield new_database(server, "mixed")


@pytest.fixture
def migrated(url: str) -> Iterator[Catalog]:
    """A catalog with tables of a later release, which allows this one."""
    catalog = Catalog(url)
    catalog.migrate()
    with catalog.transaction() as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        conn.exec_driver_sql("UPDATE catalog_release SET migrated_by = 1000, min_release = 1000")
        conn.exec_driver_sql("DELETE FROM workers")
        demand(conn, by=LATER, lowest=THIS_RELEASE)
    yield catalog
    with catalog.transaction() as conn:
        conn.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{MIGRATIONS.newest}'")
        conn.exec_driver_sql("UPDATE catalog_release SET migrated_by = 1000, min_release = 1000")
    catalog.close()


def move_on(catalog: Catalog) -> None:
    with catalog.transaction() as conn:
        demand(conn, by=LATER, lowest=LOWEST)


def says_what_to_do(text: str) -> bool:
    """One line names both releases, the code and what to start; there is no traceback."""
    words = (f"This is TiStream {THIS_RELEASE}", f"TiStream {LATER}", f"Start {LOWEST} or later", "[TS-1052]")
    return "Traceback" not in text and any(all(word in line for word in words) for line in text.splitlines())


def where(url: str, folder: Path) -> tuple[str, ...]:
    (folder / "bucket").mkdir(exist_ok=True)
    return ("--catalog", url, "--object-store", f"file://{folder}/bucket")


def started(role: str, url: str, folder: Path) -> TiStreamProcess:
    port = ("--port", "0", "--auth", "none") if role == "serve" else ()
    return TiStreamProcess(role, *where(url, folder), *port, log=folder / f"{role}.log")


def test_each_role_runs_while_it_may_and_ends_when_it_may_no_longer(
    migrated: Catalog, url: str, tmp_path: Path
) -> None:
    processes = {role: started(role, url, tmp_path) for role in SERVICES}
    with running([*processes.values()]):
        eventually(lambda: {row.kind for row in list_workers(migrated)} == set(KINDS.values()))
        assert {row.release for row in list_workers(migrated)} == {THIS_RELEASE}
        move_on(migrated)
        for role, process in processes.items():
            assert process.wait(WAIT_S) == _ENDED, role
            assert says_what_to_do(process.output()), process.output()


@pytest.mark.parametrize("role", [*SERVICES, *COMMANDS])
def test_nothing_starts_on_a_catalog_that_refuses_it(migrated: Catalog, url: str, tmp_path: Path, role: str) -> None:
    move_on(migrated)
    at = where(url, tmp_path)
    args = (*COMMANDS.get(role, (role,)), *(at[:2] if role in ("key", "upgrade") else at))
    command = [sys.executable, "-m", "tistream.cli.main", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == _ENDED, done.stderr
    assert says_what_to_do(done.stderr), done.stderr
    assert list_workers(migrated) == []
