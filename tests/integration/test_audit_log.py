"""The audit log of a service: every operation that may change something has an entry, refused ones included."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from metaserver.loop import MetaOptions, MetaWorker
from tests.kit.audit_witness import ADDRESS, Witness, entries
from tests.kit.auth_site import MINE, OTHER, Site, fill, is_problem
from tests.kit.catalog_cases import new_catalog
from tests.kit.manual_clock import ManualClock
from tests.kit.statements import StatementLog
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.audit import AuditEntry, Deed, Doer, Ended, Outcome, Result
from tistream.catalog.tenancy import tenants
from tistream.catalog.tenancy.audit_log import EntryFilter, add_entries, close_entry, list_entries
from tistream.catalog.tenancy.keys import revoke_key
from tistream.errors import CatalogUnavailable, StateForbids, TiStreamError
from tistream.http.audit import request as audit_request
from tistream.http.auth import access
from tistream.http.auth.access import every_route
from tistream.http.auth.core.keys import format_key, parse_key
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant
from tistream.objectstore.memory import MemoryStore

SAFE = ("GET", "HEAD", "OPTIONS")


def changing_routes(site: Site) -> list[tuple[str, str]]:
    """(method, address with parameters) of API and console."""
    return [(method, path) for method, path, _ in site.routes() if method not in SAFE]


def flushed(site: Site, **which: Any) -> list[AuditEntry]:
    site.app.state.audit.flush(at_once=True)
    return entries(site.parts.catalog, **which)


def after(site: Site) -> int:
    """The number of the newest entry."""
    return max((entry.entry_no for entry in flushed(site)), default=0)


def new_entries(site: Site, since: int) -> list[AuditEntry]:
    site.app.state.audit.flush(at_once=True)
    return list_entries(site.parts.catalog, EntryFilter(), limit=100_000, above=since)


def next_minute(site: Site) -> int:
    """What is refused from now on is counted anew; the number of the newest entry."""
    newest = after(site)
    site.clock.advance(61)
    site.app.state.audit.flush(at_once=True)
    return newest


def test_an_exempted_route_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: one operation says that it changes nothing."""

    async def exempt(request: Any, principal: Any, *, silent: bool = False) -> None:
        await audit_request.begin(request, principal, silent=silent or request.scope["route"].name == "create_key")

    for mutant in (False, True):
        if mutant:
            monkeypatch.setattr(access, "begin", exempt)
        owner, witness = site.key(Role.OWNER), Witness(site.app, site.parts.catalog)
        answer = site.ask("POST", "/v1/keys", owner, json={"name": "x", "role": "viewer"})
        assert answer.status_code == 201
        witness.seen["create_key", 201] += 1
        assert ("create_key" in witness.missing(parse_key(owner).key_id)) is mutant


def test_only_the_webhook_is_exempted(site: Site) -> None:
    """Each route begins its operation in `needs`; one that is silent changes nothing."""
    silent = {
        route.path
        for route in every_route(site.app)
        if isinstance(route, APIRoute) and any(not d.changes for d in access.declared(route))
    }
    assert silent <= {access.NOTIFICATIONS_PATH}


def test_without_a_key_every_operation_is_refused_with_one_entry(site: Site) -> None:
    since = next_minute(site)
    for _ in range(3):
        for method, path in changing_routes(site):
            assert site.ask(method, fill(path)).status_code == 401
    rows = new_entries(site, since)
    assert {(row.principal, row.address, row.result, row.status, row.code) for row in rows} == {
        ("(no key)", ADDRESS, "refused", 401, "TS-1080")
    }
    assert {row.tenant for row in rows} == {None}, "a tenant's administrator does not see who guesses"
    operations = Counter({row.operation: row.times for row in rows})
    assert len(operations) == len(rows), "one entry for each operation"
    assert set(operations.values()) == {3}
    assert len(rows) == len(changing_routes(site))


