"""The operators' pages in a real browser, started once: each page in both schemes and at two widths is clean, fits and
is accessible; figures equal the API's; forms and the schema's slider work.

Needs Debian's chromium. Screenshots go to artefacts/console, for people to look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.kit.console_look import ARTEFACTS, Scheme, Tabs, chromium, no_tab_is_left  # noqa: F401
from tests.kit.operated import Operated, operated
from tests.kit.quarantined_log import FILE, quarantine_for
from tests.kit.recording import committed_rows
from tests.kit.stream_world import served
from tistream.catalog.rows.workers import WorkerState
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.quarantines import list_quarantines
from tistream.catalog.work.tasks import get_task
from tistream.catalog.work.workers import get_worker

PAGES = {
    "tenants": "/tenants",
    "tasks": "/tasks?tenant=1/1",
    "task": "/tasks/4",
    "workers": "/workers",
    "worker": "/workers/sorter-1",
    "dispatcher": "/workers/dispatcher-1",
    "watermark_gaps": "/gaps",
    "events": "/events",
    "jobs": "/jobs",
    "job-run": "/jobs/5/retry",
    "schema": "/tenants/1/1/schema",
    "confirm": "/workers/sorter-1/drain",
    "checklist": "/tenants/1/2/checklist",
    "connect-page": "/tenants/1/1/connect?table=shop.customers",
    "keys-none": "/keys",
    "audit-log": "/audit-log",
    "audit-log-filtered": "/audit-log?principal=nobody&result=failed",
    "split": "/tasks/3/split",
    "merge": "/tasks/3/merge?with=4",
}


class Site(Tabs):
    """A served console."""

    def __init__(self, browser: Browser, url: str, cluster: Operated) -> None:
        super().__init__(browser, url)
        self.cluster = cluster

    def page(self, scheme: Scheme = "light", width: int = 1280) -> Page:
        return self.watched(self.context(scheme, width).new_page())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("console")
    with operated(folder) as cluster, served(cluster.http.app) as server, chromium() as browser:  # type: ignore[arg-type]
        for path in ("/v1/clusters/1/tenants/1:pause?dry_run=true", "/v1/tasks/999:retry"):  # for the audit log
            cluster.http.post(path)
        yield Site(browser, server.url, cluster)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_clean_accessible_and_fits(site: Site, scheme: Scheme) -> None:
    wide, narrow = site.page(scheme), site.page(scheme, 390)
    for name, path in PAGES.items():
        for page, width in ((wide, 1280), (narrow, 390)):
            page.goto(site.url + path)
            page.screenshot(path=str(ARTEFACTS / f"{name}-{scheme}-{width}.png"), full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") == width, f"{name} sticks out at {width}"
        found = Axe().run(wide)
        assert found.violations_count == 0, (name, found.generate_report())
        assert wide.title() != "owned"
    assert site.complaints == []


def test_figures_equal_the_apis(site: Site) -> None:
    page, http = site.page(), site.cluster.http
    page.goto(f"{site.url}/tasks")
    tasks = http.get("/v1/tasks?limit=1000").json()["items"]
    expect(page.locator("#total")).to_have_text(str(len(tasks)))
    expect(page.locator("#stopped")).to_have_text(str(sum(t["state"] == "stopped" for t in tasks)))
    expect(page.locator("tbody tr")).to_have_count(len(tasks))
    page.goto(f"{site.url}/workers")
    workers = http.get("/v1/workers").json()["items"]
    expect(page.locator("#workers")).to_have_text(str(len(workers)))
    expect(page.locator("#up")).to_have_text(str(sum(w["state"] == "up" for w in workers)))
    expect(page.locator("#owner")).to_have_text(http.get("/v1/owner").json()["owner"])
    page.goto(f"{site.url}/gaps")
    watermark_gaps = http.get("/v1/gaps").json()["items"]
    expect(page.locator("#watermark_gaps")).to_have_text(str(len(watermark_gaps)))
    expect(page.locator("section.stalled")).to_have_count(len(watermark_gaps))
    page.goto(f"{site.url}/tasks/4")
    task = http.get("/v1/tasks/4").json()
    expect(page.locator("#epoch")).to_have_text(str(task["epoch"]))
    expect(page.locator("dd", has_text=task["durable_ts"])).to_be_visible()
    page.goto(f"{site.url}/tenants/1/1/schema")
    expect(page.locator("#step")).to_have_text(str(http.get("/v1/clusters/1/tenants/1/ddl").json()["total"]))


UPDATE_PART = """async () => {
  const target = document.querySelector("[data-live]");
  const headers = { "HX-Request": "true", Accept: "text/html" };
  const text = await (await fetch(target.dataset.live, { headers })).text();
  await htmx.swap({ sourceElement: target, target, text, swap: "innerMorph" });
}"""  # as live.js does when a part has changed


def test_a_range_is_explained_to_pointers_and_keys(site: Site) -> None:
    page = site.page()
    page.goto(f"{site.url}/tasks?tenant=1/1")
    words = page.locator(".strip-words")
    hint = words.inner_text()
    for _ in range(10):  # Chromium drops a pointer's move that comes before it has drawn the page
        page.mouse.move(1, 1)
        page.locator(".strip a").nth(2).hover()
        if words.inner_text() != hint:
            break
        page.wait_for_timeout(200)
    expect(words).to_have_text(re.compile("^tables 120 to 122 .*: running, sorter-2, lag "))
    page.locator(".strip a").nth(4).focus()
    expect(words).to_contain_text("sorter-3")
    page.evaluate(UPDATE_PART)
    expect(words).to_contain_text("sorter-3")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/tasks/6$"))


def test_a_worker_is_drained_by_hand_and_the_page_says_so(site: Site) -> None:
    page = site.page()
    page.goto(f"{site.url}/workers")
    page.get_by_role("link", name="Drain dispatcher-2").click()
    expect(page.locator(".sentence")).to_contain_text("dispatcher-2 hands over 1 store to dispatcher-1")
    page.get_by_role("button", name="Drain dispatcher-2").click()
    expect(page).to_have_url(re.compile("/workers/dispatcher-2$"))
    expect(page.locator("#state")).to_have_text("draining")
    expect(page.locator(".events li").first).to_contain_text("by console")
    assert get_worker(site.cluster.world.catalog, "dispatcher-2").state is WorkerState.DRAINING
    page.get_by_role("button", name="Undrain").click()
    page.get_by_role("button", name="Assign work to dispatcher-2 again").click()
    expect(page.locator("#state")).to_have_text("up")


def test_the_slider_goes_through_the_schema(site: Site) -> None:
    page = site.page()
    page.goto(f"{site.url}/tenants/1/1/schema")
    newest = int(page.locator("#step").inner_text())
    page.locator("#at").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step")).to_have_text(str(newest - 1))
    expect(page).to_have_url(re.compile(r"\?at=\d+$"))
    page.get_by_role("link", name="Previous DDL").click()
    expect(page.locator("#step")).to_have_text(str(newest - 2))
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("#step")).to_have_text(str(newest))


def test_a_task_is_split_and_merged_from_its_page(site: Site) -> None:
    page = site.page()
    page.goto(f"{site.url}/tasks/3")
    page.get_by_role("button", name="Split…").click()
    expect(page.locator(".sentence")).to_contain_text("Task 3 is replaced by two, below ")
    page.get_by_role("link", name="Cancel").click()
    page.goto(f"{site.url}/tasks/5")
    page.get_by_label("Merge with").select_option("4")
    page.get_by_role("button", name="Merge…").click()
    expect(page.locator(".sentence")).to_contain_text("Tasks 4 and 5 go to sorter-2")
    page.get_by_role("button", name="Merge tasks 5 and 4").click()
    expect(page).to_have_url(f"{site.url}/tasks/5")
    assert get_task(site.cluster.world.catalog, 4).merge_with == 5
    assert site.complaints == []


def test_a_quarantined_store_is_rejected_from_its_tenants_page(site: Site) -> None:
    """The page before says what that means to readers. Later tests of this file would find the tenant changed."""
    catalog, rows = site.cluster.world.catalog, committed_rows().slice(0, 3)
    quarantine_for(site.cluster.world.log, rows)
    good_ts = min(rows["commit_ts"].to_pylist()) - 1
    page = site.page()
    page.goto(f"{site.url}/tenants/1/1")
    expect(page.locator(".alarm")).to_contain_text(f"Nothing above {good_ts} is served")
    page.get_by_role("link", name="Reject…").click()
    said = page.locator(".sentence")
    expect(said).to_contain_text(f"Pulls go on above {good_ts}")
    expect(said).to_contain_text("connect another tenant and delete this one instead")
    page.screenshot(path=ARTEFACTS / "reject-store.png")
    assert [row.state for row in list_quarantines(catalog)] == [QuarantineState.QUARANTINED]
    page.get_by_role("button", name=f"Reject store {FILE.store_id}").click()
    expect(page.locator(".alarm").filter(has_text="store")).to_have_count(0)
    assert [row.state for row in list_quarantines(catalog)] == [QuarantineState.REJECTED]
    assert site.complaints == []
