"""Pulls with a filter over HTTP: what they hold in every format, that cursors stay valid, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from reading.pages import changes
from reading.rows.scope import Scope
from reading.served import position
from tests.kit.api_world import ApiWorld, arrow_of, events_of, has_more, next_cursor, resolved_ts
from tests.kit.log_builder import TENANT, recording_end

FLUSHES = 12
END = recording_end()
ONE = 200_000
ACCOUNTS = "/databases/shop/tables/acct/changes"
WHERE = "id BETWEEN 2 AND 5"


def rows_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for e in events if e["type"] in ("insert", "update", "delete")]


@pytest.fixture(scope="module")
def everything(world: ApiWorld) -> list[dict[str, Any]]:
    return world.events()


def expected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The changes of shop.acct with `WHERE`, of the whole tenant's events. The key never changes in a row."""
    rows = [e for e in rows_of(events) if (e["database"], e["table"]) == ("shop", "acct")]
    return [e for e in rows if 2 <= (e["columns"] or e["old"])["id"] <= 5]


def test_a_filter_gives_the_part_of_the_full_pull(world: ApiWorld, everything: list[dict[str, Any]]) -> None:
    want = expected(everything)
    assert 5 < len(want) < len(rows_of(everything)) / 10
    events = world.events(tables="shop.acct", where=WHERE, ops="insert,update,delete")
    assert events[:-1] == want
    assert events[-1]["resolved_ts"] == str(END), "what is filtered out counts for the watermark"


@pytest.mark.parametrize("limit", [1, 7, 10_000])
def test_pages_of_any_size_make_the_single_page(world: ApiWorld, limit: int) -> None:
    given = {"tables": "shop.acct", "where": WHERE, "format": "ndjson"}
    whole = world.ok(limit=ONE, **given)
    pages = list(world.pages(limit=limit, **given))
    assert b"".join(p.content for p in pages) == whole.content
    assert not has_more(pages[-1])
    assert next_cursor(pages[-1]) == position.encode_cursor(Scope(tenant=TENANT), END)


def test_a_cursor_goes_on_with_another_filter_or_none(world: ApiWorld, everything: list[dict[str, Any]]) -> None:
    middle = world.log.cuts(2)[0]
    first = world.ok(tables="nowhere.*", format="ndjson", limit=ONE, end_ts=middle)
    assert [e["type"] for e in events_of(first)] == ["resolved"]
    cursor = next_cursor(first)
    rest = events_of(world.ok(cursor=cursor, format="ndjson", limit=ONE))
    assert rows_of(rest) == [e for e in rows_of(everything) if int(e["commit_ts"]) > middle]


