"""Deletion of a tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kit.catalog_cases import (
    OTHER,
    START,
    T,
    activate,
    advance,
    elected,
    ended,
    flush,
    long_key,
    seed,
    segment,
    snapshot,
    together,
)
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.committed import TaskAdvance, find_segments
from tistream.catalog.log.objects import live_objects, superseded_objects, tombstone
from tistream.catalog.log.read_leases import drop_lease, open_lease
from tistream.catalog.log.retention import check_listing, raise_floor
from tistream.catalog.log.safe_points import list_safe_points, set_safe_point
from tistream.catalog.log.schema_versions import add_schema_version, latest_schema_version
from tistream.catalog.log.seeds import add_seed, list_seeds
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer
from tistream.catalog.tenancy.keys import NewKey, create_key, get_key
from tistream.catalog.tenancy.tenants import (
    begin_tenant,
    change_state,
    get_tenant,
    list_tenants,
    look_up_tenant,
    register_tenant,
    set_retention,
)
from tistream.catalog.work import stores
from tistream.catalog.work.deletion import delete_tenant, finish_deletion, replace_tenant, retire_objects
from tistream.catalog.work.reshape import split_task
from tistream.catalog.work.tasks import list_tasks, raise_resubscribe
from tistream.errors import InvalidInput, NotFound, StateForbids, TenantDeleted
from tistream.ids import Position

ACTIVE, DELETING, DELETED = TenantState.ACTIVE, TenantState.DELETING, TenantState.DELETED


def to(task: int, lo: int, hi: int, no: int = 0) -> TaskAdvance:
    """The task advances from `lo` to `hi`, with one segment."""
    return advance(task, lo, hi, segment(no, lo + 1, hi))


def grown(catalog: Catalog) -> list[int]:
    """A tenant with everything that one may have, and its neighbour with tasks and a store."""
    tasks = activate(catalog)
    assert flush(catalog, "f/1", to(tasks[0], START, START + 9), to(tasks[1], START, START + 9, 1))
    assert snapshot(catalog, tasks[0], 1, {1: {1: Position(seq=3, closed=False)}}, more=["s/a"])
    for tenant in (T, OTHER):
        stores.issue_incarnation(catalog, tenant, 1)
    activate(catalog, OTHER)
    places = [
        stores.StoreAssignment(p.tenant, p.store_id, "dispatcher-1", p.epoch) for p in stores.store_places(catalog)
    ]
    assert stores.assign_stores(catalog, places, leader_epoch=elected(catalog)) == 2
    assert add_consumer(catalog, T, "feed", None)
    set_safe_point(catalog, T, "backfill", START, 600)
    assert add_seed(catalog, seed(START + 5), 50)
    add_schema_version(catalog, T, START + 4, "schemas/1", 70)
    for key_id, role, tenant in (("p", "pusher", T), ("c", "consumer", T), ("o", "pusher", OTHER)):
        create_key(catalog, NewKey(key_id=key_id, secret_hash=key_id[0] * 64, name=key_id, role=role, tenant=tenant))
    return tasks


def removed(catalog: Catalog) -> int:
    """Retire and bury what there is, as the collector does; how many objects."""
    count = 0
    while retire_objects(catalog, T, limit=2):
        pass
    for key in superseded_objects(catalog, T, grace_ms=0, limit=99):
        count += tombstone(catalog, T, key)
    return count


class TestDeletion:
    @pytest.fixture(autouse=True)
    def tasks(self, catalog: Catalog) -> list[int]:
        return grown(catalog)

    def test_a_tombstone_ends_all_that_goes_on(self, catalog: Catalog) -> None:
        assert delete_tenant(catalog, T, seen=ACTIVE, reason="gone", actor="me")
        assert (look_up_tenant(catalog, T).state, look_up_tenant(catalog, T).reason) == (DELETING, "gone")
        assert not list_tasks(catalog, T)
        assert not CONSUMERS.of_tenant(catalog, T)
        assert not list_safe_points(catalog, T)
        for table in (tables.snapshot_positions, tables.snapshot_objects):
            with catalog.reading() as conn:
                assert conn.execute(table.select()).all() == []
        assert [(p.tenant, p.dispatcher) for p in stores.store_places(catalog)] == [(OTHER, "dispatcher-1")]
        assert [row.dispatcher for row in stores.list_stores(catalog, T)] == [None]
        assert [bool(get_key(catalog, key).revoked_ms) for key in "pco"] == [True, False, False]
        event = list_events(catalog, limit=1)[0]
        assert (event.kind, event.tenant, event.actor) == ("tenant.deleting", T, "me")
        assert (event.detail["was"], event.detail["tasks"], event.detail["keys_revoked"]) == ("ACTIVE", 3, 1)
        assert len(list_tasks(catalog, OTHER)) == 3

    def test_it_is_given_up_from_the_state_that_was_seen_and_once(self, catalog: Catalog) -> None:
        assert not delete_tenant(catalog, T, seen=TenantState.PAUSED)
        assert len(list_tasks(catalog, T)) == 3
        assert sum(together(4, lambda _: delete_tenant(catalog, T, seen=ACTIVE))) == 1
        assert len(list_events(catalog, limit=9, kind="tenant.deleting")) == 1
        with pytest.raises(StateForbids):
            delete_tenant(catalog, T, seen=DELETING)
        for seen, to in ((DELETING, ACTIVE), (ACTIVE, DELETING), (ACTIVE, DELETED)):
            with pytest.raises(InvalidInput):
                change_state(catalog, T, seen=seen, to=to, reason="")

    def test_whoever_comes_late_changes_nothing(self, catalog: Catalog, tasks: list[int]) -> None:
        low = tasks[0]
        epoch = stores.list_stores(catalog, T)[0].dispatcher_epoch
        before = live_objects(catalog, T, after_key="", limit=99)
        assert delete_tenant(catalog, T, seen=ACTIVE)
        assert flush(catalog, "f/2", to(low, START + 9, START + 20)) == frozenset()
        assert not snapshot(catalog, low, 2, {}, keeps=["s/a"])
        assert not raise_resubscribe(catalog, low, epoch=0)
        assert not stores.set_reclaimed(catalog, T, 1, 1, 3, dispatcher_epoch=epoch)
        assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 5)
        for late in (
            lambda: add_seed(catalog, seed(START + 6), 50),
            lambda: add_consumer(catalog, T, "late", None),
            lambda: set_safe_point(catalog, T, "late", START + 9, 60),
            lambda: set_retention(catalog, T, 60),
            lambda: get_tenant(catalog, T),
            lambda: check_listing(catalog, T, START, START + 1),
        ):
            with pytest.raises(TenantDeleted):
                late()
        with pytest.raises(StateForbids):
            register_tenant(catalog, T)
        assert live_objects(catalog, T, after_key="", limit=99) == before

    def test_what_is_under_way_meets_the_tombstone_or_is_before_it(self, catalog: Catalog, tasks: list[int]) -> None:
        low, high, _ = tasks
        flushed: list[frozenset[int]] = []

        def act(i: int) -> object:
            if i == 0:
                return ended(lambda: delete_tenant(catalog, T, seen=ACTIVE))
            if i == 1:
                return split_or_gone(catalog, high)
            flushed.append(ended(lambda: flush(catalog, f"g/{i}", to(low, START + 9, START + 9 + i))))
            return None

        together(4, act)
        assert list_tasks(catalog, T) == []
        assert sum(map(len, flushed)) <= 1
        removed(catalog)
        assert finish_deletion(catalog, T)

    def test_a_store_that_begins_late_is_given_to_nobody(self, catalog: Catalog) -> None:
        assert delete_tenant(catalog, T, seen=ACTIVE)
        assert stores.issue_incarnation(catalog, T, 1)[0] == 2, "a number is never issued again"
        stores.issue_incarnation(catalog, T, 2)
        assert [p.tenant for p in stores.store_places(catalog)] == [OTHER]
        assert stores.newest_incarnation(catalog, T, 1) == 2

    def test_a_reader_who_was_there_keeps_his_objects(self, catalog: Catalog) -> None:
        assert retire_objects(catalog, T) == 0, "a tenant that lives loses nothing"
        open_lease(catalog, "reader", 60_000)
        assert delete_tenant(catalog, T, seen=ACTIVE)
        assert removed(catalog) == 0
        assert not finish_deletion(catalog, T)
        drop_lease(catalog, "reader")
        assert removed(catalog) > 0
        assert finish_deletion(catalog, T)

    def test_what_is_left_is_the_tombstone(self, catalog: Catalog) -> None:
        assert not finish_deletion(catalog, T)
        assert delete_tenant(catalog, T, seen=ACTIVE)
        assert not finish_deletion(catalog, T), "objects are there"
        objects = len(live_objects(catalog, T, after_key="", limit=99))
        assert removed(catalog) == objects > 4
        assert find_segments(catalog, T, after_ts=0, upto_ts=START + 99, limit=9) == []
        assert finish_deletion(catalog, T)
        assert not finish_deletion(catalog, T)
        assert not list_seeds(catalog, T)
        assert not list_bases(catalog, T)
        assert latest_schema_version(catalog, T) is None
        assert [row.tenant for row in list_tenants(catalog)] == [OTHER]
        assert [row.tenant for row in list_tenants(catalog, DELETED)] == [T]
        assert list_events(catalog, limit=1)[0].kind == "tenant.deleted"
        with pytest.raises(StateForbids):
            register_tenant(catalog, T)

    def test_what_is_published_after_all_is_taken_away_again(self, catalog: Catalog) -> None:
        """A history that was being saved: nothing guards that, and nobody reads it."""
        assert delete_tenant(catalog, T, seen=ACTIVE)
        removed(catalog)
        assert finish_deletion(catalog, T)
        add_schema_version(catalog, T, START + 50, "schemas/2", 70)
        assert removed(catalog) == 1


def test_a_tenant_that_never_began_is_deleted_too(catalog: Catalog) -> None:
    register_tenant(catalog, T)
    assert delete_tenant(catalog, T, seen=TenantState.AWAITING_SNAPSHOT)
    assert finish_deletion(catalog, T)


def split_or_gone(catalog: Catalog, task: int) -> object:
    """Split a task that may be gone when its turn comes."""
    try:
        return ended(lambda: split_task(catalog, task, long_key(b"t\x90"), seen_epoch=0))
    except Exception as e:  # noqa: BLE001 - NotFound when the tombstone was first
        return e


class TestReplacement:
    """T cannot continue; OTHER begins above what T has served."""

    BEGIN = START + 50

    @pytest.fixture
    def served(self, catalog: Catalog) -> int:
        """Up to where T is served."""
        tasks = activate(catalog)
        assert flush(catalog, "f/1", *(to(task, START, START + 9, n) for n, task in enumerate(tasks)))
        return START + 9

    def begin(self, catalog: Catalog, at: int) -> None:
        """The log of OTHER, with a seed of all rows."""
        activate(catalog, OTHER, at)
        assert add_seed(catalog, replace(seed(at), tenant=OTHER), 50)

    def test_readers_of_the_old_one_learn_where_to_begin(self, catalog: Catalog, served: int) -> None:
        self.begin(catalog, self.BEGIN)
        assert replace_tenant(catalog, T, OTHER, seen=ACTIVE, actor="me")
        assert look_up_tenant(catalog, T).state is DELETING
        asks: list[Callable[[], object]] = [
            lambda: get_tenant(catalog, T),
            lambda: check_listing(catalog, T, START, START + 1),
            lambda: set_safe_point(catalog, T, "late", START, 600),
        ]
        for ask in asks:
            with pytest.raises(TenantDeleted) as refused:
                ask()
            assert refused.value.facts["successor"] == str(OTHER)
            assert refused.value.facts["successor_start_ts"] == str(self.BEGIN)
            assert refused.value.facts["served_upto_ts"] == str(served)
            assert f"start_ts={self.BEGIN}" in refused.value.hint
        assert not list_tasks(catalog, T)
        event = list_events(catalog, limit=1)[0]
        assert (event.kind, event.actor) == ("tenant.deleting", "me")

    def test_it_is_refused_while_they_could_not_begin(self, catalog: Catalog, served: int) -> None:
        def refused(why: str) -> None:
            with pytest.raises(StateForbids, match=why):
                replace_tenant(catalog, T, OTHER, seen=ACTIVE)

        with pytest.raises(NotFound):
            replace_tenant(catalog, T, OTHER, seen=ACTIVE)
        register_tenant(catalog, OTHER)
        refused("not active yet")
        activate(catalog, OTHER, self.BEGIN)
        refused("no seed of all rows")
        assert add_seed(catalog, replace(seed(self.BEGIN, table_id=7), tenant=OTHER), 50)
        refused("no seed of all rows")
        with pytest.raises(StateForbids, match="two of them"):
            replace_tenant(catalog, T, T, seen=ACTIVE)
        assert get_tenant(catalog, T).state is ACTIVE

    def test_it_is_refused_when_the_new_one_begins_below_what_was_served(self, catalog: Catalog, served: int) -> None:
        self.begin(catalog, served - 1)
        with pytest.raises(StateForbids, match="below what"):
            replace_tenant(catalog, T, OTHER, seen=ACTIVE)

    def test_one_of_another_cluster_is_refused(self, catalog: Catalog, served: int) -> None:
        self.begin(catalog, self.BEGIN)
        begin_tenant(catalog, T, None, upstream_id=1)
        begin_tenant(catalog, OTHER, None, upstream_id=2)
        with pytest.raises(StateForbids, match="another cluster"):
            replace_tenant(catalog, T, OTHER, seen=ACTIVE)

    def test_it_happens_once(self, catalog: Catalog, served: int) -> None:
        self.begin(catalog, self.BEGIN)
        assert not replace_tenant(catalog, T, OTHER, seen=TenantState.PAUSED)
        assert sum(together(4, lambda _: replace_tenant(catalog, T, OTHER, seen=ACTIVE))) == 1