def test_a_weak_key_and_a_foreign_one_are_named_where_they_belong(site: Site) -> None:
    since = next_minute(site)
    viewer, foreign = site.key(Role.VIEWER, MINE), site.key(Role.TENANT_ADMIN, OTHER)
    for _ in range(2):
        assert site.ask("POST", "/v1/clusters/1/tenants/1:pause", viewer).status_code == 403
        assert site.ask("POST", "/v1/clusters/1/tenants/1:pause", foreign).status_code == 404
    weak, alien = sorted(new_entries(site, since), key=lambda entry: entry.status)
    assert (weak.key_id, weak.principal, weak.role) == (parse_key(viewer).key_id, "a viewer", "viewer")
    assert (weak.status, weak.code, weak.times, weak.tenant) == (403, "TS-1081", 2, MINE)
    assert (alien.key_id, alien.status, alien.times) == (parse_key(foreign).key_id, 404, 2)
    assert alien.tenant == OTHER, "a tenant does not learn the names of another's keys"


def test_a_key_that_has_ended_is_named(site: Site) -> None:
    """A program that lost its key goes by its name in the log; who only guesses at a key's id does not."""
    since = next_minute(site)
    revoked, expired = site.key(Role.OPERATOR), site.key(Role.VIEWER, OTHER, ttl_ms=1)
    revoke_key(site.parts.catalog, parse_key(revoked).key_id)
    guessed = format_key(base64.b32decode(revoked[4:17].upper() + "==="), bytes(24))
    for key in (revoked, expired, guessed):
        answer = site.ask("POST", "/v1/keys", key, json={})
        assert is_problem(answer, 401, "TS-1080")
        assert parse_key(revoked).key_id not in answer.text
    with TestClient(site.app) as http:
        assert http.post("/login", data={"code": revoked}).status_code == 401
    rows = {(row.key_id, row.principal, row.role, row.tenant, row.result) for row in new_entries(site, since)}
    assert {row.key_id for row in new_entries(site, since) if "login" in row.operation} == {parse_key(revoked).key_id}
    assert rows == {
        (parse_key(revoked).key_id, "a operator", "operator", None, "refused"),
        (parse_key(expired).key_id, "a viewer", "viewer", OTHER, "refused"),
        ("", "(no key)", "", None, "refused"),
    }


def test_the_entry_is_there_before_the_operation_begins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies inside leaves it as unknown."""
    change, seen = tenants.set_retention, []

    def looking(*args: Any) -> Any:
        seen.extend(entries(site.parts.catalog, principal=parse_key(owner).key_id))
        return change(*args)

    monkeypatch.setattr("apiserver.control.retention.set_retention", looking)
    owner = site.key(Role.OWNER)
    assert site.ask("PATCH", "/v1/clusters/1/tenants/1", owner, json={"retention_s": 7200}).status_code == 200
    (begun,) = seen
    assert (begun.result, begun.status, begun.principal, begun.tenant) == ("unknown", 0, "a owner", MINE)
    (ended,) = entries(site.parts.catalog, principal=parse_key(owner).key_id)
    assert (ended.entry_no, ended.result, ended.status) == (begun.entry_no, "done", 200)


def test_nothing_begins_that_cannot_be_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> int:
        raise CatalogUnavailable(determinate=True, cause="away")

    owner = site.key(Role.OWNER)
    before = site.get("/v1/clusters/1/tenants/1/retention", owner).json()
    monkeypatch.setattr("tistream.http.audit.trail.open_entry", away)
    answer = site.ask("PATCH", "/v1/clusters/1/tenants/1", owner, json={"retention_s": 3600})
    assert answer.status_code == 503
    assert site.get("/v1/clusters/1/tenants/1/retention", owner).json() == before


def test_an_end_that_cannot_be_written_is_written_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise CatalogUnavailable(determinate=True, cause="away")

    owner, since = site.key(Role.OWNER), next_minute(site)
    with monkeypatch.context() as patched:
        patched.setattr("tistream.http.audit.trail.close_entry", away)
        answer = site.ask("PATCH", "/v1/clusters/1/tenants/1", owner, json={"retention_s": 7200})
        assert answer.status_code == 200, "it has happened"
        with pytest.raises(CatalogUnavailable):
            site.app.state.audit.flush()
        (entry,) = list_entries(site.parts.catalog, EntryFilter(), limit=9, above=since)
        assert entry.result == "unknown"
    (entry,) = new_entries(site, since)
    assert (entry.result, entry.status) == ("done", 200)


def test_an_end_that_is_never_written_stops_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect: the catalog refuses the statement, also when it is repeated."""
    owner, since = site.key(Role.OWNER), next_minute(site)
    with monkeypatch.context() as patched:
        patched.setattr("tistream.http.audit.trail.close_entry", away := Away())
        for error in (CatalogUnavailable(determinate=True), TiStreamError("refused"), None):
            away.error = error
            assert site.ask("PATCH", "/v1/clusters/1/tenants/1", owner, json={"retention_s": 7200}).status_code == 200
        away.error = TiStreamError("refused")
        site.app.state.audit.flush()
    assert site.ask("POST", "/v1/keys").status_code == 401
    assert [row.result for row in new_entries(site, since)] == ["unknown", "unknown", "done", "refused"]


