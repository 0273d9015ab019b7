"""Open tabs of the console in a real browser: one stream keeps each up to date, through outages and without being seen.

Needs Debian's chromium. Screenshots go to artefacts/console, for people to look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit import auth_site
from tests.kit.auth_site import MINE, OTHER
from tests.kit.console_look import Scheme, Tabs, chromium, look, no_tab_is_left  # noqa: F401
from tests.kit.log_builder import LogBuilder
from tests.kit.waiting import eventually
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.keys import revoke_key
from tistream.catalog.tenancy.tenants import look_up_tenant, register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.cli import assembly
from tistream.cli.server import HttpServer
from tistream.http.auth.core.keys import parse_key
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant
from tistream.limits import KEY_CACHE_MS

HIDE = """(hidden) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


class Site(Tabs):
    """A service that asks for keys and can be stopped and started, and a browser."""

    def __init__(self, browser: Browser, server: HttpServer, auth: auth_site.Site) -> None:
        super().__init__(browser, server.url)
        self.auth, self.server, self.app = auth, server, auth.app
        self.asked: list[str] = []

    @property
    def tabs(self) -> int:
        return int(self.app.state.followers.open_now("tabs"))

    def open(
        self,
        path: str,
        role: Role = Role.OWNER,
        tenant: Tenant | None = None,
        *,
        key: str = "",
        scheme: Scheme = "light",
    ) -> Page:
        """Signed in with a new key of this role."""
        code = self.auth.ask("POST", "/v1/console-codes", key or self.auth.key(role, tenant)).json()["code"]
        context = self.context(scheme)
        login = context.new_page()
        login.goto(f"{self.url}/login#{code}")
        login.get_by_role("button", name="Sign in").click()
        expect(login).to_have_url(self.url + "/overview")
        page = context.new_page()  # what the page before still asks for is not among what this one asks for
        login.close()
        self.complaints.clear()
        self.asked.clear()
        page.on("request", lambda request: self.asked.append(request.url.removeprefix(self.url)))
        self.watched(page).goto(self.url + path)
        return page

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        """Again, on the same port, as another process would."""
        self.app = assembly._api(self.auth.parts, [])
        port = urlsplit(self.url).port
        self.server = HttpServer(self.app, "127.0.0.1", port or 0, self.app.state.followers.close)
        self.server.start()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with auth_site.auth_site(tmp_path_factory.mktemp("console")) as auth:
        server = HttpServer(auth.app, "127.0.0.1", 0, auth.app.state.followers.close)
        server.start()
        with chromium() as browser:
            made = Site(browser, server, auth)
            yield made
        made.stop()


def pieces(asked: list[str]) -> list[str]:
    """What a page asked for besides files."""
    return [address for address in asked if not address.startswith(("/static/", "data:"))]


def test_a_page_lives_by_one_stream_and_asks_for_nothing_else(site: Site) -> None:
    page = site.open("/tenants/1/1")
    expect(page.locator("#waterfall .slowest")).to_be_visible()
    expect(page.locator("ts-tail div").first).to_be_visible()
    expect(page.locator("ts-lag-chart p")).to_contain_text("now, at most")
    before = page.locator("#stores").inner_text()
    issue_incarnation(site.auth.parts.catalog, MINE, 40)
    expect(page.locator("#stores")).to_have_text(str(int(before) + 1))
    expect(page.locator("#lag")).not_to_have_text("")
    page.wait_for_timeout(3000)
    document, *streams = pieces(site.asked)
    assert document == "/tenants/1/1"
    assert streams
    for stream in streams:  # a busy machine may drop one: the next one opens in its place
        assert stream.startswith("/live?part=%2Ftenants%2F1%2F1&part=%2Ftenants%2F1%2F1%2Fwaterfall&tail=1%2F1&")
    assert site.complaints == []


