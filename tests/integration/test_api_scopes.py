"""PullDB, PullTable, ListDBs and ListTables: what a name covers at which time."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from apiserver.negotiate import FORMATS as NEGOTIATED
from apiserver.negotiate import NotAcceptable
from apiserver.routes.rows import choose_format
from reading.asof.output import FORMATS
from schemas.model import DdlEvent
from tests.kit import recording
from tests.kit.api_world import BASE, ApiWorld, events_of, next_cursor
from tests.kit.log_builder import recording_end
from tests.kit.recording import EXPECTED

FLUSHES = 25
END = recording_end()


@pytest.fixture(scope="module")
def everything(world: ApiWorld) -> list[dict[str, object]]:
    return [e for e in world.events() if e["type"] != "resolved"]


def ddl(kind: str) -> list[DdlEvent]:
    history = recording.recorded_history()
    return [e for e in history.events(history.start_ts, history.resolved_ts) if e.kind == kind]


def rows(events: list[dict[str, object]]) -> list[dict[str, object]]:
    return [e for e in events if e["type"] in ("insert", "update", "delete")]


def test_a_database_is_exactly_its_rows_of_the_whole(world: ApiWorld, everything: list[dict[str, object]]) -> None:
    names = {str(e["database"]) for e in rows(everything)}
    assert len(names) >= 3
    for name in names:
        events = world.events(f"/databases/{name}/changes")
        assert rows(events) == [e for e in rows(everything) if e["database"] == name]
        assert [e for e in events if e["type"] == "ddl" and e["database"] == name] == [
            e for e in everything if e["type"] == "ddl" and e["database"] == name
        ]


def test_every_table_is_its_rows_under_that_name(world: ApiWorld, everything: list[dict[str, object]]) -> None:
    names = {(str(e["database"]), str(e["table"])) for e in rows(everything)}
    assert len(names) > 60
    total = 0
    for database, table in sorted(names):
        changes = rows(world.events(f"/databases/{database}/tables/{table}/changes"))
        assert changes == [e for e in rows(everything) if (e["database"], e["table"]) == (database, table)]
        total += len(changes)
    assert total == len(rows(everything))


@pytest.mark.parametrize("limit", [1, 7, 300])
def test_pages_of_a_table_make_the_whole(world: ApiWorld, limit: int) -> None:
    path = "/databases/shop/tables/p_range/changes"
    pages = [e for p in world.pages(path, format="ndjson", limit=limit) for e in events_of(p)]
    assert pages == world.events(path)


def test_a_renamed_table_is_followed_by_name_not_by_id(world: ApiWorld, everything: list[dict[str, object]]) -> None:
    history = recording.recorded_history()
    renames = [
        e
        for e in [*ddl("rename table"), *ddl("rename tables")]
        # the names in between, in RENAME TABLE a TO tmp, b TO a, tmp TO b, never existed at any timestamp
        if history.physical_ids(e.old_db, e.old_table, history.start_ts, history.resolved_ts)
    ]
    assert len(renames) > 5
    for event in renames:
        old = world.events(f"/databases/{event.old_db}/tables/{event.old_table}/changes")
        new = world.events(f"/databases/{event.db}/tables/{event.table}/changes")
        assert not [
            e for e in rows(old) if e["table_id"] == event.table_id and int(str(e["commit_ts"])) > event.commit_ts
        ], "rows of the renamed table are not under the old name"
        for events in (old, new):
            assert str(event.commit_ts) in {e["commit_ts"] for e in events if e["type"] == "ddl"}


def test_a_reader_of_a_renamed_table_is_told_its_new_name(world: ApiWorld) -> None:
    history = recording.recorded_history()
    end, renames = history.resolved_ts, 0
    events = sorted([*ddl("rename table"), *ddl("rename tables")], key=lambda e: e.commit_ts)
    for event in {(e.old_db, e.old_table): e for e in events}.values():
        old = f"/databases/{event.old_db}/tables/{event.old_table}/changes"
        if world.get(old, start_ts="earliest").status_code != 200:
            continue  # a name in between
        cursor = next_cursor(list(world.pages(old))[-1])
        answer = world.get(old, cursor=cursor)
        table = history.table_at(event.table_id, end)
        if history.named(event.old_db, event.old_table, end) is not None or table is None:
            assert answer.status_code == 200, "the name has a table, or the table is gone"
            continue
        assert (answer.status_code, answer.json()["code"]) == (410, "TS-1009")
        facts = answer.json()["facts"]
        assert (facts["database"], facts["table"], facts["table_id"]) == (table.db, table.name, str(table.id))
        new = f"/databases/{facts['database']}/tables/{facts['table']}/changes"
        assert world.ok(new, start_ts=facts["renamed_ts"]).status_code == 200
        assert world.get(f"{old}:stream", cursor=cursor).json()["code"] == "TS-1009"
        renames += 1
    assert renames


def test_a_truncated_table_goes_on_under_its_new_id(world: ApiWorld, everything: list[dict[str, object]]) -> None:
    several = {}
    for event in ddl("truncate table"):
        changes = rows(world.events(f"/databases/{event.db}/tables/{event.table}/changes"))
        several[event.table] = {e["table_id"] for e in changes}
    assert any(len(ids) > 1 for ids in several.values())


def test_a_partitioned_table_is_the_sum_of_its_partitions(world: ApiWorld) -> None:
    tables = json.loads((EXPECTED / "tables-end.json").read_text("utf-8"))["tables"]
    partitions = {t["table"]: set(t["partition_ids"]) for t in tables if len(t.get("partition_ids") or ()) > 1}
    several = 0
    for table, ids in partitions.items():
        changes = rows(world.events(f"/databases/shop/tables/{table}/changes"))
        assert {e["table"] for e in changes} == {table}
        several += len({str(e["table_id"]) for e in changes} & {str(i) for i in ids}) > 1
    assert several >= 4


def test_an_exchange_concerns_both_tables_and_a_dropped_database_all_its_tables(world: ApiWorld) -> None:
    (event,) = ddl("exchange partition")
    assert event.version is not None
    assert event.exchanged is not None
    for table in (event.version, event.exchanged):
        events = world.events(f"/databases/{table.db}/tables/{table.name}/changes")
        assert "exchange partition" in {e["kind"] for e in events if e["type"] == "ddl"}
    (drop,) = ddl("drop schema")
    dropped_tables = recording.recorded_history().tables(drop.db, drop.commit_ts - 1)
    assert dropped_tables
    for dropped in dropped_tables:
        events = world.events(f"/databases/{drop.db}/tables/{dropped.name}/changes")
        assert "drop schema" in {e["kind"] for e in events if e["type"] == "ddl"}


def test_names_are_read_in_any_case(world: ApiWorld) -> None:
    assert world.events("/databases/SHOP/tables/Customers/changes") == world.events(
        "/databases/shop/tables/customers/changes"
    )


def test_a_reader_outlives_its_table(world: ApiWorld) -> None:
    """A table that existed at the start is pulled to the end; its cursor stays good when it is gone for long."""
    (drop,) = ddl("drop schema")
    (table, *_) = recording.recorded_history().tables(drop.db, drop.commit_ts - 1)
    path = f"/databases/{drop.db}/tables/{table.name}/changes"
    last = [*world.pages(path, limit=5)][-1]
    assert world.ok(path, cursor=next_cursor(last), format="ndjson").content == b""


def test_a_start_just_above_the_watermark_is_a_start(world: ApiWorld) -> None:
    answer = world.ok("/databases/shop/tables/customers/changes", start_ts=END + 1, format="ndjson")
    assert answer.content == b""


def test_databases_and_tables_at_every_moment_are_tidbs(world: ApiWorld) -> None:
    heads = [json.loads(p.read_text("utf-8")) for p in EXPECTED.glob("tables-*.json")]
    assert len(heads) > 10
    for head in heads:
        listed = world.ok("/databases", start_ts=head["ts"]).json()
        assert listed["at_ts"] == str(head["ts"])
        names = [d["database"] for d in listed["items"]]
        assert names == sorted(d["db"] for d in head["databases"])
        for name in names:
            tables = world.ok(f"/databases/{name}/tables", start__ts=head["ts"]).json()["items"]
            theirs = {(t["table"], int(t["table_id"])) for t in head["tables"] if t["db"] == name}
            assert {(t["table"], t["table_id"]) for t in tables} == theirs
            assert all(a["table"].lower() <= b["table"].lower() for a, b in pairwise(tables))


def test_a_listed_table_shows_its_columns(world: ApiWorld) -> None:
    tables = world.ok("/databases/shop/tables").json()["items"]
    customers = next(t for t in tables if t["table"] == "customers")
    create = next(
        t["create"]
        for t in json.loads((EXPECTED / "tables-end.json").read_text("utf-8"))["tables"]
        if t["table"] == "customers"
    )
    for column in customers["columns"]:
        assert f"`{column['name']}` {column['type']}" in create
    assert customers["primary_key"]


def test_a_time_above_the_served_one_lists_what_is_served(world: ApiWorld) -> None:
    assert world.ok("/databases", start_ts="-0s").json()["at_ts"] == str(END)


@pytest.mark.parametrize("path", ["changes", "rows", "files", "changes/splits", "definition", "changes:stream"])
def test_a_name_may_hold_a_slash(world: ApiWorld, path: str) -> None:
    """There is no such table here; what matters is that the answer is about the whole name."""
    start = {} if path in ("rows", "definition") else {"start_ts": "earliest"}
    refused = world.http.get(f"{BASE}/databases/shop/tables/a%2Fb%2fc%20%25/{path}", params=start)
    assert refused.status_code == 404
    assert "a/b/c %" in refused.json()["detail"]


def test_a_database_may_hold_a_slash(world: ApiWorld) -> None:
    refused = world.http.get(f"{BASE}/databases/no%2Fsuch/tables")
    assert (refused.status_code, "no/such" in refused.json()["detail"]) == (404, True)


def test_an_end_beyond_every_tso_is_an_end(world: ApiWorld) -> None:
    far = "9999-12-31T23:59:59Z"
    answer = world.get("/changes", start_ts="earliest", end_ts=far, limit=100, format="ndjson")
    assert answer.status_code == 200
    again = world.get("/changes", cursor=next_cursor(answer), end_ts=answer.headers["TiStream-End-Ts"], limit=100)
    assert again.status_code == 200
    for path in ("/files", "/changes/splits"):
        assert world.get(path, start_ts="earliest", end_ts=far).status_code == 200
    for path, params in (("/changes", {"start_ts": far}), ("/databases/shop/tables/customers/rows", {"as_of": far})):
        assert 400 <= world.get(path, **params).status_code < 500


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("application/x-ndjson;q=0.1, text/csv", "text/csv"),
        ("text/*", "text/csv"),
        ("application/x-ndjson;q=0, */*", "text/csv"),
        ("*/*", "application/x-ndjson"),
        ("application/jsonl", "application/x-ndjson"),
        ("*/*;q=0", None),
        ("application/json;q=0", None),
    ],
)
def test_rows_come_as_the_header_prefers(accept: str, media: str | None) -> None:
    if media is None:
        with pytest.raises(NotAcceptable):
            choose_format(None, accept)
    else:
        assert FORMATS[choose_format(None, accept)] == media


@pytest.fixture(scope="module")
def old(world: ApiWorld) -> TestClient:
    """A client, or a proxy, that speaks HTTP/1.0."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await world.http.app({**scope, "http_version": "1.0"}, receive, send)

    return TestClient(app)


@pytest.mark.parametrize("form", FORMATS)
def test_rows_are_refused_over_http_1_0(old: TestClient, form: str) -> None:
    """Without chunks the end of a connection is the end of the body, and a body that broke off looks whole."""
    refused = old.get(f"{BASE}/databases/shop/tables/customers/rows?format={form}")
    assert (refused.status_code, "HTTP/1.1" in refused.json()["detail"]) == (400, True)


def test_every_other_answer_has_a_length_over_http_1_0(world: ApiWorld, old: TestClient) -> None:
    """The length shows that a body broke off."""
    world.log.seed()
    listed = old.get(f"{BASE}/files?format=all").json()["items"]
    table = f"{BASE}/databases/shop/tables/customers"
    pages = [f"{BASE}/changes?start_ts=earliest&format={form}" for form in NEGOTIATED]
    for path in (
        *pages,
        listed[0]["url"],
        f"{table}/rows/{END}.parquet",
        f"{table}/files?format=all",
        f"{table}/definition",
    ):
        for coding in ("identity", "gzip", "zstd"):
            answer = old.get(path, headers={"Accept-Encoding": coding})
            assert (answer.status_code, "content-length" in answer.headers) == (200, True), path
