"""The part of the catalog suite that is about retention: floors, changefeeds, safe points, dead rows."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from tests.kit.catalog_cases import OTHER, START, T, activate, flush, segment, together
from tests.kit.catalog_suite_bases import BaseSuite, new
from tests.kit.catalog_suite_seeds import seed
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.committed import TaskAdvance, find_segments
from tistream.catalog.log.objects import forget_dead, live_objects, object_states, superseded_objects, tombstone
from tistream.catalog.log.read_leases import drop_lease, open_lease
from tistream.catalog.log.retention import check_floor, raise_floor, retire_below_floor
from tistream.catalog.log.safe_points import list_safe_points, remove_safe_point, set_safe_point
from tistream.catalog.log.seeds import add_seed, list_seeds, seed_segments_of
from tistream.catalog.tenancy.changefeeds import (
    FeedState,
    add_changefeed,
    get_changefeed,
    list_changefeeds,
    move_checkpoint,
    remove_changefeed,
    switch_changefeed,
)
from tistream.catalog.tenancy.tenants import get_tenant, kept_s, set_retention
from tistream.errors import Fenced, InvalidInput, NotFound, TiStreamError, TsExpired, TsOutOfRange

EDGE = START + 40


def grown(catalog: Catalog) -> list[int]:
    """Two files, each with a segment of both data tasks and one of the DDL task: up to START + 20, up to EDGE."""
    tasks = activate(catalog)
    for key, seen, durable_ts in (("f/1", START, START + 20), ("f/2", START + 20, EDGE)):
        advances = [
            TaskAdvance(
                task_id=task,
                epoch=0,
                seen_durable_ts=seen,
                new_durable_ts=durable_ts,
                segments=(segment(n, seen + 1, durable_ts - n),) if task != tasks[2] else (),
            )
            for n, task in enumerate(tasks)
        ]
        assert flush(catalog, key, *advances) == set(tasks)
    return tasks


def left(catalog: Catalog) -> list[tuple[str, int]]:
    return [(s.object_key, s.number) for s in find_segments(catalog, T, after_ts=0, upto_ts=EDGE, limit=99)]


class RetentionSuite:
    """Needs a fixture `catalog`: a migrated, empty catalog."""

    def test_what_lies_below_the_floor_goes_and_nothing_else(self, catalog: Catalog) -> None:
        grown(catalog)
        assert get_tenant(catalog, T).earliest_ts == START
        assert retire_below_floor(catalog, T).objects == 0
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 19)
        assert get_tenant(catalog, T).earliest_ts == START + 19
        assert (retire_below_floor(catalog, T).segments, left(catalog)) == (1, [("f/1", 0), ("f/2", 1), ("f/2", 0)])
        assert object_states(catalog, ["f/1"]) == {"f/1": "live"}
        assert raise_floor(catalog, T, seen_floor=START + 19, to_ts=START + 20)
        assert retire_below_floor(catalog, T).segments == 1
        assert retire_below_floor(catalog, T).objects == 0
        assert object_states(catalog, ["f/1", "f/2"]) == {"f/1": "superseded", "f/2": "live"}
        assert live_objects(catalog, T, after_key="", limit=9) == [("f/2", 1000)]

    def test_objects_are_retired_some_at_a_time(self, catalog: Catalog) -> None:
        grown(catalog)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=EDGE)
        assert [retire_below_floor(catalog, T, limit=1).objects for _ in range(3)] == [1, 1, 0]
        assert left(catalog) == []

    def test_a_floor_rises_only_from_where_it_was_seen_and_never_above_what_is_served(self, catalog: Catalog) -> None:
        grown(catalog)
        assert not raise_floor(catalog, T, seen_floor=START, to_ts=START + 5)
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START)
        assert not raise_floor(catalog, OTHER, seen_floor=0, to_ts=START + 5)
        with pytest.raises(TiStreamError, match="at or below the watermark"):
            raise_floor(catalog, T, seen_floor=0, to_ts=EDGE + 1)
        won = together(3, lambda n: raise_floor(catalog, T, seen_floor=0, to_ts=START + 5 + n))
        assert sorted(won) == [False, False, True]
        assert get_tenant(catalog, T).floor_ts == START + 5 + won.index(True)

    def test_who_lists_from_below_the_floor_is_told(self, catalog: Catalog) -> None:
        grown(catalog)
        check_floor(catalog, T, 0)  # nothing was given up: it is no business of this check
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 20)
        check_floor(catalog, T, START + 20)
        with pytest.raises(TsExpired) as caught:
            check_floor(catalog, T, START + 19)
        assert caught.value.facts["earliest_ts"] == str(START + 20)
        assert str(caught.value.facts["earliest_time"]).endswith("Z")

    def test_a_lease_keeps_what_was_listed(self, catalog: Catalog) -> None:
        grown(catalog)
        open_lease(catalog, "reader", 60_000)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 20)
        assert retire_below_floor(catalog, T).objects == 1
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == []
        drop_lease(catalog, "reader")
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == ["f/1"]

    def test_bases_and_seeds_below_the_floor_go_with_the_log(self, catalog: Catalog) -> None:
        grown(catalog)
        add_seed(catalog, seed(), 77)
        (sown,) = list_seeds(catalog, T)
        files = {s.object_key for s in seed_segments_of(catalog, sown, 5) or ()} | {sown.manifest_key}
        assert BaseSuite.add(catalog, new(5, START + 10, sown, key="bases/1"), new(6, START + 10, sown, key="bases/1"))
        (five, six) = list_bases(catalog, T)
        assert BaseSuite.add(catalog, new(5, START + 20, five, key="bases/2"))
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 10)
        assert (list_seeds(catalog, T), seed_segments_of(catalog, sown, 5)) == ([], None)
        assert set(object_states(catalog, files).values()) == {"superseded"}
        assert [base.ts for base in list_bases(catalog, T, [5, 6])] == [START + 20, START + 10, START + 10]
        assert not BaseSuite.add(catalog, new(6, START + 20, six, key="bases/3")), "it was planned with a longer log"
        assert raise_floor(catalog, T, seen_floor=START + 10, to_ts=START + 11)
        assert [base.ts for base in list_bases(catalog, T)] == [START + 20]
        assert object_states(catalog, ["bases/1", "bases/2"]) == {"bases/1": "superseded", "bases/2": "live"}
        assert BaseSuite.add(catalog, new(5, START + 30, list_bases(catalog, T)[0], key="bases/4"), start_ts=START + 11)

    def test_changefeeds_hold_the_floor(self, catalog: Catalog) -> None:
        grown(catalog)
        assert add_changefeed(catalog, T, "a", START + 10)
        assert not add_changefeed(catalog, T, "a", START + 10), "once more: its reply was lost"
        with pytest.raises(InvalidInput):
            add_changefeed(catalog, T, "a", START + 11)
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 11)
        switch_changefeed(catalog, T, "a", FeedState.STOPPED)
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 11), "a stopped one holds as well"
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 10)
        assert move_checkpoint(catalog, T, "a", START + 12).checkpoint_ts == START + 12
        assert raise_floor(catalog, T, seen_floor=START + 10, to_ts=START + 12)
        with pytest.raises(TsExpired):
            add_changefeed(catalog, T, "late", START + 11)
        assert [remove_changefeed(catalog, T, "a") for _ in range(2)] == [True, False]
        assert raise_floor(catalog, T, seen_floor=START + 12, to_ts=EDGE)
        assert add_changefeed(catalog, T, "b", None)
        assert get_changefeed(catalog, T, "b").start_ts == EDGE

    def test_a_changefeed_begins_where_the_log_is_or_is_refused(self, catalog: Catalog) -> None:
        """Whoever comes first: a floor above a changefeed that holds is never seen."""
        grown(catalog)

        def act(n: int) -> bool:
            if n % 2:
                return raise_floor(catalog, T, seen_floor=0, to_ts=START + 30)
            try:
                return add_changefeed(catalog, T, f"feed-{n}", START + 10)
            except TsExpired:
                return False

        won = together(4, act)
        raised = get_tenant(catalog, T).floor_ts == START + 30
        assert raised == (won[1] or won[3])
        assert raised == (list_changefeeds(catalog, T) == [])

    def test_a_checkpoint_never_falls_and_ends_at_its_target(self, catalog: Catalog) -> None:
        grown(catalog)
        assert add_changefeed(catalog, T, "a", START + 1, target_ts=START + 30, tables="shop.*")
        row = move_checkpoint(catalog, T, "a", START + 20)
        assert (row.state, row.tables, row.target_ts) == (FeedState.NORMAL, "shop.*", START + 30)
        assert move_checkpoint(catalog, T, "a", START + 20).checkpoint_ts == START + 20
        with pytest.raises(Fenced) as caught:
            move_checkpoint(catalog, T, "a", START + 19)
        assert caught.value.facts["checkpoint_ts"] == str(START + 20)
        with pytest.raises(TsOutOfRange):
            move_checkpoint(catalog, T, "a", EDGE + 1)
        assert move_checkpoint(catalog, T, "a", START + 30).state is FeedState.FINISHED
        with pytest.raises(Fenced):
            switch_changefeed(catalog, T, "a", FeedState.NORMAL)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=EDGE), "a finished one holds nothing"
        with pytest.raises(NotFound):
            move_checkpoint(catalog, T, "b", START + 30)
        with pytest.raises(NotFound):
            add_changefeed(catalog, OTHER, "a", START)

    def test_safe_points_hold_the_floor_until_they_end(self, catalog: Catalog) -> None:
        grown(catalog)
        set_safe_point(catalog, T, "backfill", START + 10, 3600)
        set_safe_point(catalog, T, "other", START + 30, 3600)
        assert [(p.service_id, p.safe_ts) for p in list_safe_points(catalog, T)] == [
            ("backfill", START + 10),
            ("other", START + 30),
        ]
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 11)
        set_safe_point(catalog, T, "backfill", START + 12, 3600)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 11)
        with pytest.raises(TsExpired):
            set_safe_point(catalog, T, "late", START + 10, 3600)
        with catalog.transaction() as conn:  # an hour passes
            conn.execute(update(tables.safe_points).values(expires_ms=tables.safe_points.c.expires_ms - 3_600_000))
        assert list_safe_points(catalog, T) == []
        assert raise_floor(catalog, T, seen_floor=START + 11, to_ts=START + 35)
        set_safe_point(catalog, T, "other", START + 36, 3600)
        assert [remove_safe_point(catalog, T, "other") for _ in range(2)] == [True, False]
        with pytest.raises(NotFound):
            set_safe_point(catalog, OTHER, "backfill", START, 1)

    def test_a_tenant_has_a_retention_of_its_own(self, catalog: Catalog) -> None:
        activate(catalog)
        assert kept_s(get_tenant(catalog, T), 1.5) == 5400
        assert set_retention(catalog, T, 0)
        assert kept_s(get_tenant(catalog, T), 1.5) == 0
        assert set_retention(catalog, T, None)
        assert get_tenant(catalog, T).retention_s is None
        assert not set_retention(catalog, OTHER, 1)

    def test_a_row_that_was_live_once_is_forgotten_and_a_tombstone_is_not(self, catalog: Catalog) -> None:
        tasks = grown(catalog)
        assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 20)
        retire_below_floor(catalog, T)
        assert forget_dead(catalog, older_ms=0, limit=9) == 0, "it may still be in the bucket"
        assert all(tombstone(catalog, T, key) for key in ("f/1", "f/late"))
        assert forget_dead(catalog, older_ms=60_000, limit=9) == 0
        assert forget_dead(catalog, older_ms=0, limit=9) == 1
        assert object_states(catalog, ["f/1", "f/late"]) == {"f/late": "dead"}
        late = TaskAdvance(
            task_id=tasks[0],
            epoch=0,
            seen_durable_ts=EDGE,
            new_durable_ts=EDGE + 9,
            segments=(segment(0, EDGE + 1, EDGE + 9),),
        )
        with pytest.raises(Fenced):
            flush(catalog, "f/late", late)
