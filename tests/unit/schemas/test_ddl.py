"""Jobs that the recording does not hold: several tables at once, older argument forms, newer action types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas import ddl
from schemas.ddl import Job
from schemas.history import History
from schemas.ids import IdStatus
from schemas.limited import LimitedHistory, Within
from tests.kit.schema_jobs import info, job, name, rename_args, shop_history
from tistream.errors import DecodeError, UpstreamContractViolated

START = 100


@pytest.fixture
def history() -> History:
    return shop_history(START)


def names_at(history: History, ts: int) -> dict[int, str]:
    history.advance(ts)
    return {t.id: f"{t.db}.{t.name}" for t in history.snapshot(ts).tables.values()}


def test_create_tables_gives_one_statement_and_one_event_per_table(history: History) -> None:
    query = "create table A (s int default ';'); create table `b;` (id int);"
    infos = [info(30, "A"), info(31, "b;")]
    events = history.apply(job(60, 110, query=query, binlog={"MultipleTableInfos": infos}))
    assert [(e.table, e.sub, e.query, e.table_id) for e in events] == [
        ("A", 0, "create table A (s int default ';')", 30),
        ("b;", 1, "create table `b;` (id int)", 31),
    ]
    assert names_at(history, 110).keys() == {10, 20, 30, 31}


def test_create_tables_keeps_the_whole_text_when_it_cannot_be_matched(history: History) -> None:
    infos = [info(30, "A"), info(31, "B")]
    events = history.apply(job(60, 110, query="create table a (x int)", binlog={"MultipleTableInfos": infos}))
    assert [e.query for e in events] == ["create table a (x int)"] * 2


@pytest.mark.parametrize("form", ["object", "array"])
def test_rename_tables_across_databases_in_both_argument_forms(history: History, form: str) -> None:
    args = rename_args((10, 1, "Orders", 2, "Tmp"), (20, 1, "Parts", 1, "Orders"), form=form)
    infos = [info(10, "Tmp"), info(20, "Orders", (21, 22))]
    events = history.apply(job(47, 110, raw_args=args, binlog={"MultipleTableInfos": infos}))
    assert [(e.db, e.table, e.old_db, e.old_table, e.query) for e in events] == [
        ("Store", "Tmp", "Shop", "Orders", "RENAME TABLE `Shop`.`Orders` TO `Store`.`Tmp`;"),
        ("Shop", "Orders", "Shop", "Parts", "RENAME TABLE `Shop`.`Parts` TO `Shop`.`Orders`;"),
    ]
    assert names_at(history, 120) == {10: "Store.Tmp", 20: "Shop.Orders"}
    assert history.physical_ids("shop", "ORDERS", START, 105) == {10}
    assert history.physical_ids("shop", "orders", START, 120) == {10, 21, 22}
    assert history.physical_ids("shop", "orders", 110, 120) == {21, 22}
    assert history.physical_ids("shop", "parts", 110, 120) == set()
    assert history.physical_ids("shop", None, START, 120) == {10, 21, 22}


def test_rename_tables_without_its_arguments_is_refused(history: History) -> None:
    with pytest.raises(DecodeError):
        history.apply(job(47, 110, raw_args=None, binlog={"MultipleTableInfos": [info(10, "Tmp")]}))
    assert names_at(history, 120) == {10: "Shop.Orders", 20: "Shop.Parts"}


def test_exchange_partition_swaps_two_ids(history: History) -> None:
    (event,) = history.apply(job(42, 110, table_id=10, binlog={"TableInfo": info(20, "Parts", (10, 22))}))
    assert (event.table, event.table_id, event.version.name, event.exchanged.id) == ("Orders", 10, "Parts", 10)  # type: ignore[union-attr]
    history.advance(120)
    owners = {i: history.table_at(i, 110) for i in (10, 21, 22)}
    assert {i: t and t.name for i, t in owners.items()} == {10: "Parts", 21: "Orders", 22: "Parts"}
    assert history.table_at(10, 109).name == "Orders"  # type: ignore[union-attr]
    assert history.find("shop", "orders", 110).physical_ids == (21,)


def test_truncate_retires_ids_and_names_live_on(history: History) -> None:
    (event,) = history.apply(job(11, 110, table_id=20, binlog={"TableInfo": info(40, "Parts", (41, 42))}))
    assert (event.query, event.job_query) == ("TRUNCATE TABLE `Shop`.`Parts`", "the user's text")
    history.advance(120)
    statuses = [history.status_at(i, ts) for i in (21, 41, 99) for ts in (109, 110)]
    live, retired, unnamed = IdStatus.LIVE, IdStatus.RETIRED, IdStatus.UNNAMED
    assert statuses == [live, retired, unnamed, live, unnamed, unnamed]
    assert history.physical_ids("shop", "parts", START, 120) == {21, 22, 41, 42}


def test_dropping_a_database_drops_its_tables_and_flashback_brings_them_back(history: History) -> None:
    dropped = {"DBInfo": {"id": 1, "db_name": name("Shop"), "state": 0}}
    (event,) = history.apply(job(2, 110, binlog=dropped))
    assert (event.db, event.table, event.query) == ("Shop", "", "DROP DATABASE `Shop`")
    assert names_at(history, 115) == {}
    assert [db.name for db in history.databases(115)] == ["Store"]
    back = {"DBInfo": {"id": 1, "db_name": name("Shop"), "state": 5}}
    assert history.apply(job(63, 120, binlog=back)) == []  # no event, as in TiCDC
    assert names_at(history, 130) == {10: "Shop.Orders", 20: "Shop.Parts"}
    assert [history.status_at(22, ts) for ts in (109, 110, 120)] == [IdStatus.LIVE, IdStatus.RETIRED, IdStatus.LIVE]


@pytest.mark.parametrize("args", [None, {"recover_info": {"id": 9, "RecoverTableInfos": None}, "check_flag": 1}])
def test_an_empty_database_comes_back_from_before_the_snapshot(history: History, args: Any) -> None:
    back = {"DBInfo": {"id": 9, "db_name": name("Old"), "state": 5}}
    assert history.apply(job(63, 120, schema_id=9, binlog=back, raw_args=args)) == []
    history.advance(130)
    assert [db.name for db in history.databases(130)] == ["Old", "Shop", "Store"]
    assert history.tables("old", 130) == []


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [
        (job(5, 110, state=1, binlog={"TableInfo": info(10, "Orders")}), "not finished"),
        (job(5, 110, binlog={"SchemaVersion": 0}), "changed nothing upstream"),
        (job(3, 110, schema_name="MySQL", binlog={"TableInfo": info(30, "x")}), "system database"),
        (job(39, 110, binlog={"TableInfo": info(10, "Orders")}), "of no consequence for rows"),
        (job(3, 110, binlog={"TableInfo": info(10, "Orders")}), "table already known"),
        (job(60, 110, binlog={"MultipleTableInfos": [info(10, "a"), info(20, "b")]}), "table already known"),
        (job(3, 110, binlog={"TableInfo": info(30, "New")}), ""),
    ],
)
def test_skip_reasons(history: History, skipped: Job, reason: str) -> None:
    assert ddl.skip_reason(skipped, history.current) == reason
    before = names_at(history, 105)
    events = history.apply(skipped)
    assert (events == []) == bool(reason)
    assert (names_at(history, 120) == before) == bool(reason)


def test_an_unknown_action_is_adopted_without_an_event(history: History) -> None:
    changed = info(10, "Orders", comment="new")
    assert history.apply(job(250, 110, table_id=10, binlog={"TableInfo": changed})) == []
    assert history.apply(job(251, 111)) == []
    history.advance(120)
    assert history.find("shop", "orders", 110).comment == "new"


def test_a_replaced_view_is_dropped(history: History) -> None:
    for commit_ts, table_id in ((110, 50), (112, 51)):
        view = info(table_id, "V", view={"view_select": "SELECT 1"})
        (event,) = history.apply(job(21, commit_ts, table_id=table_id, binlog={"TableInfo": view}))
        assert event.version is not None
        assert event.version.kind == "view"
    assert names_at(history, 115).keys() == {10, 20, 51}
    assert history.physical_ids("shop", "v", START, 115) == set()  # views have no rows


def test_a_view_has_the_name_of_its_job_in_events(history: History) -> None:
    """As TiCDC gives it: in lower case; the statement has the user's spelling."""
    view = info(50, "VParties", view={"view_select": "SELECT `Store`.`T`.`a` AS `a` FROM `Store`.`T`"})
    of_job = {"table_id": 50, "table_name": "vparties", "binlog": {"TableInfo": view}}
    (event,) = history.apply(job(21, 110, query="create view VParties as select a from T", **of_job))
    head = "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `VParties` AS "
    assert (event.table, event.statement) == ("vparties", head + "SELECT `Store`.`T`.`a` AS `a` FROM `Store`.`T`")
    history.advance(112)
    assert history.find("shop", "vparties", 112).name == "VParties"
    (dropped,) = history.apply(job(24, 115, query="drop view VParties, other", **of_job))
    assert (dropped.table, dropped.statement) == ("vparties", "DROP VIEW `Shop`.`vparties`")


