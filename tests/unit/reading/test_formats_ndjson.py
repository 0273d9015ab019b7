"""TiStream's own lines: every type as the reference of the format says, and the other lines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats import create_format
from reading.formats.lines import written
from schemas.layout import row_layout
from tests.kit.schema_models import a_column, a_table, an_event
from tistream.codec.row.layout import storage_schema

BINARY, TEXT = "binary", "utf8mb4"
COMMIT_TS = (1_600_000_000_123 << 18) + 5


def packed(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micro: int = 0) -> int:
    ymd = (year * 13 + month) << 5 | day
    return (ymd << 17 | hour << 12 | minute << 6 | second) << 24 | micro


#: name, tp, flen, decimal, flag, charset, labels, stored value, value in the line
CASES: list[tuple[str, int, int, int, int, str, tuple[str, ...], Any, Any]] = [
    ("tiny", 1, 4, 0, 0, BINARY, (), -5, -5),
    ("exact", 8, 20, 0, 0, BINARY, (), 2**53 - 1, 2**53 - 1),
    ("big", 8, 20, 0, 0, BINARY, (), -(2**53), "-9007199254740992"),
    ("ubig", 8, 20, 0, 32, BINARY, (), 2**64 - 1, "18446744073709551615"),
    ("year", 13, 4, 0, 96, BINARY, (), 0, 0),
    ("float", 4, 12, -1, 0, BINARY, (), np.float32(0.1), 0.1),
    ("double", 5, 22, -1, 0, BINARY, (), 1e300, 1e300),
    ("dec", 246, 6, 2, 0, BINARY, (), "1.50", "1.50"),
    ("text", 15, 9, 0, 0, TEXT, (), 'a"\n\u2028<é', 'a"\n\u2028<é'),
    ("bytes", 15, 9, 0, 128, BINARY, (), b"\x00\xff", "AP8="),
    ("bit", 16, 10, 0, 32, BINARY, (), 0x201, "AgE="),
    ("date", 10, 10, 0, 128, BINARY, (), 0, "0000-00-00"),
    ("dt", 12, 22, 2, 128, BINARY, (), packed(2020, 2, 30, 1, 2, 3, 450000), "2020-02-30 01:02:03.45"),
    ("ts", 7, 19, 0, 128, BINARY, (), packed(2021, 1, 2, 3, 4, 5), "2021-01-02 03:04:05"),
    ("time", 11, 10, 0, 128, BINARY, (), -3723 * 10**9, "-01:02:03"),
    ("enum", 247, 1, 0, 0, TEXT, ("a,b", "c"), 1, "a,b"),
    ("none", 247, 1, 0, 0, TEXT, ("a,b", "c"), 0, ""),
    ("set", 248, 3, 0, 0, TEXT, ("x", "y", "z"), 5, "x,z"),
    ("json", 245, -1, 0, 128, BINARY, (), '{"a": null}', '{"a": null}'),
    ("vec", 225, 2, 0, 128, BINARY, (), [1.5, -2.0], [1.5, -2]),
]
TABLE = a_table(
    *(
        a_column(n, name, tp, flag=flag, flen=flen, decimal=decimal, charset=charset, elems=labels)
        for n, (name, tp, flen, decimal, flag, charset, labels, _, _) in enumerate(CASES)
    ),
    db='d"b',
)


def images(present: list[bool]) -> pa.RecordBatch:
    """The values of CASES in the rows that are present."""
    schema = storage_schema(row_layout(TABLE))
    arrays = []
    for case, field in zip(CASES, schema, strict=True):
        values = [case[7] if p else None for p in present]
        text = pa.types.is_decimal(field.type)
        arrays.append(pa.array(values).cast(field.type) if text else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def changes(kinds: list[int]) -> TableChanges:
    rows = len(kinds)
    return TableChanges(
        table=TABLE,
        kind=np.array(kinds, np.uint8),
        order=np.arange(rows),
        physical_id=np.full(rows, 70),
        start_ts=np.full(rows, COMMIT_TS - 1, np.uint64),
        commit_ts=np.full(rows, COMMIT_TS, np.uint64),
        key=pa.array([b"t\x80\x01"] * rows, pa.binary()),
        after=images([k != DELETE for k in kinds]),
        before=images([k != INSERT for k in kinds]),
        split=np.zeros(rows, np.bool_),
    )


def test_every_type_of_value() -> None:
    fmt = create_format("ndjson")
    lines = [json.loads(line) for line in written(fmt.rows(changes([INSERT, DELETE, UPDATE]))).to_pylist()]
    row = {case[0]: case[8] for case in CASES}
    assert [line["type"] for line in lines] == ["insert", "delete", "update"]
    assert [line["columns"] for line in lines] == [row, None, row]
    assert [line["old"] for line in lines] == [None, row, row]
    facts = {k: v for k, v in lines[0].items() if k not in ("type", "columns", "old")}
    assert facts == {
        "database": 'd"b',
        "table": "t",
        "table_id": 70,
        "key": "748001",
        "commit_ts": str(COMMIT_TS),
        "start_ts": str(COMMIT_TS - 1),
        "commit_time": "2020-09-13T12:26:40.123Z",
    }


def test_a_line_is_one_line_for_every_reader() -> None:
    for line in written(create_format("ndjson").rows(changes([INSERT]))).to_pylist():
        assert len(line.decode().splitlines()) == 1


def test_no_rows_give_no_lines() -> None:
    for name in ("ndjson", "canal-json", "csv", "simple", "open-protocol", "debezium"):
        assert written(create_format(name).rows(changes([]))).to_pylist() == []


def test_ddl_and_resolved_lines() -> None:
    fmt = create_format("ndjson")
    times = {"commit_ts": COMMIT_TS, "start_ts": COMMIT_TS - 9, "finished_ts": COMMIT_TS}
    event = an_event(kind="add column", query="alter table t add c int", **times)
    assert [json.loads(line) for line in fmt.ddl(event)] == [
        {
            "type": "ddl",
            "query": "alter table t add c int",
            "database": "d",
            "table": "t",
            "commit_ts": str(COMMIT_TS),
            "start_ts": str(COMMIT_TS - 9),
            "commit_time": "2020-09-13T12:26:40.123Z",
            "kind": "add column",
            "finished_ts": str(COMMIT_TS),
        }
    ]
    mark = fmt.watermark(COMMIT_TS)
    assert mark is not None
    assert json.loads(mark) == {
        "type": "resolved",
        "resolved_ts": str(COMMIT_TS),
        "resolved_time": "2020-09-13T12:26:40.123Z",
    }
