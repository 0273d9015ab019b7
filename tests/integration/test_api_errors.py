"""What the API refuses, and how it says so; tenants that have no log yet; waiting; damage."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import structlog

from reading.rows.scope import Scope
from reading.served import position
from tests.kit.api_world import ApiWorld, api_world, arrow_of, events_of, has_more, next_cursor, resolved_ts
from tests.kit.log_builder import TENANT, recording_end, with_broken_value
from tests.kit.open_folder import OpenFolder
from tests.kit.recording import committed_rows, recorded_history
from tistream import ts as tso
from tistream.catalog.log.committed import find_segments
from tistream.catalog.work.tasks import list_tasks
from tistream.model import change
from tistream.objectstore.layout import SchemaSnapKey

FLUSHES = 10
END = recording_end()
EARLIEST = recorded_history().start_ts
FUTURE = tso.compose(tso.physical_ms(END) + 60_000)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are logged with their traceback, which takes long to draw."""
    with structlog.testing.capture_logs():
        yield


def problem(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["code"].startswith("TS-")
    assert body["detail"]
    return body


@pytest.mark.parametrize(
    ("path", "params", "status", "words"),
    [
        ("/changes", {}, 400, "start_ts=earliest"),
        ("/changes", {"start_ts": ""}, 400, "'earliest'"),
        ("/changes", {"start_ts": "yesterday"}, 400, "'-15m'"),
        ("/changes", {"start_ts": FUTURE}, 400, "future"),
        ("/changes", {"start_ts": EARLIEST - 1}, 410, str(EARLIEST)),
        ("/changes", {"start_ts": 0}, 410, str(EARLIEST)),
        ("/changes", {"start_ts": EARLIEST + 5, "end_ts": EARLIEST}, 400, "ends"),
        ("/changes", {"start_ts": "earliest", "end_ts": "soon"}, 400, "'-15m'"),
        ("/changes", {"cursor": "MAAAA"}, 400, "cursor"),
        ("/changes", {"cursor": ""}, 400, "cursor"),
        ("/changes", {"start_ts": "earliest", "format": "canal_json"}, 400, "canal-json"),
        ("/changes", {"start_ts": "earliest", "format": "avro"}, 400, "format 'avro'"),
        ("/changes", {"start_ts": "earliest", "enable__tidb__extention": "true"}, 400, "enable-tidb-extension"),
        ("/changes", {"start_ts": "latest", "format": "arrow", "colour": "red"}, 400, "colour"),
        ("/changes", {"start_ts": "earliest", "format": "csv", "delimiter": "\n"}, 400, "delimiter"),
        ("/changes", {"start_ts": "earliest", "limit": 0}, 400, "limit"),
        ("/changes", {"start_ts": "earliest", "limit": 200_001}, 400, "200000"),
        ("/changes", {"start_ts": "earliest", "wait": 31}, 400, "30"),
        ("/changes", {"start_ts": "earliest", "event_filters": f"[{'9' * 5000}]"}, 400, "event_filters: not JSON"),
        ("/databases/shopp/changes", {"start_ts": "earliest"}, 404, "did you mean 'shop'"),
        ("/databases/shop/tables/custmers/changes", {"start_ts": "earliest"}, 404, "did you mean 'customers'"),
        ("/databases/mysql/tables/user/changes", {"start_ts": "earliest"}, 404, "no database 'mysql'"),
        ("/databases/shop/tables/customers/changes", {"start_ts": "earliest", "end_ts": "1"}, 400, "ends"),
        ("/databases", {"start_ts": EARLIEST - 1}, 410, str(EARLIEST)),
        ("/databases", {"start_ts": FUTURE}, 400, "future"),
        ("/databases/shpo/tables", {}, 404, "did you mean 'shop'"),
        ("/databases", {"limit": 5}, 400, "no parameter 'limit'. Known: continued, start_ts."),
        ("/changes", {"as_of": "latest"}, 400, "add snapshot=true"),
        ("/databases", {"star_ts": EARLIEST}, 400, "Did you mean start_ts?"),
        ("/databases/shop/tables/custmers/changes", {}, 404, "did you mean 'customers'"),
        ("/databases/shop/tables/custmers/changes:stream", {}, 404, "did you mean 'customers'"),
        ("/databases/shop/tables/custmers/changes/splits", {}, 404, "did you mean 'customers'"),
        ("/databases/shop/tables/customers/changes", {}, 400, "start_ts=earliest"),
        ("/nothing", {}, 404, "/nothing"),
    ],
)
def test_a_refusal_says_what_to_do(world: ApiWorld, path: str, params: dict[str, Any], status: int, words: str) -> None:
    assert words in problem(world.get(path, **params), status)["detail"]


def test_the_head_of_a_stream_ends(world: ApiWorld) -> None:
    answer = world.http.head("/v1/clusters/1/tenants/1/changes:stream", params={"start_ts": "earliest"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("application/x-ndjson")


def test_what_is_gone_names_the_earliest(world: ApiWorld) -> None:
    refused = problem(world.get("/changes", start_ts=1), 410)
    assert refused["facts"]["earliest_ts"] == str(EARLIEST)
    assert world.ok(start_ts=refused["facts"]["earliest_ts"], format="ndjson", limit=1).content


def test_a_cursor_belongs_to_its_scope(world: ApiWorld) -> None:
    whole = next_cursor(world.ok(limit=1))
    assert "scope" in problem(world.get("/databases/shop/changes", cursor=whole), 400)["detail"]
    of_db = next_cursor(world.ok("/databases/shop/changes", limit=1))
    refused = problem(world.get("/changes", cursor=of_db), 400)
    assert "start_ts" in refused["hint"]


def test_a_damaged_cursor_is_refused(world: ApiWorld) -> None:
    text = next_cursor(world.ok(limit=1))
    problem(world.get("/changes", cursor=text[:-3] + "AAA"), 400)


def test_a_cursor_below_the_log_is_gone(world: ApiWorld) -> None:
    old = position.encode_cursor(Scope(tenant=TENANT), EARLIEST - 7)
    assert problem(world.get("/changes", cursor=old), 410)["facts"]["earliest_ts"] == str(EARLIEST)


def test_unknown_tenants_are_told_how_to_register(world: ApiWorld) -> None:
    for path in ("/changes?start_ts=earliest", "/databases", ""):
        refused = problem(world.http.get(f"/v1/clusters/1/tenants/77{path}"), 404)
        assert "register" in refused["detail"]
    problem(world.http.get("/v1/clusters/one/tenants/1/changes?start_ts=earliest"), 400)


def test_an_accept_that_names_nothing_offered(world: ApiWorld) -> None:
    answer = world.http.get(
        "/v1/clusters/1/tenants/1/changes", params={"start_ts": "earliest"}, headers={"Accept": "image/png"}
    )
    assert "application/x-ndjson" in problem(answer, 406)["facts"]["offers"]


def test_a_method_that_is_not_there(world: ApiWorld) -> None:
    problem(world.http.delete("/v1/clusters/1/tenants/1/changes"), 405)


def test_a_defect_says_nothing_of_its_inside(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.services.registry, "_source", None)
    refused = problem(world.get("/changes", start_ts="earliest"), 500)
    assert "NoneType" not in str(refused)


# ---- tenants without a log


def test_a_tenant_that_awaits_its_snapshot_answers_emptily_and_its_cursor_lasts(fresh: ApiWorld) -> None:
    for start in ("earliest", "latest"):
        first = fresh.ok(start_ts=start, format="ndjson")
        assert (first.content, resolved_ts(first), has_more(first)) == (b"", 0, False)
    page = fresh.ok(start_ts="earliest").json()
    assert (page["items"], page["lag_s"], page["resolved_time"]) == ([], None, None)
    assert arrow_of(fresh.ok(format="arrow")).num_rows == 0
    assert "snapshot" in problem(fresh.get("/databases"), 404)["detail"]
    fresh.log.build(5)
    assert fresh.events(start_ts="earliest") == [
        e for p in fresh.pages(cursor=next_cursor(first), limit=200_000, format="ndjson") for e in events_of(p)
    ]


# ---- waiting


def test_a_wait_ends_early_when_the_watermark_moves(fresh: ApiWorld) -> None:
    fresh.log.build(3, upto=fresh.log.cuts(2)[0])
    at = next_cursor(fresh.ok(start_ts="latest"))
    mover = threading.Timer(0.3, fresh.log.flush, [END])
    mover.start()
    began = time.monotonic()
    answer = fresh.ok(cursor=at, format="ndjson", wait=30, limit=10)
    assert time.monotonic() - began < 30, "it has waited to the end"
    mover.join()
    assert resolved_ts(answer) == END
    assert events_of(answer)


def test_a_wait_over_the_activation_begins_at_the_beginning(fresh: ApiWorld) -> None:
    builder = threading.Timer(0.2, fresh.log.build, [3])
    builder.start()
    answers = [fresh.ok(start_ts="earliest", format="ndjson", wait=20, limit=200_000)]
    builder.join()
    answers += fresh.pages(cursor=next_cursor(answers[0]), format="ndjson", limit=200_000)
    changes = [e for a in answers for e in events_of(a) if e["type"] != "resolved"]
    assert changes == [e for e in fresh.events() if e["type"] != "resolved"]


def test_a_wait_for_nothing_ends_when_its_time_is_up(world: ApiWorld) -> None:
    began = time.monotonic()
    answer = world.ok(start_ts="latest", format="ndjson", wait=0.4)
    assert time.monotonic() - began > 0.35
    assert answer.content == b""
    assert world.ok(start_ts="earliest", wait=20, limit=1).json()["items"], "data is not waited for"


# ---- damage


def test_a_row_that_cannot_be_decoded_is_named_and_nothing_else_is_lost(tmp_path: Path, world: ApiWorld) -> None:
    rows = committed_rows()
    history = recorded_history()
    puts = np.flatnonzero(rows["op"].to_numpy() == change.Op.PUT)
    at = next(
        int(i)
        for i in puts[4000:]
        if (t := history.table_at(rows["table_id"][i].as_py(), rows["commit_ts"][i].as_py() - 1)) and t.name == "acct"
    )
    key, commit_ts = rows["key"][at].as_py().hex(), str(rows["commit_ts"][at].as_py())
    with api_world(tmp_path, rows=with_broken_value(rows, at)) as broken:
        broken.log.build(10)
        answers = list(broken.pages(format="ndjson", limit=3000))
        events = [e for a in answers for e in events_of(a)]
        (error,) = [e for e in events if e["type"] == "error"]
        assert (error["table"], error["key"], error["commit_ts"]) == ("acct", key, commit_ts)
        assert error["cause"]
        counts = [int(a.headers.get("TiStream-Quarantined", 0)) for a in answers]
        assert sum(counts) == 1
        want = [e for e in world.events() if (e.get("key"), e.get("commit_ts")) != (key, commit_ts)]
        assert [e for e in events if e not in (error,) and e["type"] != "resolved"] == [
            e for e in want if e["type"] != "resolved"
        ]
        before = [e for e in events[: events.index(error)] if e["type"] != "error"]
        assert all(int(e["commit_ts"]) <= int(commit_ts) for e in before)
        canal = [a.headers.get("TiStream-Quarantined") for a in broken.pages(format="canal-json", limit=200_000)]
        assert canal == ["1"]
        page = broken.ok(format="json", limit=200_000)
        assert page.content.count(b'"type":"error"') == 1
        assert page.content.endswith(b'"quarantined":1}')


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_committed_object_fails_closed_and_is_named(tmp_path: Path, damage: str) -> None:
    store = OpenFolder()
    with api_world(tmp_path, store=store) as world:
        world.log.activate()
        data_tasks = {t.task_id for t in list_tasks(world.catalog, TENANT) if t.kind == "data"}
        for ts in world.log.cuts(6):
            world.log.flush(ts, task_ids=data_tasks)
        world.log.flush(END)
        span: dict[str, Any] = {"after_ts": EARLIEST, "upto_ts": END, "limit": 1000}
        jobs = {s.object_key for s in find_segments(world.catalog, TENANT, kind="ddl", **span)}
        segments = [s for s in find_segments(world.catalog, TENANT, **span) if s.object_key not in jobs]
        victim = segments[-1]
        data = store.objects[victim.object_key]
        if damage == "gone":
            store.delete(victim.object_key)
        else:
            at = victim.offset + victim.length // 2
            hurt = data[:at] if damage == "cut" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            store.objects[victim.object_key] = hurt
        for fmt in ("ndjson", "arrow"):
            refused = problem(world.get("/changes", start_ts="earliest", format=fmt, limit=200_000), 500)
            assert refused["facts"]["object"] == victim.object_key
            assert int(refused["facts"]["segment"]) in {s.number for s in segments}
        first = min(s.lo_ts for s in segments if s.object_key == victim.object_key)
        below = world.ok(end_ts=first - 1, format="ndjson", limit=200_000)
        assert below.content, "what lies before the damage is served"
        store.objects[victim.object_key] = data
        assert world.ok(format="ndjson", limit=200_000).content


def test_a_missing_schema_snapshot_is_our_fault(tmp_path: Path) -> None:
    store = OpenFolder()
    with api_world(tmp_path, store=store) as world:
        world.log.build(1)
        store.delete(str(SchemaSnapKey(tenant=TENANT, ts=EARLIEST)))
        problem(world.get("/changes", start_ts="earliest"), 500)


def test_an_absent_store_is_a_reason_to_try_again(tmp_path: Path) -> None:
    store = OpenFolder()
    with api_world(tmp_path, store=store) as world:
        world.log.build(2)
        store.away = True
        answer = world.get("/changes", start_ts="earliest")
        problem(answer, 503)
        assert answer.headers["Retry-After"]
        ready = world.http.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["catalog"]) == (503, "ok")
        store.away = False
        assert world.http.get("/readyz").status_code == 200


def test_tenants_and_their_tasks(world: ApiWorld) -> None:
    (one,) = world.http.get("/v1/tenants").json()["items"]
    assert (one["cluster_id"], one["tenant_id"], one["state"]) == (1, 1, "ACTIVE")
    assert (one["resolved_ts"], one["start_ts"]) == (str(END), str(EARLIEST))
    assert 1 <= one["lag_s"] <= 1.001
    detail = world.get("").json()
    assert {t["kind"] for t in detail["tasks"]} == {"data", "ddl"}
    assert {t["durable_ts"] for t in detail["tasks"]} == {str(END)}
    assert detail["stores"] == []
