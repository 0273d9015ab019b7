"""Rows as of a timestamp, as CSV and LOAD DATA statement, come back from a real server as they were."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
from sqlalchemy import make_url

from reading.asof.csv import load_statement
from reading.asof.output import writer_of
from schemas import tidb_json
from schemas.model import Table
from simulator.chaos.servers.mariadb import mariadb
from tests.kit.column_run import ID
from tests.kit.tidb_columns import TYPES, Type, column_info
from tistream.cli.snapshot import load_text

TEXTS = [
    "",
    "NULL",
    "\\N",
    "\\",
    "a\\",
    '"',
    '""',
    '",',
    '","',
    "a,b",
    "\r\n",
    "\n",
    "\t",
    "\0",
    "é\u2028😀",
    "'",
    "\\0",
    " x ",
]
BYTES = [text.encode() for text in TEXTS] + [bytes(range(256)), b"\xff\xfe"]
COLUMNS: tuple[tuple[str, str, str, pa.DataType, Sequence[Any]], ...] = (
    ("TEXT", 't`"', "LONGTEXT", pa.string(), TEXTS),
    ("BLOB", "b", "LONGBLOB", pa.binary(), BYTES),
    ("BIT(9)", "bits", "BIT(9)", pa.uint64(), [0, 1, 255, 256, 511]),
    ("ENUM", "e", "ENUM('x','y','z')", pa.uint64(), [0, 1, 2]),
    ("FLOAT", "f", "FLOAT", pa.float32(), [0.0, -1.5, 3.4028234663852886e38, 1e-30]),
    ("DOUBLE", "d", "DOUBLE", pa.float64(), [0.1, -2.5e300, 1e-300]),
    ("YEAR", "y", "YEAR", pa.uint16(), [0, 1901, 2000, 2155]),
    ("BIGINT UNSIGNED", "u", "BIGINT UNSIGNED", pa.uint64(), [0, (1 << 64) - 1]),
)


def kind(sql: str) -> Type:
    return next(each for each in TYPES if each.sql == sql)


def table() -> Table:
    columns = [column_info(kind(sql), 2 + n, name, 1 + n) for n, (sql, name, *_) in enumerate(COLUMNS)]
    found = {"id": 1, "name": "t", "cols": [ID, *columns], "state": 5, "pk_is_handle": True}
    return tidb_json.table(found, db_id=1, db="tistream")


def test_every_value_comes_back_from_load_data(tmp_path: Path) -> None:
    rows = 1 + max(len(values) for *_, values in COLUMNS)
    cells = [[*values, *[None] * (rows - len(values))] for *_, values in COLUMNS]
    arrays = [pa.array(each, tp) for each, (_, _, _, tp, _) in zip(cells, COLUMNS, strict=True)]
    names = ["id", *(name for _, name, *_ in COLUMNS)]
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int32()), *arrays], names=names)
    writer = writer_of("csv", table())
    (tmp_path / "t.csv").write_bytes(writer.begin() + writer.rows(batch) + writer.end())
    with mariadb() as url:
        port = make_url(url).port or 0
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        types = ["INT PRIMARY KEY", *(made for _, _, made, _, _ in COLUMNS)]
        with (
            pymysql.connect(host="127.0.0.1", port=port, user="root", database="tistream", charset="utf8mb4") as conn,
            conn.cursor() as cursor,
        ):
            cursor.execute(f"CREATE TABLE t ({', '.join(map(' '.join, zip(quoted, types, strict=True)))})")
            load(port, tmp_path, load_text("t.csv", load_statement(table())))
            shown = {"bits": "`bits` + 0", "e": "`e` + 0", "f": "CAST(`f` AS DOUBLE)"}
            wanted = [shown.get(name, each) for name, each in zip(names, quoted, strict=True)]
            cursor.execute(f"SELECT {', '.join(wanted)} FROM t ORDER BY id")
            found = [list(column) for column in zip(*cursor.fetchall(), strict=True)]
    assert found[0] == list(range(rows))
    for (_, name, *_), expected, got in zip(COLUMNS, cells, found[1:], strict=True):
        if name == "f":
            assert pa.array(got, pa.float64()).cast(pa.float32(), safe=False) == arrays[4]
        else:
            assert got == expected, name


def load(port: int, folder: Path, statements: str) -> None:
    command = ["mariadb", "-h127.0.0.1", f"-P{port}", "-uroot", "--local-infile=1", "tistream"]
    done = subprocess.run(command, input=statements.encode(), capture_output=True, check=False, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
