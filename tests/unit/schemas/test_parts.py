"""The small parts: TiDB's JSON, type names, statement texts, row layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas import queries, tidb_json
from schemas.layout import ByIdentity, kept_by_version, row_layout
from schemas.model import Column, Table
from schemas.snapshot import PushedSchema, parse_pushed
from schemas.types import base_type, full_type
from tests.kit.recording import recorded_history
from tistream.errors import CorruptObject, DecodeError


def column(tp: int, flag: int = 0, flen: int = 0, decimal: int = 0, charset: str = "binary", **more: Any) -> Column:
    return Column(
        id=1, name="c", offset=0, tp=tp, flag=flag, flen=flen, decimal=decimal, charset=charset, collate="", **more
    )


@pytest.mark.parametrize(
    ("given", "base", "full"),
    [
        (column(3, 96, 6), "int unsigned zerofill", "int(6) unsigned zerofill"),
        (column(8, 32, 20), "bigint unsigned", "bigint(20) unsigned"),
        (column(4, 0, 12, -1), "float", "float"),
        (column(4, 32, 7, 3), "float unsigned", "float(7,3) unsigned"),
        (column(246, 32, 12, 2), "decimal unsigned", "decimal(12,2) unsigned"),
        (column(246, 0, -1, -1), "decimal", "decimal(10,0)"),
        (column(13, 96, 4), "year", "year(4)"),
        (column(16, 32, 17), "bit", "bit(17)"),
        (column(254, 128, 8), "binary", "binary(8)"),
        (column(254, 0, 8, charset="gbk"), "char", "char(8)"),
        (column(15, 128, 30), "varbinary", "varbinary(30)"),
        (column(15, 0, 40, charset="utf8mb4"), "varchar", "varchar(40)"),
        (column(250, 0, 16777215, charset="utf8mb4"), "mediumtext", "mediumtext"),
        (column(250, 128, 16777215), "mediumblob", "mediumblob"),
        (column(7, 128, 22, 2), "timestamp", "timestamp(2)"),
        (column(12, 128, 19, 0), "datetime", "datetime"),
        (column(11, 128, 10, -1), "time", "time"),
        (column(225, 128, -1), "vector", "vector"),
        (column(225, 128, 3), "vector", "vector(3)"),
        (column(247, elems=("a", "with,comma", "quo'te", "\n\\")), "enum", "enum('a','with,comma','quo''te','\\n\\')"),
        (column(248, elems=("x y",)), "set", "set('x y')"),
        (column(99), "type 99", "type 99"),
    ],
)
def test_types_are_written_as_tidb_writes_them(given: Column, base: str, full: str) -> None:
    assert (base_type(given), full_type(given)) == (base, full)


def test_missing_and_null_fields_take_zero_values() -> None:
    table = tidb_json.table({"id": 7, "cols": None, "index_info": None, "novel": [1]}, db_id=1, db="d")
    assert (table.id, table.name, table.columns, table.indexes, table.partition_ids) == (7, "", (), (), ())
    assert (table.kind, table.physical_ids) == ("table", (7,))


def test_columns_come_in_table_order_and_hidden_ones_stay_out_of_sight() -> None:
    cols = [
        {"id": 3, "name": {"O": "Virtual", "L": "virtual"}, "offset": 2, "state": 5, "generated_expr_string": "`a`"},
        {"id": 2, "name": {"O": "B"}, "offset": 1, "state": 5, "origin_default": "x", "origin_default_bit": "BQ=="},
        {"id": 1, "name": {"O": "A"}, "offset": 0, "state": 5},
        {"id": 4, "name": {"O": "Coming"}, "offset": 3, "state": 2},
    ]
    table = tidb_json.table({"id": 7, "cols": cols}, db_id=1, db="d")
    assert [c.name for c in table.columns] == ["A", "B", "Virtual", "Coming"]
    assert [c.name for c in table.visible_columns] == ["A", "B"]
    assert (table.columns[1].origin_default, table.columns[1].origin_default_bit) == ("x", b"\x05")


@pytest.mark.parametrize(
    "info", [{}, {"id": None}, {"id": 7, "cols": [{}]}, {"id": 7, "cols": [{"id": 1, "default_bit": "*"}]}]
)
def test_half_understood_tables_are_refused(info: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        tidb_json.table(info, db_id=1, db="d")


def test_the_pushed_snapshot_leaves_system_databases_out(pushed: PushedSchema) -> None:
    assert {db.name for db in pushed.snapshot.databases.values()} == {"shop", "test"}
    assert {t.name for t in pushed.snapshot.tables.values()} == {"customers", "tags", "old_part"}
    assert [c.name for c in pushed.job_table.columns][:2] == ["job_id", "reorg"]


@pytest.mark.parametrize(
    "data", [{}, {"ts": 1, "dbs": [], "tables": []}, {"ts": 1, "dbs": [], "tables": [{"db_id": 4, "info": {"id": 1}}]}]
)
def test_a_snapshot_without_the_job_table_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(CorruptObject):
        parse_pushed(data)


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (";; ;", []),
        ("a;b", ["a", "b"]),
        ("a ';' \";\" `;` b; c", ["a ';' \";\" `;` b", "c"]),
        ("a 'it''s;' ; b 'it\\';' ; c", ["a 'it''s;'", "b 'it\\';'", "c"]),
        ("a /* ; */ b -- ;\n c # ;\n d; e", ["a /* ; */ b -- ;\n c # ;\n d", "e"]),
        ("a -1; b 2--3; c", ["a -1", "b 2--3", "c"]),
    ],
)
def test_statements_are_split_outside_of_quotes_and_comments(text: str, statements: list[str]) -> None:
    assert queries.split_statements(text) == statements


def test_names_in_statements_are_quoted() -> None:
    assert queries.drop("TABLE", "d", "a`b") == "DROP TABLE `d`.`a``b`"
    assert queries.rename("a", "b", "c", "d") == "RENAME TABLE `a`.`b` TO `c`.`d`"


def test_layouts_name_the_handle_and_are_built_once() -> None:
    cols = [
        {"id": 5, "name": {"O": "v"}, "offset": 0, "state": 5, "type": {"Tp": 15, "Charset": "utf8mb4"}},
        {"id": 6, "name": {"O": "b"}, "offset": 1, "state": 5, "type": {"Tp": 3, "Flag": 35, "Flen": 10}},
        {"id": 7, "name": {"O": "a"}, "offset": 2, "state": 5, "type": {"Tp": 15, "Flag": 3, "Charset": "binary"}},
    ]
    primary = {
        "id": 1,
        "is_primary": True,
        "idx_cols": [{"name": {"O": "a"}, "offset": 2, "length": -1}, {"name": {"O": "b"}, "offset": 1, "length": -1}],
    }
    info = {"id": 1, "name": {"O": "T"}, "cols": cols, "index_info": [primary], "is_common_handle": True}
    clustered = tidb_json.table(info, db_id=1, db="d")
    layout = row_layout(clustered)
    assert (layout.name, layout.int_handle, layout.common_handle) == ("d.T", None, (7, 6))
    assert [(c.id, c.binary, c.unsigned, c.not_null) for c in layout.columns] == [
        (5, False, False, False),
        (6, False, True, True),
        (7, True, False, True),
    ]
    assert row_layout(clustered) is layout
    by_int = tidb_json.table({"id": 1, "cols": cols[:2], "pk_is_handle": True, "index_info": None}, db_id=1, db="d")
    assert (row_layout(by_int).int_handle, row_layout(by_int).common_handle) == (6, ())


def test_results_are_kept_for_a_bounded_number_of_columns() -> None:
    history = recorded_history()
    table = history.find("shop", "t_gen", history.resolved_ts)
    computed: list[ByIdentity] = []

    def build(of: ByIdentity) -> Table:
        computed.append(of)
        return of.table

    cached = kept_by_version(build, columns_max=5 * len(table.columns))
    versions = [ByIdentity(replace(table)) for _ in range(10)]
    for of in versions * 2:
        assert cached(of) is of.table
    assert len(computed) == 20, "of ten in turn none is still there"
    for of in versions[-5:] * 3:
        cached(of)
    assert len(computed) == 20, "five fit"
    narrow = kept_by_version(build, columns_max=1)
    for _ in range(2):
        assert narrow(versions[0]) is versions[0].table
    assert len(computed) == 21, "one is kept however wide it is"
    assert row_layout(table) is row_layout(table)
