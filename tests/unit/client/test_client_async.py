"""The asynchronous client asks, retries and understands as the synchronous one: the same scripts, both clients."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import httpx2
import pytest

from tests.kit.client_script import Answer, Script, events, page, problem, resolved
from tistream.client import AsyncClient, Client, FileCursorStore, SqlCursorStore, connect_async
from tistream.errors import RateLimited, StoreUnavailable, TsExpired

Case = tuple[list[Answer], str, dict[str, Any], str]  #: answers, method, its arguments, format
INSIDE: dict[str, Any] = {"TiStream-Snapshot-Ts": "5", "TiStream-Snapshot-Complete": "false"}
COMPLETE: dict[str, Any] = {"TiStream-Snapshot-Ts": "5", "TiStream-Snapshot-Complete": "true"}
ENDS_AT_20: dict[str, Any] = {"TiStream-End-Ts": "20"}
ENDS = 'data: {"reason":"end-reached"}'

SCRIPTS: dict[str, Case] = {
    "walk": ([page("a", more=True), page("b", more=True), page("c")], "changes", {"start": "-1h"}, "ndjson"),
    "retried": (
        [httpx2.ConnectError("refused"), problem(503), problem(429, {"Retry-After": "3"}, code="TS-1090"), page("a")],
        "changes",
        {"cursor": "x"},
        "ndjson",
    ),
    "waits, and knows the end": (
        [page("a", **ENDS_AT_20), page("b", resolved=25, **ENDS_AT_20)],
        "follow",
        {"end": "-5m"},
        "arrow",
    ),
    "stream that breaks off": (
        [
            events("data: 1", "", *resolved("a", 5), "data: 2", ""),
            httpx2.ConnectError("refused"),
            events("data: 2", "", *resolved("b", 6), "event: end", 'data: {"reason":"shutdown"}', ""),
            events(*resolved("c", 7), "event: end", ENDS, ""),
        ],
        "follow",
        {"start": "-1h", "end": 7, "limit": 3},
        "ndjson",
    ),
    "a stream behind a snapshot": (
        [page("a", more=True, **INSIDE), page("b", more=True, **COMPLETE), events(*resolved("c", 9), "event: end",
         ENDS, "")],
        "follow",
        {"snapshot": True, "as_of": 5},
        "ndjson",
    ),
    "a cursor that lies in a snapshot": (
        [page("a", more=True, **INSIDE), page("b", **COMPLETE), events(*resolved("c", 9), "event: end", ENDS, "")],
        "follow",
        {"cursor": "x"},
        "ndjson",
    ),
}  # fmt: skip


def seen(script: Script, pages: list[Any], pauses: list[float]) -> tuple[Any, ...]:
    return [str(r.url) for r in script.asked], [(p.content, p.next_cursor, p.resolved_ts) for p in pages], pauses


def by_sync(answers: list[Answer], method: str, words: dict[str, Any], format: str) -> tuple[Any, ...]:
    script, pauses = Script(*answers), list[float]()
    with Client("http://host:1", transport=script, sleep=pauses.append) as client:
        return seen(script, list(getattr(client.tenant(3, 4).table("d.t"), method)(**words).pages(format)), pauses)


def by_async(answers: list[Answer], method: str, words: dict[str, Any], format: str) -> tuple[Any, ...]:
    script, pauses = Script(*answers), list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> list[Any]:
        async with AsyncClient("http://host:1", transport=script, sleep=sleep) as client:
            pull = getattr(client.tenant(3, 4).table("d.t"), method)(**words)
            return [page async for page in pull.pages(format)]

    return seen(script, asyncio.run(run()), pauses)


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_do_the_same(name: str) -> None:
    sync = by_sync(*SCRIPTS[name])
    assert sync == by_async(*SCRIPTS[name])
    assert [cursor for _, cursor, _ in sync[1]] == [c for c in "abc" if c in [cursor for _, cursor, _ in sync[1]]]
    assert len(sync[0]) == len(SCRIPTS[name][0]), "each answer was asked for once"


def test_a_snapshot_is_pages_and_what_follows_is_a_stream() -> None:
    urls, _, _ = by_sync(*SCRIPTS["a stream behind a snapshot"])
    addresses = [httpx2.URL(url) for url in urls]
    assert [url.path.rpartition("/")[2] for url in addresses] == ["changes", "changes", "changes:stream"]
    assert [dict(url.params).get("cursor") for url in addresses] == [None, "a", "b"]
    assert "wait" not in addresses[-1].params, "a stream has no such parameter"
    assert {name: dict(addresses[0].params).get(name) for name in ("snapshot", "as_of", "start_ts")} == {
        "snapshot": "true", "as_of": "5", "start_ts": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(410, code="TS-1005", detail="gone"), TsExpired),
        (problem(503, detail="gone"), StoreUnavailable),
        (problem(429, code="TS-1090", detail="gone"), RateLimited),
        (events("event: end", 'data: {"reason":"error","problem":{"status":410,"code":"TS-1005","detail":"gone"}}', ""),
         TsExpired),
    ],
)  # fmt: skip
def test_errors_are_the_servers(answer: httpx2.Response, kind: type[Exception]) -> None:
    async def run() -> None:
        async with AsyncClient("http://host:1", transport=Script(answer), retry_s=0) as client:
            async for _ in client.tenant(1, 1).follow().pages():
                pass

    with pytest.raises(kind, match="gone"):
        asyncio.run(run())


def test_resources_and_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TISTREAM_KEY", "secret")
    item = b'{"cluster_id":1,"tenant_id":2,"state":"ACTIVE","resolved_ts":"77"}'
    script = Script(httpx2.Response(200, content=b'{"items":[' + item + b"]}"), httpx2.Response(200, content=item))

    async def run() -> None:
        async with connect_async("http://host:1", transport=script) as client:
            (tenant,) = await client.tenants()
            assert (tenant.cluster_id, tenant.tenant_id, tenant.state, tenant.resolved_ts) == (1, 2, "ACTIVE", 77)
            assert (await client.tenant(1, 2).register())["state"] == "ACTIVE"

    asyncio.run(run())
    assert [(r.method, r.url.path, r.headers["authorization"]) for r in script.asked] == [
        ("GET", "/v1/tenants", "Bearer secret"),
        ("POST", "/v1/tenants", "Bearer secret"),
    ]
    assert script.asked[1].headers["idempotency-key"]


def test_following_saves_behind_the_body(tmp_path: Any) -> None:
    script, store = Script(page("a", more=True), page("b")), FileCursorStore(tmp_path / "at")
    cursors: list[str | None] = []

    async def run() -> None:
        async with AsyncClient("http://host:1", transport=script) as client:
            async for _ in client.tenant(1, 1).changes(store=store).pages():
                cursors.append(store.load())

    asyncio.run(run())
    assert (cursors, store.load()) == ([None, "a"], "b")


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def test_following_saves_in_the_transaction_of_the_loops_thread() -> None:
    """A connection of sqlite3 belongs to the thread that made it; the page's rows are written in its transaction."""

    async def run() -> tuple[list[tuple[int]], str | None]:
        connection = sqlite3.connect(":memory:")
        connection.execute("CREATE TABLE seen (n INTEGER)")
        store = SqlCursorStore(connection, "me", mark="?")
        script = Script(page("a", more=True), page("b"))
        async with AsyncClient("http://x", transport=script) as client:
            async for _ in client.tenant(1, 1).changes(store=store).pages("arrow"):
                connection.execute("INSERT INTO seen VALUES (1)")
        return connection.execute("SELECT n FROM seen").fetchall(), store.load()

    assert asyncio.run(run()) == ([(1,), (1,)], "b")
