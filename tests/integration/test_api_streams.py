"""Streams and long polls over real sockets: what comes, what it costs, how they end."""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import orjson
import pyarrow as pa
import pytest
import zstandard

from apiserver.routes import changes as changes_route
from apiserver.stream.followers import FollowLimits
from apiserver.stream.stream_loop import StreamLoop
from reading.rows.scope import Scope
from reading.served import position
from simulator.dst.mutants import reworded
from tests.kit.api_world import BASE, arrow_of, events_of, next_cursor
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.overheard import overheard
from tests.kit.stream_world import StreamWorld, events_until, lines_of, sse_of, stream_world
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.objects import superseded_objects, tombstone
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.work.deletion import delete_tenant, finish_deletion, retire_objects
from tistream.catalog.work.quarantines import record_quarantine, reject_store
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks
from tistream.model.contradiction import Contradiction
from tistream.objectstore.layout import BatchKey

END = recording_end()
FLUSHES = 20
Query: TypeAlias = dict[str, str | int | float]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamWorld]:
    with stream_world(tmp_path_factory.mktemp("streams")) as new_world:
        new_world.api.log.build(FLUSHES)
        yield new_world


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[StreamWorld]:
    """The log holds half of the recording."""
    with stream_world(tmp_path, FollowLimits(streams_max=3, waits_max=60, slow_consumer_s=4)) as new_world:
        new_world.api.log.build(4, upto=new_world.api.log.cuts(2)[0])
        yield new_world


def changes(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for e in events if e["type"] not in ("resolved", "end")]


def is_end(event: dict[str, Any]) -> bool:
    return bool(event["type"] == "end")


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_a_stream_up_to_a_timestamp_has_what_a_pull_has(world: StreamWorld, coding: str) -> None:
    headers = {"Accept-Encoding": coding}
    with world.stream(headers=headers, start_ts="earliest", end_ts=END, limit=1500) as answer:
        assert answer.status_code == 200
        assert answer.headers.get("content-encoding", "identity") == coding
        events = events_until(answer, is_end)
    assert changes(events) == [e for e in world.api.events() if e["type"] != "resolved"]
    marks = [e for e in events if e["type"] == "resolved"]
    assert len(marks) > 4
    for event in marks:
        assert event["cursor"] == position.encode_cursor(Scope(tenant=TENANT), int(event["resolved_ts"]))
    assert events[-1]["reason"] == "end-reached"
    assert events[-1]["cursor"] == position.encode_cursor(Scope(tenant=TENANT), END)


def test_what_lies_behind_a_watermark_was_not_sent_before_it(world: StreamWorld) -> None:
    with world.stream(start_ts="earliest", end_ts=END, limit=1000) as answer:
        mark = 0
        for event in events_until(answer, is_end):
            if event["type"] == "resolved":
                assert mark <= int(event["resolved_ts"])
                mark = int(event["resolved_ts"])
            elif event["type"] != "end":
                assert int(event["commit_ts"]) > mark


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_coded_streams_can_be_read_as_they_come(world: StreamWorld, coding: str) -> None:
    frame = zlib.decompressobj(31) if coding == "gzip" else zstandard.ZstdDecompressor().decompressobj()
    with world.stream(headers={"Accept-Encoding": coding}, start_ts="earliest", limit=1500) as answer:
        assert answer.headers["content-encoding"] == coding
        pieces, seen = answer.iter_raw(), b""
        while position.encode_cursor(Scope(tenant=TENANT), END).encode() not in seen:
            seen += frame.decompress(next(pieces))
    whole = [orjson.loads(line) for line in seen.split(b"\n")[:-1]]
    assert changes(whole) == [e for e in world.api.events() if e["type"] != "resolved"]


def test_events_resume_at_the_last_id_with_nothing_lost_or_repeated(world: StreamWorld) -> None:
    events: list[dict[str, Any]] = []
    last_id, opened = "", 0
    while not events or last_id != position.encode_cursor(Scope(tenant=TENANT), END):
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        unsure: list[dict[str, Any]] = []
        opened += 1
        with world.stream(headers=headers, start_ts="earliest", limit=1000) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for n, event in enumerate(sse_of(answer)):
                if event.get("event") == "resolved":
                    last_id = event["id"]
                    events += unsure
                    unsure = []
                    if n > 2500 or last_id == position.encode_cursor(Scope(tenant=TENANT), END):
                        break
                else:
                    unsure.append(event["data"])
    assert opened > 2
    assert events == [e for e in world.api.events() if e["type"] != "resolved"]