class Away:
    """`close_entry` with an error."""

    error: TiStreamError | None = None

    def __call__(self, *args: Any) -> None:
        if self.error is not None:
            raise self.error
        close_entry(*args)


def test_a_flood_of_refusals_is_few_rows_and_few_statements(site: Site) -> None:
    """10,000 requests within 20 seconds, from 10 addresses, while the trail is flushed each second."""
    since, log = next_minute(site), StatementLog(site.parts.catalog)
    body = b'{"name":"x","role":"owner"}'

    async def flood() -> int:
        refused = 0
        for n in range(10_000):
            scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
                "path": "/v1/keys", "raw_path": b"/v1/keys", "query_string": b"", "root_path": "",
                "headers": [(b"host", b"x"), (b"authorization", b"Bearer nonsense")],
                "client": (f"10.0.0.{n % 10}", 1000), "server": ("x", 80), "state": {},
            }  # fmt: skip
            statuses: list[int] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message: Any, statuses: list[int] = statuses) -> None:
                statuses.append(message.get("status", 0))

            await site.app(scope, receive, send)
            refused += statuses[0] == 401
            if n % 500 == 499:
                site.clock.advance(1)
                site.app.state.audit.flush()
        return refused

    with log:
        assert asyncio.run(flood()) == 10_000
    assert log.count <= 40, log.transactions
    rows = new_entries(site, since)
    assert len(rows) == 10
    assert {(row.operation, row.times) for row in rows} == {("create_key", 1000)}


def test_a_flood_of_an_allowed_key_is_few_rows(site: Site) -> None:
    owner, since = site.key(Role.OWNER), next_minute(site)
    log = StatementLog(site.parts.catalog)
    with log:
        for n in range(300):
            assert site.ask("POST", f"/v1/tasks/{10_000 + n}:retry", owner).status_code == 404
    rows = new_entries(site, since)
    assert len(rows) == 4, "three that had an entry before they began, and one for the others"
    assert sum(row.times for row in rows) == 300
    assert len(log.with_a("INSERT INTO audit_log")) == 3
    assert site.ask("PATCH", "/v1/clusters/1/tenants/1", owner, json={"retention_s": 7200}).status_code == 200
    assert new_entries(site, since)[-1].operation == "change_tenant"


def test_console_forms_and_logins_are_recorded(site: Site) -> None:
    owner, since = site.key(Role.OWNER), next_minute(site)
    with TestClient(site.app, raise_server_exceptions=False, follow_redirects=False) as http:
        assert http.post("/login", data={"code": "tsk_nonsense"}).status_code == 401
        assert http.post("/login", data={"code": owner}).status_code == 303
        page = http.get("/tenants/1/1/pause").text
        csrf = page.partition('name="csrf-token" content="')[2].partition('"')[0]
        assert http.post("/tenants/1/1/pause").status_code == 403, "without the token"
        assert http.post("/tenants/1/1/pause", data={"csrf": csrf}).status_code == 303
        assert http.post("/tenants/1/1/pause", data={"csrf": csrf}).status_code == 409
        assert http.post("/tenants/1/1/resume", data={"csrf": csrf}).status_code == 303
        assert http.post("/logout", data={"csrf": csrf}).status_code == 303
    told = {
        (e.operation.removeprefix("console "), e.principal, e.result, e.status, e.code): e.times
        for e in new_entries(site, since)
    }
    pause, resume = (f"/tenants/{{cluster_id}}/{{tenant_id}}/{verb}" for verb in ("pause", "resume"))
    assert told == {
        ("/login", "(no key)", "refused", 401, "TS-1080"): 1,
        ("/login", "a owner", "done", 303, ""): 1,
        (pause, "a owner", "refused", 403, "TS-1081"): 1,
        (pause, "a owner", "done", 303, ""): 1,
        (pause, "a owner", "refused", 409, StateForbids.code): 1,
        (resume, "a owner", "done", 303, ""): 1,
        ("/logout", "a owner", "done", 303, ""): 1,
    }


