"""Columns as of a timestamp over HTTP: virtual ones, chosen ones, and those whose rewritten rows are unknown."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from reading.asof.core import columns
from reading.asof.core.projection import LeftOut
from reading.asof.output import left_out_headers
from schemas.reseeding import wanted_seeds
from schemas.shape import shape_of
from tests.kit import replica
from tests.kit.api_world import ApiWorld, api_world, arrow_of, events_of
from tests.kit.column_run import doubted
from tests.kit.log_builder import TENANT
from tests.kit.recording import EXPECTED, expected, recorded_history, recorded_steps, replayed
from tistream import ts as tso
from tistream.catalog.log.seeds import list_seeds
from tistream.cli.seed import read_decoded

MOMENTS = {moment.label: moment for moment in replica.moments(EXPECTED)}
END = MOMENTS["end"]
INT = 3  # of MySQL's types
VIRTUAL = re.compile(r"`(\w+)` [^\n]* GENERATED ALWAYS AS \((.*)\) VIRTUAL")
GEN, EVOLVE = "/databases/shop/tables/t_gen/rows", "/databases/shop/tables/evolve/rows"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("columns")) as new_world:
        new_world.log.build(3).seed()
        yield new_world


def virtual_columns(name: str) -> list[tuple[str, str]]:
    """(column, expression) of the virtual generated columns, as TiDB shows them."""
    (create,) = (t["create"] for t in END.tables if (t["db"], t["table"]) == ("shop", name))
    return VIRTUAL.findall(create)


def told(text: str | bytes) -> list[tuple[str, str]]:
    columns_left_out = json.loads(text)
    assert {each["reason"] for each in columns_left_out} == {"virtual generated column"}
    return [(each["column"], each["expression"]) for each in columns_left_out]


def test_virtual_columns_are_left_out_and_that_is_said(world: ApiWorld) -> None:
    virtual = virtual_columns("t_gen")
    assert [name for name, _ in virtual] == ["vv", "jv"]
    for form in ("ndjson", "csv", "sql", "arrow", "parquet"):
        assert told(world.ok(GEN, format=form).headers["TiStream-Left-Out"]) == virtual
    (names,) = {tuple(line["columns"]) for line in events_of(world.ok(GEN))}
    assert names == ("id", "a", "b", "sv", "c", "tail")
    arrow = arrow_of(world.ok(GEN, format="arrow"))
    parquet = pq.read_table(io.BytesIO(world.ok(GEN, format="parquet").content))
    file = pq.read_table(io.BytesIO(world.ok(f"{GEN}/{END.ts}.parquet").content))
    for table in (arrow, parquet, file):
        assert tuple(table.schema.names) == names
        assert told(table.schema.metadata[b"tistream.left_out"]) == virtual


def test_a_header_has_as_many_columns_as_clients_take() -> None:
    """Clients refuse long headers: columns that do not fit are counted in another header."""
    missing = [("shop.t", LeftOut(f"virtual_{n}", "json_extract(`doc`,_utf8mb4'$.a')")) for n in range(600)]
    headers = left_out_headers(missing)
    listed = json.loads(headers["TiStream-Left-Out"])
    assert sum(map(len, headers.values())) < 5000
    assert [each["column"] for each in listed] == [column.column for _, column in missing[: len(listed)]]
    assert len(listed) + int(headers["TiStream-Left-Out-More"]) == 600
    assert set(left_out_headers(missing[:3])) == {"TiStream-Left-Out"}
    assert left_out_headers([]) == {}


def test_a_table_without_virtual_columns_leaves_nothing_out(world: ApiWorld) -> None:
    assert virtual_columns("acct") == []
    answer = world.ok("/databases/shop/tables/acct/rows", format="arrow")
    assert "TiStream-Left-Out" not in answer.headers
    assert arrow_of(answer).schema.metadata is None


@pytest.mark.parametrize("column", ["vv", "VV,id", "`jv`, a"])
def test_a_virtual_column_asked_for_by_name_is_refused_with_its_expression(world: ApiWorld, column: str) -> None:
    answer = world.get(GEN, columns=column)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "TS-1019")
    assert (problem["facts"]["column"], problem["facts"]["expression"]) in virtual_columns("t_gen")
    assert problem["facts"]["column"] in column.lower()
    assert problem["facts"]["expression"] in problem["detail"]


def test_chosen_columns_have_the_values_of_the_whole_row(world: ApiWorld) -> None:
    whole = [line["columns"] for line in events_of(world.ok(GEN))]
    answer = world.ok(GEN, columns="SV , `a`")
    assert [line["columns"] for line in events_of(answer)] == [{"a": row["a"], "sv": row["sv"]} for row in whole]
    assert "TiStream-Left-Out" not in answer.headers, "nothing is missing that was asked for"
    arrow = arrow_of(world.ok(GEN, format="arrow", columns="a,sv"))
    parquet = pq.read_table(io.BytesIO(world.ok(GEN, format="parquet", columns="a,sv").content))
    assert arrow.to_pylist() == parquet.to_pylist() == [{"a": row["a"], "sv": row["sv"]} for row in whole]
    records = world.ok(GEN, format="csv", columns="a,sv").content.split(b"\r\n")
    assert (records[0], len(records)) == (b'"a","sv"', len(whole) + 2)
    assert b"INSERT INTO `shop`.`t_gen` (`a`,`sv`) VALUES\n" in world.ok(GEN, format="sql", columns="a,sv").content


def test_every_column_alone_is_that_of_the_whole_row(world: ApiWorld) -> None:
    """Keys of every kind, partitions and rewritten columns: what is not shown is still needed to read what is."""
    for db, name in [("shop", "k_comp"), ("shop", "k_u64"), ("shop", "p_range"), ("shop", "order"), ("shop", "evolve")]:
        path = f"/databases/{db}/tables/{name}/rows"
        whole = [line["columns"] for line in events_of(world.ok(path))]
        assert whole
        for column in whole[0]:
            quoted = "`" + column.replace("`", "``") + "`"
            rows = [line["columns"] for line in events_of(world.ok(path, columns=quoted))]
            assert rows == [{column: row[column]} for row in whole], (name, column)


def test_rows_that_pass_are_those_that_an_expression_over_the_whole_row_chooses(world: ApiWorld) -> None:
    path = "/databases/shop/tables/acct/rows"
    whole = [line["columns"] for line in events_of(world.ok(path))]
    chosen = [row for row in whole if 2 <= row["id"] <= 40 and row["owner"] is not None]
    assert 0 < len(chosen) < len(whole)
    where = "id BETWEEN 2 AND 40 AND owner IS NOT NULL"
    assert [line["columns"] for line in events_of(world.ok(path, where=where))] == chosen
    other = world.ok(path, where=where, columns="ver")
    assert [line["columns"] for line in events_of(other)] == [{"ver": row["ver"]} for row in chosen]
    arrow = arrow_of(world.ok(path, where=where, columns="owner", format="arrow"))
    assert arrow.to_pylist() == [{"owner": row["owner"]} for row in chosen]
    assert arrow_of(world.ok(path, where="id < 0", format="arrow")).num_rows == 0
    assert world.ok(path, where="id < 0").content == b""


@pytest.mark.parametrize("where", ["idd < 5", "id <", "", "vv = 1"])
def test_an_expression_that_cannot_be_asked_is_refused(world: ApiWorld, where: str) -> None:
    answer = world.get(GEN, where=where, columns="id")
    assert (answer.status_code, answer.json()["code"]) == (400, "TS-1018")


@pytest.mark.parametrize(("selection", "status"), [("nope", 404), ("", 400), ("a,", 400), ("`a", 400), ("a`b", 400)])
def test_columns_that_are_not_there_and_lists_that_are_none(world: ApiWorld, selection: str, status: int) -> None:
    assert world.get(GEN, columns=selection).status_code == status


def test_an_unknown_column_is_answered_with_a_known_one(world: ApiWorld) -> None:
    assert world.get(GEN, columns="taill").json()["facts"]["did_you_mean"] == ["tail"]


# ---- MODIFY COLUMN whose result is not known


def refused(world: ApiWorld, path: str, ts: int) -> dict[str, Any]:
    answer = world.get(path, as_of=ts)
    assert (answer.status_code, answer.json()["code"]) == (409, "TS-1012"), answer.text
    facts: dict[str, Any] = answer.json()["facts"]
    assert facts["ddl"] in answer.json()["detail"]
    assert facts["ddl_time"] in answer.json()["detail"]
    return facts


def public_from(table: str, column: str, tp: int) -> int:
    """The commit_ts of the first recorded definition in which the column is public and has this type."""
    for step in recorded_steps():
        for info in (json.loads(d.info) for d in step.definitions if d.table_id and d.info):
            shown = {c["name"]["O"]: c["type"]["Tp"] for c in info.get("cols") or () if c["state"] == 5}
            if info["name"]["O"] == table and shown.get(column) == tp:
                return step.commit_ts
    raise AssertionError("there is no such definition")


def test_a_refused_conversion_names_its_ddl_and_what_can_be_read(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`b` was a VARCHAR until `modify column b int`: for reads until the first public definition with the INT."""
    ddls = [e for e in expected("ticdc-canal-json-tidb") if e["kind"] == "ddl" and e["table"] == "evolve"]
    (ddl,) = (e for e in ddls if "modify column b int" in e["job_query"])
    public_ts = public_from("evolve", "b", INT)
    assert public_ts < int(ddl["commit_ts"])
    before = events_of(world.ok(EVOLVE, as_of=public_ts - 1, columns="b"))
    assert before
    monkeypatch.setattr(columns, "cast", doubted)
    facts = refused(world, EVOLVE, int(ddl["commit_ts"]))
    assert {facts.pop(name) is not None for name in ("key", "commit_ts", "table_id")} == {True}
    assert facts == {
        "database": "shop",
        "table": "evolve",
        "column": "b",
        "ddl": ddl["job_query"],
        "ddl_ts": str(public_ts),
        "ddl_time": tso.to_text(public_ts),
        "readable_upto_ts": str(public_ts - 1),
        "readable_upto_time": tso.to_text(public_ts - 1),
        "readable_from_ts": None,
        "readable_from_time": None,
    }
    assert events_of(world.ok(EVOLVE, as_of=facts["readable_upto_ts"], columns="b")) == before
    refused(world, EVOLVE, public_ts)
    refused(world, EVOLVE + "?columns=b", MOMENTS["m-ddl"].ts)
    assert world.ok(EVOLVE, as_of=ddl["commit_ts"], columns="id").content, "without the column the rows are known"


