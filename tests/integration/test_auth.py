"""Every route of the composed service with every wrong key, and what the right ones see."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient

from tistream.auth import install
from tistream.auth.access import declared, every_route, needs, still_in, undeclared
from tistream.auth.guard import KeyGuard
from tistream.auth.issue import first_owner_key, issue_key
from tistream.auth.keys import format_key, hash_of, parse_key
from tistream.auth.roles import GRANTS, Right, Role, fits
from tistream.catalog.keys import get_key, list_keys, revoke_key
from tistream.catalog.logins import open_session
from tistream.catalog.tenants import register_tenant
from tistream.cli import assembly
from tistream.config import CatalogSettings, ObjectStoreSettings, ServerSettings, Settings
from tistream.errors import TiStreamError
from tistream.ids import Tenant
from tistream.limits import KEY_CACHE_MS
from tistream.testing.catalog_cases import together
from tistream.testing.log_builder import LogBuilder
from tistream.testing.manual_clock import ManualClock

MINE, OTHER, NOBODYS = Tenant(1, 1), Tenant(2, 7), Tenant(9, 9)
FILLED = {
    "database": "absent", "table": "none", "store_id": "1", "task_id": "1", "key_id": "a" * 13, "ts": "1", "name": "f",
}  # fmt: skip
OPEN = {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/version"), ("GET", "/login"), ("POST", "/login")}


@dataclass
class Site:
    """The service that `tistream up --auth keys` serves, its keys, and its clock in the test's hand."""

    parts: assembly.Parts
    app: FastAPI
    http: TestClient
    clock: ManualClock

    def key(self, role: Role, tenant: Tenant | None = None, **more: Any) -> str:
        return issue_key(self.parts.catalog, name=f"a {role}", role=role, tenant=tenant, **more).text

    def ask(self, method: str, path: str, key: str | None = None, **more: Any) -> httpx2.Response:
        headers = {**({} if key is None else {"Authorization": f"Bearer {key}"}), **more.pop("headers", {})}
        return self.http.request(method, path, headers=headers, follow_redirects=False, **more)

    def get(self, path: str, key: str | None = None, **more: Any) -> httpx2.Response:
        return self.ask("GET", path, key, **more)

    def routes(self) -> list[tuple[str, str, APIRoute]]:
        """(method, address with parameters, route) of everything that is not open."""
        found = [r for r in every_route(self.app) if isinstance(r, APIRoute)]
        every = [(m, r.path, r) for r in found for m in sorted(r.methods)]
        return [row for row in every if row[:2] not in OPEN and not row[1].startswith("/problems")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("auth")
    (folder / "bucket").mkdir()
    settings = Settings(
        catalog=CatalogSettings(url=f"sqlite:///{folder}/catalog.db"),
        object_store=ObjectStoreSettings(url=f"file://{folder}/bucket"),
        server=ServerSettings(auth="keys"),
    )
    parts = assembly.open_parts(settings)
    clock = ManualClock(parts.clock.unix_ms())
    parts.clock = clock  # type: ignore[assignment]
    LogBuilder(parts.catalog, parts.store).register().build(2)
    register_tenant(parts.catalog, OTHER)
    app = assembly._api(parts, [], control=True)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Site(parts, app, http, clock)
    parts.catalog.close()


def fill(path: str, tenant: Tenant = MINE) -> str:
    values = {**FILLED, "cluster_id": str(tenant.cluster_id), "tenant_id": str(tenant.tenant_id)}
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: values.get(m[1], "1"), path)