@pytest.mark.parametrize("fmt", ["canal-json", "open-protocol", "simple", "debezium"])
def test_other_formats_have_the_lines_of_a_pull(world: StreamWorld, fmt: str) -> None:
    options: dict[str, Any] = {"enable-tidb-extension": "true"} if fmt in ("canal-json", "debezium") else {}
    pages = [page.content.splitlines() for page in world.api.pages(format=fmt, limit=200_000, **options)]
    pulled = [line for page in pages for line in page if not _is_mark(fmt, orjson.loads(line))]
    with world.stream(start_ts="earliest", end_ts=END, format=fmt, limit=2000, **options) as answer:
        assert answer.status_code == 200
        lines = [line for line in lines_of(answer) if line]
    with world.stream(start_ts="earliest", end_ts=END, format=fmt, limit=2000, framing="sse", **options) as answer:
        events = [e for e in sse_of(answer) if "event" not in e]
    assert len(lines) == len(events)
    marks = [line for line in lines if _is_mark(fmt, orjson.loads(line))]
    assert len(marks) > 3
    assert len(lines) - len(marks) == len(pulled)


def _is_mark(fmt: str, m: dict[str, Any]) -> bool:
    match fmt:
        case "canal-json":
            return bool(m["type"] == "TIDB_WATERMARK")
        case "open-protocol":
            return bool(m["key"]["t"] == 3)
        case "simple":
            return bool(m["type"] == "WATERMARK")
    return bool(m["value"].get("payload", m["value"]).get("op") == "m")


@pytest.mark.parametrize("buffers", [None, "zstd", "lz4"])
def test_an_arrow_stream_continues_after_a_change_of_columns(world: StreamWorld, buffers: str | None) -> None:
    path = "/databases/shop/tables/t_types"
    more: dict[str, Any] = {"compression": buffers} if buffers else {}
    names = [t["table"] for t in world.api.ok("/databases/shop/tables").json()["items"]]
    path = f"/databases/shop/tables/{names[0]}" if "t_types" not in names else path
    params: dict[str, Any] = {"start_ts": "earliest"}
    rows, reasons = 0, []
    while "end-reached" not in reasons:
        with world.stream(path, format="arrow", end_ts=END, **params, **more) as answer:
            assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
            batches = pa.ipc.open_stream(pa.BufferReader(answer.read()))
            while True:
                try:
                    batch, facts = batches.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                rows += batch.num_rows
                params = {"cursor": facts[b"cursor"].decode()}
                reasons += [facts[b"end"].decode()] if b"end" in facts else []
    assert rows == sum(arrow_of(p).num_rows for p in world.api.pages(f"{path}/changes", format="arrow"))


def test_an_idle_stream_says_so_each_second_and_news_comes_at_once(growing: StreamWorld) -> None:
    begun = time.monotonic()
    with growing.stream(start_ts="latest") as answer:
        events = (orjson.loads(line) for line in lines_of(answer))
        marks = [next(events) for _ in range(4)]
        assert {m["type"] for m in marks} == {"resolved"}
        assert len({m["cursor"] for m in marks}) == 1
        assert time.monotonic() - begun > 2.5, "no more often than each second"
        after = growing.api.ok(start_ts="latest")
        step = growing.api.log.cuts(20)[12]
        growing.api.log.flush(step)
        news = [next(events)]
        while news[-1].get("resolved_ts") != str(step):
            news.append(next(events))
    want = growing.api.events(cursor=next_cursor(after), start_ts=None)
    assert changes(news) == changes(want)


