"""Files of merges, bases and replays that are not published yet: kept while their writer lives, on each database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.sqlite.base import SQLiteDialect

from tests.kit.catalog_cases import START, T, advance, flush, output, segment, shift
from tests.kit.statements import StatementLog
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import tenant_ids
from tistream.catalog.log import retention
from tistream.catalog.log.builds import begin_build, drop_expired_builds, end_build, renew_build
from tistream.catalog.log.compaction import commit_compaction, pieces
from tistream.catalog.log.exclusions import drop_old_exclusions, exclude, excluded
from tistream.catalog.log.objects import (
    KEYS_AT_ONCE,
    ObjectKind,
    insert_live,
    object_states,
    replace_unnamed,
    tombstone,
)
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.workers import register_worker, retire_worker
from tistream.ids import Tenant
from tistream.limits import BUILD_LEASE_MS
from tistream.objectstore.layout import REPLAY_N_MIN, BaseKey, CommittedKey, CompactedKey, SnapshotKey, replay_writer
from tistream.ts import TS_MAX

HOUR_MS = 3_600_000
DIALECT = SQLiteDialect(paramstyle="named")  #: of statements whose parameters have names


def compacted(build: int) -> str:
    return str(CompactedKey(tenant=T, job=f"{build:08d}-a", range_id=0, lo_ts=1, hi_ts=2))


def base(build: int) -> str:
    return str(BaseKey(tenant=T, job=f"{build:08d}-a", range_id=0, ts=2, n=1))


@pytest.mark.parametrize("key_of", [compacted, base])
class TestBuilds:
    def test_a_file_is_kept_as_long_as_its_build_lives(self, catalog: Catalog, key_of: Callable[[int], str]) -> None:
        lives, ended = begin_build(catalog, T), begin_build(catalog, T)
        end_build(catalog, ended)
        assert not tombstone(catalog, T, key_of(lives))
        assert object_states(catalog, [key_of(lives)]) == {}, "it can be published"
        assert tombstone(catalog, T, key_of(ended))
        end_build(catalog, lives)
        assert tombstone(catalog, T, key_of(lives))

    def test_a_driver_that_is_silent_for_its_lease_is_dead(
        self, catalog: Catalog, key_of: Callable[[int], str]
    ) -> None:
        build = begin_build(catalog, T)
        shift(catalog, tables.builds.c.renewed_ms, -(BUILD_LEASE_MS - 20_000))
        assert not tombstone(catalog, T, key_of(build))
        assert renew_build(catalog, build)
        shift(catalog, tables.builds.c.renewed_ms, -(BUILD_LEASE_MS + 1))
        assert not tombstone(catalog, T, key_of(build), grace_ms=HOUR_MS), "the grace period is longer"
        assert drop_expired_builds(catalog, grace_ms=HOUR_MS) == 0
        assert tombstone(catalog, T, key_of(build))
        assert drop_expired_builds(catalog, grace_ms=0) == 1
        assert not renew_build(catalog, build)

    def test_what_was_published_and_replaced_is_collected_while_its_build_goes_on(
        self, catalog: Catalog, key_of: Callable[[int], str]
    ) -> None:
        """No writer publishes a key twice."""
        key = key_of(begin_build(catalog, T))
        with catalog.transaction() as conn:
            insert_live(conn, T, key, ObjectKind.COMPACTED, 1)
        assert not tombstone(catalog, T, key)
        with catalog.transaction() as conn:
            replace_unnamed(conn, [key])
        assert tombstone(catalog, T, key)


class TestReplays:
    def test_files_of_a_replay_are_kept_as_long_as_it_holds_the_task(self, catalog: Catalog, low: int) -> None:
        written = [
            CommittedKey(tenant=T, sorter=replay_writer(low, 3, "a"), incarnation=1, seq=1),
            SnapshotKey(tenant=T, task_id=low, epoch=3, n=REPLAY_N_MIN + 5),
        ]
        of_sorters = [
            CommittedKey(tenant=T, sorter="sorter-1", incarnation=1, seq=1),
            SnapshotKey(tenant=T, task_id=low, epoch=3, n=5),
        ]
        register_worker(catalog, "replay-1-1", WorkerKind.REPLAY, "")
        hold(catalog, low, 3)
        assert [tombstone(catalog, T, str(key)) for key in written] == [False, False]
        assert [tombstone(catalog, T, str(key)) for key in of_sorters] == [True, True]
        hold(catalog, low, 4)
        assert tombstone(catalog, T, str(written[0])), "another worker has the task"
        hold(catalog, low, 3)
        retire_worker(catalog, "replay-1-1", 1)
        assert tombstone(catalog, T, str(written[1])), "the replay has ended"


class TestExclusions:
    def test_what_could_not_be_merged_is_left_alone_for_a_day(self, catalog: Catalog) -> None:
        keys = [f"committed/{n}" for n in range(450)]
        exclude(catalog, T, keys)
        exclude(catalog, T, keys[:3])
        assert excluded(catalog, T) == set(keys)
        assert excluded(catalog, Tenant(1, 99)) == set()
        of = tables.excluded_objects.c
        shift(catalog, of.since_ms, -24 * HOUR_MS - 1, of.object_key != keys[0])
        assert excluded(catalog, T) == {keys[0]}
        assert drop_old_exclusions(catalog) == 449


def hold(catalog: Catalog, task: int, epoch: int) -> None:
    with catalog.transaction() as conn:
        conn.execute(
            tables.tasks.update().where(tables.tasks.c.task_id == task).values(epoch=epoch, owner="replay-1-1")
        )


class TestManyObjects:
    """What one transaction costs when a task has very many small files."""

    FILES = 600

    @pytest.fixture(autouse=True)
    def filled(self, catalog: Catalog, low: int) -> None:
        segments = [segment(0, START + n, START + n, key=f"committed/{n:06d}") for n in range(1, self.FILES + 1)]
        flush(catalog, None, advance(low, START, START + self.FILES, *segments))

    @pytest.mark.parametrize("backend", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
    def test_a_swap_holds_the_counter_of_all_tenants_for_a_few_statements(self, catalog: Catalog, low: int) -> None:
        pieces_found = pieces(catalog, T, upto_ts=TS_MAX, limit=9999)
        assert len(pieces_found) == self.FILES
        with StatementLog(catalog) as log:
            assert commit_compaction(catalog, T, pieces_found, [output("compacted/a", low, 3 * self.FILES)])
        (statements,) = [each for each in log.transactions if any("counters" in text for text in each)]
        statements_held = len(statements) - next(n for n, text in enumerate(statements) if "counters" in text)
        assert statements_held <= 2 + self.FILES / KEYS_AT_ONCE + 1
        assert len(statements) <= 10 + 5 * self.FILES / KEYS_AT_ONCE
        assert set(object_states(catalog, [p.object_key for p in pieces_found]).values()) == {"superseded"}

    def test_a_swap_of_one_changed_piece_of_many_has_no_effect(self, catalog: Catalog, low: int) -> None:
        listed = pieces(catalog, T, upto_ts=TS_MAX, limit=9999)
        wrong = [*listed[:-1], replace(listed[-1], segments=2)]
        assert not commit_compaction(catalog, T, wrong, [output("compacted/a", low, 3 * self.FILES)])
        assert pieces(catalog, T, upto_ts=TS_MAX, limit=9999) == listed

    @pytest.mark.parametrize("backend", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
    def test_what_is_retired_next_is_found_along_an_index(self, catalog: Catalog, backend: str) -> None:
        """However many objects lie below the floor: none is sorted to find the first."""
        params = {**tenant_ids(T), "floor_ts": START + self.FILES, "at_most": 200, "kind_1": "data", "param_1": 0}
        with catalog.reading() as conn:
            prefix = "EXPLAIN " if backend == "mariadb" else "EXPLAIN QUERY PLAN "
            sql = str(retention._CANDIDATES.compile(dialect=DIALECT))
            plan = " ".join(str(tuple(row)) for row in conn.execute(text(prefix + sql), params))
        assert "segments_by_hi_ts" in plan
        assert not any(word in plan.lower() for word in ("temp b-tree", "filesort", "temporary"))
