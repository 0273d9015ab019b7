"""An upgrade of the catalog: what it would do is said beforehand, and a migration that fails can be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaserver.loop import MetaOptions, MetaWorker
from tests.kit.catalog_cases import ON_SQLALCHEMY
from tests.kit.later_release import ADDS, AFTER_THAT, FIRST, NEWEST, NEXT_MINOR, REVISION, later
from tests.kit.release import kept_catalog
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import Migration, MigrationFailed
from tistream.catalog.work.features import Feature
from tistream.catalog.work.upgrade import look
from tistream.catalog.work.workers import heartbeat, register_worker, retire_worker
from tistream.clock import SystemClock
from tistream.objectstore.memory import MemoryStore
from tistream.release import THIS_RELEASE, OlderProcesses, Release, ReleaseTooOld

PARCELS = Feature(name="parcels", since=NEXT_MINOR, changes="files are written as parcels")
#: a step that needs a table which the tests make when the cause is to be removed
NEEDS = 'op.execute("INSERT INTO made_by_hand (id) VALUES (1)")'


@pytest.fixture
def here(url: str) -> Catalog:
    """The catalog of this release."""
    catalog = Catalog(url)
    catalog.migrate()
    return catalog


def of(release: Release, url: str, folder: Path, *steps: str) -> Catalog:
    """The same catalog, opened by a later release."""
    return Catalog(url, release=release, migrations=later(folder, FIRST, *steps))


@ON_SQLALCHEMY
class TestLook:
    def test_it_says_what_an_upgrade_does_and_changes_nothing(self, here: Catalog, url: str, tmp_path: Path) -> None:
        register_worker(here, "s1", "sorter", "")
        before, newer = kept_catalog(here), of(NEXT_MINOR, url, tmp_path)
        state = look(newer, [PARCELS])
        assert kept_catalog(here) == before
        assert (state.release, state.revision, state.processes) == (NEXT_MINOR, NEWEST, {"s1": THIS_RELEASE})
        title = "a table that is added later"
        assert state.migrations == [Migration(revision=REVISION, title=title, min_release=FIRST)]
        assert state.lowest_after == THIS_RELEASE, "its neighbour"
        assert (state.older, state.off, state.is_done) == (["s1"], ["parcels"], False)
        state.refuse_to_fence()
        noted: list[str] = []
        newer.migrate(note=lambda each: noted.append(each.revision))
        assert noted == [each.revision for each in state.migrations]
        after = look(newer, [PARCELS])
        assert (after.migrations, after.revision) == ([], REVISION)
        assert (after.min_release, after.migrated_by) == (THIS_RELEASE, NEXT_MINOR)

    def test_it_is_done_when_no_older_process_lives_and_the_features_are_on(
        self, here: Catalog, url: str, tmp_path: Path
    ) -> None:
        old = register_worker(here, "s1", "sorter", "")
        newer = of(NEXT_MINOR, url, tmp_path)
        newer.migrate()
        register_worker(newer, "s2", "sorter", "")
        retire_worker(here, "s1", old)
        assert not look(newer, [PARCELS]).is_done, "the leader has not switched it on"
        MetaWorker(newer, MemoryStore(), SystemClock(), "meta-1", MetaOptions(features=[PARCELS])).assign()
        assert look(newer, [PARCELS]).is_done
        with pytest.raises(ReleaseTooOld):
            look(here)

    def test_processes_that_it_would_end_are_named(self, here: Catalog, url: str, tmp_path: Path) -> None:
        old = register_worker(here, "s1", "sorter", "")
        state = look(of(AFTER_THAT, url, tmp_path), [])
        with pytest.raises(OlderProcesses, match=f"would end s1: only {NEXT_MINOR} and later"):
            state.refuse_to_fence()
        retire_worker(here, "s1", old)
        look(of(AFTER_THAT, url, tmp_path / "again"), []).refuse_to_fence()

    def test_an_empty_database_has_everything_to_come(self, url: str) -> None:
        catalog = Catalog(url)
        state = look(catalog)
        assert (state.revision, state.processes) == (None, {})
        assert [each.revision for each in state.migrations] == sorted(f"{n:04}" for n in range(1, int(NEWEST) + 1))
        assert catalog.revision() is None
        catalog.migrate()
        assert look(catalog).migrations == []


@ON_SQLALCHEMY
class TestFailing:
    def test_it_names_the_migration_and_the_cause_and_can_be_repeated(
        self, here: Catalog, url: str, tmp_path: Path
    ) -> None:
        life = register_worker(here, "s1", "sorter", "")
        newer = of(NEXT_MINOR, url, tmp_path, ADDS, NEEDS)
        with pytest.raises(MigrationFailed, match=f"Migration {REVISION} of the catalog") as caught:
            newer.migrate()
        assert "made_by_hand" in str(caught.value.facts["cause"])
        assert caught.value.facts["statement"] == "INSERT INTO made_by_hand (id) VALUES (1)"
        heartbeat(here, "s1", life)
        Catalog(url).migrate()
        with here.transaction() as conn:
            conn.exec_driver_sql("CREATE TABLE made_by_hand (id INTEGER)")
        newer.migrate()
        assert newer.revision() == REVISION
        heartbeat(here, "s1", life)

    def test_a_defect_in_one_is_said_in_the_same_way(self, here: Catalog, url: str, tmp_path: Path) -> None:
        newer = of(NEXT_MINOR, url, tmp_path, "{}['no such key']")
        with pytest.raises(MigrationFailed, match="no such key"):
            newer.migrate()
        assert here.revision() == NEWEST
