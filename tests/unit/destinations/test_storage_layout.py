"""The storage sink: names, schema files and settings, against what TiCDC writes; what is found in the rows of files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from destinations.storage.core import names
from destinations.storage.core.order import (
    FileRows,
    ProblemRows,
    RowProblem,
    compare_commits,
    read_in_order,
    rows_reader,
)
from destinations.storage.core.parts import Layout, cut
from destinations.storage.core.schema_files import column_of, of_events, of_table
from destinations.storage.reread import ordered_files
from destinations.storage.settings import PROTOCOLS, read_settings
from destinations.uri import parse_sink_uri
from reading.formats import parse_options
from schemas.model import Column, DdlEvent, Table
from tistream.catalog.tenancy.changefeeds import masked_uri
from tistream.errors import CorruptObject, InvalidInput

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
    entry = json.loads(file.data)
    assert (entry["Table"], entry["TableColumns"], entry["Type"], entry["Query"]) == ("", None, 1, database.query)


def test_a_schema_file_has_the_members_that_ticdc_writes() -> None:
    entry = json.loads(of_table(TABLE, 100, "alter table schema1.table1 add Birthday date", 5).data)
    lengths = [column.pop("ColumnLength", None) for column in entry["TableColumns"]]
    assert lengths == [None, "128", "64", None]  # as documented; TiCDC writes it as ColumnPrecision only
    assert entry == {
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
    ("given_column", "expected"),
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
def test_columns_are_told_as_ticdc_tells_them(given_column: Column, expected: str) -> None:
    entry = column_of(given_column)
    assert entry.pop("ColumnName") == "c"
    shown = [entry.pop("ColumnType"), *(f"{n.removeprefix('Column').lower()}={v}" for n, v in entry.items())]
    assert " ".join(shown) == expected


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
    assert {unit: str(date[0]) for unit, date in shown.items() if date is not None} == {
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
    settings = read_settings(
        parse_sink_uri(
            "s3://bucket/a/b/?protocol=csv&delimiter=%7C&include-commit-ts=true&file-size=1048576&flush-interval=10s"
            "&date-separator=none&enable-partition-separator=false&worker-count=4&endpoint=http://h:1&region=r"
            "&access-key=k&secret-access-key=s&session-token=t&force-path-style=false"
        )
    )
    assert settings.s3 is not None
    assert (settings.s3.bucket, settings.s3.prefix, settings.s3.path_style) == ("bucket", "a/b", False)
    assert (settings.options.delimiter, settings.options.include_commit_ts, settings.file_bytes) == ("|", True, 1048576)
    assert (settings.flush_s, settings.worker_count, settings.layout.partitions) == (10, 4, False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_option_is_documented(protocol: str) -> None:
    page = (ROOT / "docs" / "formats" / "storage-sink.md").read_text("utf-8")
    with pytest.raises(InvalidInput, match="Known: ") as caught:
        read_settings(parse_sink_uri(f"s3://bucket?protocol={protocol}&0=1"))
    options = caught.value.message.partition("Known: ")[2].rstrip(".").split(", ")
    assert len(options) > 10
    assert [name for name in options if f"`{name}`" not in page] == []


@given(st.text(st.characters(codec="ascii", exclude_characters="&#%", min_codepoint=33), min_size=1, max_size=40))
@example("abcD+efG/hIjK+lmNo/PqR=")
def test_a_secret_is_read_as_it_is_pasted_and_as_it_is_encoded(secret: str) -> None:
    for written in (secret, quote(secret, safe="")):
        uri = f"s3://b/p?protocol=csv&access-key=AK&secret-access-key={written}"
        s3 = read_settings(parse_sink_uri(uri)).s3
        assert s3 is not None
        assert s3.secret_access_key == secret
        assert secret not in repr(s3) or len(secret) < 8
        assert masked_uri(uri).endswith("secret-access-key=***")


def test_a_plus_in_a_secret_is_a_plus() -> None:
    uri = "s3://bucket/p?access-key=a&secret-access-key=a+b%2Bc%2Fd"
    assert parse_sink_uri(uri).options["secret-access-key"] == "a+b+c/d"


def file_of(name: str, *rows: tuple[int, int]) -> FileRows:
    """(commit_ts, digest) of each row."""
    ts, digests = zip(*rows, strict=True)
    return FileRows(name=name, commit_ts=np.array(ts, np.uint64), digests=np.array(digests, np.uint64))


def said(findings: list[ProblemRows]) -> list[tuple[RowProblem, str, str, int, int, int]]:
    return [(each.kind, each.place, each.other, each.rows, each.least_ts, each.most_ts) for each in findings]


ONE, TWO = file_of("1", (10, 1), (10, 2), (20, 1)), file_of("2", (30, 1), (40, 1))


def test_files_in_order_have_nothing_to_tell() -> None:
    findings, once = read_in_order([ONE, TWO], [], has_key=True)
    assert (findings, once.tolist()) == ([], [10, 10, 20, 30, 40])
    assert read_in_order([], [], has_key=True)[0] == []


@pytest.mark.parametrize(
    ("named", "kind"), [([], RowProblem.AGAIN), ([(9, 20)], RowProblem.AGAIN_NAMED), ([(10, 40)], RowProblem.AGAIN)]
)
def test_the_same_row_in_two_files(named: list[tuple[int, int]], kind: RowProblem) -> None:
    again = file_of("3", (10, 2))
    findings, once = read_in_order([ONE, TWO, again], named, has_key=True)
    assert said(findings) == [(kind, "3", "1", 1, 10, 10)]
    assert once.tolist() == [10, 10, 20, 30, 40]


def test_an_interval_that_names_some_of_a_files_rows() -> None:
    findings, _ = read_in_order([ONE, file_of("2", (10, 1), (10, 2), (20, 1))], [(10, 20)], has_key=True)
    assert said(findings) == [(RowProblem.AGAIN, "2", "1", 2, 10, 10), (RowProblem.AGAIN_NAMED, "2", "1", 1, 20, 20)]


def test_another_row_below_an_earlier_one_is_behind_it() -> None:
    late = file_of("3", (15, 7), (20, 9), (50, 1))
    findings, once = read_in_order([ONE, TWO, late], [], has_key=True)
    assert said(findings) == [(RowProblem.BEHIND, "3", "1", 1, 15, 15), (RowProblem.BEHIND, "3", "2", 1, 20, 20)]
    assert once.tolist() == [10, 10, 20, 30, 40, 15, 20, 50]
    findings, _ = read_in_order([ONE, TWO, late], [(14, 20)], has_key=True)
    assert {each.kind for each in findings} == {RowProblem.BEHIND_NAMED}


def test_equal_rows_of_a_transaction_are_two_without_a_key() -> None:
    twins = file_of("1", (10, 1), (10, 1))
    assert read_in_order([twins], [], has_key=False)[0] == []
    assert said(read_in_order([twins], [], has_key=True)[0]) == [(RowProblem.AGAIN, "1", "1", 1, 10, 10)]
    findings, _ = read_in_order([twins, TWO, file_of("3", (10, 1))], [], has_key=False)
    assert said(findings) == [(RowProblem.AGAIN, "3", "1", 1, 10, 10)]


def test_commits_are_compared_within_the_interval_and_an_update_may_be_two_rows() -> None:
    log = np.array([10, 10, 20, 30, 90], np.uint64)
    for there, expected in (
        ([10, 10, 20, 20, 30], []),
        ([10, 20, 30], [(RowProblem.LOST, "t", "", 1, 10, 10)]),
        ([10, 10, 30, 5, 95], [(RowProblem.LOST, "t", "", 1, 20, 20)]),
        ([10, 10, 20, 25, 25, 30], [(RowProblem.NOT_IN_LOG, "t", "", 2, 25, 25)]),
        ([], [(RowProblem.LOST, "t", "", 4, 10, 30)]),
    ):
        assert said(compare_commits("t", np.array(there, np.uint64), log, 9, 80)) == expected, there


def test_a_line_end_within_quotes_ends_no_record() -> None:
    data = b'"I","t","d",7,"a\r\nb","say ""no"""\r\n"D","t, ""x""","d",8,"","c"\r\n'
    options = parse_options({"include-commit-ts": "true"})
    rows = rows_reader("csv", options)("f", data)
    assert rows.commit_ts.tolist() == [7, 8]
    assert len(set(rows.digests.tolist())) == 2
    again = rows_reader("csv", options)("f", data + data)
    assert again.digests.tolist() == rows.digests.tolist() * 2
    with pytest.raises(CorruptObject, match="line 2"):
        rows_reader("csv", options)("f", b'"I","t","d",7,"a"\r\nx\r\n')
    with pytest.raises(CorruptObject, match="not whole"):
        rows_reader("csv", options)("f", data[:-1])


