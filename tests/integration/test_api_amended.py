"""Readers of a log into which rows were accepted later: never short of them without being told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pyarrow.compute as pc
import pytest

from apiserver.routes import changes as changes_route
from apiserver.stream.stream_loop import StreamLoop
from reading import position
from reading import pull as pulling
from reading.position import Served
from reading.scope import Scope
from simulator.dst.mutants import reworded
from tests.kit.amended_log import accept_rows, quarantine_for, split_off
from tests.kit.api_world import ApiWorld, api_world, events_of, next_cursor
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.recording import committed_rows
from tests.kit.stream_world import StreamWorld, events_until, stream_world
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.log.amendments import list_amendments

END = recording_end()
ROWS = committed_rows()


def cuts() -> list[int]:
    commit_ts = sorted(set(ROWS["commit_ts"].to_pylist()))
    return [commit_ts[len(commit_ts) * part // 8] for part in range(8)]


EARLY, LATE = split_off(ROWS, cuts()[2], cuts()[4])
FROM = int(pc.min(LATE["commit_ts"]).as_py()) - 1
UPTO = int(pc.max(LATE["commit_ts"]).as_py())


def cursor(ts: int, seen: int = 0) -> str:
    return position.encode_cursor(Scope(tenant=TENANT), ts, seen)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What a log that never lacked the rows serves."""
    with api_world(tmp_path_factory.mktemp("whole")) as made:
        made.log.build(8)
        yield made.events()


@pytest.fixture(scope="module")
def amended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("amended"), rows=EARLY) as made:
        made.log.build(8)
        quarantine_for(made.log, LATE)
        accept_rows(made.log, LATE)
        yield made


