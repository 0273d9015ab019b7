"""Stops: items that an error has stopped."""

from __future__ import annotations

import pytest

from tests.kit.catalog_cases import OTHER, T, shift
from tests.kit.manual_clock import ManualClock
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.work.stopped_items import (
    STALE_MS,
    Scope,
    StoppedItem,
    StoppedItemRecords,
    StoppedItemRow,
    clear_stopped_item,
    count_stopped_items,
    forget_stale_items,
    get_stopped_item,
    list_stopped_items,
    record_stopped_item,
    resume_stopped_item,
    resumed_items,
    stopped_items_of_role,
)
from tistream.errors import CatalogUnavailable, CorruptObject, NotFound
from tistream.ids import Tenant
from tistream.runtime.containment import STOPPED_FIRST_S, STOPPED_MAX_S, Containment


def stopped(
    tenant: Tenant = T, *, role: str = "activation", tries: int = 1, message: str = "not zstd ✗"
) -> StoppedItem:
    return StoppedItem(
        role=role,
        item=str(tenant),
        scope=Scope.TENANT,
        tenant=tenant,
        code="TS-1020",
        message=message,
        object="schema_snap/x",
        tries=tries,
    )


class Role:
    """One process in a role: its items are tenants, of which some fail."""

    def __init__(self, catalog: Catalog) -> None:
        self.clock, self.bad = ManualClock(), set[Tenant]()
        self.items = Containment[Tenant]("m1/collection", self.clock)
        self.stops = StoppedItemRecords[Tenant](
            catalog, "collection", self.items, scope=self._scope, item_of=self._item, seconds=self.clock.monotonic
        )
        self.tried: list[Tenant] = []

    def round(self) -> None:
        self.stops.load()
        for tenant in (T, OTHER):
            self.items.run(tenant, lambda t=tenant: self._step(t))  # type: ignore[misc]
        self.stops.sync()

    def _step(self, tenant: Tenant) -> None:
        self.tried.append(tenant)
        if tenant in self.bad:
            raise CorruptObject("damaged", object=f"committed/{tenant}")

    @staticmethod
    def _scope(tenant: Tenant) -> tuple[Scope, Tenant | None, str]:
        return Scope.TENANT, tenant, str(tenant)

    @staticmethod
    def _item(row: StoppedItemRow) -> Tenant | None:
        return row.stopped.tenant