def test_a_body_ends_after_so_many_rows_and_advances(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_LOOKED_AT_MAX", 2_000)
    pages = list(world.pages(where="id IS NULL AND id IS NOT NULL", ops="insert", format="ndjson", limit=500))
    assert len(pages) > 3
    assert [len(events_of(p)) for p in pages] == [0] * (len(pages) - 1) + [1]
    cursors = [position.decode_cursor(next_cursor(p), Scope(tenant=TENANT)) for p in pages]
    assert cursors == sorted(set(cursors))
    assert {resolved_ts(p) for p in pages} == {END}


@pytest.mark.parametrize("fmt", ["canal-json", "open-protocol", "simple", "debezium", "csv", "json"])
def test_every_format_holds_the_same_changes(world: ApiWorld, everything: list[dict[str, Any]], fmt: str) -> None:
    answer = world.ok(tables="shop.acct", where=WHERE, ops="insert,update,delete", format=fmt, limit=ONE)
    want = expected(everything)
    if fmt == "json":
        assert answer.json()["items"] == want
        return
    options = {} if fmt == "csv" else {"output__raw__change__event": "true"}
    answer = world.ok(tables="shop.acct", where=WHERE, ops="insert,update,delete", format=fmt, limit=ONE, **options)
    marks = {"simple": 1, "open-protocol": 1}.get(fmt, 0)
    assert len(answer.content.splitlines()) - marks == len(want)


@pytest.mark.parametrize("fmt", ["ndjson", "canal-json", "open-protocol", "simple", "debezium", "csv", "arrow"])
def test_columns_that_are_left_out_appear_nowhere(world: ApiWorld, fmt: str) -> None:
    whole = world.ok(ACCOUNTS, format=fmt, limit=ONE)
    part = world.ok(ACCOUNTS, columns="owner", ops="insert,update,delete", format=fmt, limit=ONE)
    assert len(part.content) < len(whole.content)
    if fmt == "arrow":
        names = [n for n in arrow_of(part).schema.names if not n.startswith("_")]
        assert names == ["id", "owner"]
        assert [f.name for f in arrow_of(part).schema.field("_old").type] == names
        return
    assert b"owner" in part.content or fmt == "csv"
    assert b'"bal"' in whole.content or fmt == "csv"
    assert b'"bal"' not in part.content


def test_arrow_of_one_table_and_undecoded_rows(world: ApiWorld, everything: list[dict[str, Any]]) -> None:
    want = [(e["key"], e["type"], int(e["commit_ts"])) for e in expected(everything)]
    pages = [arrow_of(p) for p in world.pages(ACCOUNTS, format="arrow", where=WHERE, limit=ONE)]
    changes_read = [(r["_key"].hex(), r["_op"], r["_commit_ts"]) for p in pages for r in p.to_pylist()]
    assert changes_read == want
    raw = arrow_of(world.ok(format="raw-arrow", tables="shop.acct", where=WHERE, limit=ONE))
    assert [(k.hex(), ts) for k, ts in zip(raw["key"].to_pylist(), raw["commit_ts"].to_pylist(), strict=True)] == [
        (key, ts) for key, _, ts in sorted(want, key=lambda row: row[2])
    ]
    assert isinstance(raw, pa.Table)


def test_an_update_that_leaves_is_a_delete_and_one_that_enters_an_insert(
    world: ApiWorld, everything: list[dict[str, Any]]
) -> None:
    updates = [
        e for e in rows_of(everything)
        if e["type"] == "update" and e["table"] == "acct" and e["columns"]["ver"] != e["old"]["ver"]
    ]  # fmt: skip
    one = updates[len(updates) // 2]
    old, new = (json.dumps(one[image]["ver"]) for image in ("old", "columns"))
    left = world.events(tables="shop.acct", where=f"ver = {old}")
    entered = world.events(tables="shop.acct", where=f"ver = {new}")
    (delete,) = [e for e in left if (e.get("commit_ts"), e.get("key")) == (one["commit_ts"], one["key"])]
    (insert,) = [e for e in entered if (e.get("commit_ts"), e.get("key")) == (one["commit_ts"], one["key"])]
    assert (delete["type"], delete["columns"], delete["old"]) == ("delete", None, one["old"])
    assert (insert["type"], insert["columns"], insert["old"]) == ("insert", one["columns"], None)


def test_ddl_alone_and_without(world: ApiWorld, everything: list[dict[str, Any]]) -> None:
    assert world.events(ops="ddl")[:-1] == [e for e in everything if e["type"] == "ddl"]
    assert not [e for e in world.events(ops="delete") if e["type"] not in ("delete", "resolved")]
    ignored = json.dumps([{"matcher": ["shop.*"], "ignore-event": ["all ddl", "insert", "update"]}])
    left = [e for e in world.events(event_filters=ignored) if e.get("database") == "shop"]
    assert {e["type"] for e in left} == {"delete"}


def test_a_stream_takes_a_filter(world: ApiWorld, everything: list[dict[str, Any]]) -> None:
    answer = world.get(
        "/changes:stream", start_ts="earliest", end_ts=END, tables="shop.acct", where=WHERE,
        ops="insert,update,delete",
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    events = [orjson.loads(line) for line in answer.content.splitlines() if line]
    assert rows_of(events) == expected(everything)
    assert events[-1]["reason"] == "end-reached"


@pytest.mark.parametrize(
    ("params", "parameter", "words"),
    [
        ({"where": "id ="}, "where", "character 4"),
        ({"where": "onwer = 'x'", "tables": "shop.acct"}, "where", "Did you mean owner?"),
        ({"where": "owner = 5", "tables": "shop.acct"}, "where", "put the constant in quotes"),
        ({"where": ["id = 1", "id = 2"]}, "where", "more than once"),
        ({"tables": "shop"}, "tables", "DATABASE.TABLE"),
        ({"tables": "shop.custmers"}, "tables", "customers"),
        ({"ops": "insrt"}, "ops", "Did you mean insert?"),
        ({"columns": "id", "format": "raw-arrow"}, "columns", "undecoded"),
        ({"event_filters": "{}"}, "event_filters", "list of objects"),
    ],
)
def test_a_wrong_filter_is_refused(world: ApiWorld, params: dict[str, Any], parameter: str, words: str) -> None:
    for path in ("/changes", "/changes:stream"):
        answer = world.get(path, start_ts="earliest", **params)
        assert answer.status_code == 400, answer.text
        refused = answer.json()
        assert refused["code"] == "TS-1018"
        assert refused["facts"]["parameter"] == parameter
        assert words in refused["detail"]


def examples() -> list[str]:
    """Those of tables; tests/integration/test_api_kv.py makes the requests of keys."""
    page = (Path(__file__).parents[2] / "docs" / "filters.md").read_text("utf-8")
    return re.findall(r"^GET \.\.\.(/(?!kv/)\S+?\?.+)$", page, re.MULTILINE)


@pytest.mark.parametrize("request_line", examples())
def test_the_requests_of_the_documentation_give_changes(world: ApiWorld, request_line: str) -> None:
    path, _, query = request_line.partition("?")
    answer = world.get(path, **{"format": "ndjson"} | dict(part.split("=", 1) for part in query.split("&")))
    assert answer.status_code == 200, answer.text
    rows = arrow_of(answer).num_rows if "arrow" in query else len(answer.content.splitlines())
    assert rows > 2


def test_the_documentation_has_examples() -> None:
    assert len(examples()) == 6


def test_rules_that_are_given_several_times_all_count(world: ApiWorld) -> None:
    one = world.events(tables="shop.*,!shop.acct")
    assert one == world.events(tables=["shop.*", "!shop.acct"])
    assert {"inter", "evolve"} <= {e["table"] for e in rows_of(one)}.difference({"acct"})
    assert "acct" not in {e["table"] for e in rows_of(one)}