def test_a_repeated_request_is_recorded_as_one_that_did_nothing(site: Site) -> None:
    owner, since = site.key(Role.OWNER), next_minute(site)
    headers = {"Idempotency-Key": "audit-1"}
    for _ in range(3):
        assert site.ask("POST", "/v1/keys", owner, headers=headers, json={"name": "x", "role": "viewer"}).is_success
    made, repeated = new_entries(site, since)
    assert made.target.endswith("role=viewer")
    assert (repeated.operation, repeated.status, repeated.times, repeated.target) == ("create_key", 201, 2, "")


# ---- the route


def test_the_log_is_read_in_pages_and_by_filters(site: Site) -> None:
    owner, since = site.key(Role.OWNER), next_minute(site)
    for seconds in (7200, 3600, 7200):
        asked = site.ask("PATCH", "/v1/clusters/1/tenants/1", owner, json={"retention_s": seconds})
        assert asked.status_code == 200
    rows = new_entries(site, since)

    def read(**query: Any) -> dict[str, Any]:
        answer = site.get("/v1/audit-log", owner, params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    first = read(limit=2)
    second = read(limit=2, cursor=first["next_cursor"])
    numbers = [int(e["entry_no"]) for e in first["items"] + second["items"]]
    assert numbers[:3] == [row.entry_no for row in reversed(rows)]
    assert len(set(numbers)) == 4
    later = read(after=str(rows[0].entry_no), limit=10)
    assert [int(e["entry_no"]) for e in later["items"]] == [row.entry_no for row in rows[1:]]
    assert later["newest"] == str(rows[-1].entry_no)
    mine = {"principal": parse_key(owner).key_id}
    assert len(read(**mine)["items"]) == 3
    assert len(read(**mine, operation="change_tenant", result="done", cluster_id=1, tenant_id=1)["items"]) == 3
    assert read(**mine, result="refused")["items"] == []
    assert read(**mine, since_time="-1h")["items"] == read(**mine)["items"]
    assert read(**mine, until_time="-1h")["items"] == []
    item = read(**mine, limit=1)["items"][0]
    assert (item["principal"], item["role"], item["address"]) == ("a owner", "owner", ADDRESS)
    assert (item["status"], item["result"], item["code"], item["times"]) == (200, "done", None, 1)
    for wrong in ({"since_time": "soon"}, {"result": "fine"}, {"cursor": "7"}, {"after": "x"}, {"tenant_id": 1}):
        assert site.get("/v1/audit-log", owner, params=wrong).status_code == 400, wrong


def test_a_tenants_administrator_sees_its_tenant_only(site: Site) -> None:
    owner, admin = site.key(Role.OWNER), site.key(Role.TENANT_ADMIN, OTHER)
    for tenant in ("1/tenants/1", "2/tenants/7"):
        answer = site.ask("PATCH", f"/v1/clusters/{tenant}", owner, json={"retention_s": 7200})
        assert answer.status_code == 200
    seen = site.get("/v1/audit-log", admin, params={"limit": 1000}).json()["items"]
    assert {(e["cluster_id"], e["tenant_id"]) for e in seen} == {(2, 7)}
    assert site.get("/v1/audit-log", admin, params={"cluster_id": 1, "tenant_id": 1}).status_code == 404
    for role, of in ((Role.VIEWER, None), (Role.OPERATOR, None), (Role.CONSUMER, MINE), (Role.PUSHER, MINE)):
        assert site.get("/v1/audit-log", site.key(role, of)).status_code == 403, role


def test_no_route_changes_or_deletes_an_entry(site: Site) -> None:
    of_it = ("/v1/audit-log", "/audit-log")
    assert [method for method, path, _ in site.routes() if path.startswith(of_it)] == ["GET"] * 3


# ---- the page


def test_the_page_shows_what_the_route_answers(site: Site) -> None:
    owner, admin = site.key(Role.OWNER), site.key(Role.TENANT_ADMIN, OTHER)
    eve = Doer(key_id="a" * 13, principal="<b>eve</b> & sons", role="owner", address="10.0.0.7")
    deed = Deed(operation="change_tenant", tenant=MINE)
    add_entries(site.parts.catalog, [Ended(doer=eve, deed=deed, outcome=Outcome(result=Result.DONE, status=200))] * 60)
    path, html = "/audit-log?operation=change_tenant&tenant=1/1", {"Accept": "text/html"}
    page = site.get(path, owner, headers=html).text
    assert "&lt;b&gt;eve&lt;/b&gt; &amp; sons" in page
    assert "<b>eve" not in page
    twin = site.get(path.replace("?", ".json?"), owner).json()
    query = {"operation": "change_tenant", "cluster_id": 1, "tenant_id": 1, "limit": 50}
    assert twin["items"] == site.get("/v1/audit-log", owner, params=query).json()["items"]
    older = page.partition('">Older</a>')[0].rpartition('href="')[2].replace("&amp;", "&")
    assert older.startswith("/audit-log?tenant=1%2F1&operation=change_tenant&cursor=")
    second = site.get(older.replace("?", ".json?"), owner).json()["items"]
    assert {e["entry_no"] for e in second}.isdisjoint(e["entry_no"] for e in twin["items"])
    assert len(second) >= 10
    assert 'href="/audit-log"' in page, "it is in the menu"
    seen = site.get("/audit-log.json", admin).json()
    assert {(e["cluster_id"], e["tenant_id"]) for e in seen["items"]} <= {(2, 7)}
    assert seen["tenants"] == [str(OTHER)]
    empty = site.get("/audit-log?principal=nobody", owner, headers=html).text
    assert "No entries of this kind" in empty
    for wrong in ("?result=fine", "?since_time=soon", "?tenant=x", "?cursor=x"):
        assert site.get(f"/audit-log{wrong}", owner, headers=html).status_code == 400, wrong
    assert site.get("/audit-log?tenant=1/1", admin, headers=html).status_code == 404
    assert site.get("/audit-log", site.key(Role.VIEWER), headers=html).status_code == 403


# ---- what a process leaves behind


_DIES = """
import os, signal, sys
from starlette.testclient import TestClient
from tests.kit.control_app import control_app
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy import tenants

register = tenants.register_tenant

def dies(*args, **more):
    register(*args, **more)
    os.kill(os.getpid(), signal.SIGKILL)

tenants.register_tenant = dies
catalog = Catalog(sys.argv[1])
catalog.migrate()
TestClient(control_app(catalog)).post("/v1/tenants", json={"cluster_id": 5, "tenant_id": 6})
"""


def test_a_process_that_is_killed_after_the_change_leaves_its_entry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    killed = subprocess.run([sys.executable, "-c", _DIES, url], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    catalog = Catalog(url)
    assert tenants.get_tenant(catalog, Tenant(5, 6)).tenant == Tenant(5, 6), "it has happened"
    (entry,) = entries(catalog)
    assert (entry.operation, entry.principal, entry.result) == ("register_tenant", "anyone", "unknown")
    catalog.close()


def test_the_leader_deletes_what_is_too_old(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    ann = Doer(key_id="", principal="ann", role="owner", address="10.0.0.7")
    ended = Ended(doer=ann, deed=Deed(operation="pause_tenant"), outcome=Outcome(result=Result.DONE))
    add_entries(catalog, [replace(ended, first_age_ms=61_000), ended])
    meta = MetaWorker(catalog, MemoryStore(), ManualClock(), "meta-1", MetaOptions(audit_retention_s=60))
    meta.collect()
    assert len(entries(catalog)) == 2, "it is no leader yet"
    meta.assign()
    meta.collect()
    (left,) = entries(catalog)
    assert left.entry_no == 2
    catalog.close()