def test_it_names_the_seed_from_which_the_table_can_be_read_again(
    fresh: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.log.activate().seed()
    fresh.log.flush(END.ts)
    middle, later = MOMENTS["m-ddl"].ts, MOMENTS["m-ddl2"].ts
    table = recorded_history().find("shop", "evolve", later)
    fresh.log.seed(replayed(table.id, later), ts=later, table_id=table.id)
    monkeypatch.setattr(columns, "cast", doubted)
    facts = refused(fresh, EVOLVE, middle)
    assert (facts["readable_from_ts"], facts["readable_from_time"]) == (str(later), tso.to_text(later))


def test_the_seed_that_is_wanted_makes_the_table_readable_right_above_the_ddl(
    fresh: ApiWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the cluster would answer a snapshot read there: every row has the new column."""
    fresh.log.activate().seed()
    fresh.log.flush(END.ts)
    history = recorded_history()
    seed_of = {each.table.name: each for each in wanted_seeds(history, list_seeds(fresh.catalog, TENANT))}
    evolve = seed_of["evolve"]
    read = evolve.reads[0]
    right = fresh.ok(EVOLVE, as_of=read.ts).content
    rewritten = tmp_path / "evolve.ndjson"
    rewritten.write_bytes(right)
    monkeypatch.setattr(columns, "cast", doubted)
    refused(fresh, EVOLVE, read.ts)
    rows = read_decoded(rewritten, read.ts, shape_of(history.find("shop", "evolve", read.ts)))
    fresh.log.seed(rows, ts=read.ts, table_id=evolve.table.id)
    assert "evolve" not in {each.table.name for each in wanted_seeds(history, list_seeds(fresh.catalog, TENANT))}
    assert fresh.ok(EVOLVE, as_of=read.ts).content == right
    refused(fresh, EVOLVE, read.ts - 1)


def test_a_time_before_the_log_is_answered_with_the_time_at_which_it_begins(world: ApiWorld) -> None:
    start = world.log.start_ts
    for what in ("rows", "definition"):
        answer = world.get(f"/databases/shop/tables/acct/{what}", as_of="-15d")
        assert (answer.status_code, answer.json()["code"]) == (410, "TS-1005")
        assert f"begins at {tso.to_text(start)} (TSO {start})" in answer.json()["detail"]
        assert answer.json()["facts"]["earliest_time"] == tso.to_text(start)
