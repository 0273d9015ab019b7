"""Which releases run on a catalog: one that a later release has migrated, and one whose older processes live on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, inspect

from tests.kit.catalog_cases import ON_SQLALCHEMY, elected
from tests.kit.later_release import AFTER_THAT, NEXT_MINOR, REVISION, later
from tistream.catalog.database.compatibility import demand, keep_out
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.leader import acquire_leadership, get_leader, renew_leadership
from tistream.catalog.work.workers import heartbeat, list_workers, register_worker
from tistream.errors import Fenced
from tistream.ids import Tenant
from tistream.release import THIS_RELEASE, Release, ReleaseTooOld

LATER = Release(9, 1, 2)


def refused(caught: pytest.ExceptionInfo[ReleaseTooOld], min_release: Release) -> bool:
    """Whether the error names this release, the one that changed the catalog, and what to start."""
    message = caught.value.message
    return all(word in message for word in (f"This is TiStream {THIS_RELEASE}", f"{LATER}", f"Start {min_release} or"))


@ON_SQLALCHEMY
class TestStart:
    @pytest.mark.parametrize("min_release", [Release(0, 1, 0), THIS_RELEASE])
    def test_on_the_catalog_of_a_later_release_that_allows_it(
        self, min_release: Release, url: str, tmp_path: Path
    ) -> None:
        newer = Catalog(url, release=NEXT_MINOR, migrations=later(tmp_path, min_release))
        newer.migrate()
        catalog_here = Catalog(url)
        catalog_here.migrate()
        assert catalog_here.revision() == REVISION, "its tables are left as they are"
        assert register_tenant(catalog_here, Tenant(1, 1)).tenant == Tenant(1, 1)
        assert register_worker(catalog_here, "s1", "sorter", "") == 1
        for catalog in (newer, catalog_here):
            catalog.close()

    def test_on_the_catalog_of_a_later_release_that_refuses_it(self, url: str, tmp_path: Path) -> None:
        lowest = Release(9, 0, 0)
        newer = Catalog(url, release=LATER, migrations=later(tmp_path, lowest))
        newer.migrate()
        older = Catalog(url)
        with pytest.raises(ReleaseTooOld) as caught:
            older.migrate()
        assert refused(caught, lowest)
        for catalog in (newer, older):
            catalog.close()

    def test_on_the_catalog_of_a_release_that_is_not_its_neighbour(self, url: str, tmp_path: Path) -> None:
        """Its tables would do. What else it writes is only tested with its neighbours."""
        newer, older = Catalog(url, release=AFTER_THAT, migrations=later(tmp_path)), Catalog(url)
        newer.migrate()
        with pytest.raises(ReleaseTooOld, match=f"Start {NEXT_MINOR} or later"):
            older.migrate()
        for catalog in (newer, older):
            catalog.close()

    def test_a_feature_refuses_it_without_a_migration(self, url: str) -> None:
        catalog = Catalog(url)
        catalog.migrate()
        with catalog.transaction() as conn:
            demand(conn, by=LATER, lowest=LATER)
        with pytest.raises(ReleaseTooOld) as caught:
            catalog.migrate()
        assert refused(caught, LATER)
        catalog.close()

    def test_who_was_overtaken_between_its_look_and_the_lock_leaves_the_tables(self, url: str, tmp_path: Path) -> None:
        newer, older = Catalog(url, release=LATER, migrations=later(tmp_path, LATER)), Catalog(url)
        looked = older.revision

        def overtaken() -> str | None:
            older.revision = looked  # type: ignore[method-assign]
            seen = looked()
            newer.migrate()
            return seen

        older.revision = overtaken  # type: ignore[method-assign]
        with pytest.raises(ReleaseTooOld):
            older.migrate()
        assert older.revision() == REVISION
        for catalog in (newer, older):
            catalog.close()


@pytest.mark.parametrize("backend", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
def test_older_processes_are_refused_before_the_first_table_changes(url: str, tmp_path: Path) -> None:
    """MariaDB commits each statement: an older process that reads between two of them must already be refused."""
    older = Catalog(url)
    older.migrate()
    life = register_worker(older, "s1", "sorter", "")
    newer = Catalog(url, release=LATER, migrations=later(tmp_path, LATER))
    seen: list[str] = []

    def look(_conn: object, _cursor: object, sql: str, *_: object) -> None:
        if "CREATE TABLE added_later" in sql:
            with pytest.raises(ReleaseTooOld):
                heartbeat(older, "s1", life)
            with older.reading() as conn:
                assert inspect(conn).has_table("added_later")
            seen.append(sql)

    event.listen(Engine, "after_cursor_execute", look)
    try:
        newer.migrate()
    finally:
        event.remove(Engine, "after_cursor_execute", look)
    assert len(seen) == 1
    for catalog in (newer, older):
        catalog.close()


def move_on(catalog: Catalog, lowest: Release = LATER) -> None:
    with catalog.transaction() as conn:
        demand(conn, by=LATER, lowest=lowest)


class TestLivingProcesses:
    def test_a_heartbeat_says_that_the_catalog_was_changed(self, catalog: Catalog) -> None:
        life = register_worker(catalog, "s1", "sorter", "")
        heartbeat(catalog, "s1", life)
        move_on(catalog)
        with pytest.raises(ReleaseTooOld) as caught:
            heartbeat(catalog, "s1", life)
        assert refused(caught, LATER)

    def test_a_heartbeat_goes_on_when_the_later_release_allows_it(self, catalog: Catalog) -> None:
        life = register_worker(catalog, "s1", "sorter", "")
        move_on(catalog, THIS_RELEASE)
        heartbeat(catalog, "s1", life)
        register_worker(catalog, "s1", "sorter", "")
        with pytest.raises(Fenced) as caught:
            heartbeat(catalog, "s1", life)
        assert not isinstance(caught.value, ReleaseTooOld), "its name has another owner, which is something else"

    def test_who_registers_is_refused(self, catalog: Catalog) -> None:
        move_on(catalog)
        with pytest.raises(ReleaseTooOld) as caught:
            register_worker(catalog, "s1", "sorter", "")
        assert refused(caught, LATER)
        assert list_workers(catalog) == []

    def test_a_leader_is_neither_elected_nor_renewed(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        move_on(catalog)
        with pytest.raises(ReleaseTooOld) as caught:
            renew_leadership(catalog, "meta-1", epoch)
        assert refused(caught, LATER)
        assert acquire_leadership(catalog, "meta-1", starts=True) is None
        with catalog.transaction() as conn:
            conn.exec_driver_sql("UPDATE leader SET heartbeat_ms = 0")
        assert acquire_leadership(catalog, "meta-2") is None, "the lease has ended, and it may not lead"

    def test_what_is_demanded_never_falls(self, catalog: Catalog) -> None:
        move_on(catalog)
        with catalog.transaction() as conn:
            demand(conn, by=THIS_RELEASE, lowest=THIS_RELEASE)
        with pytest.raises(ReleaseTooOld) as caught:
            catalog.refuse_older()
        assert refused(caught, LATER)

    def test_processes_say_their_release(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        register_worker(catalog, "s1", "sorter", "")
        elected(catalog)
        leader = get_leader(catalog)
        assert leader is not None
        assert [row.release for row in list_workers(catalog)] == [leader.release] == [THIS_RELEASE]
        monkeypatch.setattr(catalog, "release", LATER)
        register_worker(catalog, "s1", "sorter", "")
        assert [row.release for row in list_workers(catalog)] == [LATER], "of the newest process of that name"


@pytest.mark.parametrize("backend", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
def test_nobody_registers_while_older_releases_are_being_kept_out(catalog: Catalog) -> None:
    errors: list[BaseException] = []

    def register() -> None:
        try:
            register_worker(catalog, "s1", "sorter", "")
        except ReleaseTooOld as e:
            errors.append(e)

    with catalog.transaction() as conn:
        keep_out(conn)
        thread = threading.Thread(target=register, daemon=True)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive(), "it waits for the row"
        demand(conn, by=LATER, lowest=LATER)
    thread.join(10)
    assert [type(e) for e in errors] == [ReleaseTooOld]
    assert list_workers(catalog) == []
