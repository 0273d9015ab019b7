"""The console in a real browser: each page in both schemes and at two widths, live parts, accessibility.

Needs Debian's chromium. Screenshots go to artefacts/console, for people to look at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from apiserver.control.changefeed_control import ChangefeedControl, ChangefeedSettings
from reading.filters import part_name
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.console_look import ARTEFACTS, Scheme, Tabs, chromium, no_tab_is_left  # noqa: F401
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.stream_world import served
from tistream.catalog.tenancy.consumers import add_consumer, claim_partition
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.lanes import isolate, list_lanes
from tistream.catalog.work.stores import issue_incarnation, note_cut_ts
from tistream.catalog.work.tasks import list_tasks, stop_task
from tistream.ids import Tenant
from tistream.outbound.policy import NO_TERMS

STOPPED, AWAITING, KEYSPACE = Tenant(2, 7), Tenant(1, 2), Tenant(1, 3)
HOSTILE = "the prewrite of <script>document.title='owned'</script> & \"others\" is missing"
PAGES = {
    "overview": "/overview",
    "tenant": "/tenants/1/1",
    "awaiting": "/tenants/1/2",
    "stopped": "/tenants/2/7",
    "keyspace": "/tenants/1/3",
    "consumers": "/tenants/1/1/consumers",
    "changefeeds": "/tenants/1/1/changefeeds",
    "changefeed": "/tenants/1/1/changefeeds/lake",
    "missing": "/tenants/9/9",
}
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")


class Site(Tabs):
    """A served console."""

    def __init__(self, browser: Browser, url: str, world: ApiWorld) -> None:
        super().__init__(browser, url)
        self.world = world

    def open(self, path: str, *, scheme: Scheme = "light", width: int = 1280) -> Page:
        self.complaints.clear()
        page = self.watched(self.context(scheme, width).new_page())
        page.goto(self.url + path)
        return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with api_world(tmp_path_factory.mktemp("console")) as world:
        world.log.build(10, upto=world.log.cuts(3)[1])
        for store_id in (1, 4):
            issue_incarnation(world.catalog, TENANT, store_id)
            note_cut_ts(world.catalog, TENANT, store_id, recording_end())
        register_tenant(world.catalog, AWAITING)
        LogBuilder(world.catalog, world.store, tenant=STOPPED).activate()
        rows = entry_rows([Entry(recording_end() - 1, b"user:1\xff", b"Ada", 2_000_000_000)])
        EntryLog(world.catalog, world.store, tenant=KEYSPACE, rows=rows).build(1)
        add_consumer(world.catalog, TENANT, "warehouse", None, partitions=2)
        claim_partition(world.catalog, TENANT, "warehouse", "loader-1", session=None, lease_ms=600_000)
        replicated(world, tmp_path_factory.mktemp("lake"))
        task = list_tasks(world.catalog, STOPPED)[3]
        assert stop_task(world.catalog, task.task_id, epoch=task.epoch, error=HOSTILE)
        with served(world.http.app) as server, chromium() as browser:  # type: ignore[arg-type]
            yield Site(browser, server.url, world)


def replicated(world: ApiWorld, folder: Path) -> None:
    """A changefeed to a folder, with a refused change."""
    wanted = ChangefeedSettings(
        sink_uri=f"file://{folder}?protocol=canal-json&file-size=8388608&enable-tidb-extension=true"
    )
    run = ChangefeedControl(
        catalog=world.catalog, clock=world.services.clock, registry=world.services.registry, outbound=NO_TERMS
    )
    run.create(TENANT, "lake", None, wanted, lanes=3, actor="")
    lane = list_lanes(world.catalog, TENANT, "lake")[1]
    rest, alone = lane.scope.isolate(part_name("shop", HOSTILE))
    error = {"code": "TS-1101", "message": HOSTILE, "db": "shop", "table": HOSTILE, "key": "7480" * 30}
    isolate(world.catalog, lane, rest, alone, {**error, "commit_ts": str(lane.checkpoint_ts + 5)})


@pytest.mark.parametrize(("name", "scheme", "width"), list(product(PAGES, SCHEMES, WIDTHS)))
def test_each_page_is_clean_accessible_and_fits(site: Site, name: str, scheme: Scheme, width: int) -> None:
    page = site.open(PAGES[name], scheme=scheme, width=width)
    if name == "tenant":
        expect(page.locator("ts-tail .insert").first).to_be_visible()
        expect(page.locator("#waterfall .slowest")).to_be_visible()
    if name == "keyspace":
        expect(page.locator("ts-tail .put em")).to_have_text(r"user:1\xff")
        expect(page.locator("#keyspace")).to_contain_text("RawDeleteRange is invisible")
    if name not in ("overview", "consumers", "changefeeds", "changefeed", "missing"):
        expect(page.locator("ts-lag-chart canvas")).to_be_visible()
        expect(page.locator("ts-lag-chart p")).not_to_have_text("No data yet.")
    page.screenshot(path=str(ARTEFACTS / f"{name}-{scheme}-{width}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out sideways"
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    expected = [c for c in site.complaints if name == "missing" and "404" in c]
    assert site.complaints == expected
    assert page.title() != "owned"


def test_the_tenant_page_lives(site: Site) -> None:
    """Numbers follow the catalog, the tail shows rows as they are committed, the chart draws them."""
    page = site.open(PAGES["tenant"])
    world = site.world
    before = world.get("").json()
    expect(page.locator("#resolved")).to_have_text(before["resolved_ts"])
    expect(page.locator("#tasks")).to_have_text(str(len(before["tasks"])))
    expect(page.locator("#stores")).to_have_text("2")
    expect(page.locator("ts-tail div").first).to_contain_text("{")
    page.evaluate("window.kept = document.querySelector('#resolved')")
    world.log.flush(world.log.cuts(6)[-2])
    after = world.get("").json()
    assert after["resolved_ts"] != before["resolved_ts"]
    expect(page.locator("#resolved")).to_have_text(after["resolved_ts"])
    assert page.evaluate("window.kept === document.querySelector('#resolved')"), "parts are morphed, focus stays"
    expect(page.locator("#lag")).to_have_text(f"{after['lag_s']:.1f} s")
    newest = [e for e in world.events(start_ts=before["resolved_ts"]) if e["type"] != "resolved"][-1]
    first = page.locator("ts-tail div").first
    expect(first).to_contain_text(f"{newest['database']}.{newest['table']}")
    expect(first).to_contain_text(newest["commit_time"][11:23])
    expect(page.locator("ts-lag-chart p")).to_contain_text(f"{after['lag_s']:.1f} s now")
    assert _inked(page) > 200
    assert not site.complaints


def _inked(page: Page) -> int:
    """Pixels of the chart that have the colour of its line."""
    return int(
        page.evaluate(
            """() => {
                const canvas = document.querySelector('ts-lag-chart canvas'), probe = document.createElement('span');
                probe.style.color = 'var(--accent)'; document.body.append(probe);
                const want = getComputedStyle(probe).color.match(/\\d+/g).map(Number); probe.remove();
                const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                let n = 0;
                for (let i = 0; i < data.length; i += 4)
                    n += data[i + 3] > 0 && want.every((c, j) => Math.abs(c - data[i + j]) < 12);
                return n;
            }"""
        )
    )


def test_the_tail_filters_and_pauses(site: Site) -> None:
    page = site.open(PAGES["tenant"])
    expect(page.locator("ts-tail div").first).to_be_visible()
    page.locator("#pause").click()
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    shown = page.locator("ts-tail div:visible")
    name = shown.first.locator("em").inner_text()
    page.locator("#filter").fill("no row has this text")
    expect(shown).to_have_count(0)
    page.locator("#filter").fill(name.upper())
    expect(shown.first).to_contain_text(name)


def test_title_and_icon_tell_the_lag_and_follow_it(site: Site) -> None:
    page = site.open("/overview")
    late = site.world.http.get("/overview.json").json()["late"]
    assert late >= 2, "the stopped tenant of this log is late"
    expect(page).to_have_title("▲ Overview · TiStream")
    expect(page.locator("#icon")).to_have_attribute("href", "/static/icon-bad.svg")
    told = {"part": "/overview", "over": False, "html": '<p data-late="1">amber</p>'}
    body = f"event: part\ndata: {json.dumps(told)}\n\n"
    page.route("**/live?*", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.reload()
    expect(page).to_have_title("◐ Overview · TiStream")
    expect(page.locator("#icon")).to_have_attribute("href", "/static/icon-late.svg")
    page.unroute("**/live?*")
    expect(page).to_have_title("▲ Overview · TiStream")


def test_the_waterfall_names_the_slowest_stage_and_lines_are_copied(site: Site) -> None:
    page = site.open(PAGES["tenant"] + "?table=shop.customers")
    slowest = site.world.http.get("/tenants/1/1/waterfall.json").json()["slowest"]
    words = slowest.replace("_", " ").replace("+", " + ")
    expect(page.locator("#waterfall .slowest .name")).to_have_text(f"{words} slowest")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.locator("ts-copy button").first).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    api = f"{site.url}/v1/clusters/1/tenants/1/databases/shop/tables/customers"
    assert copied == f"curl -s '{api}/changes?start_ts=earliest&format=ndjson'"


def test_the_scheme_is_switched_and_remembered_and_the_chart_follows(site: Site) -> None:
    page = site.open(PAGES["tenant"], scheme="light")
    expect(page.locator("ts-lag-chart p")).to_contain_text("now")
    page.locator("#scheme").click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert _inked(page) > 10, "drawn in the dark scheme's colour"
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.locator("#scheme").click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_a_service_that_is_away_is_said_to_be_and_the_page_stays(site: Site) -> None:
    page = site.open("/overview")
    expect(page.locator("#away")).to_be_hidden()
    page.route("**/live?*", lambda route: route.abort())
    page.reload()
    expect(page.locator("#away")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(4)
    page.unroute("**/live?*")
    expect(page.locator("#away")).to_be_hidden()
    trouble = 'event: trouble\ndata: {"part": "/overview", "status": 503}\n\n'
    page.route("**/live?*", lambda route: route.fulfill(body=trouble, content_type="text/event-stream"))
    page.reload()
    expect(page.locator("#away")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(4)


def test_pages_work_by_keyboard(site: Site) -> None:
    page = site.open("/overview")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#main$"))
