"""The recording played into a history, against what TiDB and TiCDC said at the time."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from schemas.ddl import Job
from schemas.history import History
from schemas.ids import IdStatus
from schemas.model import Table
from schemas.types import base_type, full_type
from tests.kit.recording import EXPECTED, expected

MOMENTS = sorted(path.stem.removeprefix("tables-") for path in EXPECTED.glob("tables-*.json"))
COLUMN = re.compile(r"^  `((?:[^`]|``)+)` (.*?),?$")


def shown_columns(create: str) -> list[tuple[str, str]]:
    """(name, rest of the definition) of the column lines of SHOW CREATE TABLE."""
    matches = (COLUMN.match(line) for line in create.split("\n"))
    return [(m[1].replace("``", "`"), m[2]) for m in matches if m]


def all_columns(table: Table) -> list[Any]:
    return [c for c in table.columns if c.state == 5 and not c.hidden]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_tables_at_every_moment_are_those_that_tidb_showed(history: History, moment: str) -> None:
    shown_then = json.loads((EXPECTED / f"tables-{moment}.json").read_bytes())
    ts = int(shown_then["ts"])
    assert [(d.name, d.id, d.charset, d.collate) for d in history.databases(ts)] == sorted(
        (d["db"], d["db_id"], d["charset"], d["collate"]) for d in shown_then["databases"]
    )
    tables = {(t.db, t.name): t for db in history.databases(ts) for t in history.tables(db.name, ts)}
    shown_tables = {(t["db"], t["table"]): t for t in shown_then["tables"]}
    assert tables.keys() == shown_tables.keys()
    assert {t.id for t in tables.values()} == history.snapshot(ts).tables.keys()
    for name, entry in shown_tables.items():
        table = tables[name]
        assert (table.id, table.kind) == (entry["table_id"], entry["kind"]), name
        assert list(table.partition_ids) == entry.get("partition_ids", []), name
        assert history.find(name[0].upper(), name[1].upper(), ts) is table
        if table.kind != "table":
            continue
        shown = shown_columns(entry["create"])
        assert [column.name for column in all_columns(table)] == [column for column, _ in shown], name
        for column, (_, definition) in zip(all_columns(table), shown, strict=True):
            assert definition.startswith(full_type(column)), (name, column.name, definition, full_type(column))
        for physical_id in table.physical_ids:
            assert history.table_at(physical_id, ts) is table
            assert history.status_at(physical_id, ts) is IdStatus.LIVE


#: what takes effect before TiCDC says so
EARLIER = {
    "truncate partition", "drop partition", "alter table reorganize partition", "alter table partition by",
    "alter table remove partitioning",
}  # fmt: skip


def test_the_events_are_those_that_ticdc_gave(history: History) -> None:
    messages = [d for d in expected("ticdc-canal-json-tidb") if d["kind"] == "ddl"]
    events = history.events(history.start_ts, history.resolved_ts)
    assert [(e.finished_ts, e.db, e.table, e.kind, e.sub, e.job_query) for e in events] == [
        (int(d["commit_ts"]), d["db"], d["table"], d["type"], d["sub"], d["job_query"]) for d in messages
    ]
    places = [(e, int(d["commit_ts"]), int(d["start_ts"])) for e, d in zip(events, messages, strict=True)]
    assert {e.kind for e, *at in places if [e.commit_ts, e.start_ts] != at} == EARLIER
    assert [e.statement for e in events] == [d["query"] for d in messages]


def test_the_jobs_taken_in_are_those_that_ticdc_took(history: History, jobs: list[Job]) -> None:
    done = [json.loads(line) for line in (EXPECTED / "ddl-jobs-done.ndjson").read_text().splitlines()]
    finished = [job for job in jobs if job.state == 4]
    assert [(j.id, j.commit_ts, j.start_ts, j.schema_version, j.type, j.query) for j in finished] == [
        (d["job_id"], int(d["commit_ts"]), int(d["start_ts"]), d["schema_version"], d["type"], d["query"]) for d in done
    ]


def test_types_read_as_ticdc_writes_them(history: History) -> None:
    for name, text in (("ticdc-canal-json-tidb", base_type), ("ticdc-canal-json-compat", full_type)):
        seen = 0
        for line in expected(name):
            if line["kind"] != "row" or "error" in line:
                continue
            message = json.loads(line["msg"])
            table = history.table_at(line["table_id"], int(line["commit_ts"]) - 1)
            assert table is not None
            assert (table.db, table.name) == (line["db"], line["table"])
            expected_types = message["mysqlType"]
            assert {c.name: text(c) for c in table.visible_columns} == expected_types
            assert [c.name for c in table.visible_columns] == list(message["sqlType"])
            assert message["pkNames"] == [c.name for c in table.visible_columns if c.primary]
            seen += 1
        assert seen > 1000


def test_rows_that_ticdc_never_emitted_for_want_of_a_table_find_none(history: History) -> None:
    rows = list(expected("ticdc-not-emitted"))
    statuses = {
        row["why"]: history.status_at(row["table_id"], int(row["commit_ts"]) - 1)
        for row in rows
        if history.table_at(row["table_id"], int(row["commit_ts"]) - 1) is None
    }
    assert set(statuses.values()) == {IdStatus.COPY}


def test_versions_are_those_that_ticdc_numbers_rows_with(history: History) -> None:
    seen = 0
    for line in expected("ticdc-simple-json"):
        if line["kind"] != "row" or "error" in line:
            continue
        table = history.table_at(line["table_id"], int(line["commit_ts"]) - 1)
        assert table is not None
        assert table.update_ts == json.loads(line["msg"])["schemaVersion"], line
        seen += 1
    assert seen > 1000
