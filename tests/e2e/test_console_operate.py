"""The operators' pages in a real browser, started once: each page in both schemes and at two widths is clean, fits and
is accessible; figures equal the API's; forms and the schema's slider work.

Needs Debian's chromium. Screenshots go to artefacts/console, for people to look at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.kit.amended_log import FILE, quarantine_for
from tests.kit.operated import Operated, operated
from tests.kit.recording import committed_rows
from tests.kit.stream_world import served
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.quarantines import list_quarantines
from tistream.catalog.work.tasks import get_task
from tistream.catalog.work.workers import WorkerState, get_worker

CHROMIUM = "/usr/bin/chromium"
ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "console"
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
    "split": "/tasks/3/split",
    "merge": "/tasks/3/merge?with=4",
}
expect.set_options(timeout=30_000)  # a busy machine is slow, not wrong


@dataclass
class Site:
    """A served console, and what the browser complained of."""

    cluster: Operated
    url: str
    browser: Browser
    complaints: list[str] = field(default_factory=list)

    def page(self, scheme: str = "light", width: int = 1280) -> Page:
        page = self.browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", lambda request: self._asked(request.url))
        return page

    def _asked(self, url: str) -> None:
        if not url.startswith(self.url + "/") and urlsplit(url).scheme != "data":
            self.complaints.append(f"off loopback: {url}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    with operated(tmp_path_factory.mktemp("console")) as cluster:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        with served(cluster.http.app) as server, sync_playwright() as playwright:  # type: ignore[arg-type]
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
            yield Site(cluster, server.url, browser)
            browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_clean_accessible_and_fits(site: Site, scheme: str) -> None:
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
    wide.context.close()
    narrow.context.close()


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
    page.context.close()


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
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/tasks/6$"))
    page.context.close()


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
    page.context.close()


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
    page.context.close()


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
    page.context.close()


def test_pages_follow_what_happens(site: Site) -> None:
    page = site.page()
    page.goto(f"{site.url}/events?kind=worker")
    expect(page.locator(".events li").first).to_be_visible()
    assert site.cluster.http.post("/v1/workers/sorter-4:undrain").status_code == 200
    expect(page.locator(".events li").first).to_contain_text("worker sorter-4 returned")
    page.context.close()


def test_a_quarantined_store_is_accepted_and_rejected_from_its_tenants_page(site: Site) -> None:
    """The page before says what a decision means to readers. Later tests of this file would find the tenant changed."""
    catalog, rows = site.cluster.world.catalog, committed_rows().slice(0, 3)
    quarantine_for(site.cluster.world.log, rows)
    good_ts = min(rows["commit_ts"].to_pylist()) - 1
    page = site.page()
    page.goto(f"{site.url}/tenants/1/1")
    page.get_by_role("link", name="Accept…").click()
    said = page.locator(".sentence")
    expect(said).to_contain_text(f"3 rows of store {FILE.store_id} are merged into the log above {good_ts}")
    expect(said).to_contain_text(f"Cursors above {good_ts} are refused once")
    expect(said).to_contain_text("read again from where the error says")
    page.screenshot(path=ARTEFACTS / "accept-store.png")
    assert [row.state for row in list_quarantines(catalog)] == [QuarantineState.QUARANTINED]
    page.get_by_role("button", name=f"Accept the rows of store {FILE.store_id}").click()
    expect(page).to_have_url(f"{site.url}/tenants/1/1")
    expect(page.locator(".alarm")).to_contain_text("being merged into the log, as console has decided")
    expect(page.get_by_role("link", name="Accept…")).to_have_count(0)
    assert [row.state for row in list_quarantines(catalog)] == [QuarantineState.ACCEPTING]
    page.get_by_role("link", name="Reject…").click()
    expect(said).to_contain_text(f"Pulls go on above {good_ts}")
    page.get_by_role("button", name=f"Reject store {FILE.store_id}").click()
    expect(page.locator(".alarm").filter(has_text="store")).to_have_count(0)
    assert [row.state for row in list_quarantines(catalog)] == [QuarantineState.REJECTED]
    assert site.complaints == []
    page.context.close()