class TestStops:
    def test_a_stop_is_one_row_and_one_event_however_often_it_fails(self, catalog: Catalog) -> None:
        record_stopped_item(catalog, stopped())
        record_stopped_item(catalog, stopped(tries=4, message="worse"))
        record_stopped_item(catalog, stopped(OTHER))
        (first,) = list_stopped_items(catalog, T)
        assert first.stopped == stopped(tries=4, message="worse")
        assert first.since_ms <= first.last_failed_ms
        assert get_stopped_item(catalog, first.item_id) == first
        assert [row.stopped.tenant for row in list_stopped_items(catalog)] == [T, OTHER]
        assert [row.stopped.tenant for row in list_stopped_items(catalog, after=first.item_id)] == [OTHER]
        assert count_stopped_items(catalog) == {"tenant": 2}
        assert [e.tenant for e in list_events(catalog, limit=9, kind="item.stopped")] == [OTHER, T]

    def test_roles_stop_the_same_tenant_apart(self, catalog: Catalog) -> None:
        record_stopped_item(catalog, stopped())
        record_stopped_item(catalog, stopped(role="audit"))
        assert clear_stopped_item(catalog, "audit", str(T))
        assert not clear_stopped_item(catalog, "audit", str(T))
        assert [row.stopped.role for row in list_stopped_items(catalog)] == ["activation"]
        assert stopped_items_of_role(catalog, "audit") == []

    def test_a_resume_is_asked_for_once_and_spent_by_the_next_failure(self, catalog: Catalog) -> None:
        record_stopped_item(catalog, stopped())
        (row,) = list_stopped_items(catalog)
        assert resumed_items(catalog, "activation") == []
        assert resume_stopped_item(catalog, row.item_id, actor="k1")
        assert resumed_items(catalog, "activation") == [str(T)]
        record_stopped_item(catalog, stopped(tries=2))
        assert resumed_items(catalog, "activation") == []
        (event,) = list_events(catalog, limit=9, kind="item.resumed")
        assert (event.actor, event.tenant, event.subject) == ("k1", T, f"activation {T}")
        assert not resume_stopped_item(catalog, row.item_id + 1)
        with pytest.raises(NotFound):
            get_stopped_item(catalog, row.item_id + 1)

    def test_a_stop_that_nobody_tries_is_forgotten(self, catalog: Catalog) -> None:
        record_stopped_item(catalog, stopped())
        record_stopped_item(catalog, stopped(OTHER))
        of = tables.stopped_items.c
        shift(catalog, of.last_failed_ms, -STALE_MS - 1000, of.item == str(T))
        assert forget_stale_items(catalog) == 1
        assert [row.stopped.tenant for row in list_stopped_items(catalog)] == [OTHER]

    def test_a_role_keeps_its_rows_in_line(self, catalog: Catalog) -> None:
        role = Role(catalog)
        role.bad = {T, OTHER}
        role.round()
        assert [(r.stopped.item, r.stopped.object) for r in list_stopped_items(catalog)] == [
            (str(t), f"committed/{t}") for t in (T, OTHER)
        ]
        role.bad = {T}
        role.clock.advance(STOPPED_MAX_S)
        role.round()
        (row,) = list_stopped_items(catalog)
        assert (row.stopped.tenant, row.stopped.tries) == (T, 2)
        role.items.forget(T)
        role.round()
        assert [r.stopped.tries for r in list_stopped_items(catalog)] == [1], "it fails anew"

    def test_a_new_process_shows_what_had_stopped_and_tries_it_later(self, catalog: Catalog) -> None:
        before = Role(catalog)
        before.bad = {T}
        before.round()
        again = Role(catalog)
        again.round()
        assert again.tried == [OTHER]
        (problem,) = again.items.problems()
        assert (problem.source, problem.contained) == (f"m1/collection/{T}", True)
        assert problem.facts["object"] == f"committed/{T}"
        again.clock.advance(STOPPED_FIRST_S)
        again.round()
        assert (list_stopped_items(catalog), again.items.problems()) == ([], [])

    def test_an_item_that_was_resumed_is_tried_at_once_and_once(self, catalog: Catalog) -> None:
        role = Role(catalog)
        role.bad = {T}
        role.round()
        role.clock.advance(STOPPED_MAX_S)
        role.round()
        role.clock.advance(STOPPED_MAX_S)
        role.round()
        assert not role.stops.take_resumed()
        (row,) = list_stopped_items(catalog)
        resume_stopped_item(catalog, row.item_id)
        tried = len(role.tried)
        assert role.stops.take_resumed()
        assert not role.stops.take_resumed(), "its try is on the way"
        role.round()
        role.round()
        assert role.tried[tried:] == [T, OTHER, OTHER]
        assert not role.stops.take_resumed()
        assert not list_stopped_items(catalog)[0].resumed
        resume_stopped_item(catalog, row.item_id)
        role.bad = set()
        assert role.stops.take_resumed()
        role.round()
        assert list_stopped_items(catalog) == []

    def test_what_could_not_be_written_is_written_by_the_next_round(self, catalog: Catalog) -> None:
        role = Role(catalog)
        role.bad = {T}
        role.round()
        role.bad = {OTHER}
        role.clock.advance(STOPPED_MAX_S)
        whole = catalog.transaction
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "transaction", _away)
            with pytest.raises(CatalogUnavailable):
                role.round()
        assert catalog.transaction == whole
        role.round()
        assert [row.stopped.tenant for row in list_stopped_items(catalog)] == [OTHER]


def _away() -> None:
    raise CatalogUnavailable(determinate=True)
