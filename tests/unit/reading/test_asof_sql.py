"""Statements of a bounded size, however the sizes of rows differ."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from reading.asof import sql
from schemas import tidb_json
from tests.kit.column_run import ID
from tests.kit.tidb_columns import TYPES, column_info

TEXT = next(kind for kind in TYPES if kind.sql == "VARCHAR(20)")
ENUM = next(kind for kind in TYPES if kind.sql == "ENUM")
TABLE = tidb_json.table(
    {
        "id": 1,
        "name": "t",
        "cols": [ID, column_info(TEXT, 2, "v", 1), column_info(ENUM, 3, "e", 2)],
        "state": 5,
        "pk_is_handle": True,
    },
    db_id=1,
    db="d",
)


def statements(texts: list[str | None], labels: list[int | None]) -> list[bytes]:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(len(texts)), pa.int32()), pa.array(texts, pa.string()), pa.array(labels, pa.uint64())],
        names=["id", "v", "e"],
    )
    return re.findall(rb"(?:SET|INSERT)[^;]*;\n", sql.inserts(TABLE, batch))


def test_a_large_row_among_many_small_ones_does_not_make_a_large_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "_STATEMENT_BYTES", 1000)
    texts = ["x" * (900 if n % 7 == 0 else 0) for n in range(3000)] + ["y" * 5000] + [None] * 500
    inserts = statements(texts, [1] * len(texts))
    too_large = [s for s in inserts if len(s) > 1001]
    assert len(too_large) == 1
    assert too_large[0].count(b"\n(") == 1
    rows = re.findall(rb"\n\((\d+),('x*'|'y*'|NULL),'x'\)[,;]", b"".join(inserts))
    assert [int(n) for n, _ in rows] == list(range(len(texts)))
    assert [b"NULL" if t is None else b"'%b'" % t.encode() for t in texts] == [value for _, value in rows]
    assert len(inserts) < len(texts) / 3  # statements are filled


def test_only_statements_with_an_error_value_leave_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "_STATEMENT_BYTES", 60)
    inserts = statements(["a", "b", "c"], [1, 0, None])
    kinds = ["lax" if s == sql._LAX else "strict" if s == sql._STRICT else "insert" for s in inserts]
    assert kinds == ["insert", "lax", "insert", "strict", "insert"]
    assert b"(1,'b','')" in inserts[2]


def test_no_rows_are_no_statement() -> None:
    assert statements([], []) == []