def test_every_listing_follows_by_its_stream(site: Site) -> None:
    page = site.open("/tenants")
    new = Tenant(77, 1)
    expect(page.get_by_role("link", name="77/1", exact=True)).to_have_count(0)
    register_tenant(site.auth.parts.catalog, new)
    expect(page.get_by_role("link", name="77/1", exact=True)).to_have_count(1)
    assert pieces(site.asked) == ["/tenants", "/live?part=%2Ftenants"]


def test_focus_and_selection_stay_where_they_are(site: Site) -> None:
    page = site.open("/tenants")
    page.get_by_role("link", name="2/7", exact=True).focus()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('thead'))")
    page.evaluate("window.kept = document.activeElement")
    selected = page.evaluate("String(getSelection())")
    register_tenant(site.auth.parts.catalog, Tenant(78, 1))
    expect(page.get_by_role("link", name="78/1", exact=True)).to_have_count(1)
    assert page.evaluate("document.activeElement === window.kept")
    assert page.evaluate("document.activeElement.textContent") == "2/7"
    assert page.evaluate("String(getSelection())") == selected


def test_a_hidden_tab_has_no_stream(site: Site) -> None:
    eventually(lambda: site.tabs == 0, "no tab is left of the tests before")
    page = site.open("/overview")
    expect(page.locator("#tenants")).to_be_visible()
    eventually(lambda: site.tabs == 1, "it has a stream")
    page.evaluate(HIDE, True)
    eventually(lambda: site.tabs == 0, "it has none while nobody sees it")
    register_tenant(site.auth.parts.catalog, Tenant(79, 1))
    page.evaluate(HIDE, False)
    eventually(lambda: site.tabs == 1, "it has one again")
    expect(page.get_by_role("link", name="cluster 79 · tenant 1")).to_be_visible()
    expect(page.locator("#away")).to_be_hidden()
    assert site.complaints == []


def test_the_tail_pauses_and_goes_on_with_what_it_missed(site: Site) -> None:
    page = site.open("/tenants/1/1")
    expect(page.locator("ts-tail div").first).to_be_visible()
    page.locator("#pause").click()
    page.wait_for_function("performance.getEntriesByType('resource').length > 0")
    eventually(lambda: "tail" not in _polled(page, site)[-1], "the stream goes on without rows")
    rows = page.locator("ts-tail div").count()
    page.locator("#pause").click()
    eventually(lambda: "tail_cursor=" in _polled(page, site)[-1], "it asks for what came since")
    assert page.locator("ts-tail div").count() == rows, "nothing is shown twice"


def _polled(page: Page, site: Site) -> list[str]:
    page.wait_for_timeout(50)  # lets the browser tell what it asked for
    return pieces(site.asked)


def test_without_streams_the_parts_are_fetched(site: Site) -> None:
    page = site.open("/login")
    page.route("**/live?*", lambda route: route.abort())
    page.goto(site.server.url + "/tenants")
    expect(page.locator("#away")).to_be_visible()
    register_tenant(site.auth.parts.catalog, Tenant(80, 1))
    expect(page.get_by_role("link", name="80/1", exact=True)).to_have_count(1)
    expect(page.locator("#away")).to_be_hidden()
    page.unroute("**/live?*")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_stopped_service_is_said_to_be_away_until_it_is_back(site: Site, scheme: Scheme) -> None:
    page = site.open("/overview", scheme=scheme)
    expect(page.locator("#away")).to_be_hidden()
    eventually(lambda: site.tabs >= 1, "the page has its stream")
    site.stop()
    expect(page.locator("#away")).to_have_text(re.compile("^Live updates interrupted, reconnecting"))
    expect(page.locator("#away")).to_be_visible()
    expect(page.locator("#tenants")).to_be_visible()
    look(page, "away", scheme)
    number = 81 if scheme == "light" else 82
    register_tenant(site.auth.parts.catalog, Tenant(number, 1))
    site.start()
    expect(page.get_by_role("link", name=f"cluster {number} · tenant 1")).to_be_visible()
    expect(page.locator("#away")).to_be_hidden()
    assert [c for c in site.complaints if "ERR_CONNECTION_REFUSED" not in c and "ERR_INCOMPLETE" not in c] == []


