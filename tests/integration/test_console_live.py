"""The console's stream: what it tells an open tab, to whom, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from apiserver.console import tab
from apiserver.console.live import PARTS_MAX
from tests.kit.api_world import events_of, has_more, next_cursor
from tests.kit.auth_site import MINE, NOBODYS, OTHER, auth_site
from tests.kit.auth_site import Site as AuthSite
from tests.kit.stream_world import served, sse_of
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.database import tables
from tistream.catalog.tenancy.keys import revoke_key
from tistream.catalog.tenancy.logins import open_session
from tistream.catalog.work.stores import issue_incarnation
from tistream.cli.server import HttpServer
from tistream.http.auth.core.keys import hash_of, parse_key
from tistream.http.auth.core.roles import Role
from tistream.limits import KEY_CACHE_MS

Told = dict[str, Any]


@dataclass
class Site:
    """A service that asks for keys, behind a port."""

    auth: AuthSite
    server: HttpServer
    app: FastAPI

    @contextmanager
    def tab(self, *parts: str, key: str = "", headers: dict[str, str] | None = None, **more: Any) -> Iterator[Told]:
        """An open stream as {"answer", "events"}."""
        params = [("part", part) for part in parts] + [*more.items()]
        given = headers or {"Authorization": f"Bearer {key}"}
        with (
            httpx2.Client(timeout=WAIT_S) as http,
            http.stream("GET", f"{self.server.url}/live", params=params, headers=given) as answer,
        ):
            yield {"answer": answer, "events": sse_of(answer)}

    def refused(self, *parts: str, key: str, **more: Any) -> int:
        with self.tab(*parts, key=key, **more) as told:
            told["answer"].read()
            return int(told["answer"].status_code)

    @property
    def tabs(self) -> int:
        return int(self.app.state.followers.open_now("tabs"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with auth_site(tmp_path_factory.mktemp("live")) as auth, served(auth.app) as server:
        yield Site(auth, server, auth.app)


def until(told: Told, name: str, **facts: object) -> Told:
    """The data of the next event of this name with these facts."""
    for event in told["events"]:
        data: Told = event["data"]
        if event["event"] == name and facts.items() <= data.items():
            return data
    raise AssertionError(f"the stream ended before {name} {facts}")


def first_of(told: Told, *names: str) -> dict[str, Told]:
    """The data of the first event of each name, in whatever order they come."""
    found: dict[str, Told] = {}
    while set(found) != set(names):
        event = next(told["events"])
        if event["event"] in names:
            found.setdefault(event["event"], event["data"])
    return found


# ---- what is told


def test_parts_are_told_as_a_direct_request_would_get_them(site: Site) -> None:
    key = site.auth.key(Role.OWNER)
    parts = ("/tasks?tenant=1/1", "/tenants/2/7/checklist", "/keys")
    with site.tab(*parts, key=key) as told:
        assert told["answer"].headers["content-type"].startswith("text/event-stream")
        assert told["answer"].headers["cache-control"] == "no-store"
        assert next(told["events"])["event"] == "begin", "before anything is looked at"
        got: dict[str, Told] = {}
        while len(got) < len(parts):
            event = until(told, "part")
            got[event["part"]] = event
    for part in parts[1:2]:
        direct = site.auth.get(part, key, headers={"HX-Request": "true"}).text
        assert got[part]["html"] == direct
    assert "Task" in got[parts[0]]["html"]
    assert all((event["status"], event["over"]) == (200, False) for event in got.values())
    assert not any("<html" in event["html"] for event in got.values())


def test_only_what_changed_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab, "BEAT_S", 1.5)
    part = "/tenants/2/7/checklist"  # looked at each second
    with site.tab(part, key=site.auth.key(Role.VIEWER)) as told:
        first = until(told, "part", part=part)
        quiet = [next(told["events"])["event"] for _ in range(3)]
        assert quiet == ["beat"] * 3, "it was looked at several times and was the same"
        issue_incarnation(site.auth.parts.catalog, OTHER, 1)
        second = next(told["events"])
        while second["event"] == "beat":
            second = next(told["events"])
        assert second["event"] == "part"
        assert second["data"]["html"] != first["html"]


def test_a_tab_has_the_newest_rows_and_goes_on_from_a_cursor(site: Site) -> None:
    key = site.auth.key(Role.CONSUMER, MINE)
    path, pages, at = "/v1/clusters/1/tenants/1/changes?format=ndjson&limit=300", [], "start_ts=earliest"
    while True:
        answer = site.auth.get(f"{path}&{at}", key)
        pages.append((at, [event for event in events_of(answer) if event["type"] != "resolved"]))
        if not has_more(answer):
            break
        at = f"cursor={next_cursor(answer)}"
    cursor, last = pages[-1][0].removeprefix("cursor="), pages[-1][1]
    assert len(pages) > 2
    with site.tab("/tenants/1/1", key=key, tail="1/1", tail_start="earliest") as told:
        rows = first_of(told, "part", "tail")["tail"]
    every = [event for _, page in pages for event in page]
    first = every.index(rows["events"][0])
    assert 0 < len(rows["events"]) <= 120
    assert rows["events"] == every[first : first + len(rows["events"])]
    assert rows["cursor"]
    with site.tab(key=key, tail="1/1", tail_cursor=cursor) as told:
        assert until(told, "tail")["events"] == last[-120:]


# ---- to whom


def test_each_part_is_refused_as_its_route_refuses_it(site: Site) -> None:
    bound = site.auth.key(Role.CONSUMER, MINE)
    parts = {"/tenants/1/1": 200, "/tenants/2/7": 404, f"/tenants/{NOBODYS}": 404, "/tasks": 403, "/keys": 403}
    with site.tab(*parts, key=bound) as told:
        got: dict[str, Told] = {}
        while len(got) < len(parts):
            event = until(told, "part")
            got[event["part"]] = event
    assert {part: event["status"] for part, event in got.items()} == parts
    assert {part for part, event in got.items() if event["over"]} == set(parts) - {"/tenants/1/1"}
    there, nowhere = (got[f"/tenants/{of}"]["html"] for of in (OTHER, NOBODYS))
    assert there.replace("2/7", "9/9").replace("-c 2 -t 7", "-c 9 -t 9") == nowhere
    assert "is not registered" in there
    assert "the right" in got["/tasks"]["html"]


def test_rows_are_for_those_who_may_read_them(site: Site) -> None:
    for key, tenant in ((site.auth.key(Role.VIEWER), MINE), (site.auth.key(Role.CONSUMER, MINE), OTHER)):
        with site.tab("/overview", key=key, tail=str(tenant)) as told:
            found = first_of(told, "part", "tail")
        tail = found["tail"]
        assert (tail["over"], tail["events"], bool(tail["words"])) == (True, [], True)
        assert found["part"]["status"] == 200, "the rest goes on"


@pytest.mark.parametrize(
    "part",
    [
        "/v1/tenants", "/tasks.json", "/tasks/1.json", "/tasks/1/move", "/tenants/1/1/delete", "/tenants/1/1/connect",
        "/live?part=/overview", "/static/console.css", "/login", "/", "", "overview", "//overview", "/overview#x",
        "http://testserver/overview", "/metrics", "/openapi.json", "/overview/", "/nowhere", "/overview\n",
        "/workers/sorter-1%2Fdrain", "/tasks/1%2Fmove", "/tasks/1%2Ejson", "/tenants/1/1%2Fdelete", "/tasks/1%0A",
    ],
)  # fmt: skip
def test_no_other_address_is_let_through(site: Site, part: str) -> None:
    assert site.refused("/overview", part, key=site.auth.key(Role.OWNER)) == 400


def test_what_is_asked_for_is_bounded(site: Site) -> None:
    key = site.auth.key(Role.OWNER)
    most = [f"/tasks?owner={n}" for n in range(PARTS_MAX)]
    assert site.refused(*most, "/overview", key=key) == 400
    assert site.refused(key=key) == 400
    assert site.refused("/tasks?owner=" + "x" * 1000, key=key) == 400
    assert site.refused(key=key, tail="1/1/changes") == 400
    assert site.refused("/overview", key=site.auth.key(Role.PUSHER, MINE)) == 403
    with site.tab(*most, key=key) as told:
        assert told["answer"].status_code == 200


# ---- how it ends


def test_a_revoked_key_ends_it(site: Site) -> None:
    key = site.auth.key(Role.VIEWER)
    with site.tab("/tenants/2/7/checklist", key=key) as told:
        until(told, "part")
        revoke_key(site.auth.parts.catalog, parse_key(key).key_id)
        site.auth.clock.advance(KEY_CACHE_MS / 1000 + 0.1)
        assert until(told, "end") == {"reason": "signed-out"}
        assert list(told["events"]) == []


def test_a_session_that_signs_out_ends_it(site: Site) -> None:
    token = "tss_" + "c" * 39
    open_session(site.auth.parts.catalog, hash_of(token), parse_key(site.auth.key(Role.OWNER)).key_id, 600_000)
    me = {"Cookie": f"tistream_session={token}"}
    with site.tab("/tenants/2/7", headers=me) as told:
        until(told, "part")
        page = site.auth.get("/overview", headers=me).text
        csrf = page.partition('name="csrf-token" content="')[2][:64]
        assert site.auth.ask("POST", "/logout", headers=me, data={"csrf": csrf}).status_code == 303
        assert until(told, "end") == {"reason": "signed-out"}
    assert site.refused("/overview", key=site.auth.key(Role.OWNER)[:-1] + "!") == 401


def test_what_cannot_be_made_now_is_trouble_and_comes_again(site: Site) -> None:
    catalog, part = site.auth.parts.catalog, "/tenants/2/7/checklist"
    with site.tab(part, key=site.auth.key(Role.VIEWER)) as told:
        until(told, "part", part=part)
        with catalog.transaction() as conn:
            conn.exec_driver_sql("ALTER TABLE stores RENAME TO stores_away")
        try:
            assert until(told, "trouble", part=part)["status"] >= 500
        finally:
            with catalog.transaction() as conn:
                conn.exec_driver_sql("ALTER TABLE stores_away RENAME TO stores")
        assert until(told, "part", part=part)["status"] == 200, "told again, although it is what was told before"


def test_a_tab_that_is_closed_costs_nothing_more(site: Site) -> None:
    eventually(lambda: site.tabs == 0, "tabs of other tests are gone")
    with site.tab("/overview", key=site.auth.key(Role.OWNER)) as told:
        until(told, "part")
        assert site.tabs == 1
    eventually(lambda: site.tabs == 0, "the stream ends with its reader")


def test_a_stop_does_not_wait_for_open_tabs(tmp_path: Path) -> None:
    with auth_site(tmp_path) as auth:
        server = HttpServer(auth.app, "127.0.0.1", 0, auth.app.state.followers.close)
        server.start()
        site, all_open = Site(auth, server, auth.app), threading.Barrier(4)
        ends: list[Told] = []

        def look() -> None:
            with site.tab("/overview", "/tenants/1/1", key=auth.key(Role.OWNER), tail="1/1") as told:
                until(told, "part")
                all_open.wait(WAIT_S)
                ends.append(until(told, "end"))

        tabs = [threading.Thread(target=look, daemon=True) for _ in range(3)]
        for thread in tabs:
            thread.start()
        all_open.wait(WAIT_S)
        assert site.tabs == len(tabs)
        server.stop()
        for thread in tabs:
            thread.join(WAIT_S)
        assert ends == [{"reason": "shutdown"}] * len(tabs), "told, not cut off"


def test_parts_are_the_pages_own_and_the_tests_know_them(site: Site) -> None:
    """Each `data-live` of a page is an address that the stream serves."""
    key = site.auth.key(Role.OWNER)
    with site.auth.parts.catalog.transaction() as conn:
        task = conn.execute(tables.tasks.select().limit(1)).one().task_id
    pages = (
        "/overview", "/tenants", "/tenants/1/1", "/tenants/1/1/waterfall", "/tenants/1/1/checklist", "/tasks",
        f"/tasks/{task}", "/workers", "/gaps", "/events?kind=task", "/keys", "/audit-log?result=done",
    )  # fmt: skip
    for path in pages:
        html = site.auth.get(path, key).text
        shown = [piece.partition('"')[0].replace("&amp;", "&") for piece in html.split('data-live="')[1:]]
        assert shown, path
        assert "hx-trigger" not in html
        with site.tab(*shown, key=key) as told:
            assert told["answer"].status_code == 200, shown
