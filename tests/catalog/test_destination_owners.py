"""Two changefeeds never write to the same place: refused when one is created, changed or resumed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import orjson
import pytest

from simulator.dst.all_mutants import MUTANTS
from tests.kit.catalog_cases import START, T, ended, grown_log
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events, record_event
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work import changefeeds, lanes
from tistream.catalog.work.changefeeds import create_changefeed, remove_changefeed, resume_changefeed
from tistream.catalog.work.core.lane_scope import KeyScope
from tistream.catalog.work.core.location import Files, location_facts
from tistream.errors import Fenced, InvalidInput, NotFound
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

HERS = Tenant(8, 1)


def options(path: str, letters: str | None = None) -> str:
    found = {"location": path} if letters is None else {"location": path, "dead_letter_location": letters}
    of = {name: Files.of(scheme="file", bucket="", path=path, endpoint="") for name, path in found.items()}
    return orjson.dumps({"keys": {}, **{name: location_facts(location) for name, location in of.items()}}).decode()


def create(catalog: Catalog, name: str, path: str, tenant: Tenant = T, **more: Any) -> bool:
    return create_changefeed(
        catalog, tenant, name, None, sink_uri="file:///x", filters="{}",
        options=options(path, more.pop("letters", None)),
        scopes=[KeyScope(range=KeyRange())], target_ts=more.pop("target_ts", 0), hold_ms=0, **more,
    )  # fmt: skip


def update(catalog: Catalog, name: str, path: str) -> None:
    settings = {"sink_uri": "file:///x", "options": options(path), "filters": "{}", "target_ts": 0, "hold_ms": 0}
    changefeeds.update_changefeed(catalog, T, name, **settings)  # type: ignore[arg-type]


def test_a_place_is_taken_until_its_changefeed_is_removed_or_writes_elsewhere(catalog: Catalog) -> None:
    grown_log(catalog)
    create(catalog, "one", "/lake/a")
    assert not create(catalog, "one", "/lake/a"), "safe to repeat"
    with pytest.raises(InvalidInput, match=r"^Changefeed one writes to the same folder"):
        create(catalog, "two", "/lake")
    with pytest.raises(NotFound):
        CHANGEFEEDS.get(catalog, T, "two")
    assert len(lanes.list_lanes(catalog, T)) == 1
    CHANGEFEEDS.switch(catalog, T, "one", ReaderState.STOPPED)
    with pytest.raises(InvalidInput, match=r"^Changefeed one writes to"):
        create(catalog, "two", "/lake/a/b")
    create(catalog, "two", "/lake/b")
    CHANGEFEEDS.switch(catalog, T, "two", ReaderState.STOPPED)
    with pytest.raises(InvalidInput, match=r"^Changefeed one writes to"):
        update(catalog, "two", "/lake/a")
    update(catalog, "two", "/lake/b/c")
    update(catalog, "one", "/elsewhere")
    update(catalog, "two", "/lake/a")
    remove_changefeed(catalog, T, "two")
    create(catalog, "three", "/lake/a")


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_of_two_that_are_created_at_the_same_moment_one_is_refused(
    catalog: Catalog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one waits for the COMMIT of the first, and sees it then."""
    grown_log(catalog)
    register_tenant(catalog, HERS)
    real, second = record_event, list[Future[bool]]()

    def slowly(*args: Any, **named: Any) -> None:
        real(*args, **named)
        if not second:
            two = partial(create, catalog, "two", "/lake/a", HERS, sees=lambda _: True)
            second.append(threads.submit(ended, two))
            time.sleep(0.5)
            assert not second[0].done()

    monkeypatch.setattr(changefeeds, "record_event", slowly)
    with ThreadPoolExecutor(1) as threads:
        create(catalog, "one", "/lake")
        with pytest.raises(InvalidInput, match=r"^Changefeed one of tenant"):
            second[0].result(timeout=30)


def test_a_finished_changefeed_holds_no_place_and_is_not_resumed_into_one(catalog: Catalog) -> None:
    grown_log(catalog)
    create(catalog, "one", "/lake", target_ts=START + 5)
    lane = lanes.list_lanes(catalog, T, "one")[0]
    lanes.finish_stretch(catalog, lane, START + 5, rows=0, size=0)
    assert changefeeds.end_changefeed(catalog, lane)
    assert CHANGEFEEDS.get(catalog, T, "one").state is ReaderState.FINISHED
    create(catalog, "two", "/lake")
    with pytest.raises(InvalidInput, match=r"^Changefeed two writes to"):
        resume_changefeed(catalog, T, "one", to_ts=START)
    assert CHANGEFEEDS.get(catalog, T, "one").state is ReaderState.FINISHED
    remove_changefeed(catalog, T, "two")
    resume_changefeed(catalog, T, "one", to_ts=START)


def test_a_changefeed_of_another_tenant_is_named_to_those_who_see_it(catalog: Catalog) -> None:
    grown_log(catalog)
    register_tenant(catalog, HERS)
    create(catalog, "secret", "/lake", HERS)
    with pytest.raises(InvalidInput, match=r"^A changefeed of another tenant writes to") as refused:
        create(catalog, "one", "/lake/a", sees=lambda tenant: tenant == T)
    assert "secret" not in str(refused.value)
    assert str(HERS) not in str(refused.value)
    with pytest.raises(InvalidInput, match=rf"^Changefeed secret of tenant {HERS} writes to"):
        create(catalog, "one", "/lake/a", sees=lambda tenant: True)
    create(catalog, "one", "/pool", sees=lambda tenant: tenant == T)


