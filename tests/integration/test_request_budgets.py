"""What one request may cost: processor time of the expressions of every parameter that takes one, at their worst;
and waits."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx2
import pytest
from anyio import CapacityLimiter, to_thread

from apiserver.app import create_app
from apiserver.compression import coder
from apiserver.stream.followers import Followers, FollowLimits
from apiserver.stream.frames import ArrowFrames
from apiserver.stream.stream_loop import StreamLoop
from reading.filters import parse_filter
from reading.pages.pull import pull
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.stream_world import served
from tistream.catalog.tenancy.consumers import add_consumer, claim_partition

BUDGET_S = 4.0  # of processor time; with the limits below a request may take 2
_MATCH_S = 0.3
_MANY = [f"(\\pL\\pN?){{0,18}}{n}$" for n in range(20)]
_BLOWN_UP = "(a|b).{900}z"
TABLE = "/databases/shop/tables/acct"
LATER = recording_end() + (1 << 40)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("tables")) as new_world:
        new_world.log.build(2)
        yield new_world


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    entries = [Entry(n * 1000 + 1000, b"ab" * 400 + b"%d" % n, b"ab" * 400, 0, None) for n in range(500)]
    entries.append(Entry(900_000, b"long", b"ab" * 200_000, 0, None))
    with api_world(tmp_path_factory.mktemp("keys"), rows=entry_rows(entries), builder=EntryLog) as new_world:
        new_world.log.build(1, upto=1_000_000)
        yield new_world


def event_filter(**given: list[str]) -> str:
    return json.dumps([{"matcher": ["*.*"], **{name.replace("_", "-"): texts for name, texts in given.items()}}])


COSTLY = {
    "tables": ("/changes", {"tables": ",".join(f"/{each}/.*" for each in _MANY)}),
    "tables by wildcards": ("/changes", {"tables": ",".join(f"a*{n}b*.c*" for n in range(1400))}),
    "one expression for tables": ("/changes", {"tables": f"*./{_MANY[0] * 8}/"}),
    "columns": (TABLE + "/changes", {"columns": ",".join(f"/{each}/" for each in _MANY)}),
    "changed": (TABLE + "/changes", {"changed": ",".join(f"/{each}/" for each in _MANY)}),
    "matchers": ("/changes", {"event_filters": json.dumps([{"matcher": [f"/{each}/.*"]} for each in _MANY])}),
    "ignore-sql": ("/changes", {"event_filters": event_filter(ignore_sql=_MANY)}),
    "large ignore-sql": ("/changes", {"event_filters": event_filter(ignore_sql=["x{0,1000}y"] * 700)}),
    "LIKE": (TABLE + "/changes", {"where": f"owner LIKE '{'_%' * 3000}b'"}),
    "many LIKE": (TABLE + "/changes", {"where": " OR ".join(["owner LIKE '%_a%_b%'"] * 600)}),
    "LIKE of rows": (TABLE + "/rows", {"where": f"owner LIKE '{'_%' * 3000}b'"}),
    "a stream's tables": ("/changes:stream", {"tables": ",".join(f"/{e}/.*" for e in _MANY), "end_ts": "latest"}),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTLY)
def test_expressions_have_a_price(tables: ApiWorld, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reading.pages.pull.PATTERNS_S_MAX", _MATCH_S)
    path, given = COSTLY[name]
    began = time.process_time()
    answer = tables.get(path, **({} if path.endswith("/rows") else {"start_ts": "earliest"}), **given)
    assert time.process_time() - began < BUDGET_S
    assert answer.status_code in (200, 400, 404), answer.text
    assert answer.status_code == 200 or answer.json()["code"] in ("TS-1018", "TS-1001", "TS-1023"), answer.text


@pytest.mark.parametrize("pattern", [_BLOWN_UP, _MANY[0], _MANY[0] * 8, "[^\\x00]{1,900}z"])
@pytest.mark.parametrize("parameter", ["key_pattern", "value_pattern"])
def test_patterns_of_keys_have_a_price(
    keys: ApiWorld, parameter: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reading.pages.pull.PATTERNS_S_MAX", _MATCH_S)
    began = time.process_time()
    answer = keys.get("/kv/changes", start_ts="earliest", **{parameter: pattern})
    assert time.process_time() - began < BUDGET_S
    assert answer.status_code in (200, 400), answer.text


WAITING = {
    "pull_tenant": {"start_ts": "latest"}, "pull_db": {"start_ts": "latest"}, "pull_table": {"start_ts": "latest"},
    "pull_kv": {"start_ts": "latest"}, "read_rows": {"as_of": f"{LATER}"}, "read_kv": {"as_of": f"{LATER}"},
    "pull_consumer": {},
}  # fmt: skip


def test_every_route_that_waits_counts_the_waits_of_a_caller(tables: ApiWorld, keys: ApiWorld) -> None:
    """Of six at a time two may wait; the others are refused at once."""
    add_consumer(tables.catalog, TENANT, "c", None)
    claim_partition(tables.catalog, TENANT, "c", "holder", session=None, lease_ms=600_000)
    counts_of = {}
    for world in (tables, keys):
        app = create_app(world.services, follow=FollowLimits(waits_max=2))
        described = {
            each["operationId"]: (method, path)
            for path, item in app.openapi()["paths"].items()
            for method, each in item.items()
            if any(parameter["name"] == "wait" for parameter in each.get("parameters", ()))
        }
        assert set(described) == set(WAITING), "each route with a wait has a row above"
        with served(app) as server:
            for name, (method, path) in described.items():
                if ("kv" in name) == (world is keys):
                    address = server.url + path.format(
                        cluster_id=1, tenant_id=1, database="shop", table="acct", consumer_id="c"
                    )
                    counts_of[name] = asyncio.run(first_answers(method, address, WAITING[name]))
    for name, counts in counts_of.items():
        assert counts == {429: 4}, f"{name}: {counts}"


async def first_answers(method: str, address: str, given: dict[str, str]) -> Counter[int]:
    """The statuses of the first four answers to six requests. The two that wait are cancelled."""
    async with httpx2.AsyncClient(timeout=30) as http:
        params = [{**given, "wait": "10", **({} if given else {"member": f"m{n}"})} for n in range(6)]
        requests = [asyncio.ensure_future(http.request(method, address, params=each)) for each in params]
        counts: Counter[int] = Counter()
        for answer in asyncio.as_completed(requests):
            counts[(await answer).status_code] += 1
            if counts.total() == 4:
                break
        for request in requests:
            request.cancel()
    return counts


def test_probes_never_wait_for_requests(tables: ApiWorld) -> None:
    """All threads of the application are taken, as by requests that wait for a slow catalog."""
    app = create_app(tables.services)
    limiters: list[CapacityLimiter] = []

    @app.middleware("http")
    async def of_this_loop(request: object, call_next: object) -> object:
        limiter = to_thread.current_default_thread_limiter()
        if not limiters:
            limiters.append(limiter)
            limiter.total_tokens = 1
            limiter.acquire_on_behalf_of_nowait("another request")
        return await call_next(request)  # type: ignore[operator]

    with served(app) as server, httpx2.Client(timeout=20) as http:
        for path in ("/livez", "/readyz", "/version"):
            assert http.get(server.url + path).status_code == 200


def costly() -> PullRequest:
    return PullRequest(
        scope=Scope(tenant=TENANT), start_ts="earliest", cursor=None, format="json", options={}, limit=1,
        filter=parse_filter({"tables": f"*./{_MANY[0]}/"}),
    )  # fmt: skip


def test_a_caller_has_two_costly_pages_made_at_a_time(tables: ApiWorld) -> None:
    request = costly()
    followers, running, most = Followers(tables.services), Counter[str](), Counter[str]()

    def page(caller: str) -> None:
        running[caller] += 1
        most[caller] = max(most[caller], running[caller])
        time.sleep(0.02)
        running[caller] -= 1

    async def ask() -> None:
        callers = ["greedy"] * 45 + ["other"]
        await asyncio.gather(*(followers.run_for(caller, request, page, caller) for caller in callers))

    asyncio.run(ask())
    followers.close()
    assert most == {"greedy": 2, "other": 1}
    gc.collect()  # a frame of a task may be part of a circle
    assert not followers._turns, "nothing is kept of callers"


def test_a_caller_that_leaves_keeps_its_turn_while_its_thread_is_at_work(tables: ApiWorld) -> None:
    request, followers = costly(), Followers(tables.services)
    go, started = threading.Event(), list[int]()

    def page(number: int) -> None:
        started.append(number)
        go.wait(20)

    async def ask() -> None:
        leaving = [asyncio.ensure_future(followers.run_for("one", request, page, n)) for n in range(2)]
        while len(started) < 2:
            await asyncio.sleep(0.01)
        for each in leaving:
            each.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        third = asyncio.ensure_future(followers.run_for("one", request, page, 2))
        await asyncio.sleep(0.1)
        assert sorted(started) == [0, 1]
        go.set()
        await asyncio.wait_for(third, 20)

    asyncio.run(ask())
    followers.close()
    assert sorted(started) == [0, 1, 2]


def test_a_stream_reads_the_catalog_while_pages_of_its_caller_are_made(tables: ApiWorld) -> None:
    request, followers, go = costly(), Followers(tables.services), threading.Event()
    first = pull(tables.services, request)

    async def nothing(*_: object) -> None:
        pass

    async def ask() -> int:
        making = [asyncio.ensure_future(followers.run_for("one", request, go.wait, 20)) for _ in range(2)]
        await asyncio.sleep(0)
        stream = StreamLoop(followers, request, ArrowFrames(None), coder(None), first, nothing, nothing, "one")
        try:
            return (await asyncio.wait_for(stream._served_at(first.resolved_ts), 5)).resolved
        finally:
            go.set()
            await asyncio.gather(*making)

    assert asyncio.run(ask()) == first.resolved_ts
    followers.close()
