"""`tistream upgrade`: exit statuses and words, on the catalog that 0.1.0 has left, and on one of a later release."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.invoked import invoke
from tests.kit.later_release import ADDS, FIRST, NEXT_MINOR, REVISION, later
from tests.kit.release import kept_catalog, reflected, restore
from tistream.catalog.database.compatibility import demand
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import MIGRATIONS, Migrations
from tistream.catalog.work.workers import leave, register_worker
from tistream.release import THIS_RELEASE, Release

Upgrade = Callable[..., tuple[int, str, str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/catalog.db"


@pytest.fixture
def upgrade(url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Upgrade:
    return lambda *args: invoke(monkeypatch, capfd, "upgrade", *args, "--catalog", url)


def bring(monkeypatch: pytest.MonkeyPatch, release: Release, migrations: Migrations) -> None:
    """From now on the command is that of another release."""
    defaults = Catalog.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "release", release)
    monkeypatch.setitem(defaults, "migrations", migrations)


def facts(said: tuple[int, str, str]) -> dict[str, Any]:
    assert said[0] == 0, said
    return dict(json.loads(said[1]))


def of_release(url: str, name: str, release: Release) -> Callable[[], None]:
    """A process of this release registers; calling the result ends it."""
    catalog = Catalog(url, release=release)
    life = register_worker(catalog, name, "api", "")

    def end() -> None:
        leave(catalog, name, life)
        catalog.close()

    return end


def test_the_catalog_of_0_1_0_is_looked_at_and_migrated(url: str, upgrade: Upgrade, tmp_path: Path) -> None:
    restore("0.1.0", url, tmp_path / "bucket")
    catalog = Catalog(url)
    end = of_release(url, "api-1", FIRST)
    before = kept_catalog(catalog)
    said = facts(upgrade("--check", "--json"))
    assert kept_catalog(catalog) == before, "a check changes nothing"
    missing = [f"{each.revision} {each.title}" for each in MIGRATIONS.missing("0001")]
    assert (said["migrations"], said["revision"], said["min_release"]) == (missing, "0001", str(FIRST))
    assert (said["processes"], said["older_processes"], said["done"]) == ({str(FIRST): 1}, ["api-1"], False)
    status, _, err = upgrade("--run", "--wait", "--timeout", "0.1")
    assert (status, "waits for api-1" in err, "[TS-1054]" in err) == (4, True, True)
    assert catalog.revision() == MIGRATIONS.newest
    threading.Timer(1.0, end).start()
    assert facts(upgrade("--run", "--wait", "--json"))["done"]
    catalog.close()


def test_the_migrations_and_their_progress(
    url: str, upgrade: Upgrade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Catalog(url).migrate()
    bring(monkeypatch, NEXT_MINOR, later(tmp_path))
    assert f"{REVISION} a table that is added later" in upgrade("--check")[1]
    status, _, err = upgrade("--run")
    assert (status, err) == (0, f"migration {REVISION}: a table that is added later\n")
    assert facts(upgrade("--check", "--json"))["migrations"] == []
    assert upgrade("--run")[2] == "", "nothing is left"


def test_a_failing_migration_is_no_traceback(
    url: str, upgrade: Upgrade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Catalog(url).migrate()
    bring(monkeypatch, NEXT_MINOR, later(tmp_path, FIRST, ADDS, 'op.execute("DROP TABLE never_there")'))
    status, _, err = upgrade("--run")
    assert status == 4
    assert "Traceback" not in err
    for words in (f"Migration {REVISION} of the catalog", "[TS-1053]", "never_there", "tistream upgrade again"):
        assert words in err


def test_processes_that_the_migrations_would_end_hold_it_back(
    url: str, upgrade: Upgrade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Catalog(url).migrate()
    end = of_release(url, "api-1", THIS_RELEASE)
    bring(monkeypatch, NEXT_MINOR, later(tmp_path, NEXT_MINOR))
    for action in ("--check", "--run"):
        status, _, err = upgrade(action)
        assert (status, f"would end api-1: only {NEXT_MINOR}" in err, "[TS-1054]" in err) == (4, True, True), err
    assert facts_of_revision(url) == MIGRATIONS.newest
    end()
    assert upgrade("--check")[0] == 0


def facts_of_revision(url: str) -> str | None:
    catalog = Catalog(url)
    try:
        return catalog.revision()
    finally:
        catalog.close()


def test_a_later_release_refuses_it(url: str, upgrade: Upgrade) -> None:
    catalog = Catalog(url)
    catalog.migrate()
    with catalog.transaction() as conn:
        demand(conn, by=NEXT_MINOR, lowest=NEXT_MINOR)
    for action in ("--check", "--run"):
        status, _, err = upgrade(action)
        assert (status, "[TS-1052]" in err, f"Start {NEXT_MINOR} or later" in err) == (5, True, True), err
    catalog.close()


def test_the_tables_of_another_program_are_refused(url: str, upgrade: Upgrade) -> None:
    catalog = Catalog(url)
    with catalog.transaction() as conn:
        conn.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        conn.exec_driver_sql("INSERT INTO alembic_version VALUES ('5f3a9c')")
    before = reflected(catalog)
    for action in ("--check", "--run"):
        status, _, err = upgrade(action)
        assert (status, "of another program" in err, "5f3a9c" in err) == (2, True, True), err
    assert [table.name for table in reflected(catalog)] == [table.name for table in before]
    catalog.close()


def test_migrations_that_do_not_fit_together_are_no_traceback(
    url: str, upgrade: Upgrade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Catalog(url).migrate()
    migrations = later(tmp_path)
    (file,) = migrations.folder.glob("versions/*_later.py")
    file.write_text(file.read_text().replace(f'"{MIGRATIONS.newest}"', '"7777"'), "utf-8")
    bring(monkeypatch, NEXT_MINOR, migrations)
    for action in ("--check", "--run"):
        status, _, err = upgrade(action)
        assert (status, "[TS-1053]" in err, "7777" in err, "Traceback" in err) == (4, True, True, False), err


def test_what_it_is_not_told(url: str, upgrade: Upgrade, tmp_path: Path) -> None:
    for args in ((), ("--check", "--run"), ("--check", "--wait")):
        assert upgrade(*args)[0] == 2
    assert upgrade("--check")[0] == 3, "there is no catalog"
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"
    (tmp_path / "catalog.db").touch()
    assert facts(upgrade("--check", "--json"))["revision"] is None
