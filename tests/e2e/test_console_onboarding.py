"""Signed in to the console in a real browser: a tenant is registered, connected to, and its keys are made and ended.

Needs Debian's chromium. Screenshots go to artefacts/console, for people to look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit import auth_site
from tests.kit.auth_site import MINE
from tests.kit.console_look import Scheme, Tabs, chromium, look, no_tab_is_left  # noqa: F401
from tests.kit.log_builder import LogBuilder
from tests.kit.stream_world import served
from tistream.catalog.work.stores import issue_incarnation
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant

CLUSTER = 7_123_456_789_012_345_678  # as PD makes them: more than a number of JavaScript holds


class Site(Tabs):
    """A served console that asks for keys."""

    def __init__(self, browser: Browser, url: str, auth: auth_site.Site) -> None:
        super().__init__(browser, url)
        self.auth = auth
        self._ids = count(10)

    def tenant(self) -> Tenant:
        """One that nobody has registered."""
        return Tenant(CLUSTER, next(self._ids))

    def open(self, role: Role, path: str, *, tenant: Tenant | None = None, scheme: Scheme = "light") -> Page:
        """Signed in with a new key of this role, by its one-time link."""
        key = self.auth.key(role, tenant)
        code = self.auth.ask("POST", "/v1/console-codes", key).json()["code"]
        self.complaints.clear()
        page = self.watched(self.context(scheme).new_page())
        page.goto(f"{self.url}/login?next={path}#{code}")
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(self.url + path)
        return page

    def look(self, page: Page, name: str, scheme: Scheme) -> None:
        """At both widths: nothing sticks out; at both, axe finds nothing."""
        look(page, name, scheme)
        assert self.complaints == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("console")
    with auth_site.auth_site(folder) as auth, served(auth.app) as server, chromium() as browser:
        yield Site(browser, server.url, auth)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_tenant_is_registered_and_seen_to_become_active(site: Site, scheme: Scheme) -> None:
    new = site.tenant()
    page = site.open(Role.OPERATOR, "/tenants", scheme=scheme)
    page.get_by_role("link", name="Register a tenant").click()
    page.get_by_label("Cluster id").fill("one")
    page.get_by_role("button", name="Register").click()
    expect(page.locator("#cluster_id-wrong")).to_contain_text("in digits")
    expect(page.locator("#tenant_id-wrong")).to_have_text("Required.")
    expect(page.get_by_label("Cluster id")).to_be_focused()
    site.look(page, "register-wrong", scheme)
    page.get_by_label("Cluster id").fill(str(MINE.cluster_id))
    page.get_by_label("Tenant id").fill(str(MINE.tenant_id))
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("alert")).to_contain_text("Tenant 1/1 is registered already; it is active.")
    page.get_by_label("Cluster id").fill(str(new.cluster_id))
    page.get_by_label("Tenant id").fill(str(new.tenant_id))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Tenant {new} is registered")).to_be_focused()
    key = page.get_by_role("region", name="The key", exact=True).inner_text()
    env = page.get_by_role("region", name="The environment").inner_text()
    assert env.splitlines() == [f"export TISTREAM_URL={site.url}", f"export TISTREAM_KEY={key}"]
    line = f"tistream push --pd HOST:2379 --cluster {new.cluster_id} --tenant {new.tenant_id}"
    expect(page.get_by_role("region", name="Push from a live cluster")).to_have_text(line)
    push = site.auth.get(f"/v1/clusters/{new.cluster_id}/tenants/{new.tenant_id}/push", key).json()
    expect(page.locator(".bundle")).to_contain_text(push["credentials"]["words"])
    steps = page.locator(".steps li")
    expect(page.locator(".steps .now")).to_contain_text("a pusher has started")
    site.look(page, "registered", scheme)
    issue_incarnation(site.auth.parts.catalog, new, 1)
    expect(page.locator(".steps .now")).to_contain_text("schema snapshot read")
    LogBuilder(site.auth.parts.catalog, site.auth.parts.store, tenant=new).activate()
    expect(page.locator(".steps .done")).to_have_count(steps.count())
    page.get_by_role("link", name="To the tenant").click()
    expect(page).to_have_url(f"{site.url}/tenants/{new}")
    assert key not in page.content()


def test_a_registration_that_is_sent_again_is_done_once(site: Site) -> None:
    new = site.tenant()
    page = site.open(Role.OWNER, "/tenants/register")
    keys: list[str] = []

    def lost(route: object) -> None:
        keys.append(route.request.headers["idempotency-key"])  # type: ignore[attr-defined]
        route.abort() if len(keys) == 1 else route.continue_()  # type: ignore[attr-defined]

    page.route("**/v1/tenants", lost)
    page.get_by_label("Cluster id").fill(str(new.cluster_id))
    page.get_by_label("Tenant id").fill(str(new.tenant_id))
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", name="is registered")).to_be_visible()
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_who_may_not_is_told_and_offered_nothing(site: Site) -> None:
    page = site.open(Role.VIEWER, "/tenants")
    expect(page.locator("main a[href='/tenants/register']")).to_have_count(0)
    expect(page.get_by_role("navigation").get_by_role("link", name="Keys")).to_have_count(0)
    page.goto(f"{site.url}/tenants/register")
    expect(page.locator("main")).to_contain_text("This needs the right 'operate'; the role of your key is viewer.")
    expect(page.locator("main form")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_dialog_says_how_to_connect(site: Site, scheme: Scheme) -> None:
    page = site.open(Role.OWNER, f"/tenants/{MINE}", scheme=scheme)
    page.get_by_role("link", name="Connect").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name="Connect to tenant 1/1")).to_be_visible()
    curl = dialog.get_by_role("region", name="Pull with curl")
    path = "/v1/clusters/1/tenants/1"
    wanted = (
        f"curl -s -H \"Authorization: Bearer $TISTREAM_KEY\" '{site.url}{path}/changes?start_ts=earliest&format=ndjson'"
    )
    expect(curl).to_have_text(wanted)
    expect(dialog.get_by_role("region", name="Push: Env")).to_contain_text(f"TISTREAM_URL={site.url}")
    site.look(page, "connect", scheme)
    dialog.get_by_label("Pull a database, or a table").fill("shop.customers")
    page.keyboard.press("Enter")
    expect(curl).to_contain_text(f"{path}/databases/shop/tables/customers/changes")
    expect(page).to_have_url(f"{site.url}/tenants/{MINE}")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("link", name="Connect")).to_be_focused()
    assert site.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_keys_are_made_shown_once_rotated_and_revoked(site: Site, scheme: Scheme) -> None:
    page = site.open(Role.OWNER, "/keys", scheme=scheme)
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("#name-wrong")).to_have_text("Required.")
    page.get_by_label("Name").fill(f"lake of {scheme}")
    page.get_by_label("Role").select_option("consumer")
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_role("alert")).to_contain_text("bound to a tenant")
    site.complaints.clear()  # Chromium tells of each answer that is an error
    page.get_by_label("Tenant").select_option(str(MINE))
    page.get_by_role("button", name="Create key").click()
    once = page.get_by_role("region", name="The key", exact=True)
    key = once.inner_text()
    assert site.auth.get("/v1/whoami", key).json()["name"] == f"lake of {scheme}"
    row = page.locator("tbody tr", has_text=f"lake of {scheme}")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("living")
    site.look(page, "keys", scheme)
    page.get_by_role("link", name="Done").click()
    assert key not in page.content()
    row.get_by_role("link", name="Rotate").click()
    page.get_by_label("Keep the old key valid for").select_option("0")
    site.look(page, "rotate", scheme)
    page.get_by_role("button", name="Rotate key").click()
    successor = once.inner_text()
    assert site.auth.get("/v1/whoami", successor).json()["name"] == f"lake of {scheme}"
    assert site.auth.get("/v1/whoami", key).status_code == 401
    page.get_by_role("link", name="Done").click()
    row.get_by_role("link", name="Revoke").click()
    expect(page.locator(".sentence")).to_contain_text(f"'lake of {scheme}', is revoked")
    page.get_by_role("button", name="Revoke key").click()
    expect(page).to_have_url(re.compile("/keys$"))
    expect(row).to_have_count(0)
    assert site.auth.get("/v1/whoami", successor).status_code == 401
    page.get_by_role("link", name=re.compile(r"^Include \d+ ended$")).click()
    expect(row).to_have_count(2)
