"""Every route of the composed service with every wrong key, and what the right ones see."""

from __future__ import annotations

import base64
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fastapi import FastAPI

from tests.kit.auth_site import MINE, NOBODYS, OPEN, OTHER, Site, fill, is_problem
from tistream.catalog.tenancy.keys import revoke_key
from tistream.errors import TiStreamError
from tistream.http.auth import install
from tistream.http.auth.access import declared, needs, undeclared
from tistream.http.auth.core.keys import format_key, parse_key
from tistream.http.auth.core.roles import GRANTS, Right, Role, fits

# ---- what is refused


def test_every_route_says_what_it_needs(site: Site) -> None:
    assert undeclared(site.app) == []
    routes = site.routes()
    assert len(routes) > 30
    assert {"/v1/keys", "/v1/tenants", "/overview", "/healthz"} <= {path for _, path, _ in routes}


@pytest.mark.parametrize("path", ["/v1/new", "/livez"])
def test_an_application_with_a_silent_route_does_not_start(site: Site, path: str) -> None:
    app = FastAPI(openapi_url=None)
    app.add_api_route(path, lambda: {}, dependencies=[needs(Right.LOOK)] if path == "/livez" else [])
    with pytest.raises(TiStreamError, match="declares a rule"):
        install.install(app, site.parts.catalog, None)
    app = FastAPI(openapi_url=None)
    app.add_api_route("/v1/new", lambda: {}, dependencies=[needs(Right.OPEN)])
    assert undeclared(app) == ["/v1/new"], "a route without a declared right is found"


def test_every_route_refuses_every_key_that_is_none(site: Site) -> None:
    good = site.key(Role.OWNER)
    revoked, expired = site.key(Role.OWNER), site.key(Role.OWNER, ttl_ms=1)
    revoke_key(site.parts.catalog, parse_key(revoked).key_id)
    wrong_secret = format_key(base64.b32decode(good[4:17].upper() + "==="), bytes(24))
    last = "a" if good[-1] != "a" else "b"
    asked = [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer garbage"},
        {"Authorization": f"Basic {good}"},
        {"Authorization": f"Bearer {good[:-1]}{last}"},
        {"Authorization": f"Bearer {wrong_secret}"},
        {"Authorization": f"Bearer {revoked}"},
        {"Authorization": f"Bearer {expired}"},
        {"X-Api-Key": good},
        {"Cookie": f"tistream_session={good}"},
        {"Cookie": "tistream_session=tss_" + "a" * 39},
    ]
    for method, path, _ in site.routes():
        for headers in asked:
            answer = site.ask(method, fill(path), headers=headers)
            assert is_problem(answer, 401, "TS-1080"), (method, path, headers)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    elsewhere = ("/v1/nothing", "/openapi.json", "/docs", "/static", "//v1/tenants", "/livez/", "/static/../v1/tenants")
    for path in elsewhere:
        answer = site.get(path)
        assert answer.status_code in (401, 404), path
        assert "tenant" not in answer.text
    assert site.get("/v1/tenants", good).status_code == 200


