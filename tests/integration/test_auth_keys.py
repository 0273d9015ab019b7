"""Keys: made, rotated, revoked, given with a registration; and requests that are sent again."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kit.auth_site import MINE, OTHER, Site, is_problem
from tests.kit.catalog_cases import new_catalog, together
from tests.kit.overheard import overheard
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.keys import get_key, list_keys, revoke_key
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work import stores
from tistream.catalog.work.stores import issue_incarnation
from tistream.cli.main import command_line
from tistream.cli.running import first_words
from tistream.http.auth.core.keys import parse_key
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import first_owner_key, ttl_ms_of
from tistream.ids import Tenant
from tistream.limits import CONSUMER_IDLE_HOURS_DEFAULT, KEY_CACHE_MS
from tistream.objectstore.layout import SchemaSnapKey, parse, schema_snap_prefix

# ---- keys


def test_a_key_is_made_shown_once_listed_and_revoked(site: Site) -> None:
    owner = site.key(Role.OWNER)
    body = {"name": "etl ☂", "role": "consumer", "cluster_id": 1, "tenant_id": 1, "expires_in_s": 3600}
    made = site.ask("POST", "/v1/keys", owner, json=body)
    assert made.status_code == 201
    key, key_id = made.json()["key"], made.json()["key_id"]
    assert (made.json()["role"], made.json()["state"], made.json()["created_by"]) == ("consumer", "living", owner[4:17])
    assert site.get("/v1/whoami", key).json() == {
        "key_id": key_id, "name": "etl ☂", "role": "consumer", "cluster_id": 1, "tenant_id": 1, "tables": None,
        "rights": ["look", "read"],
    }  # fmt: skip
    listed = site.get("/v1/keys?cluster_id=1&tenant_id=1", owner)
    assert key_id in [row["key_id"] for row in listed.json()["items"]]
    assert key.split("_")[2] not in listed.text
    assert get_key(site.parts.catalog, key_id).last_used_ms > 0
    for _ in range(2):
        assert site.ask("DELETE", f"/v1/keys/{key_id}", owner).json()["state"] == "revoked"
    assert "revoked" in site.get("/v1/whoami", key).json()["detail"], "at once, in the process that revoked it"


@pytest.mark.parametrize("asked", [{}, {"expires_in_s": 3600}, {"expires_in_s": 7200}])
def test_no_key_outlives_the_one_that_made_it(site: Site, asked: dict[str, Any]) -> None:
    """Not made, not rotated, and not by a successor of the maker."""
    admin = site.key(Role.TENANT_ADMIN, MINE, ttl_ms=3_000_000)
    ends = get_key(site.parts.catalog, parse_key(admin).key_id).expires_ms
    body = {"name": "x", "role": "consumer", "cluster_id": 1, "tenant_id": 1, **asked}
    children = [site.ask("POST", "/v1/keys", admin, json=body).json()["key"]]
    own = site.ask("POST", f"/v1/keys/{parse_key(admin).key_id}:rotate", admin, json={"overlap_s": 60}).json()["key"]
    children += [own, site.ask("POST", "/v1/keys", own, json=body).json()["key"]]
    for child in children:
        assert 0 < get_key(site.parts.catalog, parse_key(child).key_id).expires_ms <= ends
    short = site.ask("POST", "/v1/keys", own, json={**body, "expires_in_s": 60}).json()["key"]
    assert get_key(site.parts.catalog, parse_key(short).key_id).expires_ms < ends - 60_000
    lasting = site.key(Role.TENANT_ADMIN, MINE)
    rotated = site.ask("POST", f"/v1/keys/{parse_key(lasting).key_id}:rotate", lasting, json={"overlap_s": 60})
    assert rotated.json()["expires_time"] is None, "a key without an end has a successor without one"


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


def test_an_operator_reads_no_schema_of_a_tenant(site: Site) -> None:
    (info, *_) = site.parts.store.list(schema_snap_prefix(MINE))
    key = parse(info.key)
    assert isinstance(key, SchemaSnapKey)
    path = f"/v1/clusters/1/tenants/1/push-schemas/{key.ts}"
    assert is_problem(site.get(path, site.key(Role.OPERATOR)), 403, "TS-1081")
    for role, tenant in ((Role.OWNER, None), (Role.PUSHER, MINE), (Role.TENANT_ADMIN, MINE)):
        assert site.get(path, site.key(role, tenant)).status_code == 200


def test_only_who_can_remove_a_consumer_lets_it_hold_the_log_for_long(site: Site) -> None:
    reader, admin = site.key(Role.CONSUMER, MINE), site.key(Role.TENANT_ADMIN, MINE)
    most = CONSUMER_IDLE_HOURS_DEFAULT * 3600
    for n, (limit_s, allowed) in enumerate([(None, True), (60, True), (most, True), (0, False), (most + 1, False)]):
        body = {"consumer_id": f"hold{n}"} | ({} if limit_s is None else {"idle_limit_s": limit_s})
        made = site.ask("POST", "/v1/clusters/1/tenants/1/consumers", reader, json=body)
        assert made.status_code == 201 if allowed else is_problem(made, 403, "TS-1081")
        assert site.ask("POST", "/v1/clusters/1/tenants/1/consumers", admin, json=body).status_code in (200, 201)


def test_a_tenant_has_a_bounded_number_of_consumers_and_stores(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, pusher = site.key(Role.CONSUMER, MINE), site.key(Role.PUSHER, MINE)
    monkeypatch.setattr(CONSUMERS, "_most", 30)
    monkeypatch.setattr("tistream.catalog.work.stores.STORES_MAX", 30)
    at = "/v1/clusters/1/tenants/1"
    feeds = [site.ask("POST", f"{at}/consumers", reader, json={"consumer_id": f"n{n}"}) for n in range(31)]
    assert is_problem(feeds[-1], 409, "TS-1014")
    assert len(CONSUMERS.of_tenant(site.parts.catalog, MINE)) == 30
    assert site.ask("POST", f"{at}/consumers", reader, json={"consumer_id": "n0"}).status_code == 200
    stores = [site.ask("POST", f"{at}/stores/{1000 + n}/incarnations", pusher) for n in range(31)]
    assert is_problem(stores[-1], 409, "TS-1014")
    assert site.ask("POST", f"{at}/stores/1000/incarnations", pusher).status_code == stores[0].status_code < 300


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
    reads: list[tuple[Catalog, str]] = []
    from tistream.catalog.tenancy import keys

    monkeypatch.setattr(keys, "get_key", overheard(keys.get_key, reads))
    for _ in range(20):
        assert site.get("/v1/whoami", key).status_code == 200
    assert reads == []
    site.clock.advance(KEY_CACHE_MS / 1000 + 0.1)
    site.get("/v1/whoami", key)
    assert [key_id for _, key_id in reads] == [parse_key(key).key_id]


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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_start_shows_secrets_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """What a service prints elsewhere is kept in logs that more people read than may own it."""
    catalog = new_catalog(tmp_path)
    with ExitStack() as stack, monkeypatch.context() as patch:
        for name, end in zip(("stdin", "stderr"), pty.openpty() if is_terminal else os.pipe(), strict=True):
            file = stack.enter_context(open(end, "r" if name == "stdin" else "w", encoding="utf-8"))
            patch.setattr(sys, name, file)
        first = "\n".join(first_words(catalog, "http://127.0.0.1:1", has_console=True))
        keys = list_keys(catalog)
        if not keys:
            done = CliRunner().invoke(command_line([]), ["key", "owner", "--data", str(tmp_path)])
        second = "\n".join(first_words(catalog, "http://127.0.0.1:1", has_console=True))
    if is_terminal:
        assert [row.key_id for row in keys] == re.findall(r"tsk_([a-z2-7]{13})_[a-z2-7]{46}", first)
        assert ("/login#tsl_" in first, "/login#tsl_" in second) == (True, True)
    else:
        assert "tistream key owner" in first
        assert keys == []
        assert parse_key(done.stdout.strip()).key_id == list_keys(catalog)[0].key_id, done.output
    assert ("tsk_" in second, "key owner" in second) == (False, False)
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
    inside, go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> tuple[int, int]:
        inside.set()
        assert go_on.wait(60)
        return issue_incarnation(*args)

    monkeypatch.setattr(stores, "issue_incarnation", slow)
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
