"""Pulls of consumers over HTTP: members that are killed, paused and started twice read the recorded log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import orjson
import pyarrow as pa
import pytest

from apiserver.routes.consumers import _with_cursor
from reading.pages.pull import pull as reading_pull
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from tests.kit.api_world import BASE, ApiWorld, api_world, events_of, next_cursor
from tests.kit.log_builder import TENANT
from tistream.catalog.database import tables
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer, parts_of
from tistream.catalog.tenancy.log_readers import ReaderState

FEED = f"{BASE}/consumers/feed"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("consumers")) as made:
        made.log.build(8)
        yield made


@pytest.fixture(autouse=True)
def no_feed(world: ApiWorld) -> Iterator[None]:
    yield
    with world.catalog.transaction() as conn:
        for table in (tables.consumers, tables.consumer_partitions, tables.consumer_members):
            conn.execute(table.delete())


def register(world: ApiWorld, *, partitions: int = 1, **filters: str) -> None:
    add_consumer(world.catalog, TENANT, "feed", None, partitions=partitions, filters=orjson.dumps(filters).decode())


def pull(world: ApiWorld, **params: Any) -> httpx2.Response:
    return world.http.post(f"{FEED}:pull", params={"format": "ndjson", **params})


def acknowledge(world: ApiWorld, cursor: str) -> httpx2.Response:
    return world.http.post(f"{FEED}:acknowledge", json={"cursor": cursor})


def end_leases(world: ApiWorld) -> None:
    """As if everybody had been silent for long."""
    with world.catalog.transaction() as conn:
        conn.execute(tables.consumer_members.update().values(expires_ms=1))


def changes(answer: httpx2.Response) -> list[bytes]:
    """The lines of a page that are changes."""
    lines = [line for line in answer.content.split(b"\n") if line]
    return [line for line in lines if orjson.loads(line).get("type") != "resolved"]


def test_each_change_is_acknowledged_once_and_none_is_skipped(world: ApiWorld) -> None:
    dice = random.Random(1)
    register(world, partitions=3)
    done: list[bytes] = []
    sessions: dict[int, str] = {}  # of processes; 1 and 2 both call themselves "a"
    hands: dict[int, httpx2.Response] = {}
    names = {1: "a", 2: "a", 3: "b"}
    refused = 0
    for _ in range(400):
        process, kind = dice.choice(list(names)), dice.random()
        if kind < 0.05:
            sessions.pop(process, None)  # killed, and started again
            hands.pop(process, None)
        elif kind < 0.1:
            end_leases(world)
        elif process in hands:
            answer = hands.pop(process)
            reply = acknowledge(world, next_cursor(answer))
            done += changes(answer) if reply.status_code == 200 else []
            refused += reply.status_code == 409
        else:
            known = {"session": sessions[process]} if process in sessions else {}
            answer = pull(world, member=names[process], limit=1000, **known)
            if answer.status_code == 409:
                refused += 1
                del sessions[process]
                continue
            assert answer.status_code == 200, answer.text
            sessions[process] = answer.headers["TiStream-Session"]
            if "TiStream-Next-Cursor" in answer.headers:
                hands[process] = answer
        if CONSUMERS.get(world.catalog, TENANT, "feed").checkpoint_ts == world.services.served(TENANT).resolved:
            break
    assert refused > 0, "some came too late"
    assert CONSUMERS.get(world.catalog, TENANT, "feed").checkpoint_ts == world.services.served(TENANT).resolved
    whole = [orjson.dumps(event) for event in world.events() if event.get("type") != "resolved"]
    assert sorted(orjson.dumps(orjson.loads(line)) for line in done) == sorted(whole)


def test_a_consumer_has_its_filters(world: ApiWorld) -> None:
    register(world, tables="shop.*", ops="insert")
    answer = pull(world, limit=200_000)
    assert events_of(answer) == world.events(tables="shop.*", ops="insert")
    document = pull(world, format="json", limit=200_000).json()
    assert acknowledge(world, document["next_cursor"]).status_code == 200
    assert pull(world).headers["TiStream-Checkpoint-Ts"] == str(world.services.served(TENANT).resolved)


def test_a_row_that_holds_the_text_of_a_cursor_stays_as_it_is(world: ApiWorld) -> None:
    document = b'{"items":[{"note":"abc"}],"next_cursor":"abc"}'
    request = PullRequest(
        scope=Scope(tenant=TENANT), start_ts="earliest", cursor=None, format="json", options={}, limit=1
    )
    answer = replace(reading_pull(world.services, request), content=pa.py_buffer(document), next_cursor="abc")
    assert _with_cursor(request, answer, "xyz") == b'{"items":[{"note":"abc"}],"next_cursor":"xyz"}'


def test_a_member_without_a_partition_gets_nothing_to_acknowledge(world: ApiWorld) -> None:
    register(world)
    first = pull(world, member="a")
    for word, content in (("ndjson", b""), ("json", b'{"items":[],"next_cursor":null,"has_more":false}')):
        answer = pull(world, member="b", format=word)
        assert (answer.status_code, answer.content) == (200, content)
        assert "TiStream-Next-Cursor" not in answer.headers
    leaving = {"member": "a", "session": int(first.headers["TiStream-Session"])}
    assert world.http.post(f"{FEED}:leave", json=leaving).status_code == 200
    assert "TiStream-Next-Cursor" in pull(world, member="b", wait=5).headers


def test_what_is_not_of_this_partition_and_epoch_is_refused(world: ApiWorld) -> None:
    register(world, partitions=2)
    first = pull(world, member="a", limit=100)
    assert acknowledge(world, next_cursor(world.ok())).json()["code"] == "TS-1003", "a cursor of a plain pull"
    other = world.http.post(f"{BASE}/consumers/other:acknowledge", json={"cursor": next_cursor(first)})
    assert other.json()["code"] == "TS-1003"
    again = pull(world, member="a", limit=100)
    refused = acknowledge(world, next_cursor(first))
    assert (refused.status_code, refused.json()["code"]) == (409, "TS-1050")
    assert acknowledge(world, next_cursor(again)).status_code == 200
    stale = pull(world, member="a", session=first.headers["TiStream-Session"])
    assert (stale.status_code, stale.json()["code"]) == (409, "TS-1050")
    moved = [p.checkpoint_ts > world.log.start_ts for p in parts_of(world.catalog, TENANT)["feed"].partitions]
    assert moved.count(True) == 1


def test_a_paused_one_is_refused_and_a_reset_reads_again(world: ApiWorld) -> None:
    register(world)
    first = pull(world, limit=200_000)
    acknowledge(world, next_cursor(first))
    CONSUMERS.switch(world.catalog, TENANT, "feed", ReaderState.STOPPED)
    assert pull(world).json()["code"] == "TS-1014"
    CONSUMERS.switch(world.catalog, TENANT, "feed", ReaderState.NORMAL)
    assert world.http.post(f"{FEED}:reset", json={"to": "earliest"}).status_code == 200
    assert pull(world, limit=200_000).content == first.content
    assert world.http.post(f"{FEED}:reset", json={"to": "0"}).status_code == 410