def test_who_is_signed_out_is_led_to_the_login(site: Site) -> None:
    key = site.auth.key(Role.OWNER)
    page = site.open("/tenants/2/7", key=key)
    expect(page.locator("#state")).to_be_visible()
    revoke_key(site.auth.parts.catalog, parse_key(key).key_id)
    site.auth.clock.advance(KEY_CACHE_MS / 1000 + 0.1)
    expect(page).to_have_url(f"{site.server.url}/login?next=%2Ftenants%2F2%2F7")
    expect(page.get_by_label("Login code or API key")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_tenant_is_deleted_from_its_page_and_open_pages_say_so(site: Site, scheme: Scheme) -> None:
    gone, catalog = Tenant(90, 1 if scheme == "light" else 2), site.auth.parts.catalog
    LogBuilder(catalog, site.auth.parts.store, tenant=gone).activate()
    watching = site.open("/tasks", Role.VIEWER)
    expect(watching.locator("tbody tr").first).to_be_visible()
    page = site.open(f"/tenants/{gone}", Role.OPERATOR, scheme=scheme)
    look(page, "tenant-actions", scheme)
    page.get_by_role("link", name="Delete tenant…").click()
    expect(page.locator(".sentence")).to_contain_text(f"Tenant {gone} (ACTIVE) is deleted, and this cannot be undone")
    look(page, "delete", scheme)
    page.get_by_label(f"Type {gone} to confirm").fill("90/3")
    page.get_by_role("button", name=f"Delete tenant {gone}").click()
    assert page.evaluate("document.querySelector('#typed').matches(':invalid')")
    assert look_up_tenant(catalog, gone).state is TenantState.ACTIVE
    page.get_by_label(f"Type {gone} to confirm").fill(str(gone))
    page.get_by_label("Reason").fill("moved away")
    page.get_by_role("button", name=f"Delete tenant {gone}").click()
    expect(page).to_have_url(f"{site.server.url}/tenants")
    row = look_up_tenant(catalog, gone)
    assert (row.state, row.reason) == (TenantState.DELETING, "moved away")
    expect(page.locator("tbody tr", has_text=str(gone))).to_contain_text("deleting")
    assert site.complaints == []


def test_a_part_that_is_gone_says_so_and_stays_said(site: Site) -> None:
    gone = Tenant(91, 1)
    register_tenant(site.auth.parts.catalog, gone)
    page = site.open(f"/tenants/{gone}/checklist", Role.OPERATOR)
    expect(page.locator(".steps")).to_be_visible()
    with site.auth.parts.catalog.transaction() as conn:
        conn.exec_driver_sql("UPDATE tenants SET state = 'DELETED' WHERE cluster_id = 91")
    expect(page.locator("main")).to_contain_text("Gone")
    expect(page.locator(".steps")).to_have_count(0)
    eventually(lambda: pieces(site.asked)[-1].startswith("/live"), "it had a stream")
    assert site.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_a_browser_is_refused_is_a_page(site: Site, scheme: Scheme) -> None:
    page = site.open("/overview", Role.VIEWER, MINE, scheme=scheme)
    for path, heading, words in (
        ("/tasks", "Not allowed", "for one tenant only"),
        (f"/tenants/{OTHER}", "Not found", "is not registered"),
        ("/tenants/x/1", "Not found", "Tenant not found"),
        ("/nowhere", "Not found", "GET /nowhere not found"),
    ):
        page.goto(site.server.url + path)
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
        expect(page.locator("main")).to_contain_text(words)
        expect(page.get_by_role("link", name="Back to the overview")).to_be_visible()
        expect(page.get_by_role("navigation").get_by_role("link", name="Overview")).to_be_visible()
        if path == "/tasks":
            look(page, "refused", scheme)
    assert [c for c in site.complaints if "403" not in c and "404" not in c] == []