def test_a_quiet_table_costs_no_page(growing: StreamWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    log = growing.api.log
    ids, ts = log.rows["table_id"].to_numpy(), log.rows["commit_ts"].to_numpy()
    later = sorted({int(t) for t in ts[ts > log.cuts(2)[0]]})
    tables = {t["table_id"]: t["table"] for t in growing.api.ok("/databases/shop/tables").json()["items"]}
    at, step = next(
        (a, b) for a, b in pairwise(later) if set(ids[ts == b]) <= {*tables} and len(set(ids[ts == b])) == 1
    )
    log.flush(at)
    quiet = next(name for table_id, name in tables.items() if table_id not in ids[ts == step])
    pages: list[object] = []
    monkeypatch.setattr(growing.api.services.reader, "page", overheard(growing.api.services.reader.page, pages))
    with growing.stream(f"/databases/shop/tables/{quiet}", start_ts="latest") as answer:
        events = (orjson.loads(line) for line in lines_of(answer))
        assert next(events)["resolved_ts"] == str(at)
        log.flush(step)
        assert next(e for e in events if e["resolved_ts"] != str(at))["resolved_ts"] == str(step)
    assert not pages


def test_a_consumer_that_takes_nothing_is_closed_with_its_cursor(growing: StreamWorld) -> None:
    host, port = growing.server.url.removeprefix("http://").split(":")
    growing.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # else the kernel takes everything
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader.connect((host, int(port)))
        reader.settimeout(WAIT_S)
        path = f"{BASE}/changes:stream?start_ts=earliest&limit=200000"
        reader.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        eventually(lambda: growing.followers.open_now("streams") == 1, "it is open")
        eventually(lambda: growing.followers.open_now("streams") == 0, "it is closed")
        body = b""
        while piece := reader.recv(1 << 20):
            body += piece
    assert growing.followers.waker.waiting == 0
    last = orjson.loads(body[body.rindex(b'{"type":"end"') :].split(b"\n")[0])
    assert last["reason"] == "slow-consumer"
    assert body.endswith(b"0\r\n\r\n"), "a clean end"
    at = int(last["resolved_ts"])
    assert last["cursor"] == position.encode_cursor(Scope(tenant=TENANT), at)
    sent = body.count(b'"commit_ts":')
    assert sent == len([e for e in growing.api.events(end_ts=at) if e["type"] != "resolved"])
    assert growing.api.ok(start_ts="latest").status_code == 200


def test_a_reader_that_goes_away_frees_everything(growing: StreamWorld) -> None:
    with growing.stream(start_ts="latest") as answer:
        lines = lines_of(answer)  # held on to: without it httpx closes the connection
        next(lines)
        assert growing.followers.open_now("streams") == 1
    eventually(lambda: growing.followers.open_now("streams") == 0, "it is counted no more")
    eventually(lambda: growing.followers.waker.waiting == 0, "nobody waits")
    eventually(lambda: "waker" not in {t.name for t in threading.enumerate()}, "nobody asks the catalog")


def test_there_is_a_bound_on_streams_of_one_caller(growing: StreamWorld) -> None:
    with growing.stream(start_ts="latest"), growing.stream(start_ts="latest"):
        with growing.stream(start_ts="latest"), growing.stream(start_ts="latest") as refused:
            problem = orjson.loads(refused.read())
            assert (refused.status_code, problem["code"], problem["facts"]["bucket"]) == (429, "TS-1091", "streams")
            assert int(refused.headers["retry-after"]) >= 1
        eventually(lambda: growing.followers.open_now("streams") == 2, "one is closed")
        with growing.stream(start_ts="latest") as answer:
            assert answer.status_code == 200


def test_when_the_server_stops_streams_end_with_their_cursor_and_waits_answer(tmp_path: Path) -> None:
    with stream_world(tmp_path) as world:
        world.api.log.build(4)
        with ThreadPoolExecutor(2) as pool, world.stream(start_ts="latest") as answer:
            waits: Query = {"start_ts": "latest", "wait": 30, "format": "ndjson"}
            waiting = pool.submit(httpx2.get, f"{world.base}/changes", params=waits, timeout=WAIT_S)
            eventually(lambda: world.followers.waker.waiting == 2, "both wait")
            stopping = pool.submit(world.server.stop)
            events = events_until(answer, is_end)
            assert (events[-1]["reason"], events[-1]["resolved_ts"]) == ("shutdown", str(END))
            assert waiting.result().status_code == 200
            stopping.result()


def quarantine(world: StreamWorld, good_ts: int) -> str:
    """As a sorter records it; the object."""
    fault = Contradiction(store_id=4, incarnation=1, seq=9, good_ts=good_ts, promised_ts=good_ts + 1, rows=1, sample=())
    issue_incarnation(world.api.log.catalog, TENANT, 4)
    task = list_tasks(world.api.log.catalog, TENANT)[0]
    assert record_quarantine(world.api.log.catalog, TENANT, task.task_id, task.epoch, fault)
    return str(BatchKey(tenant=TENANT, store_id=4, incarnation=1, seq=9))


def assert_ended_beyond(world: StreamWorld, patience_s: int = 30) -> None:
    """A stream and a waiting pull that stand beyond `good_ts` when the store is quarantined both end with the error."""
    at = world.api.log.cuts(2)[0]
    params: Query = {"cursor": position.encode_cursor(Scope(tenant=TENANT), at), "wait": patience_s, "format": "ndjson"}
    with ThreadPoolExecutor(1) as pool, world.stream(start_ts="latest") as answer:
        waiting = pool.submit(httpx2.get, f"{world.base}/changes", params=params, timeout=WAIT_S)
        eventually(lambda: world.followers.waker.waiting == 2, "both wait")
        object_key = quarantine(world, at - 1)
        world.api.log.flush(world.api.log.cuts(20)[12])
        begun = time.monotonic()
        events = events_until(answer, lambda e: is_end(e) or time.monotonic() - begun > patience_s)
        refused = waiting.result()
    assert changes(events) == [], "rows above what is known to be good"
    assert events[-1]["type"] == "end", "the stream goes on"
    assert events[-1]["reason"] == "error"
    assert refused.status_code == 409, "the pull is answered"
    for error in (events[-1]["problem"], refused.json()):
        named = {name: error["facts"][name] for name in ("tenant", "store", "good_ts")}
        assert (error["code"], named) == ("TS-1017", {"tenant": str(TENANT), "store": "4", "good_ts": str(at - 1)})
        assert error["facts"]["object"] == object_key


def test_who_stands_beyond_a_quarantine_ends_with_its_error(growing: StreamWorld) -> None:
    assert_ended_beyond(growing)


@pytest.mark.parametrize(
    ("owner", "name", "change", "what"),
    [
        (StreamLoop, "_check_good", ("self._at > watch.good_ts", "False"), "the stream goes on"),
        (changes_route, "_next_change", ("answer.end > watch.good_ts", "False"), "the pull is answered"),
    ],
    ids=["stream", "waiting-pull"],
)
def test_a_reader_without_the_check_is_found(
    growing: StreamWorld, owner: object, name: str, change: tuple[str, str], what: str
) -> None:
    with reworded(owner, name, change), pytest.raises(AssertionError, match=what):
        assert_ended_beyond(growing, patience_s=3)


def test_a_wait_at_what_is_good_lasts_until_the_store_is_rejected(growing: StreamWorld) -> None:
    at, later = growing.api.log.cuts(2)[0], growing.api.log.cuts(20)[12]
    quarantine(growing, at)
    growing.api.log.flush(later)
    params: Query = {"cursor": position.encode_cursor(Scope(tenant=TENANT), at), "wait": 1, "format": "ndjson"}
    begun = time.monotonic()
    answer = httpx2.get(f"{growing.base}/changes", params=params, timeout=WAIT_S)
    assert (changes(events_of(answer)), time.monotonic() - begun > 0.9) == ([], True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx2.get, f"{growing.base}/changes", params={**params, "wait": 30}, timeout=WAIT_S)
        eventually(lambda: growing.followers.waker.waiting == 1, "it waits")
        reject_store(growing.api.log.catalog, TENANT, 4)
        assert len(changes(events_of(waiting.result()))) > 10


def test_any_number_of_waits_asks_the_catalog_once_a_look(growing: StreamWorld) -> None:
    looks: list[object] = []
    growing.followers.waker._look = overheard(growing.followers.waker._look, looks)
    params: Query = {"start_ts": "latest", "wait": 30, "format": "ndjson"}
    many = httpx2.Limits(max_connections=24)
    with ThreadPoolExecutor(24) as pool, httpx2.Client(timeout=WAIT_S, limits=many, verify=False) as http:
        waits = [pool.submit(http.get, f"{growing.base}/changes", params=params) for _ in range(24)]
        eventually(lambda: growing.followers.waker.waiting == 24, "all wait")
        begun, before = time.monotonic(), len(looks)
        assert growing.api.ok(start_ts="latest").status_code == 200, "others are served meanwhile"
        time.sleep(1)
        assert len(looks) - before <= (time.monotonic() - begun) / 0.1 + 2
        growing.api.log.flush(growing.api.log.cuts(20)[12])
        answers = [w.result() for w in waits]
    assert len({a.content for a in answers}) == 1
    assert len(changes(events_of(answers[0]))) > 10


@pytest.mark.parametrize(
    ("params", "headers", "code"),
    [
        ({}, {}, "TS-1001"),
        ({"start_ts": "latest", "format": "csv"}, {}, "TS-1001"),
        ({"start_ts": "latest", "format": "arrow", "framing": "sse"}, {}, "TS-1001"),
        ({"start_ts": "latest", "compression": "zstd"}, {}, "TS-1001"),
        ({"start_ts": "latest", "compression": "brotli"}, {}, "TS-1001"),
        ({"start_ts": "1"}, {}, "TS-1005"),
        ({"start_ts": "latest"}, {"Last-Event-ID": "nonsense"}, "TS-1003"),
        ({"start_ts": "latest"}, {"Accept-Encoding": "identity;q=0"}, "TS-1006"),
        ({"start_ts": "latest", "nonsense": "1"}, {}, "TS-1001"),
    ],
)
def test_an_error_is_a_problem(world: StreamWorld, params: dict[str, str], headers: dict[str, str], code: str) -> None:
    with world.stream(headers=headers, **params) as answer:
        assert orjson.loads(answer.read())["code"] == code
    eventually(lambda: world.followers.open_now("streams") == 0, "nothing stays open")


def test_a_page_is_coded_as_asked(world: StreamWorld) -> None:
    plain = world.api.http.get(
        f"{BASE}/changes", params={"start_ts": "earliest", "format": "ndjson"}, headers={"Accept-Encoding": "identity"}
    )
    assert "content-encoding" not in plain.headers
    for coding, read in (("zstd", zstandard.decompress), ("gzip", lambda data: zlib.decompress(data, 31))):
        url = f"{world.base}/changes?start_ts=earliest&format=ndjson"
        with httpx2.stream("GET", url, headers={"Accept-Encoding": coding}) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == coding
        assert "Accept-Encoding" in answer.headers["vary"]
        assert len(raw) < len(plain.content) / 3
        assert read(raw) == plain.content


def test_an_arrow_page_has_compressed_buffers_if_asked(world: StreamWorld) -> None:
    plain = world.api.ok(format="raw-arrow")
    packed = world.api.ok(format="raw-arrow", compression="zstd")
    assert len(packed.content) < len(plain.content) / 2
    assert arrow_of(packed).equals(arrow_of(plain))
    assert "content-encoding" not in packed.headers


def test_a_tenant_that_is_deleted_ends_its_streams_and_every_read_is_gone(growing: StreamWorld) -> None:
    """Who follows, who waits and who comes later are told the same."""
    api = growing.api
    position = next_cursor(api.ok(limit=10))
    later: Query = {"start_ts": "latest", "wait": 30}
    with growing.stream(start_ts="earliest", format="ndjson") as answer, ThreadPoolExecutor(1) as pool:
        lines = map(orjson.loads, lines_of(answer))
        assert next(lines)["type"] != "end"
        waiting = pool.submit(httpx2.get, f"{growing.base}/changes", params=later, timeout=WAIT_S)
        eventually(lambda: growing.followers.waker.waiting >= 1, "a request that waits")
        assert delete_tenant(api.catalog, TENANT, seen=TenantState.ACTIVE)
        last = next(event for event in lines if is_end(event))
        assert (last["reason"], last["problem"]["code"]) == ("error", "TS-1016")
        assert waiting.result(WAIT_S).status_code == 410
    for path, params in (
        ("/changes", {"start_ts": "earliest"}), ("/changes", {"cursor": position}), ("/databases", {}),
        ("/databases/shop/tables/customers/rows", {"as_of": "latest"}), ("/files", {"start_ts": "earliest"}),
        ("/changes/splits", {"start_ts": "earliest"}), ("/changes:stream", {"start_ts": "earliest"}), ("/lag", {}),
        ("/ddl", {}),
    ):  # fmt: skip
        refused = api.get(path, **params)
        assert (refused.status_code, refused.json()["code"]) == (410, "TS-1016"), (path, refused.text)
    assert [t["state"] for t in api.http.get("/v1/tenants").json()["items"]] == ["DELETING"]
    assert api.get("").json()["state"] == "DELETING"
    assert finish(api.catalog)
    assert api.http.get("/v1/tenants").json()["items"] == []
    assert api.get("").status_code == 410


def finish(catalog: Catalog) -> bool:
    """What is left goes, without a grace period."""
    while retire_objects(catalog, TENANT):
        pass
    for key in superseded_objects(catalog, TENANT, grace_ms=0, limit=10_000):
        tombstone(catalog, TENANT, key)
    with catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())
    for key in superseded_objects(catalog, TENANT, grace_ms=0, limit=10_000):
        tombstone(catalog, TENANT, key)
    return finish_deletion(catalog, TENANT)
