"""Pulling a whole tenant over HTTP: completeness, order, pages, cursors, watermarks, forms."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from apiserver.app import create_app
from reading.rows.scope import Scope
from reading.served import position
from tests.kit import recording, replica
from tests.kit.api_world import ApiWorld, arrow_of, events_of, has_more, next_cursor, resolved_ts
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.recording import EXPECTED
from tests.kit.stream_world import served
from tests.kit.ticdc import message_text
from tistream.catalog.work.tasks import list_tasks
from tistream.model import change

EXAMPLES = Path(__file__).parents[2] / "examples"
FLUSHES = 40
END = recording_end()


def test_the_tables_of_a_replica_equal_tidb_at_every_moment(world: ApiWorld) -> None:
    events = world.events(limit=3000)
    assert replica.compare(EXPECTED, events) > 100
    assert [e["resolved_ts"] for e in events if e["type"] == "resolved"] == [str(END)]


def test_every_delivered_row_is_a_row_of_the_log_and_ticdc_saw_as_many(world: ApiWorld) -> None:
    rows = [e for e in world.events() if e["type"] in ("insert", "update", "delete")]
    delivered = {(e["key"], int(e["commit_ts"])) for e in rows}
    assert len(delivered) == len(rows), "no row twice"
    log = recording.committed_rows()
    assert delivered <= set(zip((k.hex() for k in log["key"].to_pylist()), log["commit_ts"].to_pylist(), strict=True))
    ticdc = [m for m in recording.expected("ticdc-canal-json-tidb") if m["kind"] == "row"]
    split = sum(m.get("split") == "insert" for m in ticdc)
    assert {int(m["commit_ts"]) for m in ticdc} == {ts for _, ts in delivered}
    assert len(ticdc) - split >= len(rows) - split


@pytest.mark.parametrize("fmt", ["ndjson", "canal-json"])
@pytest.mark.parametrize("limit", [397, 2500, 10_000])
def test_pages_of_any_size_make_the_single_page(world: ApiWorld, fmt: str, limit: int) -> None:
    whole = world.ok(format=fmt, limit=200_000)
    assert not has_more(whole)
    pages = list(world.pages(format=fmt, limit=limit))
    assert len(pages) >= 9_000 / limit, "one transaction has some thousand rows, and they come on one page"
    assert b"".join(p.content for p in pages) == whole.content
    assert next_cursor(pages[-1]) == next_cursor(whole) == position.encode_cursor(Scope(tenant=TENANT), END)


def test_commit_timestamps_never_fall_and_no_transaction_is_cut(world: ApiWorld) -> None:
    pages = [[int(e["commit_ts"]) for e in events_of(p) if "commit_ts" in e] for p in world.pages(limit=100)]
    flat = [ts for page in pages for ts in page]
    assert flat == sorted(flat)
    filled = [page for page in pages if page]
    assert all(a[-1] < b[0] for a, b in pairwise(filled))


def test_ddl_follows_rows_of_its_time_and_precedes_later_ones(world: ApiWorld) -> None:
    events = world.events(limit=700)
    kinds = [e["type"] for e in events]
    assert kinds.count("ddl") >= sum(m["kind"] == "ddl" for m in recording.expected("ticdc-canal-json"))
    for before, event in pairwise(events):
        if event["type"] not in ("ddl", "resolved") and before["type"] == "ddl":
            assert int(event["commit_ts"]) > int(before["commit_ts"])


@pytest.mark.parametrize("fmt", ["canal-json", "debezium", "open-protocol", "simple", "ndjson"])
def test_a_watermark_line_comes_once_all_is_sent(world: ApiWorld, fmt: str) -> None:
    options = {"enable-tidb-extension": "true"} if fmt in ("canal-json", "debezium") else {}
    pages = list(world.pages(format=fmt, limit=4000, **options))
    assert len(pages) > 2
    marks = [[line for line in p.content.split(b"\n") if _watermark(fmt, line) is not None] for p in pages]
    assert not any(marks[:-1])
    assert [_watermark(fmt, line) for line in marks[-1]] == [END]
    assert pages[-1].content.rstrip().endswith(marks[-1][0].rstrip()), "it is the last line"


def _watermark(fmt: str, line: bytes) -> int | None:
    if not line.strip():
        return None
    m = orjson.loads(line)
    match fmt:
        case "canal-json":
            return int(m["_tidb"]["watermarkTs"]) if m["type"] == "TIDB_WATERMARK" else None
        case "debezium":
            body = m["value"].get("payload", m["value"])
            return int(body["source"]["commit_ts"]) if body.get("op") == "m" else None
        case "open-protocol":
            return int(m["key"]["ts"]) if m["key"]["t"] == 3 else None
        case "simple":
            return int(m["commitTs"]) if m["type"] == "WATERMARK" else None
    return int(m["resolved_ts"]) if m["type"] == "resolved" else None


def test_csv_and_plain_canal_have_no_watermark(world: ApiWorld) -> None:
    assert b"WATERMARK" not in world.ok(format="canal-json", limit=200_000).content
    assert str(END).encode() not in world.ok(format="csv", limit=200_000).content


def test_end_ts_ends_the_pull_and_the_rest_follows_from_its_cursor(world: ApiWorld) -> None:
    middle = world.log.cuts(2)[0]
    first = list(world.pages(end_ts=middle, limit=3000, format="ndjson"))
    assert next_cursor(first[-1]) == position.encode_cursor(Scope(tenant=TENANT), middle)
    assert {resolved_ts(p) for p in first} == {END}, "the header says what is served, not where the pull ends"
    mark = events_of(first[-1])[-1]
    assert (mark["type"], mark["resolved_ts"]) == ("resolved", str(middle))
    assert datetime.fromisoformat(mark["resolved_time"]).timestamp() == (middle >> 18) / 1000
    again = world.ok(cursor=next_cursor(first[-1]), end_ts=middle, wait=20)
    assert not has_more(again)
    rest = world.pages(cursor=next_cursor(first[-1]), limit=200_000, format="ndjson")
    both = [e for p in [*first, *rest] for e in events_of(p) if e["type"] != "resolved"]
    assert both == [e for e in world.events() if e["type"] != "resolved"]


def test_a_start_in_the_middle_gives_what_lies_above_it(world: ApiWorld) -> None:
    middle = world.log.cuts(2)[0]
    want = [e for e in world.events() if int(e.get("commit_ts", END)) > middle]
    assert world.events(start_ts=middle) == want
    dashed = world.get("/changes", start__ts=middle, format="ndjson", limit=200_000)
    assert events_of(dashed) == want


def test_json_pages_hold_the_same_events(world: ApiWorld) -> None:
    items, at = [], {"start_ts": "earliest"}
    while True:
        answer = world.ok(format="json", limit=5000, **at)
        page = orjson.loads(answer.content)
        items += page["items"]
        assert (page["next_cursor"], page["has_more"]) == (next_cursor(answer), has_more(answer))
        assert (page["resolved_ts"], page["quarantined"]) == (str(END), 0)
        assert 1 <= page["lag_s"] <= 1.001
        if not page["has_more"]:
            break
        at = {"cursor": page["next_cursor"]}
    assert items == [e for e in world.events() if e["type"] != "resolved"]
    assert datetime.fromisoformat(page["resolved_time"]).timestamp() == (END >> 18) / 1000


def test_an_empty_json_page_says_how_late_it_is(world: ApiWorld) -> None:
    page = world.ok(start_ts="latest").json()
    assert page["items"] == []
    assert 1 <= page["lag_s"] <= 1.001
    assert page["next_cursor"] == position.encode_cursor(Scope(tenant=TENANT), END)


def test_the_link_leads_to_the_next_page(world: ApiWorld) -> None:
    first = world.ok(format="ndjson", limit=1000)
    link = first.headers["Link"]
    assert link.endswith('>; rel="next"')
    assert first.headers["Vary"] == "Accept, Accept-Encoding"
    followed = world.http.get(link[1:].partition(">")[0])
    assert followed.content == world.ok(format="ndjson", limit=1000, cursor=next_cursor(first)).content


@pytest.mark.parametrize("form", ["arrow", "raw-arrow"])
def test_the_arrow_form_of_a_tenant_holds_the_rows_of_the_log(world: ApiWorld, form: str) -> None:
    table = pa.concat_tables([arrow_of(p) for p in world.pages(format=form, limit=2000)])
    log, history = recording.changed_rows(), recording.recorded_history()
    tables = [
        history.table_at(table_id, commit_ts - 1)
        for table_id, commit_ts in zip(log["table_id"].to_pylist(), log["commit_ts"].to_pylist(), strict=True)
    ]
    assert table.drop_columns(["database", "table"]).equals(log.filter(pa.array([t is not None for t in tables])))
    assert table.schema.field("commit_ts") == change.COMMITTED.field("commit_ts")
    names = zip(table["database"].to_pylist(), table["table"].to_pylist(), strict=True)
    assert list(names) == [(t.db, t.name) for t in tables if t is not None]


def test_the_arrow_form_of_a_table_holds_its_changes(world: ApiWorld) -> None:
    """Pages end where the columns change; together they are the changes that ndjson shows."""
    path = "/databases/shop/tables/customers/changes"
    pages = list(world.pages(path, format="arrow"))
    assert all(has_more(page) for page in pages[:-1])
    tables = [arrow_of(page) for page in pages]
    shown = [event for event in world.events(path) if event["type"] in ("insert", "update", "delete")]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(r["_op"], str(r["_commit_ts"]), r["_key"].hex(), r["_table_id"]) for r in rows] == [
        (e["type"], e["commit_ts"], e["key"], e["table_id"]) for e in shown
    ]
    for row, event in zip(rows, shown, strict=True):
        names = [name for name in row if not name.startswith("_")]
        assert names == list(event["columns"] or event["old"])
        assert (row["_old"] is None) == (event["old"] is None)
    assert all(a.schema != b.schema for a, b in pairwise(tables))
    raw = [arrow_of(p) for p in world.pages(path, format="raw-arrow")]
    assert sum(table.num_rows for table in raw) >= len(rows)
    assert raw[0].column_names[:2] == ["database", "table"]


@pytest.mark.parametrize("what", ["shop.customers", "*"])
def test_the_arrow_file_of_a_command_holds_all_rows(world: ApiWorld, tmp_path: Path, what: str) -> None:
    """DDL of `customers` adds a column and makes a text of a number; several tables come undecoded."""
    scope = "".join(f"/{kind}/{name}" for kind, name in zip(("databases", "tables"), what.split("."), strict=False))
    path = f"{scope if what != '*' else ''}/changes"
    file = tmp_path / "changes.arrows"
    command: list[str | Path] = [Path(sys.executable).with_name("tistream"), "pull", what]
    command += ["--since", "earliest", "--format", "arrow"]
    with served(create_app(world.services)) as server, file.open("wb") as out:
        subprocess.run([*command, "--url", server.url], stdout=out, check=True)
    pages = [arrow_of(page) for page in world.pages(path, format="arrow")]
    assert len(pages) > 1
    with file.open("rb") as stored:
        read = pa.ipc.open_stream(stored).read_all()
        assert not stored.read(), "one stream is the whole file"
    key = "_key" if what == "shop.customers" else "key"
    assert read[key].to_pylist() == [each for page in pages for each in page[key].to_pylist()]
    assert set(read.column_names) == {name for page in pages for name in page.column_names}


@pytest.mark.parametrize("protocol", ["canal-json", "debezium"])
def test_the_comparing_example_finds_every_difference_to_ticdc(world: ApiWorld, tmp_path: Path, protocol: str) -> None:
    """TiCDC's own messages; its debezium encoder fails on some and has other NULLs (docs/formats/messages.md)."""
    recorded = recording.expected("ticdc-canal-json-tidb" if protocol == "canal-json" else "ticdc-debezium")
    theirs = [message_text(e["msg"]) for e in recorded if e["kind"] in ("row", "ddl") and "error" not in e]
    if protocol == "debezium":  # a table whose columns have no default
        theirs = [line for line in theirs if json.loads(line)["payload"]["source"]["table"] == "acct"]
    more = [] if protocol == "canal-json" else ["--tables", "shop.acct"]
    file = tmp_path / "messages.ndjson"
    command = [sys.executable, str(EXAMPLES / "compare_messages.py"), str(file), "--protocol", protocol, *more]
    with served(create_app(world.services)) as server:

        def compared(lines: list[str]) -> tuple[int, list[str]]:
            file.write_text("\n".join(lines), "utf-8")
            done = subprocess.run([*command, "--url", server.url], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout.splitlines()

        status, differences = compared([*theirs, *theirs[10:20]])
        equal, missing, additional, repeated, _ = map(int, re.findall(r"\d+", differences.pop()))
        assert (status, differences, missing, additional) == (0, [], 0, 0)
        assert (equal + repeated, repeated >= 10) == (len(theirs) + 10, True)
        member = '"es":' if protocol == "canal-json" else '"op":"'
        changed = theirs[100].replace(member, member + "1")
        status, differences = compared([*theirs[:100], changed, *theirs[101:]])
        assert [line.split()[0] for line in differences] == ["missing", "additional", str(equal - 1)]
        assert status == 1


def test_an_arrow_page_at_the_end_has_the_columns_of_the_table(world: ApiWorld) -> None:
    path = "/databases/shop/tables/customers/changes"
    last = list(world.pages(path, format="arrow"))[-1]
    empty = arrow_of(world.ok(path, format="arrow", cursor=next_cursor(last)))
    assert empty.num_rows == 0
    assert {"_op", "_commit_ts", "_start_ts", "_key", "_table_id", "id", "_old"} <= set(empty.column_names)


def test_the_media_types_are_those_of_the_formats(world: ApiWorld) -> None:
    from apiserver.negotiate import FORMATS
    from reading.formats import FORMAT_NAMES, create_format

    assert set(FORMATS) == {*FORMAT_NAMES, "json", "arrow", "raw-arrow"}
    assert all(create_format(name).media_type == FORMATS[name] for name in FORMAT_NAMES)


def test_cursors_stay_valid_while_the_log_grows(fresh: ApiWorld) -> None:
    """Pages between flushes that leave the tasks at different timestamps; resolved_ts never falls."""
    fresh.log.activate()
    events: list[dict[str, object]] = []
    at: dict[str, Any] = {"start_ts": "earliest"}
    last = 0
    ids = [task.task_id for task in list_tasks(fresh.catalog, TENANT)]
    for n, ts in enumerate([*fresh.log.cuts(12), END]):
        fresh.log.flush(ts, task_ids={ids[n % len(ids)], ids[(n + 1) % len(ids)]})
        answer = fresh.ok(format="ndjson", limit=500, **at)
        assert resolved_ts(answer) >= last
        last = resolved_ts(answer)
        events += events_of(answer)
        at = {"cursor": next_cursor(answer)}
    fresh.log.flush(END)
    for page in fresh.pages(format="ndjson", limit=500, **at):
        events += events_of(page)
    whole = [e for e in fresh.events() if e["type"] != "resolved"]
    marks = [int(str(e["resolved_ts"])) for e in events if e["type"] == "resolved"]
    assert [e for e in events if e["type"] != "resolved"] == whole
    assert marks == sorted(marks)
    assert marks[-1] == END
    seen = 0
    for event in events:
        if event["type"] == "resolved":
            seen = int(str(event["resolved_ts"]))
        else:
            assert int(str(event["commit_ts"])) > seen, "nothing below a watermark that was announced"


def test_readers_beside_a_writer_lose_and_repeat_nothing(fresh: ApiWorld) -> None:
    """Several readers follow while tasks are flushed one after another; each gets the whole, once, in order."""
    fresh.log.activate()
    ids = [task.task_id for task in list_tasks(fresh.catalog, TENANT)]

    def write() -> None:
        for ts in [*fresh.log.cuts(8), END]:
            for task_id in ids:
                fresh.log.flush(ts, task_ids={task_id})

    def read(limit: int) -> list[bytes]:
        lines: list[bytes] = []
        last, at = 0, {"start_ts": "earliest"}
        while True:
            answer = fresh.ok(format="ndjson", limit=limit, wait=10, **at)
            assert resolved_ts(answer) >= last
            last, at = resolved_ts(answer), {"cursor": next_cursor(answer)}
            lines += [line for line in answer.content.split(b"\n") if line and b'"type":"resolved"' not in line]
            if last == END and not has_more(answer):
                return lines

    with ThreadPoolExecutor(4) as pool:
        writer = pool.submit(write)
        readers = [pool.submit(read, limit) for limit in (300, 5000, 200_000)]
        writer.result(120)
        pulls = [reader.result(120) for reader in readers]
    whole = [line for line in fresh.ok(format="ndjson", limit=200_000).content.split(b"\n") if line][:-1]
    assert all(lines == whole for lines in pulls)
