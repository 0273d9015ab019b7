"""Jobs that the recording does not hold: several tables at once, older argument forms, newer action types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas import ddl
from schemas.ddl import Job
from schemas.history import History
from schemas.ids import IdStatus
from schemas.model import Database, Table
from schemas.snapshot import SchemaSnapshot
from schemas.tidb_json import table as table_of
from tistream.errors import DecodeError, UpstreamContractViolated

START = 100


def name(text: str) -> dict[str, str]:
    return {"O": text, "L": text.lower()}


def info(table_id: int, text: str, partitions: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    column = {"id": 1, "name": name("Id"), "offset": 0, "state": 5, "type": {"Tp": 3, "Flag": 3, "Flen": 11}}
    found = {"id": table_id, "name": name(text), "cols": [column], "index_info": None, "state": 5, "pk_is_handle": True}
    if partitions:
        definitions = [{"id": i, "name": name(f"p{i}")} for i in partitions]
        found["partition"] = {"enable": True, "definitions": definitions}
    return found | more


def job(kind: int, commit_ts: int, **more: Any) -> Job:
    data: dict[str, Any] = {"id": commit_ts, "type": kind, "state": 4, "schema_id": 1, "schema_name": "shop"}
    data |= {"query": "the user's text"} | more
    binlog = {"SchemaVersion": commit_ts} | data.pop("binlog", {})
    return ddl.parse_job(data | {"binlog": binlog}, start_ts=commit_ts - 1, commit_ts=commit_ts)


@pytest.fixture
def history() -> History:
    """Two databases; Shop.Orders (10), Shop.Parts (20: partitions 21, 22)."""
    databases = {1: Database(id=1, name="Shop"), 2: Database(id=2, name="Store")}
    tables: list[Table] = [
        table_of(info(10, "Orders"), db_id=1, db="Shop"),
        table_of(info(20, "Parts", (21, 22)), db_id=1, db="Shop"),
    ]
    start = SchemaSnapshot(ts=START, databases=databases, tables={t.id: t for t in tables})
    return History(start, job_table=tables[0])


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


@pytest.mark.parametrize(
    "args",
    [
        {
            "rename_table_infos": [
                {
                    "old_schema_id": 1,
                    "old_table_name": name("Orders"),
                    "new_schema_id": 2,
                    "new_table_name": name("Tmp"),
                    "table_id": 10,
                },
                {
                    "old_schema_id": 1,
                    "old_table_name": name("Parts"),
                    "new_schema_id": 1,
                    "new_table_name": name("Orders"),
                    "table_id": 20,
                },
            ]
        },
        [
            [1, 1],
            [2, 1],
            [name("Tmp"), name("Orders")],
            [10, 20],
            [name("Shop"), name("Shop")],
            [name("Orders"), name("Parts")],
        ],
    ],
)
def test_rename_tables_across_databases_in_both_argument_forms(history: History, args: Any) -> None:
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


def test_a_database_that_comes_back_from_before_the_snapshot_is_refused(history: History) -> None:
    with pytest.raises(DecodeError, match="recovered database"):
        history.apply(job(63, 120, schema_id=9, binlog={"DBInfo": {"id": 9, "db_name": name("Old"), "state": 5}}))


@pytest.mark.parametrize(
    ("found", "reason"),
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
def test_skip_reasons(history: History, found: Job, reason: str) -> None:
    assert ddl.skip_reason(found, history.current) == reason
    before = names_at(history, 105)
    events = history.apply(found)
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
    (made,) = history.apply(job(21, 110, query="create view VParties as select a from T", **of_job))
    head = "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `VParties` AS "
    assert (made.table, made.statement) == ("vparties", head + "SELECT `Store`.`T`.`a` AS `a` FROM `Store`.`T`")
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


@pytest.mark.parametrize(("asked", "written"), [
    ("alter table Parts exchange partition p21 with table Orders",
     "ALTER TABLE `Shop`.`Parts` EXCHANGE PARTITION `p21` WITH TABLE `Shop`.`Orders`"),
    ("ALTER TABLE Parts EXCHANGE  PARTITION `p``x` WITH TABLE Orders without validation;",
     "ALTER TABLE `Shop`.`Parts` EXCHANGE PARTITION `p``x` WITH TABLE `Shop`.`Orders` WITHOUT VALIDATION"),
    ("the user's text", "the user's text"),
])  # fmt: skip
def test_an_exchange_names_both_tables_in_full(history: History, asked: str, written: str) -> None:
    swapped = info(20, "Parts", (10, 22))
    (event,) = history.apply(job(42, 110, table_id=10, query=asked, binlog={"TableInfo": swapped}))
    assert (event.statement, event.job_query) == (written, asked)


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
    args = [
        [9, 1], [1, 1], [name("Mine"), name("Others")], [30, 10], [name("mysql"), name("Shop")],
        [name("theirs"), name("Orders")],
    ]  # fmt: skip
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
    clauses = [(1, 9, "theirs", 10, "Orders"), (1, 2, "Moved", 20, "Parts"), (9, 9, "b", 77, "a")]
    if last == "ours":
        clauses.reverse()
    old, new, new_names, ids, old_names = (list(part) for part in zip(*clauses, strict=True))
    databases = [name("Shop" if db == 1 else "mysql") for db in old]
    args = [old, new, [name(n) for n in new_names], ids, databases, [name(n) for n in old_names]]
    infos = [info(i, n, (21, 22) if i == 20 else ()) for i, n in zip(ids, new_names, strict=True)]
    where = {"schema_id": new[-1], "schema_name": "mysql"}
    events = history.apply(job(47, 110, raw_args=args, binlog={"MultipleTableInfos": infos}, **where))
    found = {(e.kind, e.db, e.table, e.old_table): e.query for e in events}
    assert found == {
        ("drop table", "Shop", "Orders", ""): "DROP TABLE `Shop`.`Orders`",
        ("rename tables", "Store", "Moved", "Parts"): "RENAME TABLE `Shop`.`Parts` TO `Store`.`Moved`;",
    }
    assert names_at(history, 110) == {20: "Store.Moved"}


def test_several_that_move_between_system_databases_mean_nothing(history: History) -> None:
    args = [[9], [9], [name("b")], [77], [name("mysql")], [name("a")]]
    found = job(
        47, 110, schema_id=9, schema_name="mysql", raw_args=args, binlog={"MultipleTableInfos": [info(77, "b")]}
    )
    assert ddl.skip_reason(found, history.current) == "system database"


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
