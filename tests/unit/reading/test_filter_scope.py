"""What a filter means for the tables, columns and DDL of a schema history: that of the recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reading.filters import parse_filter, select_rows
from reading.rows.scope import Scope, check_names, concerns
from schemas.actions import Action
from schemas.model import DdlEvent
from tests.kit.column_run import ColumnRun, Ddl, TableRun
from tests.kit.log_builder import with_broken_value
from tests.kit.recording import committed_rows, recorded_history
from tests.kit.schema_models import a_table, an_event
from tests.kit.tidb_columns import Default, Type, column_info
from tistream.errors import FilterInvalid
from tistream.ids import Tenant

ALL = Scope(tenant=Tenant(1, 1))
HISTORY = recorded_history()
START, END = HISTORY.start_ts, HISTORY.resolved_ts


def event(type_: int, table: str = "orders", **more: Any) -> DdlEvent:
    return an_event(type=type_, db="shop", table=table, **more)


def names_of(ids: set[int]) -> set[tuple[str, str]]:
    return {(t.db, t.name) for i in ids for t in HISTORY.version_intervals(i).versions if t is not None}


@pytest.mark.parametrize("rules", ["shop.*", "*.*,!shop.*", "shop.customers", "/./.t*", "nowhere.*"])
@pytest.mark.parametrize("scope", [ALL, Scope(tenant=ALL.tenant, database="shop")])
def test_the_ids_that_are_read_hold_all_rows_that_pass(rules: str, scope: Scope) -> None:
    chosen, rows = parse_filter({"tables": rules}), committed_rows()
    ids = chosen.table_ids(HISTORY, scope, START, END)
    assert ids is not None
    selected = select_rows(chosen, HISTORY, rows, scope).rows
    assert set(selected["table_id"].to_pylist()) <= set(ids)
    every = {
        (t.db, t.name) for i in set(rows["table_id"].to_pylist()) for t in HISTORY.version_intervals(i).versions if t
    }
    inside = {n for n in every if chosen.tables is not None and chosen.tables.matches(*n)}
    if scope is ALL:
        assert inside == {n for n in every & names_of(set(ids)) if n in inside}
        assert (selected.num_rows > 0) == bool(inside)


def test_columns_of_the_key_stay_and_indexes_over_others_go() -> None:
    table = HISTORY.find("shop", "customers", START)
    keys = {c.name for c in table.visible_columns if c.primary}
    chosen = parse_filter({"columns": "nothing"})
    shown = chosen.shown(table)
    assert {c.name for c in shown.visible_columns} == keys
    assert chosen.shown(table) is shown, "layouts are kept by object"
    offsets = {c.offset for c in shown.columns}
    assert all(c.offset in offsets for i in shown.indexes for c in i.columns)


@pytest.mark.parametrize(
    ("given", "ddl", "passes"),
    [
        ({}, event(5), True),
        ({"ops": "insert,update"}, event(5), False),
        ({"ops": "ddl"}, event(5), True),
        ({"tables": "shop.*"}, event(5), True),
        ({"tables": "shop.customers"}, event(5), False),
        ({"tables": "shop.old"}, event(14, table="new", old_db="shop", old_table="old"), True),
        ({"tables": "shop.*"}, event(1, table=""), True),
        ({"tables": "*.*,!shop.*"}, event(2, table=""), False),
        ({"event_filters": '[{"matcher":["shop.*"],"ignore-event":["all ddl"]}]'}, event(5), False),
        ({"event_filters": '[{"matcher":["x.*"],"ignore-event":["all ddl"]}]'}, event(5), True),
        ({"event_filters": '[{"matcher":["shop.*"],"ignore-event":["alter table"]}]'}, event(7), False),
        ({"event_filters": '[{"matcher":["shop.*"],"ignore-event":["alter table"]}]'}, event(4), True),
        ({"event_filters": '[{"matcher":["shop.*"],"ignore-event":["drop database"]}]'}, event(2, table=""), False),
        (
            {"event_filters": '[{"matcher":["shop.*"],"ignore-sql":["^drop","add column"]}]'},
            event(4, query="DROP TABLE x"),
            False,
        ),
        (
            {"event_filters": '[{"matcher":["shop.*"],"ignore-sql":["^drop"]}]'},
            event(5, query="ALTER TABLE t DROP c"),
            True,
        ),
    ],
)
def test_which_ddl_passes(given: dict[str, str], ddl: DdlEvent, passes: bool) -> None:
    assert bool(parse_filter(given).keeps_ddl([ddl])) is passes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"where": "nmae = 'x'"}, ["where: there is no column 'nmae'", "character 0", "Did you mean name?"]),
        ({"columns": "id, nmae"}, ["columns:", "character 4", "Did you mean name?"]),
        ({"changed": "nmae"}, ["changed:", "character 0", "Did you mean name?"]),
        ({"tables": "*.*,shop.custmers"}, ["tables:", "character 4", "there is no table 'custmers'", "customers"]),
        ({"event_filters": '[{"matcher":["*.*"],"ignore-delete-value-expr":"nmae=1"}]'}, ["ignore-delete-value-expr:"]),
    ],
)
def test_a_name_that_does_not_exist_is_refused(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(FilterInvalid) as refused:
        parse_filter({"tables": "shop.customers"} | given).check_names(HISTORY, ALL, START, END)
    for word in words:
        assert word in refused.value.message


def test_names_that_exist_at_either_time_are_accepted() -> None:
    parse_filter({"tables": "shop.customers", "where": "NAME = 'x'", "columns": "id"}).check_names(
        HISTORY, ALL, START, END
    )
    parse_filter({"where": "id = 1"}).check_names(HISTORY, ALL, START, END)


def test_names_that_exist_only_inside_the_interval_are_accepted() -> None:
    """Tables and columns that are made after its begin and gone before its end; outside of their life they are
    refused."""
    at_ends = {
        (d.name, t.name) for ts in (START, END) for d in HISTORY.databases(ts) for t in HISTORY.tables(d.name, ts)
    }
    added = [e for e in HISTORY.events(START, END) if e.type == Action.CREATE_TABLE and (e.db, e.table) not in at_ends]
    assert added
    for ddl in added:
        name = f"{ddl.db}.{ddl.table}"
        dropped_ts = next(
            e.commit_ts
            for e in HISTORY.events(ddl.commit_ts, END)
            if HISTORY.named(ddl.db, ddl.table, e.commit_ts) is None
        )
        parse_filter({"tables": name}).check_names(HISTORY, ALL, START, END)
        table = HISTORY.find(ddl.db, ddl.table, ddl.commit_ts)
        for each in (ALL, Scope(tenant=ALL.tenant, database=ddl.db, table=ddl.table)):
            where = f"`{table.visible_columns[0].name}` IS NULL"
            parse_filter({"where": where, "tables": name}).check_names(HISTORY, each, START, END)
            check_names(HISTORY, each, START, END)
        for after, upto in ((START, ddl.commit_ts - 1), (dropped_ts, dropped_ts)):
            with pytest.raises(FilterInvalid):
                parse_filter({"tables": name}).check_names(HISTORY, ALL, after, upto)


@pytest.mark.parametrize("given", [{"where": "mid IS NULL"}, {"columns": "mid"}, {"changed": "id,MID"}])
@pytest.mark.parametrize("scope", [ALL, Scope(tenant=ALL.tenant, database="d", table="t")])
def test_a_column_that_exists_only_inside_the_interval_is_accepted(given: dict[str, str], scope: Scope) -> None:
    mid = column_info(Type(sql="INT", tp=3, zero=Default(text="0", value=0, shown=0), defaults=()), 2, "mid", 1)
    steps = [Ddl(commit_ts=200, type=5, columns=(mid,)), Ddl(commit_ts=300, type=6, columns=())]
    history = ColumnRun([TableRun(name="t", ddls=steps)]).history
    for after, upto in ((100, 400), (200, 400), (100, 200), (250, 260), (299, 299)):
        parse_filter(given).check_names(history, scope, after, upto)
    for after, upto in ((100, 199), (300, 400), (150, 150)):
        with pytest.raises(FilterInvalid, match=r"there is no column '(mid|MID)'"):
            parse_filter(given).check_names(history, scope, after, upto)


def test_a_row_that_cannot_be_asked_is_reported() -> None:
    rows = committed_rows()
    chosen = parse_filter({"tables": "shop.customers", "where": "id > 0 AND name IS NOT NULL"})
    passing = select_rows(chosen, HISTORY, rows, ALL)
    assert passing.rows.num_rows > 10
    assert not passing.quarantined
    keys = rows["key"].to_pylist(), rows["commit_ts"].to_pylist()
    puts = passing.rows.filter(passing.rows["value"].is_valid())
    key, ts = puts["key"][3].as_py(), puts["commit_ts"][3].as_py()
    at = next(n for n, pair in enumerate(zip(*keys, strict=True)) if pair == (key, ts))
    hurt = select_rows(chosen, HISTORY, with_broken_value(rows, at), ALL)
    assert [(q.key, q.commit_ts) for q in hurt.quarantined] == [(key, ts)]
    assert hurt.rows.num_rows == passing.rows.num_rows - 1


T = Tenant(1, 1)
EVENT = an_event(db="Shop", table="Orders")
RENAME = replace(EVENT, type=Action.RENAME_TABLE, db="arch", table="kept", old_db="shop", old_table="orders")
EXCHANGE = replace(
    EVENT,
    type=Action.EXCHANGE_PARTITION,
    table="swap",
    version=a_table(db="shop", name="parted"),
    exchanged=a_table(db="shop", name="swap"),
)
DROP_DB = replace(EVENT, type=Action.DROP_SCHEMA, table="")
CREATE_DB = replace(EVENT, type=Action.CREATE_SCHEMA, table="")


@pytest.mark.parametrize(
    ("event", "database", "name", "expected"),
    [
        (EVENT, None, None, True),
        (EVENT, "SHOP", None, True),
        (EVENT, "shop", "orders", True),
        (EVENT, "shop", "other", False),
        (EVENT, "arch", None, False),
        (EVENT, "arch", "orders", False),
        (RENAME, "shop", "orders", True),
        (RENAME, "arch", "kept", True),
        (RENAME, "arch", "orders", False),
        (RENAME, "shop", None, True),
        (RENAME, "arch", None, True),
        (EXCHANGE, "shop", "swap", True),
        (EXCHANGE, "shop", "parted", True),
        (EXCHANGE, "shop", "third", False),
        (DROP_DB, "shop", None, True),
        (DROP_DB, "shop", "orders", True),
        (DROP_DB, "arch", "orders", False),
        (CREATE_DB, "shop", None, True),
        (CREATE_DB, "shop", "orders", False),
    ],
)
def test_scope_of_ddl(event: DdlEvent, database: str | None, name: str | None, expected: bool) -> None:
    assert concerns(event, Scope(tenant=T, database=database, table=name)) is expected
