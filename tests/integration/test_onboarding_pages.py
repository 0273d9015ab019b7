"""The console's way from no tenant to the first row, and its page of keys, as a reader of HTTP sees them."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from tests.kit.api_world import api_world
from tests.kit.auth_site import MINE, OTHER, Site, is_problem
from tests.kit.log_builder import LogBuilder
from tistream.catalog.tenancy.keys import get_key
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.http.auth.core.keys import parse_key
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant

HOSTILE = "<script>alert('x')</script> & \"co\""


def words(site: Site, path: str, key: str, status: int = 200) -> str:
    answer = site.get(path, key)
    assert answer.status_code == status, answer.text
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.text.count("<script") == 3, "our own, in the head"
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def id_of(key: str) -> str:
    return parse_key(key).key_id


def test_the_wizard_is_for_those_who_may_register(site: Site) -> None:
    for role, tenant, may in (
        (Role.OPERATOR, None, True),
        (Role.VIEWER, None, False),
        (Role.TENANT_ADMIN, MINE, False),
    ):
        key = site.key(role, tenant)
        assert site.get("/tenants/register.json", key).json()["may"] is may
        page = site.get("/tenants/register", key).text
        assert ('<ts-ask api="/v1/tenants"' in page) is may
        assert (f"This needs the right 'operate'; the role of your key is {role}." in unescape(page)) is not may
        refused = site.ask("POST", "/v1/tenants", key, json={"cluster_id": 1, "tenant_id": 1})
        assert refused.status_code == (201 if may else 403)
    assert "Register a tenant" in words(site, "/tenants", site.key(Role.OPERATOR))
    assert "Register a tenant" not in words(site, "/tenants", site.key(Role.VIEWER))


def test_the_wizard_knows_who_is_there_and_tells_no_stranger(site: Site) -> None:
    def why(key: str, tenant: Tenant) -> str | None:
        params = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id}
        reason: str | None = site.get("/tenants/register.json", key, params=params).json()["why_not"]
        return reason

    owner, bound = site.key(Role.OWNER), site.key(Role.VIEWER, MINE)
    assert why(owner, OTHER) == "Tenant 2/7 is registered already; it is awaiting snapshot."
    assert why(owner, Tenant(3, 3)) is None
    assert why(bound, MINE) == "Tenant 1/1 is registered already; it is active."
    assert why(bound, OTHER) is None
    assert site.get("/tenants/register.json", owner, params={"cluster_id": -1, "tenant_id": 1}).status_code == 400


def test_the_checklist_follows_the_catalog(site: Site) -> None:
    catalog, key, new = site.parts.catalog, site.key(Role.OWNER), Tenant((1 << 63) - 1, 4)
    path = f"/tenants/{new.cluster_id}/{new.tenant_id}/checklist"

    def done() -> list[str]:
        return [step["step"] for step in site.get(f"{path}.json", key).json()["steps"] if step["done"]]

    assert site.get(f"{path}.json", key).status_code == 404
    register_tenant(catalog, new)
    assert done() == ["registered"]
    assert f"tistream push --pd HOST:2379 --cluster {new.cluster_id} --tenant 4" in words(site, path, key)
    pusher = site.key(Role.PUSHER, new)
    assert done() == ["registered", "key for its pushers created"]
    issue_incarnation(catalog, new, 1)
    assert done()[-1] == "a pusher has started"
    assert "the service does the next step" in words(site, path, key).lower()
    LogBuilder(catalog, site.parts.store, tenant=new).activate()
    checklist = site.get(f"{path}.json", key).json()
    assert (checklist["next"], checklist["state"], checklist["awaiting"]) == (None, "ACTIVE", False)
    assert all(step["done"] for step in checklist["steps"])
    site.ask("DELETE", f"/v1/keys/{id_of(pusher)}", key)
    assert "key for its pushers created" not in done()


def test_lines_to_connect_show_a_key_where_one_is_asked_for(site: Site, tmp_path: Path) -> None:
    lines = site.get("/tenants/1/1/connect.json", site.key(Role.VIEWER), params={"table": "shop.customers"}).json()
    pull, push = ({line["name"]: line["text"] for line in lines[way]} for way in ("pull", "push"))
    assert pull["curl"].startswith(
        'curl -s -H "Authorization: Bearer $TISTREAM_KEY" \'http://testserver/v1/clusters/1/'
    )
    assert ", database='shop', table='customers').load()" in pull["Spark"]
    assert ".table('shop.customers').changes()" in pull["Python"]
    assert push["Env"] == "export TISTREAM_URL=http://testserver\nexport TISTREAM_KEY=KEY"
    assert push["Cluster"] == "tistream push --pd HOST:2379 --cluster 1 --tenant 1"
    assert "Make one" not in words(site, "/tenants/1/1/connect", site.key(Role.VIEWER))
    part = site.get("/tenants/1/1/connect", site.key(Role.OWNER), headers={"HX-Request": "true"}).text
    assert part.lstrip().startswith('<h2 id="dialog-title">')
    assert site.get("/tenants/9/9/connect", site.key(Role.OWNER)).status_code == 404
    with api_world(tmp_path) as open_to_all:
        answer = open_to_all.http.get("/tenants/1/1/connect").text
        assert "TISTREAM_KEY" not in answer
        assert "TISTREAM_URL" in answer


def test_lines_that_are_shown_are_lines_that_work(site: Site) -> None:
    """What the curl line asks is answered; with the key that it names, and not without.
    tests/integration/test_spark_source.py runs all four."""
    lines = site.get("/tenants/1/1/connect.json", site.key(Role.OWNER)).json()
    (curl,) = [line["text"] for line in lines["pull"] if line["name"] == "curl"]
    path = re.search(r"'http://testserver(.*)'", curl)
    assert path is not None
    assert site.get(path[1], site.key(Role.CONSUMER, MINE)).status_code == 200
    assert site.get(path[1]).status_code == 401


def test_keys_are_shown_as_the_api_shows_them_and_never_whole(site: Site) -> None:
    owner = site.key(Role.OWNER)
    key = site.ask("POST", "/v1/keys", owner, json={"name": HOSTILE, "role": "viewer"}).json()
    twin = site.get("/keys.json", owner).json()
    api = site.get("/v1/keys", owner).json()["items"]
    living = [{k: v for k, v in row.items() if k != "last_used_time"} for row in api if row["state"] == "living"]
    shown = [{k: v for k, v in row.items() if k not in ("changes", "last_used_time")} for row in twin["items"]]
    assert shown == living[::-1]
    assert (twin["living"], twin["own"]) == (len(living), id_of(owner))
    text = words(site, "/keys", owner)
    assert HOSTILE in text
    assert key["key"] not in site.get("/keys", owner).text
    assert not re.search(r"tsk_[a-z2-7]{13}_[a-z2-7]", site.get("/keys", owner).text)


def test_a_key_of_one_tenant_sees_and_gives_its_own(site: Site) -> None:
    admin, others = site.key(Role.TENANT_ADMIN, MINE), site.key(Role.CONSUMER, OTHER)
    twin = site.get("/keys.json", admin).json()
    assert {(row["cluster_id"], row["tenant_id"]) for row in twin["items"]} == {(1, 1)}
    assert twin["tenants"] == ["1/1"]
    assert {role["role"] for role in twin["roles"]} == {"viewer", "consumer", "pusher", "tenant-admin"}
    for verb in ("rotate", "revoke"):
        assert words(site, f"/keys/{id_of(others)}/{verb}", admin, 404)
        assert words(site, f"/keys/{'a' * 13}/{verb}", admin, 404)
    assert site.ask("POST", f"/keys/{id_of(others)}/revoke", admin).status_code == 404
    assert get_key(site.parts.catalog, id_of(others)).state == "living"
    assert is_problem(site.get("/keys", site.key(Role.OPERATOR)), 403, "TS-1081")


def test_a_key_is_revoked_by_its_form_and_others_are_not(site: Site) -> None:
    owner, lost = site.key(Role.OWNER), site.key(Role.VIEWER)
    path = f"/keys/{id_of(lost)}/revoke"
    assert "cannot be undone" in words(site, path, owner)
    assert site.get("/v1/whoami", lost).status_code == 200, "looking ends nothing"
    answer = site.ask("POST", path, owner)
    assert (answer.status_code, answer.headers["location"]) == (303, "/keys")
    assert site.get("/v1/whoami", lost).status_code == 401
    assert f"key {id_of(lost)} has ended already" in words(site, path, owner, 404)
    assert id_of(lost) not in words(site, "/keys", owner)
    assert id_of(lost) in words(site, "/keys?ended=true", owner)
    assert "you are signed out" in words(site, f"/keys/{id_of(owner)}/revoke", owner)


def test_the_menu_offers_what_may_be_opened(site: Site) -> None:
    for role, tenant in ((Role.OWNER, None), (Role.OPERATOR, None), (Role.VIEWER, None), (Role.TENANT_ADMIN, MINE)):
        key = site.key(role, tenant)
        menu = re.search(r"<nav.*?</nav>", site.get("/overview", key).text)
        assert menu is not None
        offered = re.findall(r'href="([^"]+)"', menu[0])
        assert "/overview" in offered
        assert ("/keys" in offered) is (role in (Role.OWNER, Role.TENANT_ADMIN))
        assert [site.get(path, key).status_code for path in offered] == [200] * len(offered)
    assert "<nav" not in site.get("/login").text