def test_who_takes_a_place_that_had_an_owner_waits_and_uses_higher_epochs(catalog: Catalog) -> None:
    """However the former one has left it, and also in a folder above; one that leaves for elsewhere frees its own."""
    grown_log(catalog)

    def leave_by_end(name: str) -> None:
        lane = lanes.list_lanes(catalog, T, name)[0]
        lanes.finish_stretch(catalog, lane, START + 5, rows=0, size=0)
        assert changefeeds.end_changefeed(catalog, lane)

    def leave_by_update(name: str) -> None:
        CHANGEFEEDS.switch(catalog, T, name, ReaderState.STOPPED)
        update(catalog, name, f"/elsewhere/{name}")

    ways: dict[str, Callable[[str], object]] = {
        "remove": lambda name: remove_changefeed(catalog, T, name),
        "end": leave_by_end,
        "update": leave_by_update,
    }
    for way, leave in ways.items():
        folder = f"/lake/{way}"
        create(catalog, way, f"{folder}/a", target_ts=START + 5)
        (first,) = lanes.list_lanes(catalog, T, way)
        assert first.is_free, "it is the first one there"
        lanes.attempt_stretch(catalog, first, START + 4, "")
        lanes.give_up_lane(catalog, first)
        leave(way)
        create(catalog, f"{way}-2", folder)
        (second,) = lanes.list_lanes(catalog, T, f"{way}-2")
        assert (second.is_free, second.epoch > first.epoch) == (False, True), way
        assert (second.checkpoint_ts, second.catch_up_ts) == (START, START + (5 if way == "end" else 4)), way
    told = [event.detail for event in list_events(catalog, limit=100) if event.kind == "changefeed.created"]
    assert [each.get("repeats_upto") for each in told if "repeats_upto" in each]


def test_what_another_tenant_attempted_in_a_place_means_nothing_to_its_next_owner(catalog: Catalog) -> None:
    grown_log(catalog)
    register_tenant(catalog, HERS)
    create(catalog, "one", "/lake")
    (lane,) = lanes.list_lanes(catalog, T, "one")
    lanes.attempt_stretch(catalog, lane, START + 4, "")
    remove_changefeed(catalog, T, "one")
    for name in ("two", "three"):
        create(catalog, name, "/lake", HERS)
        (hers,) = lanes.list_lanes(catalog, HERS, name)
        assert (hers.catch_up_ts, hers.attempted_ts) == (hers.checkpoint_ts, hers.checkpoint_ts), name
        remove_changefeed(catalog, HERS, name)


def test_other_filters_or_another_place_hold_from_the_checkpoint_of_the_changefeed_on(catalog: Catalog) -> None:
    """A worker that has not heard of them moves no checkpoint, and what it attempted is planned anew."""
    grown_log(catalog)
    create(catalog, "one", "/lake/a")
    (lane,) = lanes.list_lanes(catalog, T, "one")
    lanes.attempt_stretch(catalog, lane, START + 4, "its record")
    CHANGEFEEDS.switch(catalog, T, "one", ReaderState.STOPPED)
    update(catalog, "one", "/lake/b")
    (now,) = lanes.list_lanes(catalog, T, "one")
    assert (now.record, now.record_ts, now.checkpoint_ts, now.catch_up_ts) == ("", 0, START, START + 4)
    with pytest.raises(Fenced):
        lanes.finish_stretch(catalog, lane, START + 4, rows=0, size=0)


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("name", ["place-taken-at-once", "place-forgets-attempts", "update-keeps-stretch"])
def test_a_broken_rule_of_places_is_noticed(catalog: Catalog, backend: str, name: str) -> None:
    check = (
        test_other_filters_or_another_place_hold_from_the_checkpoint_of_the_changefeed_on
        if name == "update-keeps-stretch"
        else test_who_takes_a_place_that_had_an_owner_waits_and_uses_higher_epochs
    )
    with MUTANTS[name].patch(), pytest.raises((AssertionError, pytest.fail.Exception)):
        check(catalog)


def test_dead_letters_are_in_no_destination(catalog: Catalog) -> None:
    """Consumers would read them as data. Letters of several changefeeds may be in one place."""
    grown_log(catalog)
    register_tenant(catalog, HERS)
    create(catalog, "one", "/lake/a", letters="/letters/here")
    for path in ("/lake/a", "/lake/a/shop", "/lake/b/../a", "/lake/c/shop"):
        with pytest.raises(InvalidInput, match=r"^Changefeed (one|two) writes to that folder") as refused:
            create(catalog, "two", "/lake/c", letters=path)
        assert refused.value.facts["option"] == "dead-letter"
    for name, path, tenant in (("two", "/letters/here", T), ("two", "/letters", HERS)):
        with pytest.raises(
            InvalidInput, match=r"^(Changefeed one|A changefeed of another tenant) has its dead letters"
        ):
            create(catalog, name, path, tenant)
    create(catalog, "two", "/lake/c", letters="/letters/here")
    create(catalog, "three", "/letters/here/csv")
    CHANGEFEEDS.switch(catalog, T, "two", ReaderState.STOPPED)
    with pytest.raises(InvalidInput):
        changefeeds.update_changefeed(
            catalog, T, "two", sink_uri="file:///x", options=options("/lake/c", "/lake/a"), filters="{}", target_ts=0,
            hold_ms=0,
        )  # fmt: skip
    remove_changefeed(catalog, T, "one")
    create(catalog, "four", "/lake/d", letters="/lake/a/b")