def test_files_without_commit_timestamps_cannot_be_compared() -> None:
    for protocol, option in (("csv", "include-commit-ts"), ("canal-json", "enable-tidb-extension")):
        with pytest.raises(InvalidInput, match=option):
            rows_reader(protocol, parse_options({}))


def test_versions_dates_and_numbers_are_read_in_their_order() -> None:
    """A number has more digits when six are not enough; names are those of the log."""
    in_order = [
        "d%2Fb/t/9/2026-01-02/CDC000002.csv",
        "d%2Fb/t/9/2026-01-02/CDC1000000.csv",
        "d%2Fb/t/9/2026-01-03/CDC000001.csv",
        "d%2Fb/t/10/2026-01-01/CDC000001.csv",
    ]
    others = ["d%2Fb/t/9/2026-01-02/meta/CDC.index", "d%2Fb/t/meta/schema_9_1.json", "metadata", ".tmp/x"]
    days = Layout(date_separator="day", partitions=True)
    assert ordered_files([*reversed(in_order), *others], days) == {("d/b", "t"): [in_order]}
    one, two = "d/p/9/104/2026-01-01/CDC000001.csv", "d/p/9/105/2026-01-01/CDC000001.csv"
    assert ordered_files([two, one], days) == {("d", "p"): [[one], [two]]}
    one, two = "d/p/9/2025/CDC000001.csv", "d/p/9/2026/CDC000001.csv"
    assert ordered_files([two, one], replace(days, date_separator="year")) == {("d", "p"): [[one, two]]}
    assert ordered_files([two, one], replace(days, date_separator="none")) == {("d", "p"): [[one], [two]]}
