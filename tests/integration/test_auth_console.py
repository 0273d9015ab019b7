"""The console's sessions: logins, CSRF, other sites' pages, and answers that end with their key."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient

from tests.kit.auth_site import MINE, Site, is_problem
from tistream.catalog.tenancy.keys import revoke_key
from tistream.catalog.tenancy.logins import open_session
from tistream.errors import TiStreamError
from tistream.http.auth import install
from tistream.http.auth.access import check_key, needs
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.core.keys import hash_of, parse_key
from tistream.http.auth.core.roles import OfLimited, Right, Role
from tistream.limits import KEY_CACHE_MS


def log_in(site: Site, key: str) -> tuple[str, httpx2.Response]:
    code = site.ask("POST", "/v1/console-codes", key).json()["code"]
    answer = site.ask("POST", "/login", data={"code": code, "next": "/tenants/1/1"})
    return code, answer


def cookie(answer: httpx2.Response) -> dict[str, str]:
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_a_code_signs_in_once(site: Site) -> None:
    code, answer = log_in(site, site.key(Role.VIEWER, MINE))
    site.http.cookies.clear()
    assert (answer.status_code, answer.headers["location"]) == (303, "/tenants/1/1")
    flags = answer.headers["set-cookie"].lower()
    assert all(word in flags for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"))
    assert site.get("/tenants/1/1", headers=cookie(answer)).status_code == 200
    assert site.get("/tenants/2/7", headers=cookie(answer)).status_code == 404
    again = site.ask("POST", "/login", data={"code": code})
    assert again.status_code == 401
    assert "This login code is invalid, used or expired" in again.text
    assert "set-cookie" not in again.headers


def test_over_https_the_cookie_never_leaves_it(site: Site) -> None:
    code = site.ask("POST", "/v1/console-codes", site.key(Role.VIEWER)).json()["code"]
    with TestClient(site.app, base_url="https://ts.example.com") as http:
        answer = http.post("/login", data={"code": code}, follow_redirects=False)
        assert answer.headers["set-cookie"].startswith("__Host-tistream_session=tss_")
        assert "secure" in answer.headers["set-cookie"].lower()
        assert http.get("/overview").status_code == 200


@pytest.mark.parametrize("page", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\nb"])
def test_a_login_leads_to_no_other_site(site: Site, page: str) -> None:
    answer = site.ask("POST", "/login", data={"code": site.key(Role.VIEWER), "next": page})
    site.http.cookies.clear()
    assert answer.headers["location"] == "/overview"


def test_a_pushers_key_opens_no_console(site: Site) -> None:
    answer = site.ask("POST", "/login", data={"code": site.key(Role.PUSHER, MINE)})
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_wrong_logins_of_an_address_are_few(site: Site) -> None:
    code = site.ask("POST", "/v1/console-codes", site.key(Role.VIEWER)).json()["code"]
    statuses = [site.ask("POST", "/login", data={"code": f"tsl_wrong{n}"}).status_code for n in range(40)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    refused = site.ask("POST", "/login", data={"code": code})
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)
    site.clock.advance(60)
    assert site.ask("POST", "/login", data={"code": code}).status_code == 303
    site.http.cookies.clear()


def test_a_browser_without_a_session_is_led_to_the_login(site: Site) -> None:
    answer = site.get("/tenants/1/1", headers={"Accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/tenants/1/1")
    part = site.get("/overview", headers={"Accept": "text/html", "HX-Request": "true"})
    assert (part.status_code, part.headers["HX-Redirect"]) == (401, "/login")
    assert site.get("/v1/tenants", headers={"Accept": "text/html"}).status_code == 401


def test_what_a_browser_is_refused_is_a_page_and_for_programs_a_problem(site: Site) -> None:
    _, answer = log_in(site, site.key(Role.VIEWER, MINE))
    site.http.cookies.clear()
    me = cookie(answer)
    browser = {**me, "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for method, path, status, heading in (
        ("GET", "/tasks", 403, "Not allowed"),
        ("GET", "/tenants/2/7", 404, "Not found"),
        ("GET", "/nowhere", 404, "Not found"),
        ("POST", "/logout", 403, "Not allowed"),  # without its CSRF token
        ("GET", "/tenants/1/1?table=" + "x" * 20, 200, "Cluster 1"),
    ):
        page = site.ask(method, path, headers=browser)
        assert page.status_code == status, path
        assert page.headers["content-type"].startswith("text/html")
        assert f"<h1>{heading}" in page.text
        assert int(page.headers["content-length"]) == len(page.content)
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        assert 'href="/overview"' in page.text
        assert 'href="/tasks"' not in page.text, "the menu is that of the key"
        if status != 200:
            assert page.headers["cache-control"] == "no-store"
            assert is_problem(site.ask(method, path, headers=me), status, "TS-1010" if status == 404 else "TS-1081")
            part = site.ask(method, path, headers={**browser, "HX-Request": "true"})
            assert (part.status_code, "<html" in part.text, "<h2>" in part.text) == (status, False, True)
    for path in ("/tasks.json", "/v1/tasks"):
        assert is_problem(site.get(path, headers=browser), 403, "TS-1081"), path


def test_a_fault_of_the_catalog_is_a_page_too(site: Site) -> None:
    with site.parts.catalog.transaction() as conn:
        conn.exec_driver_sql("ALTER TABLE workers RENAME TO workers_away")
    try:
        answer = site.get("/workers", site.key(Role.OWNER), headers={"Accept": "text/html"})
    finally:
        with site.parts.catalog.transaction() as conn:
            conn.exec_driver_sql("ALTER TABLE workers_away RENAME TO workers")
    assert answer.status_code in (500, 503)
    assert answer.headers["content-type"].startswith("text/html")
    assert "workers_away" not in answer.text
    assert "<h1>" in answer.text


def test_what_changes_something_needs_the_sessions_csrf_token(site: Site) -> None:
    _, answer = log_in(site, site.key(Role.OWNER))
    site.http.cookies.clear()
    me = cookie(answer)
    token = re.search(r'name="csrf-token" content="([0-9a-f]{64})"', site.get("/overview", headers=me).text)
    assert token is not None
    path = "/v1/clusters/1/tenants/1/stores/88/incarnations"
    for wrong in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": b"\xe9"}):
        assert is_problem(site.ask("POST", path, headers={**me, **wrong}), 403, "TS-1081")
    assert is_problem(site.ask("POST", path, headers=me, data={"csrf": "0" * 64}), 403, "TS-1081")
    assert is_problem(site.ask("POST", path, headers=me, content=b"x" * 70_000), 403, "TS-1081")
    assert site.ask("POST", path, headers={**me, "X-CSRF-Token": token[1]}).json()["incarnation"] == 1
    assert site.ask("POST", path, headers=me, data={"csrf": token[1]}).json()["incarnation"] == 2
    out = site.ask("POST", "/logout", headers=me, data={"csrf": token[1]})
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert is_problem(site.get("/overview", headers=me), 401, "TS-1080")


def test_another_sites_page_changes_nothing(site: Site) -> None:
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
    ):
        answer = site.ask("POST", "/login", headers=headers, data={"code": site.key(Role.OWNER)})
        assert is_problem(answer, 403, "TS-1081")
        assert "set-cookie" not in answer.headers
    with site.without_keys() as http:
        body = {"cluster_id": 8, "tenant_id": 8}
        assert http.post("/v1/tenants", json=body, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert http.post("/v1/tenants", json=body, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 201


def test_a_session_ends_with_its_key(site: Site) -> None:
    key = site.key(Role.VIEWER)
    key_id, token = parse_key(key).key_id, "tss_" + "b" * 39
    open_session(site.parts.catalog, hash_of(token), key_id, 600_000)
    me = {"Cookie": f"tistream_session={token}"}
    assert site.get("/overview", headers=me).status_code == 200
    site.ask("DELETE", f"/v1/keys/{key_id}", site.key(Role.OWNER))
    assert is_problem(site.get("/overview", headers=me), 401, "TS-1080")


def test_without_keys_nobody_is_asked(site: Site) -> None:
    with site.without_keys() as http:
        assert len(http.get("/v1/tenants").json()["items"]) >= 2
        assert http.get("/login", follow_redirects=False).headers["location"] == "/overview"
        assert "Sign out" not in http.get("/overview").text
        assert http.get("/v1/whoami").json()["role"] == "owner"
        assert http.post("/v1/console-codes").status_code == 400


def test_an_answer_without_end_ends_with_its_key(site: Site) -> None:
    """A stream checks its key every few seconds, and ends when the key is revoked."""
    key, closing = site.key(Role.VIEWER), threading.Event()
    seen: list[str] = []

    async def endless(request: Request) -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            for _ in range(1000):
                try:
                    await check_key(request)
                except TiStreamError as e:
                    seen.append(e.code)
                    return
                yield b"on\n"
                if not closing.is_set():
                    closing.set()
                    revoke_key(site.parts.catalog, parse_key(key).key_id)
                    site.clock.advance(KEY_CACHE_MS / 1000 + 0.1)

        return StreamingResponse(lines())

    app = FastAPI(openapi_url=None)
    app.add_api_route(
        "/v1/endless", endless, dependencies=[needs(Right.LOOK, limited=OfLimited.REFUSED)], response_model=None
    )
    install.install(app, site.parts.catalog, Authenticator(site.parts.catalog, site.clock))
    with TestClient(app) as http:
        assert http.get("/v1/endless", headers={"Authorization": f"Bearer {key}"}).content == b"on\n"
    assert seen == ["TS-1080"]