def test_two_keys_in_one_request_are_none(site: Site) -> None:
    key = site.key(Role.OWNER)
    both = [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")]
    assert is_problem(site.http.get("/v1/tenants", headers=both), 401, "TS-1080")


def test_every_route_refuses_every_role_that_is_too_weak(site: Site) -> None:
    keys = {(role, tenant): site.key(role, tenant) for role in Role for tenant in (MINE, None) if fits(role, tenant)}
    weak = 0
    for method, path, route in site.routes():
        for (role, tenant), key in keys.items():
            asked = declared(route)
            holds = all(d.right in GRANTS[role] or d.right is Right.KNOWN for d in asked)
            reaches = (
                tenant is None or "{tenant_id}" in path or all(d.filtered or d.right is Right.KNOWN for d in asked)
            )
            if holds and reaches:
                continue
            assert is_problem(site.ask(method, fill(path), key), 403, "TS-1081"), (method, path, role)
            weak += 1
    assert weak > 80


def test_another_tenants_key_is_told_that_there_is_no_such_tenant(site: Site) -> None:
    keys = [site.key(role, OTHER) for role in Role if fits(role, OTHER)]
    tried = 0
    for method, path, _ in site.routes():
        if "{tenant_id}" in path:
            for key in keys:
                there, nowhere = (site.ask(method, fill(path, of), key) for of in (MINE, NOBODYS))
                assert is_problem(there, 404, "TS-1010"), path
                same = there.text.replace("1/1", "9/9").replace("-c 1 -t 1", "-c 9 -t 9").replace(':"1"', ':"9"')
                assert same == nowhere.text, "a tenant that exists is told like one that does not"
                tried += 1
    assert tried > 60


@pytest.mark.parametrize("words", ["01/1", "1/+1", "1/1.0", "1/%201", "a/b", "1/1_0", "1/１"])
def test_a_tenant_is_named_in_one_way(site: Site, words: str) -> None:
    cluster, tenant = words.split("/")
    answer = site.get(f"/v1/clusters/{cluster}/tenants/{tenant}", site.key(Role.CONSUMER, OTHER))
    assert answer.status_code == 404
    assert "ACTIVE" not in answer.text


def test_the_right_keys_are_let_in(site: Site) -> None:
    for method, path, route in site.routes():
        role = Role.OWNER
        asked = {"params": {"dry_run": "true"}} if method == "DELETE" else {}  # a tenant that is deleted stays so
        assert site.ask(method, fill(path), site.key(role), **asked).status_code not in (401, 403), path
        if "{tenant_id}" in path and all(d.right in GRANTS[Role.TENANT_ADMIN] for d in declared(route)):
            answer = site.ask(method, fill(path), site.key(Role.TENANT_ADMIN, MINE))
            assert answer.status_code not in (401, 403), path
            assert "is not registered" not in answer.text


def test_open_addresses_ask_for_nothing_and_tell_little(site: Site) -> None:
    for method, path in OPEN:
        assert site.ask(method, path, headers={"Authorization": "Bearer nonsense"}).status_code in (200, 401), path
    ready = site.get("/readyz").json()
    assert ready == {"status": "ok", "checks": {"catalog": "ok", "object store": "ok", "services": "ok"}}
    assert site.get("/static/console.css").status_code == 200
    assert site.get("/problems/TS-1080").status_code == 200
    for beside in ("/problems-of-1", "/problemsx", "/staticx", "/static"):
        assert site.get(beside).status_code == 401, beside


def test_every_answer_has_the_security_headers(site: Site) -> None:
    key = site.key(Role.OWNER)
    known = ("/livez", "/v1/tenants", "/overview", "/login", "/static/console.css")
    for path in (*known, "/nowhere", "/v1/clusters/a/tenants/1"):
        for given in (None, key):
            headers = site.get(path, given).headers
            assert "default-src 'self'" in headers["Content-Security-Policy"], path
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "same-origin"


def test_no_cache_keeps_what_a_key_may_see(site: Site) -> None:
    key = site.key(Role.OWNER)
    asked = 0
    for method, path, _ in site.routes():
        if method == "GET":
            answer = site.get(fill(path), key)
            kept = answer.headers["Cache-Control"]
            assert "no-store" in kept or kept.startswith("private"), path
            asked += 1
    assert asked > 40
    assert "no-store" not in site.get("/static/console.css").headers.get("Cache-Control", "")


NOTED = {"read_leases"}  # a read may note that listed objects are still needed


def rows_of(site: Site) -> dict[str, list[Any]]:
    """All that the catalog holds."""
    with closing(sqlite3.connect(site.parts.settings.catalog.url.removeprefix("sqlite:///"))) as catalog:
        names = [name for (name,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: catalog.execute(f"SELECT * FROM {name}").fetchall() for name in names if name not in NOTED}


def test_no_get_changes_anything(site: Site) -> None:
    """Any page can make a browser GET an address. The cookies of a session go along, and without keys it needs none."""
    key = site.key(Role.OWNER)
    names = {"database": "shop", "table": "acct", "name": "shop.acct"}

    def walk() -> Iterator[tuple[str, int]]:
        for method, path, _ in site.routes():
            if method == "GET" and not path.endswith(("changes:stream", "/live")):
                filled = fill(re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: names.get(m[1], m[0]), path))
                filled += "?start_ts=earliest" if "/changes" in path and "/consumers/" not in path else ""
                yield filled, site.get(filled, key, headers={"Sec-Fetch-Site": "cross-site"}).status_code

    answered = sum(status == 200 for _, status in walk())
    assert answered > 40, "and what is derived from the log is kept now"
    consumer = {"consumer_id": "1", "start_ts": "earliest"}
    assert site.ask("POST", "/v1/clusters/1/tenants/1/consumers", key, json=consumer).status_code == 201
    before = rows_of(site)
    for address, status in walk():
        assert rows_of(site) == before, (address, status)


FOREIGN = ["evil.example:8711", "127.0.0.1.evil.example", "evil.example.", "localhost.evil.example"]
OURS = ["127.0.0.1:8711", "[::1]:8711", "localhost", "console.localhost:1", "10.0.0.7", "tistream"]


@pytest.mark.parametrize("host", FOREIGN + OURS)
def test_without_keys_no_other_name_leads_here(site: Site, host: str) -> None:
    """A page of a domain that its owner points at 127.0.0.1 is of the same site to the browser."""
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    with site.without_keys() as http:
        for method, path in (("GET", "/v1/tenants"), ("POST", "/v1/console-codes"), ("GET", "/overview")):
            answer = http.request(method, path, headers=headers, follow_redirects=False)
            assert (answer.status_code == 403) == (host in FOREIGN), (method, path, answer.text)


@pytest.mark.parametrize("authorization", [None, "Basic eDp5", "Bearer x", ""])
def test_without_keys_other_sites_change_nothing(site: Site, authorization: str | None) -> None:
    headers = {"Host": "127.0.0.1", "Sec-Fetch-Site": "cross-site"}
    headers |= {} if authorization is None else {"Authorization": authorization}
    with site.without_keys() as http:
        for method, path, _ in site.routes():
            if method not in ("GET", "HEAD"):
                assert http.request(method, fill(path), headers=headers).status_code == 403, (method, path)


# ---- what one may see


def test_lists_show_what_the_key_may_see(site: Site) -> None:
    def seen(key: str) -> list[int]:
        assert len(site.get("/overview.json", key).json()["tenants"]) == len(
            site.get("/v1/tenants", key).json()["items"]
        )
        return [row["cluster_id"] for row in site.get("/v1/tenants", key).json()["items"]]

    assert seen(site.key(Role.OWNER)) == seen(site.key(Role.VIEWER)) == [1, 2]
    assert seen(site.key(Role.CONSUMER, MINE)) == [1]
    assert seen(site.key(Role.VIEWER, OTHER)) == [2]
    assert seen(site.key(Role.CONSUMER, NOBODYS)) == []


def test_a_cursor_of_another_tenant_is_refused(site: Site) -> None:
    mine = site.get(
        "/v1/clusters/1/tenants/1/changes?start_ts=earliest&limit=5&format=raw-arrow", site.key(Role.CONSUMER, MINE)
    )
    cursor = mine.headers["TiStream-Next-Cursor"]
    theirs = site.get(f"/v1/clusters/2/tenants/7/changes?cursor={cursor}", site.key(Role.CONSUMER, OTHER))
    assert is_problem(theirs, 400, "TS-1003")
