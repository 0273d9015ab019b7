"""The console's page of consumers, its forms, and consumers in the lag of a tenant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apiserver.app import create_app
from tests.kit.api_world import BASE, ApiWorld, api_world
from tests.kit.log_builder import TENANT
from tests.kit.recording import committed_rows
from tests.kit.stream_world import served
from tistream.catalog.database import tables
from tistream.catalog.log.consumers import claim_partition, readers_of
from tistream.catalog.tenancy.changefeeds import (
    FeedState,
    add_changefeed,
    get_changefeed,
    list_changefeeds,
    switch_changefeed,
)
from tistream.cli.main import command_line

PAGE = "/tenants/1/1/consumers"
OURS = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, rows=committed_rows().slice(0, 3000)) as made:
        made.log.build(1, upto=made.log.cuts(2)[0])
        add_changefeed(made.catalog, TENANT, "dwh", None, partitions=3)
        claim_partition(made.catalog, TENANT, "dwh", "loader-1", session=None, lease_ms=90_000)
        yield made


def text(world: ApiWorld, path: str, status: int = 200) -> str:
    answer = world.http.get(path)
    assert answer.status_code == status, answer.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def test_a_consumer_is_shown_with_its_members_and_what_it_holds(world: ApiWorld) -> None:
    shown = text(world, PAGE)
    assert "dwh normal" in shown
    assert re.search(r"loader-1 0, 1, 2 [0-9.]+ m?s 1 min (2\d|30) s left", shown), shown
    assert "is kept until it has been idle for 30 d" in shown
    assert "Not read" not in shown
    (item,) = world.http.get(f"{PAGE}.json").json()["items"]
    assert [(p["partition"], p["member"]) for p in item["partitions"]] == [(n, "loader-1") for n in range(3)]
    with world.catalog.transaction() as conn:
        conn.execute(tables.consumer_members.update().values(expires_ms=1))
        conn.execute(tables.changefeeds.update().values(seen_ms=1))
    shown = text(world, PAGE)
    assert "It holds no log: it has been idle for longer than its limit of 30 d." in shown
    assert "Not read: partitions 0, 1, 2 of 3." in shown
    assert 'href="/tenants/1/1/consumers"' in world.http.get("/tenants/1/1").text


def test_forms_say_what_they_do_and_do_it_when_confirmed(world: ApiWorld) -> None:
    resolved = world.services.served(TENANT).resolved
    forms = {
        f"reset?to={resolved}": "after its checkpoint are skipped",
        "reset": "What its members have at hand is refused.",
        "pause": "Its checkpoint and its log are kept.",
        "resume": "continue at its checkpoint",
        "remove": "The log above its checkpoint is no longer kept for it.",
    }
    seen = []
    for verb, words in forms.items():
        before = list_changefeeds(world.catalog, TENANT)[0], readers_of(world.catalog, TENANT)
        assert words in text(world, f"{PAGE}/dwh/{verb}")
        (row,) = list_changefeeds(world.catalog, TENANT)
        assert (row.state, row.checkpoint_ts) == (before[0].state, before[0].checkpoint_ts), "only said"
        assert readers_of(world.catalog, TENANT) == before[1]
        assert world.http.post(f"{PAGE}/dwh/{verb}", headers=OURS, follow_redirects=False).status_code == 303
        seen += [(f.state, f.checkpoint_ts) for f in list_changefeeds(world.catalog, TENANT)]
    start = world.log.start_ts
    normal, stopped = FeedState.NORMAL, FeedState.STOPPED
    assert seen == [(normal, resolved), (normal, start), (stopped, start), (normal, start)]
    assert "No consumers yet" in text(world, PAGE)
    text(world, f"{PAGE}/dwh/reset", status=404)


def test_lag_names_the_consumer_that_is_late(world: ApiWorld) -> None:
    with served(create_app(world.services)) as server:
        shown = CliRunner().invoke(command_line(), ["lag", "--url", server.url]).output
        assert re.search(r"consumer dwh: \d.* behind the watermark, 1 member", shown), shown
    found = world.http.get(f"{BASE}/lag").json()
    (consumer,) = found["consumers"]
    assert consumer["members"] == 1
    checkpoint = get_changefeed(world.catalog, TENANT, "dwh").checkpoint_ts
    assert consumer["lag_s"] == ((world.services.served(TENANT).resolved >> 18) - (checkpoint >> 18)) / 1000
    switch_changefeed(world.catalog, TENANT, "dwh", FeedState.STOPPED)
    assert world.http.get(f"{BASE}/lag").json()["consumers"] == [], "a paused one is not late"
