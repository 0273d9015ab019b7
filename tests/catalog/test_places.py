"""Two changefeeds never write to the same place: refused when one is created, changed or resumed."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from tests.kit.catalog_cases import START, T, grown_log
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import FeedState, get_changefeed, remove_changefeed, switch_changefeed
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work import lanes, replications
from tistream.catalog.work.core.lane_scope import KeyScope
from tistream.catalog.work.core.place import Files, place_facts
from tistream.catalog.work.replications import create_replication, resume_replication, update_replication
from tistream.errors import InvalidInput, NotFound
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

HERS = Tenant(8, 1)


def options(path: str) -> str:
    place = Files.of(scheme="file", bucket="", path=path, endpoint="")
    return orjson.dumps({"keys": {}, "place": place_facts(place)}).decode()


def create(catalog: Catalog, name: str, path: str, tenant: Tenant = T, **more: Any) -> bool:
    return create_replication(
        catalog, tenant, name, None, sink_uri="file:///x", options=options(path), filters="{}",
        scopes=[KeyScope(range=KeyRange())], target_ts=more.pop("target_ts", 0), hold_ms=0, **more,
    )  # fmt: skip


def update(catalog: Catalog, name: str, path: str) -> None:
    settings = {"sink_uri": "file:///x", "options": options(path), "filters": "{}", "target_ts": 0, "hold_ms": 0}
    update_replication(catalog, T, name, **settings)  # type: ignore[arg-type]


def test_a_place_is_taken_until_its_changefeed_is_removed_or_writes_elsewhere(catalog: Catalog) -> None:
    grown_log(catalog)
    create(catalog, "one", "/lake/a")
    assert not create(catalog, "one", "/lake/a"), "safe to repeat"
    with pytest.raises(InvalidInput, match=r"^Changefeed one writes to the same folder"):
        create(catalog, "two", "/lake")
    with pytest.raises(NotFound):
        get_changefeed(catalog, T, "two")
    assert len(lanes.list_lanes(catalog, T)) == 1
    switch_changefeed(catalog, T, "one", FeedState.STOPPED)
    with pytest.raises(InvalidInput, match=r"^Changefeed one writes to"):
        create(catalog, "two", "/lake/a/b")
    create(catalog, "two", "/lake/b")
    switch_changefeed(catalog, T, "two", FeedState.STOPPED)
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
    real, second = replications.record_event, list[Future[bool]]()

    def slowly(*args: Any, **named: Any) -> None:
        real(*args, **named)
        if not second:
            second.append(threads.submit(create, catalog, "two", "/lake/a", HERS, sees=lambda _: True))
            time.sleep(0.5)
            assert not second[0].done()

    monkeypatch.setattr(replications, "record_event", slowly)
    with ThreadPoolExecutor(1) as threads:
        create(catalog, "one", "/lake")
        with pytest.raises(InvalidInput, match=r"^Changefeed one of tenant"):
            second[0].result(timeout=30)


def test_a_finished_changefeed_holds_no_place_and_is_not_resumed_into_one(catalog: Catalog) -> None:
    grown_log(catalog)
    create(catalog, "one", "/lake", target_ts=START + 5)
    lane = lanes.list_lanes(catalog, T, "one")[0]
    lanes.finish_stretch(catalog, lane, START + 5, rows=0, size=0, amended=0)
    assert get_changefeed(catalog, T, "one").state is FeedState.FINISHED
    create(catalog, "two", "/lake")
    with pytest.raises(InvalidInput, match=r"^Changefeed two writes to"):
        resume_replication(catalog, T, "one", to_ts=START)
    assert get_changefeed(catalog, T, "one").state is FeedState.FINISHED
    remove_changefeed(catalog, T, "two")
    resume_replication(catalog, T, "one", to_ts=START)


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
