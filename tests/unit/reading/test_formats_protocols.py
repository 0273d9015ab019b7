"""What the recording does not show of the protocols: options, watermarks, defaults, odd values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats import FormatOptions, create_format, rows
from reading.formats.debezium_ddl import Stated, stated_columns
from reading.formats.debezium_schema import column_schema, key_schema
from reading.formats.lines import written
from reading.formats.rows import handle_columns
from schemas.layout import row_layout
from schemas.model import Column, DdlEvent, Index, IndexColumn, Table
from tests.kit.schema_models import a_column, a_table, an_event
from tistream.codec.row.layout import storage_schema

COMMIT_TS = (1_600_000_000_123 << 18) + 5


def column(name: str, offset: int, tp: int, **more: Any) -> Column:
    return a_column(offset, name, tp, **more)


def table(columns: tuple[Column, ...], indexes: tuple[Index, ...] = (), *, pk: bool = True) -> Table:
    return a_table(*columns, indexes=indexes, pk_is_handle=pk)


def changes(of: Table, kind: int, after: list[Any], before: list[Any]) -> TableChanges:
    schema = storage_schema(row_layout(of))

    def image(values: list[Any]) -> pa.RecordBatch:
        values = values or [None] * len(schema)
        return pa.RecordBatch.from_arrays(
            [pa.array([v], f.type) for v, f in zip(values, schema, strict=True)], schema=schema
        )

    return TableChanges(
        table=of,
        kind=np.array([kind], np.uint8),
        order=np.zeros(1, np.int64),
        physical_id=np.array([7]),
        start_ts=np.array([1], np.uint64),
        commit_ts=np.array([COMMIT_TS], np.uint64),
        key=pa.array([b"k"], pa.binary()),
        after=image(after),
        before=image(before),
        split=np.zeros(1, np.bool_),
    )


def line(name: str, part: TableChanges, **options: Any) -> str:
    (message,) = written(create_format(name, FormatOptions(**options)).rows(part)).to_pylist()
    return str(message.decode())


TEXTS = table((column("id", 0, 3, flag=3), column("v", 1, 15, charset="utf8mb4"), column("b", 2, 15)))


def test_csv_without_a_quote_escapes() -> None:
    part = changes(TEXTS, INSERT, [1, 'a|b"\\\r\n', None], [])
    assert line("csv", part, quote="", delimiter="|", null="NULL") == 'I|t|d|1|a\\|b"\\\\\\r\\n|NULL'


def test_csv_doubles_the_quote_and_writes_hex() -> None:
    part = changes(TEXTS, UPDATE, [1, 'a"b', b"\x01\xff"], [1, "x", b""])
    assert line("csv", part, binary_encoding_method="hex", delimiter="||") == '"U"||"t"||"d"||1||"a""b"||"01ff"'
    both = line("csv", part, output_old_value=True, include_commit_ts=True, terminator="\n")
    assert both.split("\n") == [
        f'"D","t","d",{COMMIT_TS},true,1,"x",""',
        f'"I","t","d",{COMMIT_TS},true,1,"a""b","Af8="',
    ]


@pytest.mark.parametrize("name", ["canal-json", "open-protocol"])
def test_only_changed_columns_of_the_old_row(name: str) -> None:
    def old(after: list[Any], before: list[Any]) -> Any:
        message = json.loads(line(name, changes(TEXTS, UPDATE, after, before), only_output_updated_columns=True))
        return message["old"][0] if name == "canal-json" else message["value"]["p"]

    assert list(old([1, "a", b"x"], [1, None, b"x"])) == ["v"]
    assert list(old([1, "a", b"x"], [1, "b", b"y"])) == ["v", "b"]
    assert old([1, "a", b"x"], [1, "a", b"x"]) == {}


def test_build_times_come_from_the_options() -> None:
    part = changes(TEXTS, DELETE, [], [1, "a", b""])
    assert json.loads(line("canal-json", part, built_ms=5))["ts"] == 5
    assert json.loads(line("simple", part, built_ms=5))["buildTs"] == 5
    assert json.loads(line("debezium", part, built_ms=5))["value"]["payload"]["ts_ms"] == 5


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("csv", {}, None),
        ("canal-json", {}, None),
        ("debezium", {}, None),
        ("open-protocol", {}, {"key": {"ts": COMMIT_TS, "t": 3}, "value": None}),
        ("simple", {"built_ms": 3}, {"version": 1, "type": "WATERMARK", "commitTs": COMMIT_TS, "buildTs": 3}),
    ],
)
def test_watermarks(name: str, options: dict[str, Any], expected: Any) -> None:
    message = create_format(name, FormatOptions(**options)).watermark(COMMIT_TS)
    assert (json.loads(message) if message else None) == expected


def test_watermarks_of_the_extension() -> None:
    options = FormatOptions(enable_tidb_extension=True, cluster_name="1-a")
    canal = create_format("canal-json", options).watermark(COMMIT_TS)
    debezium = create_format("debezium", options).watermark(COMMIT_TS)
    assert canal is not None
    assert debezium is not None
    message = json.loads(canal)
    assert (message["type"], message["_tidb"]) == ("TIDB_WATERMARK", {"watermarkTs": COMMIT_TS})
    value = json.loads(debezium)["value"]
    assert value["payload"]["op"] == "m"
    assert value["payload"]["source"]["commit_ts"] == COMMIT_TS
    assert value["schema"]["name"] == "_1_a.watermark.Envelope"


def packed(year: int, month: int, day: int, seconds: int = 0, micro: int = 0) -> int:
    ymd = (year * 13 + month) << 5 | day
    hms = (seconds // 3600) << 12 | (seconds // 60 % 60) << 6 | seconds % 60
    return (ymd << 17 | hms) << 24 | micro


@pytest.mark.parametrize(
    ("value", "nullable", "days"),
    [
        (packed(1970, 1, 1), True, 0),
        (packed(2000, 2, 29), True, 11016),
        (packed(1900, 2, 29), True, None),
        (packed(1900, 2, 29), False, 0),
        (packed(2023, 4, 31), False, 0),
        (packed(0, 0, 0), True, None),
        (packed(2020, 0, 10), True, None),
        (packed(69, 12, 31), True, 36524),  # 2069
        (packed(70, 1, 1), True, 0),
        (packed(9999, 12, 31), True, 2932896),
        (None, False, None),
    ],
)
def test_debezium_dates(value: int | None, nullable: bool, days: int | None) -> None:
    of = table((column("id", 0, 3, flag=3), column("d", 1, 10, flag=128 | (not nullable), default="2000-01-01")))
    payload = json.loads(line("debezium", changes(of, INSERT, [1, value], [])))["value"]["payload"]
    assert payload["after"]["d"] == days


@pytest.mark.parametrize(("fsp", "expected"), [(0, 86_399_000), (3, 86_399_123), (4, 86_399_123_400)])
def test_debezium_datetime_units(fsp: int, expected: int) -> None:
    micro = {0: 0, 3: 123000, 4: 123400}[fsp]
    of = table((column("id", 0, 3, flag=3), column("d", 1, 12, decimal=fsp)))
    part = changes(of, INSERT, [1, packed(1970, 1, 1, 86399, micro)], [])
    assert json.loads(line("debezium", part))["value"]["payload"]["after"]["d"] == expected


@pytest.mark.parametrize(
    ("tp", "more", "expected"),
    [
        (3, {"default": "42"}, 42),
        (8, {"default": "18446744073709551615", "flag": 32}, 18446744073709552000),
        (246, {"default": "1.250"}, 1.25),
        (13, {"default": "70"}, 1970),
        (13, {"default": "2024"}, 2024),
        (16, {"default_bit": b"\x03\x0c", "flen": 10}, "DAM="),
        (16, {"default_bit": b"\x01", "flen": 1}, True),
        (10, {"default": "1999-12-31"}, 10956),
        (10, {"default": "0000-00-00", "flag": 1}, 0),
        (12, {"default": "2001-02-03 04:05:06.789", "decimal": 3}, 981173106789),
        (12, {"default": "CURRENT_TIMESTAMP"}, 0),
        (7, {"default": "2015-05-05 05:05:05.5", "decimal": 1}, "2015-05-05T05:05:05.5Z"),
        (7, {"default": "CURRENT_TIMESTAMP", "flag": 1}, "1970-01-01T00:00:00Z"),
        (11, {"default": "-10:20:30.4", "decimal": 1}, -37230400000),
        (247, {"default": "b", "elems": ("a", "b")}, "b"),
    ],
)
def test_debezium_schema_defaults(tp: int, more: dict[str, Any], expected: object) -> None:
    of = table((column("id", 0, 3, flag=3), column("c", 1, tp, **more)))
    schema = json.loads(line("debezium", changes(of, INSERT, [1, None], [])))["value"]["schema"]
    assert schema["fields"][1]["fields"][1]["default"] == expected


@pytest.mark.parametrize(
    ("tp", "more"),
    [(7, {"default": "CURRENT_TIMESTAMP"}), (10, {"default": "0000-00-00"}), (11, {"default": "soon"}), (3, {})],
)
def test_defaults_that_cannot_be_said_are_left_out(tp: int, more: dict[str, Any]) -> None:
    assert "default" not in column_schema(column("c", 0, tp, **more), FormatOptions())


def test_the_type_of_tidb_is_part_of_the_extension() -> None:
    options = FormatOptions(enable_tidb_extension=True)
    assert column_schema(column("c", 0, 3, flag=32), options)["tidb_type"] == "int unsigned"
    assert column_schema(column("c", 0, 246, flag=32), options)["tidb_type"] == "decimal"


def test_comments_include_columns_that_the_statement_does_not_define() -> None:
    of = table((column("id", 0, 3, flag=3, comment="one"), column("s", 1, 248, elems=("x",), comment="two")))

    def comments(query: str) -> list[str | None]:
        (message,) = create_format("debezium").ddl(ddl(type=12, version=of, query=query))
        columns = json.loads(message)["value"]["payload"]["tableChanges"][0]["table"]["columns"]
        return [c["comment"] for c in columns]

    assert comments("ALTER TABLE `t` MODIFY COLUMN `id` INT(11) COMMENT 'one'") == [None, "two"]
    assert comments("alter table t add column s set ('x') comment 'two'") == ["one", None]
    assert comments("ALTER TABLE t ALTER COLUMN s SET DEFAULT 'x'") == ["one", "two"]


def test_statement_facts_of_columns() -> None:
    query = (
        "CREATE TABLE t (`a``b` datetime(3) default '2001-01-01 00:00:00.5', c TIMESTAMP NOT NULL DEFAULT now(2),"
        " d time comment 'e datetime(6)', `y` year(4) default null, k int, key time_key (c) /* z time(1) */)"
    )
    assert stated_columns(query) == {
        "a`b": Stated(digits=3, default="2001-01-01 00:00:00.5", has_default=True),
        "c": Stated(digits=-1, default="CURRENT_TIMESTAMP", has_default=True),
        "d": Stated(digits=-1, default=None, has_default=False),
        "y": Stated(digits=4, default=None, has_default=True),
        "k": Stated(digits=-1, default=None, has_default=False),
    }


def unique(id_: int, *offsets: int) -> Index:
    names = tuple(IndexColumn(name="", offset=o) for o in offsets)
    return Index(id=id_, name=f"i{id_}", columns=names, unique=True, primary=False)


def test_the_handle_is_the_primary_key_or_the_smallest_unique_index_without_nulls() -> None:
    columns = (column("a", 0, 3, flag=1), column("b", 1, 3, flag=1), column("n", 2, 3), column("c", 3, 3, flag=1))

    def names(*indexes: Index) -> list[str]:
        return [c.name for c in handle_columns(table(columns, indexes, pk=False))]

    assert names() == []
    assert names(unique(1, 2)) == []
    assert names(unique(1, 2), unique(2, 1, 0), unique(3, 3), unique(4, 0)) == ["c"]
    assert names(unique(2, 1, 0)) == ["b", "a"]
    primary = replace(unique(5, 3, 0), primary=True)
    assert names(unique(4, 1), primary) == ["c", "a"]


def test_names_in_debezium_schemas_are_safe() -> None:
    of = replace(TEXTS, db="7 é", name="a-b.c")
    assert key_schema(of, FormatOptions(cluster_name="x y"))["name"] == "x_y._7__.a_b.c.Key"


def ddl(**more: Any) -> DdlEvent:
    return an_event(**{"commit_ts": COMMIT_TS, "type": 65, "version": TEXTS, **more})


def test_a_ddl_without_a_message_type_is_query_or_nothing() -> None:
    assert create_format("debezium").ddl(ddl()) == []
    assert create_format("csv").ddl(ddl()) == []
    for name in ("canal-json", "simple"):
        (message,) = create_format(name).ddl(ddl())
        assert json.loads(message)["type"] == "QUERY"


def test_tables_created_together_are_announced_one_by_one() -> None:
    (message,) = create_format("open-protocol").ddl(ddl(type=60))
    assert json.loads(message)["value"]["t"] == 3
    (message,) = create_format("canal-json").ddl(ddl(type=60))
    assert json.loads(message)["type"] == "CREATE"


@pytest.mark.parametrize("name", ["canal-json", "csv", "debezium", "open-protocol", "simple"])
def test_a_page_of_a_wide_table_looks_for_its_keys_as_often_as_one_of_a_narrow_table(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked once for each column costs the square of their number."""
    tables_asked: list[Table] = []
    real = rows.handle_columns

    def columns_of(of: Table) -> tuple[Column, ...]:
        tables_asked.append(of)
        return real(of)

    monkeypatch.setattr(rows, "handle_columns", columns_of)
    counts = []
    for width in (2, 60):
        of = table((column("id", 0, 3, flag=3), *(column(f"v{n}", n, 3) for n in range(1, width))))
        tables_asked.clear()
        line(name, changes(of, INSERT, [1] * width, []))
        counts.append(len(tables_asked))
    assert counts[0] == counts[1]