def plain(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The changes of a body."""
    return [event for event in events if event["type"] not in ("resolved", "end")]


def test_the_log_holds_the_rows_at_their_place(amended: ApiWorld, whole: list[dict[str, Any]]) -> None:
    assert LATE.num_rows > 20
    assert plain(amended.events(limit=50)) == plain(whole)


def test_a_cursor_from_before_is_told_where_to_read_again(amended: ApiWorld, whole: list[dict[str, Any]]) -> None:
    refused = amended.get("/changes", cursor=cursor(UPTO))
    assert (refused.status_code, refused.json()["code"]) == (409, "TS-1013")
    facts = refused.json()["facts"]
    assert (facts["from_ts"], facts["rows"], facts["amendment"]) == (str(FROM), str(LATE.num_rows), "1")
    assert str(FROM) in refused.json()["detail"]
    again = amended.ok(start_ts=facts["from_ts"], limit=200_000, format="ndjson")
    assert plain(events_of(again)) == [e for e in plain(whole) if int(e["commit_ts"]) > FROM]
    assert again.headers["TiStream-Amended"] == f"{FROM}-{UPTO}"
    assert amended.ok(cursor=next_cursor(again)).headers.get("TiStream-Amended") is None


def test_a_cursor_below_the_rows_reads_on(amended: ApiWorld) -> None:
    page = amended.ok(cursor=cursor(FROM), limit=10)
    assert position.read_cursor(next_cursor(page), Scope(tenant=TENANT))[1] == 1
    assert amended.ok(cursor=next_cursor(page)).status_code == 200
    assert amended.get("/changes", cursor=cursor(FROM + 1)).status_code == 409


def test_a_plan_for_many_readers_carries_what_was_seen(amended: ApiWorld) -> None:
    plan = amended.ok("/changes/splits", start_ts="earliest", parts=4).json()
    for part in plan["parts"]:
        assert amended.ok(cursor=part["cursor"], end_ts=part["end_ts"]).status_code == 200
    assert amended.get("/changes/splits", cursor=cursor(UPTO)).json()["code"] == "TS-1013"


def test_a_snapshot_that_lacks_the_rows_must_start_again(amended: ApiWorld, whole: list[dict[str, Any]]) -> None:
    """Its first pages were read before they were accepted."""
    table = next(e["table"] for e in whole if int(e["commit_ts"]) == UPTO)
    path = f"/databases/shop/tables/{table}/changes"
    scope = Scope(tenant=TENANT, database="shop", table=table)

    def answer(ts: int, seen: int) -> httpx2.Response:
        inside = position.encode_place(scope, position.Place(ts=ts, seen=seen, table_id=0, key=b""))
        return amended.get(path, cursor=inside, format="ndjson", limit=200_000)

    lost = answer(UPTO, 0)
    assert (lost.status_code, lost.json()["code"]) == (410, "TS-1022")
    assert lost.json()["facts"]["as_of"] == str(UPTO)
    assert "accepted rows" in lost.json()["detail"]
    for ts, seen in ((FROM, 0), (UPTO, 1)):
        assert answer(ts, seen).status_code == 200, "it lacks nothing"
    began = amended.get(path, snapshot="true", as_of=UPTO, limit=1, format="ndjson")
    assert position.read_place(next_cursor(began), scope) is not None
    assert amended.get(path, cursor=next_cursor(began), format="ndjson").status_code == 200, "one that begins anew"
    with reworded(pulling, "check_place", ("a.number > place.seen", "False")):
        assert answer(UPTO, 0).status_code == 200


def test_readers_without_the_check_are_found(amended: ApiWorld) -> None:
    with reworded(Served, "check_seen", ("a.number > seen and ", "False and ")):
        assert amended.get("/changes", cursor=cursor(UPTO)).status_code == 200


@pytest.fixture
def live(tmp_path: Path) -> Iterator[StreamWorld]:
    with stream_world(tmp_path) as made:
        made.api.log.rows = EARLY
        made.api.log.build(4, upto=cuts()[5])
        yield made


def assert_told(world: StreamWorld, patience_s: int = 30) -> None:
    """A stream and a waiting pull that do not see the quarantine, because it is over at once, end with the error."""
    log: LogBuilder = world.api.log
    params = {"cursor": cursor(cuts()[5]), "wait": patience_s, "format": "ndjson"}
    with ThreadPoolExecutor(1) as pool, world.stream(start_ts="latest") as answer:
        waiting = pool.submit(httpx2.get, f"{world.base}/changes", params=params, timeout=WAIT_S)
        eventually(lambda: world.followers.waker.waiting == 2, "both wait")
        look = world.followers.waker._look
        world.followers.waker._look = lambda tenants: {t: world.followers.waker._known[t] for t in tenants}
        quarantine_for(log, LATE)
        accept_rows(log, LATE)
        world.followers.waker._look = look
        begun = time.monotonic()
        events = events_until(answer, lambda e: e["type"] == "end" or time.monotonic() - begun > patience_s)
        refused = waiting.result()
    assert events[-1]["type"] == "end", "the stream goes on"
    assert (events[-1]["reason"], events[-1]["problem"]["code"]) == ("error", "TS-1013")
    assert refused.status_code == 409, "the pull is answered"
    assert refused.json()["facts"]["from_ts"] == events[-1]["problem"]["facts"]["from_ts"] == str(FROM)


def test_who_waits_beyond_the_rows_is_told(live: StreamWorld) -> None:
    assert_told(live)


@pytest.mark.parametrize(
    ("owner", "name", "change", "what"),
    [
        (StreamLoop, "_check_good", ("watch.amended > self._amended", "False"), "the stream goes on"),
        (changes_route, "_next_change", ("watch.amended > answer.seen", "False"), "the pull is answered"),
    ],
    ids=["stream", "waiting-pull"],
)
def test_a_reader_without_the_check_is_found(
    live: StreamWorld, owner: object, name: str, change: tuple[str, str], what: str
) -> None:
    with reworded(owner, name, change), pytest.raises(AssertionError, match=what):
        assert_told(live, patience_s=3)


def test_a_stream_below_the_rows_goes_on(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    with stream_world(tmp_path) as world:
        world.api.log.rows = EARLY
        world.api.log.build(2, upto=FROM)
        log = world.api.log

        def is_last(event: dict[str, Any]) -> bool:
            if event["type"] == "resolved" and not list_amendments(log.catalog, TENANT):
                quarantine_for(log, LATE)
                log.flush(END)
                accept_rows(log, LATE)
            return bool(event["type"] == "end")

        with world.stream(start_ts=str(FROM), end_ts=str(END)) as answer:
            events = events_until(answer, is_last)
    assert events[-1]["reason"] == "end-reached"
    assert plain(events) == [e for e in plain(whole) if int(e["commit_ts"]) > FROM]