def test_the_session_of_the_job_decides_how_its_text_is_read(history: History) -> None:
    (event,) = history.apply(
        job(3, 110, query='create table "New" (id int)', sql_mode=4, binlog={"TableInfo": info(30, "New")})
    )
    assert event.statement == "CREATE TABLE `New` (`id` INT)"
    assert event.query == event.job_query == 'create table "New" (id int)'


@pytest.mark.parametrize(("query", "written"), [
    ("alter table Parts exchange partition p21 with table Orders",
     "ALTER TABLE `Shop`.`Parts` EXCHANGE PARTITION `p21` WITH TABLE `Shop`.`Orders`"),
    ("ALTER TABLE Parts EXCHANGE  PARTITION `p``x` WITH TABLE Orders without validation;",
     "ALTER TABLE `Shop`.`Parts` EXCHANGE PARTITION `p``x` WITH TABLE `Shop`.`Orders` WITHOUT VALIDATION"),
    ("the user's text", "the user's text"),
])  # fmt: skip
def test_an_exchange_names_both_tables_in_full(history: History, query: str, written: str) -> None:
    swapped = info(20, "Parts", (10, 22))
    (event,) = history.apply(job(42, 110, table_id=10, query=query, binlog={"TableInfo": swapped}))
    assert (event.statement, event.job_query) == (written, query)


