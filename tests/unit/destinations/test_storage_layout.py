"""Names, schema files and settings of the storage sink, against what TiCDC writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from destinations.storage.core import names
from destinations.storage.core.parts import cut
from destinations.storage.core.schema_files import column_of, of_events, of_table
from destinations.storage.settings import PROTOCOLS, read_settings
from destinations.uri import parse_sink_uri
from schemas.model import Column, DdlEvent, Table
from tistream.errors import InvalidInput

OPEN = -1
ROOT = Path(__file__).parents[3]


def column(name: str, tp: int, flen: int = OPEN, decimal: int = OPEN, flag: int = 0, **more: Any) -> Column:
    filled = {"charset": "utf8mb4", "collate": "utf8mb4_bin", **more}
    return Column(id=1, name=name, offset=0, tp=tp, flag=flag, flen=flen, decimal=decimal, **filled)


def table(columns: tuple[Column, ...]) -> Table:
    return Table(
        id=20,
        db_id=1,
        db="schema1",
        name="table1",
        charset="utf8mb4",
        collate="utf8mb4_bin",
        columns=columns,
        indexes=(),
        pk_is_handle=True,
        is_common_handle=False,
    )


#: the table and the names of TiCDC's own test of its schema files
TABLE = table(
    (
        column("Id", 3, flag=3, default=10),
        column("LastName", 15, 128, flag=1, default="Default LastName"),
        column("FirstName", 15, 64, default="Default FirstName"),
        column("Birthday", 12, default=12345678),
    )
)


def test_schema_files_have_the_names_that_ticdc_gives_them() -> None:
    assert of_table(TABLE, 100).key == "schema1/table1/meta/schema_100_3752767265.json"
    database = DdlEvent(
        commit_ts=100,
        start_ts=99,
        job_id=1,
        schema_version=1,
        type=1,
        kind="create schema",
        query="CREATE DATABASE `schema1`",
        db="schema1",
        table="",
        db_id=1,
        table_id=0,
    )
    [file] = of_events([database])
    assert file.key == "schema1/meta/schema_100_3233644819.json"
    found = json.loads(file.data)
    assert (found["Table"], found["TableColumns"], found["Type"], found["Query"]) == ("", None, 1, database.query)


def test_a_schema_file_has_the_members_that_ticdc_writes() -> None:
    found = json.loads(of_table(TABLE, 100, "alter table schema1.table1 add Birthday date", 5).data)
    lengths = [column.pop("ColumnLength", None) for column in found["TableColumns"]]
    assert lengths == [None, "128", "64", None]  # as documented; TiCDC writes it as ColumnPrecision only
    assert found == {
        "Table": "table1",
        "Schema": "schema1",
        "Version": 1,
        "TableVersion": 100,
        "Query": "alter table schema1.table1 add Birthday date",
        "Type": 5,
        "TableColumns": [
            {
                "ColumnName": "Id",
                "ColumnType": "INT",
                "ColumnPrecision": "11",
                "ColumnDefault": 10,
                "ColumnNullable": "false",
                "ColumnIsPk": "true",
            },
            {
                "ColumnName": "LastName",
                "ColumnType": "VARCHAR",
                "ColumnDefault": "Default LastName",
                "ColumnPrecision": "128",
                "ColumnNullable": "false",
            },
            {
                "ColumnName": "FirstName",
                "ColumnDefault": "Default FirstName",
                "ColumnType": "VARCHAR",
                "ColumnPrecision": "64",
            },
            {"ColumnName": "Birthday", "ColumnDefault": 12345678, "ColumnType": "DATETIME"},
        ],
        "TableColumnsTotal": 4,
    }


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (column("c", 11, decimal=5), "TIME scale=5"),
        (column("c", 3, 5, flag=32), "INT UNSIGNED precision=5"),
        (column("c", 4, 12, 3), "FLOAT precision=12 scale=3"),
        (column("c", 4, 12), "FLOAT precision=12"),
        (column("c", 5, 7, 3), "DOUBLE precision=7 scale=3"),
        (column("c", 246, 12, 0), "DECIMAL precision=12 scale=0"),
        (column("c", 9, 10), "MEDIUMINT precision=10"),
        (column("c", 8), "BIGINT precision=20"),
        (column("c", 16, 5), "BIT precision=5"),
        (column("c", 254, 32), "CHAR length=32 precision=32"),
        (column("c", 252, 100, charset="binary"), "BLOB length=100 precision=100"),
        (column("c", 252, 100), "TEXT length=100 precision=100"),
        (column("c", 251, 5, charset="binary"), "LONGBLOB length=5 precision=5"),
        (column("c", 247, elems=("a", "b")), "ENUM elems=['a', 'b']"),
        (column("c", 7, 8, 2), "TIMESTAMP scale=2"),
        (column("c", 7, 8, 0), "TIMESTAMP"),
        (column("c", 10, 8, 2), "DATE"),
        (column("c", 13, 4, 0), "YEAR precision=4"),
    ],
)
def test_columns_are_told_as_ticdc_tells_them(made: Column, wanted: str) -> None:
    found = column_of(made)
    assert found.pop("ColumnName") == "c"
    shown = [found.pop("ColumnType"), *(f"{n.removeprefix('Column').lower()}={v}" for n, v in found.items())]
    assert " ".join(shown) == wanted


def test_no_name_leaves_its_folder() -> None:
    assert names.meta_folder("a/b", "..") == "a%2Fb/%2E./meta"
    assert names.meta_folder("shop", "bücher 100%") == "shop/bücher 100%25/meta"
    assert names.meta_folder("metadata") != "metadata/meta"  # a file has that name
    assert names.data_folder("s", "t", 5, 17, "2026-11") == "s/t/5/17/2026-11"
    assert names.data_folder("s", "t", 5, 0, "") == "s/t/5"


def test_a_date_is_that_of_the_commit() -> None:
    ts = np.array([470613540554145793], np.uint64)
    shown = {unit: names.dates(ts, unit) for unit in names.DATE_SEPARATORS}
    assert shown.pop("none") is None
    assert {unit: str(found[0]) for unit, found in shown.items() if found is not None} == {
        "year": "2026",
        "month": "2026-11",
        "day": "2026-11-21",
    }


def test_files_are_cut_between_lines_and_hold_at_least_one() -> None:
    offsets = np.array([0, 10, 20, 30, 90, 100], np.uint64)
    assert cut(offsets, 25) == [2, 1, 1, 1]
    assert cut(offsets, 30) == [3, 1, 1]
    assert cut(offsets, 1000) == [5]


@pytest.mark.parametrize(
    ("uri", "option"),
    [
        ("file:///x", "protocol"),
        ("file:///x?protocol=avro", "protocol"),
        ("file:///x?protocol=csv&enable-tidb-extension=true", "enable-tidb-extension"),
        ("file:///x?protocol=csv&quote=ab", "quote"),
        ("file:///x?protocol=csv&file-size=1", "file-size"),
        ("file:///x?protocol=csv&flush-interval=1s", "flush-interval"),
        ("file:///x?protocol=csv&date-separator=week", "date-separator"),
        ("file:///x?protocol=csv&region=eu", "region"),
        ("file://host/x?protocol=csv", "sink-uri"),
        ("s3:///x?protocol=csv", "sink-uri"),
        ("s3://b/x?protocol=csv&access-key=a", "secret-access-key"),
        ("s3://b/x?protocol=csv&endpoint=b", "endpoint"),
    ],
)
def test_a_refusal_names_the_option(uri: str, option: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_settings(parse_sink_uri(uri))
    assert caught.value.facts["option"] == option


def test_options_are_read_by_their_names() -> None:
    found = read_settings(
        parse_sink_uri(
            "s3://bucket/a/b/?protocol=csv&delimiter=%7C&include-commit-ts=true&file-size=1048576&flush-interval=10s"
            "&date-separator=none&enable-partition-separator=false&worker-count=4&endpoint=http://h:1&region=r"
            "&access-key=k&secret-access-key=s&session-token=t&force-path-style=false"
        )
    )
    assert found.s3 is not None
    assert (found.s3.bucket, found.s3.prefix, found.s3.path_style) == ("bucket", "a/b", False)
    assert (found.options.delimiter, found.options.include_commit_ts, found.file_bytes) == ("|", True, 1048576)
    assert (found.flush_s, found.worker_count, found.layout.partitions) == (10, 4, False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_option_is_documented(protocol: str) -> None:
    page = (ROOT / "docs" / "formats" / "storage-sink.md").read_text("utf-8")
    with pytest.raises(InvalidInput, match="Known: ") as caught:
        read_settings(parse_sink_uri(f"s3://bucket?protocol={protocol}&0=1"))
    known = caught.value.message.partition("Known: ")[2].rstrip(".").split(", ")
    assert len(known) > 10
    assert [name for name in known if f"`{name}`" not in page] == []
