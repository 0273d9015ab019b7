"""A transaction that is larger than a page may be, over HTTP: each reader gets all of it, in order, in bounded memory.

The bounds are made tiny. The same log is read with the usual ones, in one page: that is what pages must add up to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reading.log import memory, reader
from reading.pages import changes
from reading.served.services import Services
from tests.kit.api_world import BASE, ApiWorld, arrow_of, events_of, has_more, next_cursor
from tests.kit.large_transaction import C, bound, built, the_transaction
from tistream.catalog.tenancy.consumers import add_consumer

TEXT_FORMATS = ("ndjson", "canal-json", "open-protocol", "simple", "csv", "debezium")
OPEN = "TiStream-Open-Transaction-Ts"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with built(tmp_path_factory.mktemp("log"), the_transaction(b"x" * 20, 48)) as made:
        yield made


@pytest.fixture
def whole(world: ApiWorld) -> dict[str, bytes]:
    """The bodies of one page, by format."""
    return {name: world.ok(start_ts="earliest", format=name, limit=1000).content for name in TEXT_FORMATS}


def pages(world: ApiWorld, path: str = "/changes", **params: Any) -> list[httpx2.Response]:
    return list(world.pages(path, start_ts="earliest", limit=1000, **params))


@pytest.mark.parametrize("format", TEXT_FORMATS)
def test_pages_of_a_text_format_add_up_to_the_page_that_holds_it_whole(
    world: ApiWorld, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    bound(monkeypatch, commit=1000, body=5000)
    got = pages(world, format=format)
    assert b"".join(page.content for page in got) == whole[format]
    within = [page for page in got if OPEN in page.headers]
    assert len(within) > 1
    for page in within:
        assert page.headers[OPEN] == str(C)
        assert int(page.headers["TiStream-Resolved-Ts"]) < C, "nothing is complete at the commit_ts yet"
        assert has_more(page)


@pytest.mark.parametrize("format", ["arrow", "raw-arrow"])
@pytest.mark.parametrize("path", ["/databases/shop/tables/k_dup/changes", "/changes"])
def test_pages_of_arrow_add_up_as_well(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, format: str, path: str
) -> None:
    one = pa.concat_tables([arrow_of(page) for page in pages(world, path, format=format)])
    bound(monkeypatch, commit=1000, body=600)
    got = pages(world, path, format=format)
    assert len([page for page in got if OPEN in page.headers]) > 1
    assert pa.concat_tables([arrow_of(page) for page in got]).combine_chunks() == one.combine_chunks()


def test_a_document_says_that_its_transaction_is_open(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, commit=1000, body=5000)
    found = [page.json() for page in pages(world, format="json")]
    opened = [page["open_transaction_ts"] for page in found]
    assert set(opened) == {None, str(C)}
    assert opened[-1] is None


def test_inside_a_transaction_another_form_or_filter_is_refused(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, commit=1000, body=5000)
    inside = next(page for page in pages(world, format="canal-json") if OPEN in page.headers)
    cursor = next_cursor(inside)
    assert world.get("/changes", cursor=cursor, format="open-protocol").status_code == 200, "it splits updates, too"
    for other in (
        {"format": "raw-arrow"},
        {"ops": "insert"},
        {"tables": "shop.*"},
        {"output-raw-change-event": "true"},
    ):
        refused = world.get("/changes", **{"cursor": cursor, "format": "canal-json", **other})
        assert (refused.status_code, refused.json()["code"]) == (400, "TS-1003")
        assert refused.json()["facts"]["start_ts"] == str(C - 1)


@pytest.mark.parametrize("filter", [{"where": "u > 1010"}, {"ops": "delete"}, {"tables": "shop_arch.*"}])
def test_filters_mean_the_same_inside(world: ApiWorld, monkeypatch: pytest.MonkeyPatch, filter: dict[str, str]) -> None:
    path = "/databases/shop/changes" if "where" in filter else "/changes"
    params = {"format": "ndjson", **filter}
    one = b"".join(page.content for page in pages(world, path, **params))
    bound(monkeypatch, commit=200, body=5000)
    got = pages(world, path, **params)
    assert any(OPEN in page.headers for page in got)
    assert b"".join(page.content for page in got) == one


def streamed(world: ApiWorld, **params: Any) -> list[dict[str, Any]]:
    query = {"end_ts": C + 60, "format": "ndjson", **params}
    with world.http.stream("GET", f"{BASE}/changes:stream", params=query) as answer:
        return [orjson.loads(line) for line in answer.iter_lines() if line.strip()]


def test_a_stream_resumes_inside_a_transaction(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    one = [event for event in streamed(world, start_ts="earliest") if event["type"] not in ("resolved", "end")]
    bound(monkeypatch, commit=1000, body=2000)
    events = streamed(world, start_ts="earliest", limit=999)  # the page with the other bounds is kept
    assert [event for event in events if event["type"] not in ("resolved", "end")] == one
    marks = [event for event in events if "open_transaction_ts" in event]
    assert len(marks) > 3
    assert all(int(mark["resolved_ts"]) < C == int(mark["open_transaction_ts"]) for mark in marks)
    for mark in marks:
        seen = [e for e in events[: events.index(mark)] if e["type"] not in ("resolved", "end")]
        rest = streamed(world, cursor=mark["cursor"])
        assert seen + [event for event in rest if event["type"] not in ("resolved", "end")] == one


def test_a_consumer_acknowledges_inside_a_transaction(
    world: ApiWorld, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, commit=1000, body=3000)
    assert add_consumer(world.catalog, world.log.tenant, "inner", None)
    mine, got, member = f"{BASE}/consumers/inner", b"", 0
    for n in range(200):
        page = world.http.post(f"{mine}:pull", params={"member": f"m{member}", "format": "ndjson", "limit": 1000})
        assert page.status_code == 200, page.text
        if n % 3 == 2:  # it dies with the page at hand: the next one gets the same
            session = int(page.headers["TiStream-Session"])
            assert world.http.post(f"{mine}:leave", json={"member": f"m{member}", "session": session}).is_success
            member += 1
            continue
        got += page.content
        done = world.http.post(f"{mine}:acknowledge", json={"cursor": next_cursor(page)})
        assert done.is_success, done.text
        if OPEN in page.headers:
            assert int(done.json()["checkpoint_ts"]) == C - 1
        if not has_more(page):
            break
    assert got == whole["ndjson"]


def test_a_plan_of_a_long_pull_begins_inside(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, commit=1000, body=5000)
    got = pages(world, format="ndjson")
    at = next(n for n, page in enumerate(got) if OPEN in page.headers)
    plan = world.get("/changes/splits", cursor=next_cursor(got[at]), rows=1).json()
    first = plan["parts"][0]
    assert first["cursor"] == next_cursor(got[at])
    rest = world.pages("/changes", cursor=first["cursor"], end_ts=first["end_ts"], format="ndjson", limit=1000)
    ended = b"".join(page.content for page in rest)
    assert int(first["end_ts"]) >= C
    lines = [e for page in got[at + 1 :] for e in events_of(page) if int(e.get("commit_ts", 0)) <= int(first["end_ts"])]
    assert [e for e in map(orjson.loads, ended.splitlines()) if e["type"] != "resolved"] == [
        e for e in lines if e["type"] != "resolved"
    ]


def test_a_plan_that_ends_before_a_cursor_inside_stays_at_it(
    world: ApiWorld, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, commit=1000, body=5000)
    got = pages(world, format="ndjson")
    at = next(n for n, page in enumerate(got) if OPEN in page.headers)
    plan = world.get("/changes/splits", cursor=next_cursor(got[at]), end_ts=C - 1).json()
    assert plan["parts"] == []
    rest = world.pages("/changes", cursor=plan["next_cursor"], format="ndjson", limit=1000)
    assert b"".join(page.content for page in [*got[: at + 1], *rest]) == whole["ndjson"]


def test_ddl_below_a_commit_that_is_too_large_only_as_a_body_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = the_transaction(b"x" * 20, 48)
    with built(tmp_path, rows.filter(pc.not_equal(rows["commit_ts"], C - 50))) as made:
        path = "/databases/shop/changes"
        one = b"".join(page.content for page in pages(made, path, format="ndjson"))
        assert b'"type":"ddl"' in one
        monkeypatch.setattr(changes, "COMMIT_BYTES_MAX", 1000)
        monkeypatch.setattr(changes, "_BODY_BYTES", 5000)
        got = pages(made, path, format="ndjson")
        assert any(OPEN in page.headers for page in got)
        assert b"".join(page.content for page in got) == one


def test_inserts_of_split_updates_count_as_messages_of_a_page(
    world: ApiWorld, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, commit=200, body=100_000)  # the estimate lets them all into one page
    got = pages(world, format="canal-json")
    assert b"".join(page.content for page in got) == whole["canal-json"]
    opened = [n for n, page in enumerate(got) if OPEN in page.headers]
    within = [page.content for page in got[opened[0] : opened[-1] + 2]]
    assert [len(body) for body in within if body.count(b"\n") > 1 and len(body) > 800] == []


def test_every_reader_holds_a_page_and_not_the_transaction(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has 4 MiB; a page 128 KiB. What is held is some copies of a page and a segment."""
    with built(tmp_path_factory.mktemp("log"), the_transaction(b"x" * 20_000, 280)) as made:
        bound(monkeypatch, commit=128 << 10, body=128 << 10)
        monkeypatch.setattr(reader, "_AHEAD_RAW_BYTES_MAX", 128 << 10)
        monkeypatch.setattr(made.services.reader, "_cache_bytes_max", 0)
        for name in ("ndjson", "raw-arrow"):
            before = pa.default_memory_pool()
            pool = pa.proxy_memory_pool(before)
            pa.set_memory_pool(pool)
            try:
                bodies = [len(p.content) for p in made.pages(start_ts="earliest", limit=1000, format=name)]
            finally:
                pa.set_memory_pool(before)
            assert sum(bodies) > 4 << 20
            assert max(bodies) < 256 << 10, "a body"
            assert pool.max_memory() < 2 << 20, "what is read, in order and decoded"


def test_memory_is_admitted_before_bytes_are_fetched(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, commit=1000, body=5000)
    kept: Services = world.services
    small = memory.ReadMemory(2, wait_s=0.01)
    monkeypatch.setattr(kept.reader, "memory", small)
    monkeypatch.setattr(kept.reader, "_cache_bytes_max", 0)
    kept.reader._cache.clear()
    with small.held(world.log.tenant) as other:
        other.take(1)
        world.store.gets.clear()  # type: ignore[attr-defined]
        refused = world.get("/changes", start_ts="earliest", format="ndjson")
        assert (refused.status_code, refused.json()["code"]) == (429, "TS-1118")
        assert not world.store.gets, "nothing was fetched for it"  # type: ignore[attr-defined]
    assert world.get("/changes", start_ts="earliest", format="ndjson").status_code == 200
    assert small.taken == 0