def is_problem(answer: httpx2.Response, status: int, code: str) -> bool:
    """A problem document that names nothing of ours but what the caller sent."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    if answer.request.method == "HEAD":
        return True
    assert answer.json()["code"] == code
    for secret in ("catalog.db", "bucket", "Traceback", "shop", "sqlite", "tsk_a", "tsk_b"):
        assert secret not in answer.text.replace("tsk_..._...", "")
    return True


# ---- the wall


def test_every_route_says_what_it_needs(site: Site) -> None:
    assert undeclared(site.app) == []
    routes = site.routes()
    assert len(routes) > 30
    assert {"/v1/keys", "/v1/tenants", "/overview", "/healthz"} <= {path for _, path, _ in routes}


@pytest.mark.parametrize("path", ["/v1/new", "/livez"])
def test_an_application_with_a_silent_route_does_not_start(site: Site, path: str) -> None:
    app = FastAPI(openapi_url=None)
    app.add_api_route(path, lambda: {}, dependencies=[needs(Right.LOOK)] if path == "/livez" else [])
    with pytest.raises(TiStreamError, match="says what it needs"):
        install.install(app, site.parts.catalog, None)
    app = FastAPI(openapi_url=None)
    app.add_api_route("/v1/new", lambda: {}, dependencies=[needs(Right.OPEN)])
    assert undeclared(app) == ["/v1/new"], "open is what the wall leaves open"


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
    for path in (
        "/v1/nothing",
        "/openapi.json",
        "/docs",
        "/static",
        "//v1/tenants",
        "/livez/",
        "/static/../v1/tenants",
    ):
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
        assert site.ask(method, fill(path), site.key(role)).status_code not in (401, 403), path
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


def test_every_answer_has_the_security_headers(site: Site) -> None:
    key = site.key(Role.OWNER)
    paths = (
        "/livez",
        "/v1/tenants",
        "/overview",
        "/login",
        "/static/console.css",
        "/nowhere",
        "/v1/clusters/a/tenants/1",
    )
    for path in paths:
        for given in (None, key):
            headers = site.get(path, given).headers
            assert "default-src 'self'" in headers["Content-Security-Policy"], path
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "same-origin"


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


# ---- keys


def test_a_key_is_made_shown_once_listed_and_revoked(site: Site) -> None:
    owner = site.key(Role.OWNER)
    body = {"name": "etl ☂", "role": "consumer", "cluster_id": 1, "tenant_id": 1, "expires_in_hours": 1}
    made = site.ask("POST", "/v1/keys", owner, json=body)
    assert made.status_code == 201
    key, key_id = made.json()["key"], made.json()["key_id"]
    assert (made.json()["role"], made.json()["state"], made.json()["made_by"]) == ("consumer", "living", owner[4:17])
    assert site.get("/v1/whoami", key).json() == {
        "key_id": key_id, "name": "etl ☂", "role": "consumer", "cluster_id": 1, "tenant_id": 1,
        "rights": ["look", "read"],
    }  # fmt: skip
    listed = site.get("/v1/keys?cluster_id=1&tenant_id=1", owner)
    assert key_id in [row["key_id"] for row in listed.json()["items"]]
    assert key.split("_")[2] not in listed.text
    assert get_key(site.parts.catalog, key_id).used_ms > 0
    for _ in range(2):
        assert site.ask("DELETE", f"/v1/keys/{key_id}", owner).json()["state"] == "revoked"
    assert "revoked" in site.get("/v1/whoami", key).json()["detail"], "at once, in the process that revoked it"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "x", "role": "consumer"}, "TS-1001"),
        ({"name": "x", "role": "owner", "cluster_id": 1, "tenant_id": 1}, "TS-1001"),
        ({"name": "x", "role": "viewer", "cluster_id": 1}, "TS-1001"),
        ({"name": "x", "role": "king"}, "TS-1001"),
        ({"name": " ", "role": "viewer"}, "TS-1001"),
        ({"name": "a\nb", "role": "viewer"}, "TS-1001"),
        ({"name": "x", "role": "viewer", "expires_in_hours": -1}, "TS-1001"),
        ({"role": "viewer"}, "TS-1001"),
    ],
)
def test_a_key_that_cannot_be_is_refused(site: Site, body: dict[str, Any], code: str) -> None:
    assert is_problem(site.ask("POST", "/v1/keys", site.key(Role.OWNER), json=body), 400, code)


def test_a_tenant_admin_keeps_to_the_tenant(site: Site) -> None:
    admin, owner = site.key(Role.TENANT_ADMIN, MINE), site.key(Role.OWNER)
    foreign = parse_key(site.key(Role.CONSUMER, OTHER)).key_id
    of_mine = {"name": "x", "cluster_id": 1, "tenant_id": 1}
    assert site.ask("POST", "/v1/keys", admin, json={**of_mine, "role": "pusher"}).status_code == 201
    for body in (
        {"name": "x", "role": "owner"},
        {"name": "x", "role": "viewer"},
        {"name": "x", "role": "consumer", "cluster_id": 2, "tenant_id": 7},
    ):
        assert is_problem(site.ask("POST", "/v1/keys", admin, json=body), 403, "TS-1081")
    listed = site.get("/v1/keys", admin).json()["items"]
    assert {(row["cluster_id"], row["tenant_id"]) for row in listed} == {(1, 1)}
    assert site.get("/v1/keys?cluster_id=2&tenant_id=7", admin).json()["items"] == []
    for key_id in (foreign, parse_key(owner).key_id, "a" * 13):
        for method, path in (("DELETE", f"/v1/keys/{key_id}"), ("POST", f"/v1/keys/{key_id}:rotate")):
            answer = site.ask(method, path, admin)
            assert is_problem(answer, 404, "TS-1010")
            assert answer.json()["detail"] == f"there is no key {key_id}"


def test_a_rotated_key_and_its_successor(site: Site) -> None:
    owner, old = site.key(Role.OWNER), site.key(Role.CONSUMER, MINE)
    path = f"/v1/keys/{parse_key(old).key_id}:rotate"
    new = site.ask("POST", path, owner, json={"overlap_hours": 1}).json()
    assert new["key"] != old
    for key in (old, new["key"]):
        assert site.get("/v1/whoami", key).json()["role"] == "consumer"
    assert is_problem(site.ask("POST", path, owner), 409, "TS-1050")
    newer = site.ask("POST", f"/v1/keys/{new['key_id']}:rotate", owner, json={"overlap_hours": 0}).json()
    assert "expired" in site.get("/v1/whoami", new["key"]).json()["detail"]
    assert site.get("/v1/whoami", newer["key"]).status_code == 200


def test_a_key_that_another_process_revoked_counts_for_seconds(site: Site) -> None:
    key = site.key(Role.VIEWER)
    assert site.get("/v1/whoami", key).status_code == 200
    revoke_key(site.parts.catalog, parse_key(key).key_id)
    assert site.get("/v1/whoami", key).status_code == 200
    site.clock.advance(KEY_CACHE_MS / 1000 + 0.1)
    assert "revoked" in site.get("/v1/whoami", key).json()["detail"]


def test_an_expired_key_ends_in_time_whatever_is_kept(site: Site) -> None:
    key = site.key(Role.VIEWER, ttl_ms=KEY_CACHE_MS - 1000)
    site.get("/v1/whoami", key)
    site.clock.advance(KEY_CACHE_MS / 1000 - 0.5)  # what is kept still counts, the key does not
    assert "expired" in site.get("/v1/whoami", key).json()["detail"]


def test_one_catalog_read_serves_many_requests(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    key = site.key(Role.VIEWER)
    site.get("/v1/whoami", key)
    reads: list[str] = []
    from tistream.catalog import keys

    real = keys.get_key
    monkeypatch.setattr(keys, "get_key", lambda catalog, key_id: reads.append(key_id) or real(catalog, key_id))
    for _ in range(20):
        assert site.get("/v1/whoami", key).status_code == 200
    assert reads == []
    site.clock.advance(KEY_CACHE_MS / 1000 + 0.1)
    site.get("/v1/whoami", key)
    assert reads == [parse_key(key).key_id]


def test_no_secret_is_in_the_catalog(site: Site) -> None:
    owner = site.key(Role.OWNER)
    body = {"name": "x", "role": "viewer"}
    made = site.ask("POST", "/v1/keys", owner, json=body, headers={"Idempotency-Key": "no secret"}).json()["key"]
    code = site.ask("POST", "/v1/console-codes", owner, headers={"Idempotency-Key": "no code"}).json()["code"]
    folder = Path(str(site.parts.settings.catalog.url).removeprefix("sqlite:///")).parent
    data = b"".join(path.read_bytes() for path in folder.glob("catalog.db*"))
    assert made[4:17].encode() in data
    for secret in (owner.split("_")[2], made.split("_")[2], code.split("_")[1]):
        assert secret[:20].encode() not in data


def test_the_first_owner_is_made_by_one_of_those_who_start_together(tmp_path: Path) -> None:
    from tistream.catalog.engine import Catalog

    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    catalog.migrate()
    found = [key for key in together(4, lambda _: first_owner_key(catalog)) if key]
    assert [parse_key(key).key_id for key in found] == [row.key_id for row in list_keys(catalog)]
    assert first_owner_key(catalog) is None
    catalog.close()


# ---- registration


def test_registering_gives_the_pushers_key_once(site: Site) -> None:
    operator, body = site.key(Role.OPERATOR), {"cluster_id": 5, "tenant_id": 6}
    first = site.ask("POST", "/v1/tenants", operator, json=body)
    push = first.json()["push"]
    assert push["env"] == {"TISTREAM_URL": "http://testserver", "TISTREAM_KEY": push["key"]}
    base = "/v1/clusters/5/tenants/6"
    assert site.ask("POST", f"{base}/stores/1/incarnations", push["key"]).status_code == 201
    assert site.get(f"{base}/frontier", push["key"]).json() == []
    for path in (base, f"{base}/changes?start_ts=earliest", "/v1/tenants", "/healthz", "/overview"):
        assert is_problem(site.get(path, push["key"]), 403, "TS-1081")
    assert is_problem(site.get("/v1/clusters/1/tenants/1/frontier", push["key"]), 404, "TS-1010")
    again = site.ask("POST", "/v1/tenants", operator, json=body).json()
    assert (again["state"], again["push"]["key"]) == ("AWAITING_SNAPSHOT", None)


# ---- the same request again


def test_the_same_request_is_done_once_and_answered_again(site: Site) -> None:
    owner, headers = site.key(Role.OWNER), {"Idempotency-Key": "a b/c"}
    body = {"name": "once", "role": "viewer"}
    first = site.ask("POST", "/v1/keys", owner, json=body, headers=headers)
    again = site.ask("POST", "/v1/keys", owner, json=body, headers=headers)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
    assert again.json() == {**first.json(), "key": f"tsk_{first.json()['key_id']}_(shown once)"}
    assert sum(row.name == "once" for row in list_keys(site.parts.catalog)) == 1
    other = site.ask("POST", "/v1/keys", owner, json={**body, "name": "twice"}, headers=headers)
    assert is_problem(other, 422, "TS-1082")
    elsewhere = site.ask("POST", "/v1/keys", site.key(Role.OWNER), json=body, headers=headers)
    assert "Idempotent-Replayed" not in elsewhere.headers, "keys of two principals never meet"
    assert is_problem(site.ask("POST", "/v1/keys", json=body, headers=headers), 401, "TS-1080")


def test_a_failed_request_is_done_anew(site: Site) -> None:
    owner, headers = site.key(Role.OWNER), {"Idempotency-Key": "later"}
    path = "/v1/clusters/6/tenants/6/stores/1/incarnations"
    assert is_problem(site.ask("POST", path, owner, headers=headers), 404, "TS-1010")
    register_tenant(site.parts.catalog, Tenant(6, 6))
    assert site.ask("POST", path, owner, headers=headers).json()["incarnation"] == 1
    assert site.ask("POST", path, owner, headers=headers).json()["incarnation"] == 1
    assert site.ask("POST", path, owner).json()["incarnation"] == 2


def test_the_first_one_still_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import metaserver.routes as routes

    inside, go_on = threading.Event(), threading.Event()
    real = routes.issue_incarnation

    def slow(*args: Any) -> tuple[int, int]:
        inside.set()
        assert go_on.wait(60)
        return real(*args)

    monkeypatch.setattr(routes, "issue_incarnation", slow)
    owner, headers, answers = site.key(Role.OWNER), {"Idempotency-Key": "slow"}, []
    path = "/v1/clusters/1/tenants/1/stores/77/incarnations"
    first = threading.Thread(target=lambda: answers.append(site.ask("POST", path, owner, headers=headers)))
    first.start()
    assert inside.wait(60)
    second = site.ask("POST", path, owner, headers=headers)
    go_on.set()
    first.join()
    assert is_problem(second, 409, "TS-1083")
    assert second.headers["Retry-After"] == "1"
    assert answers[0].json()["incarnation"] == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_an_idempotency_key_has_a_form(site: Site, key: str) -> None:
    answer = site.ask("POST", "/v1/console-codes", site.key(Role.OWNER), headers={"Idempotency-Key": key})
    assert is_problem(answer, 400, "TS-1001")


# ---- the console


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
    assert "was used" in again.text
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


def test_a_browser_without_a_session_is_led_to_the_login(site: Site) -> None:
    answer = site.get("/tenants/1/1", headers={"Accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/tenants/1/1")
    part = site.get("/overview", headers={"Accept": "text/html", "HX-Request": "true"})
    assert (part.status_code, part.headers["HX-Redirect"]) == (401, "/login")
    assert site.get("/v1/tenants", headers={"Accept": "text/html"}).status_code == 401


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
    with TestClient(assembly._api(_open(site.parts), [], control=True)) as http:
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
    with TestClient(assembly._api(_open(site.parts), [], control=True)) as http:
        assert len(http.get("/v1/tenants").json()["items"]) >= 2
        assert http.get("/login", follow_redirects=False).headers["location"] == "/overview"
        assert "Sign out" not in http.get("/overview").text
        assert http.get("/v1/whoami").json()["role"] == "owner"
        assert http.post("/v1/console-codes").status_code == 400


def _open(parts: assembly.Parts) -> assembly.Parts:
    server = ServerSettings(auth="none")
    return assembly.Parts(
        settings=parts.settings.model_copy(update={"server": server}),
        catalog=parts.catalog,
        store=parts.store,
        clock=parts.clock,
    )


def test_an_answer_without_end_ends_with_its_key(site: Site) -> None:
    """What a stream asks every few seconds."""
    key, asked = site.key(Role.VIEWER), threading.Event()
    seen: list[str] = []

    async def endless(request: Request) -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            for _ in range(1000):
                try:
                    await still_in(request)
                except TiStreamError as e:
                    seen.append(e.code)
                    return
                yield b"on\n"
                if not asked.is_set():
                    asked.set()
                    revoke_key(site.parts.catalog, parse_key(key).key_id)
                    site.clock.advance(KEY_CACHE_MS / 1000 + 0.1)

        return StreamingResponse(lines())

    app = FastAPI(openapi_url=None)
    app.add_api_route("/v1/endless", endless, dependencies=[needs(Right.LOOK)], response_model=None)
    install.install(app, site.parts.catalog, KeyGuard(site.parts.catalog, site.clock))
    with TestClient(app) as http:
        assert http.get("/v1/endless", headers={"Authorization": f"Bearer {key}"}).content == b"on\n"
    assert seen == ["TS-1080"]
