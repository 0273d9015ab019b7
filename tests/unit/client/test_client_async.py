"""The asynchronous client asks, retries and understands as the synchronous one: the same scripts, both clients."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import httpx2
import orjson
import pytest

from tistream.client import AsyncClient, Client, FileCursorStore, SqlCursorStore, connect_async
from tistream.errors import RateLimited, StoreUnavailable, TsExpired

Answer = httpx2.Response | Exception


class Script(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers in order; the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[httpx2.Request] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle_request(request)


def page(cursor: str, *, more: bool = False, resolved: int = 9, **headers: str) -> httpx2.Response:
    facts = {"TiStream-Next-Cursor": cursor, "TiStream-Resolved-Ts": str(resolved)}
    return httpx2.Response(200, headers={**facts, "TiStream-Has-More": "true" if more else "false", **headers})


def problem(status: int, headers: dict[str, str] | None = None, **members: object) -> httpx2.Response:
    return httpx2.Response(status, headers=headers, content=orjson.dumps({"status": status, **members}))


def events(*lines: str) -> httpx2.Response:
    return httpx2.Response(200, content="".join(line + "\n" for line in lines).encode())


def resolved(cursor: str, ts: int) -> list[str]:
    return ["event: resolved", f'data: {{"resolved_ts":"{ts}","cursor":"{cursor}"}}', ""]


SCRIPTS: dict[str, tuple[list[Answer], str, dict[str, Any]]] = {
    "walk": ([page("a", more=True), page("b", more=True), page("c")], "pull", {"start_ts": "-1h"}),
    "retried": (
        [httpx2.ConnectError("refused"), problem(503), problem(429, {"Retry-After": "3"}, code="TS-1090"), page("a")],
        "pull",
        {"cursor": "x"},
    ),
    "waits, and knows the end": (
        [page("a", **{"TiStream-End-Ts": "20"}), page("b", resolved=25, **{"TiStream-End-Ts": "20"})],
        "pull",
        {"follow": True, "format": "arrow", "end_ts": "-5m"},
    ),
    "stream that breaks off": (
        [
            events("data: 1", "", *resolved("a", 5), "data: 2", ""),
            httpx2.ConnectError("refused"),
            events("data: 2", "", *resolved("b", 6), "event: end", 'data: {"reason":"shutdown"}', ""),
            events(*resolved("c", 7), "event: end", 'data: {"reason":"end-reached"}', ""),
        ],
        "pull",
        {"follow": True, "start_ts": "-1h", "end_ts": 7, "database": "d", "limit": 3},
    ),
}


def seen(script: Script, pages: list[Any], pauses: list[float]) -> tuple[Any, ...]:
    return [str(r.url) for r in script.asked], [(p.content, p.next_cursor, p.resolved_ts) for p in pages], pauses


def by_sync(answers: list[Answer], method: str, words: dict[str, Any]) -> tuple[Any, ...]:
    script, pauses = Script(*answers), list[float]()
    with Client("http://host:1", transport=script, sleep=pauses.append) as client:
        return seen(script, list(getattr(client, method)(3, 4, **words)), pauses)


def by_async(answers: list[Answer], method: str, words: dict[str, Any]) -> tuple[Any, ...]:
    script, pauses = Script(*answers), list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> list[Any]:
        async with AsyncClient("http://host:1", transport=script, sleep=sleep) as client:
            return [page async for page in getattr(client, method)(3, 4, **words)]

    return seen(script, asyncio.run(run()), pauses)


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_do_the_same(name: str) -> None:
    answers, method, words = SCRIPTS[name]
    sync = by_sync(answers, method, words)
    assert sync == by_async(answers, method, words)
    assert [cursor for _, cursor, _ in sync[1]] == [c for c in "abc" if c in [cursor for _, cursor, _ in sync[1]]]
    assert len(sync[0]) == len(answers), "each answer was asked for once"


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
            async for _ in client.stream(1, 1):
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
            assert (await client.register_tenant(1, 2))["state"] == "ACTIVE"

    asyncio.run(run())
    assert [(r.method, r.url.path, r.headers["authorization"]) for r in script.asked] == [
        ("GET", "/v1/tenants", "Bearer secret"),
        ("POST", "/v1/tenants", "Bearer secret"),
    ]
    assert script.asked[1].headers["idempotency-key"]


def test_following_saves_behind_the_body(tmp_path: Any) -> None:
    script, store = Script(page("a", more=True), page("b")), FileCursorStore(tmp_path / "at")
    known: list[str | None] = []

    async def run() -> None:
        async with AsyncClient("http://host:1", transport=script) as client:
            async for _ in client.follow(1, 1, store=store, follow=False):
                known.append(store.load())

    asyncio.run(run())
    assert (known, store.load()) == ([None, "a"], "b")


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
            async for _ in client.follow(1, 1, store=store, follow=False, format="arrow"):
                connection.execute("INSERT INTO seen VALUES (1)")
        return connection.execute("SELECT n FROM seen").fetchall(), store.load()

    assert asyncio.run(run()) == ([(1,), (1,)], "b")