def test_sequences_exist_but_have_no_events(history: History) -> None:
    sequence = info(60, "Seq", sequence={"sequence_start": 1})
    assert history.apply(job(34, 110, table_id=60, binlog={"TableInfo": sequence})) == []
    history.advance(112)
    assert history.find("shop", "seq", 112).kind == "sequence"
    assert history.apply(job(36, 115, table_id=60, binlog={"TableInfo": sequence | {"state": 0}})) == []
    assert names_at(history, 120).keys() == {10, 20}


def test_jobs_come_once_in_order_and_in_time(history: History) -> None:
    create = job(3, 110, binlog={"TableInfo": info(30, "New")})
    assert len(history.apply(create)) == 1
    again = replace(create, commit_ts=112)
    assert history.apply(again) == []
    history.apply(job(4, 114, table_id=30, binlog={"TableInfo": info(30, "New", state=0)}))
    with pytest.raises(UpstreamContractViolated):
        history.apply(job(17, 113, table_id=10, binlog={"TableInfo": info(10, "Orders")}))
    history.advance(200)
    assert history.apply(again) == []
    with pytest.raises(UpstreamContractViolated):
        history.apply(job(17, 150, table_id=10, binlog={"TableInfo": info(10, "Orders")}))
    assert history.apply(job(17, START, table_id=10, binlog={"TableInfo": info(10, "Orders")})) == []


@pytest.mark.parametrize(
    "args",
    [
        {"old_schema_id": 9, "old_schema_name": name("mysql"), "new_table_name": name("Mine")},
        [9, name("Mine"), name("mysql")],
    ],
)
def test_a_table_that_leaves_a_system_database_begins_as_a_new_one(history: History, args: Any) -> None:
    """RENAME TABLE mysql.mine TO shop.mine: nothing was known of it."""
    (event,) = history.apply(job(14, 110, table_id=30, raw_args=args, binlog={"TableInfo": info(30, "Mine")}))
    assert (event.kind, event.db, event.table, event.table_id, event.old_db) == ("create table", "Shop", "Mine", 30, "")
    assert event.query.startswith("CREATE TABLE")
    assert event.job_query == "the user's text"
    assert names_at(history, 110)[30] == "Shop.Mine"


def test_one_of_several_that_leaves_a_system_database_begins_as_a_new_one(history: History) -> None:
    args = rename_args((30, 9, "theirs", 1, "Mine"), (10, 1, "Orders", 1, "Others"))
    infos = [info(30, "Mine"), info(10, "Others")]
    events = history.apply(job(47, 110, raw_args=args, binlog={"MultipleTableInfos": infos}))
    assert [(e.kind, e.sub, e.table) for e in events] == [("create table", 0, "Mine"), ("rename tables", 1, "Others")]


