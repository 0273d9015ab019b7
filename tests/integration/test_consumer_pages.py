"""The console's pages of consumers and changefeeds, their forms, and consumers in the lag of a tenant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apiserver.app import create_app
from apiserver.control.changefeed_control import ChangefeedControl, ChangefeedSettings
from reading.filters import part_name
from tests.kit.api_world import BASE, ApiWorld, api_world
from tests.kit.catalog_cases import elected
from tests.kit.log_builder import TENANT
from tests.kit.recording import EXPECTED, committed_rows
from tests.kit.replica import moments
from tests.kit.stream_world import served
from tistream import ts as tso
from tistream.admin.core.lag_sentence import LATE_S
from tistream.catalog.database import tables
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer, claim_partition, parts_of
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.lanes import (
    LaneAssignment,
    assign_lanes,
    finish_stretch,
    isolate,
    lane_places,
    lanes_of,
    list_lanes,
)
from tistream.catalog.work.workers import register_worker
from tistream.cli.main import command_line
from tistream.ids import Tenant
from tistream.outbound.policy import NO_TERMS

PAGE = "/tenants/1/1/consumers"
FEEDS = "/tenants/1/1/changefeeds"
OURS = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, rows=committed_rows().slice(0, 3000)) as made:
        made.log.build(1, upto=made.log.cuts(2)[0])
        add_consumer(made.catalog, TENANT, "dwh", None, partitions=3)
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
        conn.execute(tables.consumers.update().values(last_active_ms=1))
    shown = text(world, PAGE)
    assert "It holds no log: it has been idle for longer than its limit of 30 d." in shown
    assert "Not read: partitions 0, 1, 2 of 3." in shown
    of_tenant = world.http.get("/tenants/1/1").text
    assert f'href="{PAGE}"' in of_tenant
    assert f'href="{FEEDS}"' in of_tenant


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
        before = CONSUMERS.of_tenant(world.catalog, TENANT)[0], parts_of(world.catalog, TENANT)
        assert words in text(world, f"{PAGE}/dwh/{verb}")
        (row,) = CONSUMERS.of_tenant(world.catalog, TENANT)
        assert (row.state, row.checkpoint_ts) == (before[0].state, before[0].checkpoint_ts), "only said"
        assert parts_of(world.catalog, TENANT) == before[1]
        assert world.http.post(f"{PAGE}/dwh/{verb}", headers=OURS, follow_redirects=False).status_code == 303
        seen += [(f.state, f.checkpoint_ts) for f in CONSUMERS.of_tenant(world.catalog, TENANT)]
    start = world.log.start_ts
    normal, stopped = ReaderState.NORMAL, ReaderState.STOPPED
    assert seen == [(normal, resolved), (normal, start), (stopped, start), (normal, start)]
    assert "No consumers yet" in text(world, PAGE)
    text(world, f"{PAGE}/dwh/reset", status=404)


def test_the_overview_says_no_0_beside_what_is_late(world: ApiWorld) -> None:
    late = sum((t["lag_s"] or 0) >= LATE_S for t in world.http.get("/v1/tenants").json()["items"])
    assert late == 1, "its cluster is away"
    for behind_s, slow in ((LATE_S - 1, 0), (LATE_S + 1, 1)):
        at = world.services.served(TENANT).resolved - tso.compose(behind_s * 1000)
        with world.catalog.transaction() as conn:
            conn.execute(tables.consumers.update().values(checkpoint_ts=at))
        problems = len(world.http.get("/overview.json").json()["problems"])
        shown = text(world, "/overview")
        assert f" Problems {problems + late + slow} 1 tenant late{', 1 consumer late' * slow} " in shown


def test_the_page_of_a_deleted_tenant_asks_nobody_to_push(world: ApiWorld) -> None:
    register_tenant(world.catalog, Tenant(9, 9))
    assert "tistream push" in text(world, "/tenants/9/9")
    mine = tables.tenants.c.cluster_id == 9
    with world.catalog.transaction() as conn:
        conn.execute(tables.tenants.update().where(mine).values(state="DELETING"))
    shown = text(world, "/tenants/9/9")
    assert "This tenant is being deleted" in shown
    assert "tistream push" not in shown
    with world.catalog.transaction() as conn:
        conn.execute(tables.tenants.update().where(mine).values(state="DELETED"))
    shown = text(world, "/tenants/9/9", 410)
    assert "Tenant 9/9 was deleted" in shown
    assert "tistream push" not in shown


def test_lag_names_the_consumer_that_is_late(world: ApiWorld) -> None:
    with served(create_app(world.services)) as server:
        shown = CliRunner().invoke(command_line(), ["lag", "--url", server.url]).output
        assert re.search(r"consumer dwh: \d.* behind the watermark, 1 member", shown), shown
    found = world.http.get(f"{BASE}/lag").json()
    (consumer,) = found["readers"]
    assert (consumer["kind"], consumer["name"], consumer["members"]) == ("consumer", "dwh", 1)
    checkpoint = CONSUMERS.get(world.catalog, TENANT, "dwh").checkpoint_ts
    assert consumer["lag_s"] == ((world.services.served(TENANT).resolved >> 18) - (checkpoint >> 18)) / 1000
    CONSUMERS.switch(world.catalog, TENANT, "dwh", ReaderState.STOPPED)
    assert world.http.get(f"{BASE}/lag").json()["readers"] == [], "a paused one is not late"


def control(world: ApiWorld) -> ChangefeedControl:
    return ChangefeedControl(
        catalog=world.catalog, clock=world.services.clock, registry=world.services.registry, outbound=NO_TERMS
    )


def replicated(world: ApiWorld, folder: Path) -> str:
    """A changefeed to a folder; the address of its page."""
    wanted = ChangefeedSettings(sink_uri=f"file://{folder}?protocol=canal-json", dead_letter=f"file://{folder}-dead")
    assert control(world).create(TENANT, "lake", None, wanted, lanes=None, actor="")[0]
    return f"{FEEDS}/lake"


def test_a_replication_is_shown_with_its_lanes_and_what_they_have_written(world: ApiWorld, tmp_path: Path) -> None:
    page = replicated(world, tmp_path / "lake")
    assert "waits for a worker" in text(world, page)
    assert "No replicator is up" in text(world, page)
    register_worker(world.catalog, "replicate-1", "replicate", "")
    wanted = [LaneAssignment(place.lane_id, "replicate-1", place.epoch) for place in lane_places(world.catalog)]
    assert assign_lanes(world.catalog, wanted, leader_epoch=elected(world.catalog)) == 2
    first, second = (job.lane for job in lanes_of(world.catalog, "replicate-1", 1))
    upto = world.services.served(TENANT).resolved
    finish_stretch(world.catalog, first, upto, rows=1234, size=5000, letters=3)
    refused = {"code": "TS-1101", "message": "no", "cause": "too long", "db": "shop", "table": "t<b>", "key": "7a"}
    rest, alone = second.scope.isolate(part_name("shop", "t<b>"))
    isolate(world.catalog, second, rest, alone, {**refused, "commit_ts": str(upto)})
    shown = text(world, page)
    assert "State error" in shown
    assert f"Dead letters 3 refused changes in file://{tmp_path}/lake-dead" in shown
    assert re.search(r"0 tables 1 of 2 writes replicate-1 \S+ \S+ [0-9.]+ m?s ago 1,234 4.9 KiB", shown), shown
    assert re.search(r"2 table shop.t<b> stopped by a refused change Retry lane 2 … Skip lane 2 …", shown), shown
    assert "1,234 changes, 4.9 KiB written by 3 lanes" in text(world, FEEDS)
    assert world.http.get(f"{page}.json").json()["item"]["done"] == {"rows": 1234, "bytes": 5000}


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[ApiWorld]:
    """With all of the recording."""
    with api_world(tmp_path) as made:
        made.log.build(2)
        yield made


def test_the_tables_of_a_replication_are_those_of_tidb_each_with_its_lane(whole: ApiWorld, tmp_path: Path) -> None:
    page = replicated(whole, tmp_path / "lake")
    found = control(whole).tables(TENANT, "lake")
    (end,) = (moment for moment in moments(EXPECTED) if moment.label == "end")
    created = {(table["db"], table["table"]): table["create"] for table in end.tables if table["kind"] == "table"}
    assert {(table["database"], table["table"]) for table in found} == created.keys()
    assert len(found) == len(created), "each is in one lane"
    assert {table["lane"] for table in found} == {0, 1}
    keyless = {name for name, sql in created.items() if "PRIMARY KEY" not in sql and "UNIQUE" not in sql}
    assert keyless
    assert keyless <= {(table["database"], table["table"]) for table in found if not table["has_key"]}
    mine = next(table["lane"] for table in found if table["table"] == "customers")
    lane = list_lanes(whole.catalog, TENANT, "lake")[mine]
    rest, alone = lane.scope.isolate(part_name("shop", "customers"))
    isolate(whole.catalog, lane, rest, alone, {"code": "TS-1101", "message": "no", "commit_ts": "5"})
    assert re.search(
        r"Tables \d+ .* shop.customers stopped by a refused change 2 .* shop\.\w+ ok [01] ", text(whole, page)
    )
    assert "each change once" in text(whole, page)


def test_forms_of_a_replication_say_what_they_do_and_do_it_when_confirmed(world: ApiWorld, tmp_path: Path) -> None:
    page = replicated(world, tmp_path / "lake")
    lane = list_lanes(world.catalog, TENANT, "lake")[0]
    rest, alone = lane.scope.isolate(part_name("shop", "orders"))
    error = {"code": "TS-1101", "message": "no", "db": "shop", "table": "orders", "key": "7a"}
    isolate(world.catalog, lane, rest, alone, {**error, "commit_ts": str(lane.checkpoint_ts + 5)})

    def state() -> tuple[ReaderState, list[bool], int]:
        found = list_lanes(world.catalog, TENANT, "lake")
        skipped = sum(len(lane.scope.skipped) for lane in found)
        return CHANGEFEEDS.get(world.catalog, TENANT, "lake").state, [lane.is_stopped for lane in found], skipped

    forms = [
        ("pause", "are kept", (ReaderState.STOPPED, [False, False, True], 0)),
        ("skip?lane=2", "is never written", (ReaderState.STOPPED, [False, False, False], 1)),
        ("resume", "Writing continues above", (ReaderState.NORMAL, [False, False, False], 1)),
    ]
    text(world, f"{page}/rebalance", status=409)
    shown = world.http.get(f"{page}/skip?lane=2").text
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="(\w+)">', shown))
    other = {**fields, "commit_ts": str(int(fields["commit_ts"]) + 1)}
    for form, status in (({}, 400), (other, 409)):
        refused = world.http.post(f"{page}/skip?lane=2", headers=OURS, data=form, follow_redirects=False)
        assert refused.status_code == status, "what is left out is what the form has shown"
    for verb, words, after in forms:
        before = state()
        assert words in text(world, f"{page}/{verb}")
        assert state() == before, "only said"
        sent = fields if "skip" in verb else {}
        assert world.http.post(f"{page}/{verb}", headers=OURS, data=sent, follow_redirects=False).status_code == 303
        assert state() == after
    text(world, f"{page}/retry?lane=2", status=409)
    assert "4 lanes replace 3: " in text(world, f"{page}/rebalance?lanes=4")
    assert world.http.post(f"{page}/rebalance?lanes=4", headers=OURS, follow_redirects=False).status_code == 303
    assert next(lane.scope.shown for lane in list_lanes(world.catalog, TENANT, "lake")) == "tables 1 of 4"
    assert "What file://" in text(world, f"{page}/remove")
    assert world.http.post(f"{page}/remove", headers=OURS, follow_redirects=False).status_code == 303
    text(world, page, status=404)
