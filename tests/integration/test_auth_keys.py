"""Keys: made, rotated, revoked, given with a registration; and requests that are sent again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.kit.auth_site import MINE, OTHER, Site, is_problem
from tests.kit.catalog_cases import new_catalog, together
from tistream.catalog.tenancy.keys import get_key, list_keys, revoke_key
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.http.auth.core.keys import parse_key
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import first_owner_key, ttl_ms_of
from tistream.ids import Tenant
from tistream.limits import KEY_CACHE_MS

# ---- keys


def test_a_key_is_made_shown_once_listed_and_revoked(site: Site) -> None:
    owner = site.key(Role.OWNER)
    body = {"name": "etl ☂", "role": "consumer", "cluster_id": 1, "tenant_id": 1, "expires_in_s": 3600}
    made = site.ask("POST", "/v1/keys", owner, json=body)
    assert made.status_code == 201
    key, key_id = made.json()["key"], made.json()["key_id"]
    assert (made.json()["role"], made.json()["state"], made.json()["made_by"]) == ("consumer", "living", owner[4:17])
    assert site.get("/v1/whoami", key).json() == {
        "key_id": key_id, "name": "etl ☂", "role": "consumer", "cluster_id": 1, "tenant_id": 1, "tables": None,
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
        ({"name": "x", "role": "viewer", "expires_in_s": -1}, "TS-1001"),
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
            assert answer.json()["detail"] == f"key {key_id} not found"


def test_a_rotated_key_and_its_successor(site: Site) -> None:
    owner, old = site.key(Role.OWNER), site.key(Role.CONSUMER, MINE)
    path = f"/v1/keys/{parse_key(old).key_id}:rotate"
    new = site.ask("POST", path, owner, json={"overlap_s": 3600}).json()
    assert new["key"] != old
    for key in (old, new["key"]):
        assert site.get("/v1/whoami", key).json()["role"] == "consumer"
    assert is_problem(site.ask("POST", path, owner), 409, "TS-1050")
    newer = site.ask("POST", f"/v1/keys/{new['key_id']}:rotate", owner, json={"overlap_s": 0}).json()
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
    from tistream.catalog.tenancy import keys

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

    catalog = new_catalog(tmp_path)
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


@pytest.mark.parametrize(("seconds", "ttl_ms"), [(0, 0), (1e-9, 1), (5e-324, 1), (0.5, 500), (3600, 3_600_000)])
def test_a_lifetime_that_is_not_zero_has_an_end(seconds: float, ttl_ms: int) -> None:
    """0 means that the key never ends: a lifetime below a millisecond must not become it."""
    assert ttl_ms_of(seconds) == ttl_ms