def test_a_table_that_goes_into_a_system_database_is_dropped(history: History) -> None:
    """RENAME TABLE shop.orders TO mysql.theirs: the job speaks of the new database."""
    args = {"old_schema_id": 1, "old_schema_name": name("Shop"), "new_table_name": name("theirs")}
    moved = job(
        14, 110, schema_id=9, schema_name="mysql", table_id=10, raw_args=args, binlog={"TableInfo": info(10, "theirs")}
    )
    (event,) = history.apply(moved)
    assert (event.kind, event.db, event.table, event.table_id) == ("drop table", "Shop", "Orders", 10)
    assert (event.query, event.job_query) == ("DROP TABLE `Shop`.`Orders`", "the user's text")
    assert names_at(history, 109) | {10: ""} == names_at(history, 110) | {10: ""}
    assert 10 not in names_at(history, 110)


@pytest.mark.parametrize("last", ["theirs", "ours"])
def test_one_of_several_that_goes_into_a_system_database_is_dropped(history: History, last: str) -> None:
    """The job bears the name of the last clause's new database."""
    clauses = [(10, 1, "Orders", 9, "theirs"), (20, 1, "Parts", 2, "Moved"), (77, 9, "a", 9, "b")]
    if last == "ours":
        clauses.reverse()
    infos = [info(i, new, (21, 22) if i == 20 else ()) for i, *_, new in clauses]
    where = {"schema_id": clauses[-1][3], "schema_name": "mysql", "raw_args": rename_args(*clauses)}
    events = history.apply(job(47, 110, binlog={"MultipleTableInfos": infos}, **where))
    queries = {(e.kind, e.db, e.table, e.old_table): e.query for e in events}
    assert queries == {
        ("drop table", "Shop", "Orders", ""): "DROP TABLE `Shop`.`Orders`",
        ("rename tables", "Store", "Moved", "Parts"): "RENAME TABLE `Shop`.`Parts` TO `Store`.`Moved`;",
    }
    assert names_at(history, 110) == {20: "Store.Moved"}


def test_several_that_move_between_system_databases_mean_nothing(history: History) -> None:
    where = {"schema_id": 9, "schema_name": "mysql", "raw_args": rename_args((77, 9, "a", 9, "b"))}
    skipped = job(47, 110, binlog={"MultipleTableInfos": [info(77, "b")]}, **where)
    assert ddl.skip_reason(skipped, history.current) == "system database"


@pytest.mark.parametrize(
    "broken",
    [
        job(5, 110, table_id=10),  # no definition
        job(3, 110, schema_id=77, binlog={"TableInfo": info(30, "x")}),  # no such database
        job(14, 110, table_id=99, binlog={"TableInfo": info(99, "x")}),  # unknown table renamed
        job(42, 110, table_id=10, binlog={"TableInfo": info(20, "Parts", (21, 22))}),  # nothing swapped
        job(1, 110),  # no database definition
    ],
)
def test_jobs_that_make_no_sense_are_refused(history: History, broken: Job) -> None:
    with pytest.raises(DecodeError):
        history.apply(broken)


@pytest.mark.parametrize("data", [{}, {"id": "x", "type": 1}, {"id": 1, "type": 3, "binlog": [1]}])
def test_an_invalid_job_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        ddl.parse_job(data, start_ts=1, commit_ts=2)


@pytest.mark.parametrize("sql_mode", [0, 1 << 20])
def test_a_key_of_one_table_sees_no_other_of_a_text_for_several(history: History, sql_mode: int) -> None:
    """Under NO_BACKSLASH_ESCAPES the text splits; otherwise it does not, and the definition replaces it."""
    query = r"CREATE TABLE a (p varchar(9) default '\'); CREATE TABLE secret (q varchar(9) default '\')"
    infos = [info(50, "a"), info(51, "secret")]
    history.apply(job(60, 200, query=query, sql_mode=sql_mode, binlog={"MultipleTableInfos": infos}))
    history.advance(300)
    limited = LimitedHistory(history, Within(table=lambda _, table: table.lower() == "a", database=lambda _: True))
    (event,) = limited.events(START, 300)
    assert "secret" not in repr((event.query, event.job_query, event.statement))
    assert "a" in event.query
    whole = [each.query for each in history.events(START, 300)]
    assert whole == (query.split("; ") if sql_mode else [query] * 2)
