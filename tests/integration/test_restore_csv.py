"""Rows as of a timestamp, as CSV and LOAD DATA statement, come back from a real server as they were; and it
takes TiDB's definitions."""

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
from schemas.model import Database, Table
from schemas.show_create import Dialect, define
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
    definition = {"id": 1, "name": "t", "cols": [ID, *columns], "state": 5, "pk_is_handle": True}
    return tidb_json.table(definition, db_id=1, db="tistream")


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
        types = ["INT PRIMARY KEY", *(type_ for _, _, type_, _, _ in COLUMNS)]
        with (
            pymysql.connect(host="127.0.0.1", port=port, user="root", database="tistream", charset="utf8mb4") as conn,
            conn.cursor() as cursor,
        ):
            cursor.execute(f"CREATE TABLE t ({', '.join(map(' '.join, zip(quoted, types, strict=True)))})")
            load(port, tmp_path, load_text("t.csv", load_statement(table())))
            shown = {"bits": "`bits` + 0", "e": "`e` + 0", "f": "CAST(`f` AS DOUBLE)"}
            selected = [shown.get(name, each) for name, each in zip(names, quoted, strict=True)]
            cursor.execute(f"SELECT {', '.join(selected)} FROM t ORDER BY id")
            rows_back = [list(column) for column in zip(*cursor.fetchall(), strict=True)]
    assert rows_back[0] == list(range(rows))
    for (_, name, *_), expected, restored in zip(COLUMNS, cells, rows_back[1:], strict=True):
        if name == "f":
            assert pa.array(restored, pa.float64()).cast(pa.float32(), safe=False) == arrays[4]
        else:
            assert restored == expected, name


UTF8: dict[str, Any] = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
EXPR = {"default_is_expr": True}
#: (type, flags, length, default and more, what a new row has; None: there is no default)
DEFAULTS: tuple[tuple[int, int, int, dict[str, Any], str | None], ...] = (
    (10, 128, 10, {"default": "CURRENT_DATE"}, "2024-02-29"),
    (10, 129, 10, {"default": "CURRENT_DATE"}, "2024-02-29"),
    (10, 128, 10, {"default": "CURRENT_TIMESTAMP"}, "2024-02-29"),
    (12, 128, 19, {"default": "CURRENT_TIMESTAMP"}, "2024-02-29 12:00:00"),
    (15, 0, 9, {"default": "date_format(now(), _utf8mb4'%Y')", **EXPR}, "2024"),
    (15, 0, 9, {"default": "replace(upper(_utf8mb4'a-b'), _utf8mb4'-', _utf8mb4'')", **EXPR}, "AB"),
    (15, 0, 36, {"default": "left(uuid(), 0)", **EXPR}, None),
    (15, 0, 36, {"default": "uuid_to_bin(uuid())", **EXPR}, None),
    (245, 128, -1, {"default": "json_object()", **EXPR}, "{}"),
    (8, 0, 20, {"default": "nextval(`d`.`s`)", **EXPR}, None),
    (225, 0, 3, {"default": "vec_from_text(_utf8mb4'[1,2,3]')", **EXPR}, None),
    (225, 0, 3, {}, None),
)


def test_a_server_takes_every_default_or_a_note_names_it() -> None:
    columns = []
    for n, (tp, flag, flen, more, _) in enumerate(DEFAULTS):
        column = column_info(Type(sql="", tp=tp, flag=flag, flen=flen, decimal=-1, zero=TYPES[0].zero, defaults=(),
                                **(UTF8 if tp == 15 else {})), 2 + n, f"c{n}", 1 + n)  # fmt: skip
        columns.append(column | more)
    key = {"id": 1, "idx_name": {"O": "near", "L": "near"}, "is_unique": False, "state": 5}
    key["idx_cols"] = [{"name": {"O": f"c{len(DEFAULTS) - 1}"}, "offset": len(DEFAULTS), "length": -1}]
    info = {"id": 1, "name": "t", "cols": [ID, *columns], "state": 5, "pk_is_handle": True, "index_info": [key]}
    of_types = tidb_json.table(info | UTF8, db_id=1, db="tistream")
    defined = define(Database(id=1, name="tistream", **UTF8), of_types, Dialect.MARIADB)
    with mariadb() as url:
        port = make_url(url).port or 0
        with (
            pymysql.connect(host="127.0.0.1", port=port, user="root", database="tistream", charset="utf8mb4") as conn,
            conn.cursor() as cursor,
        ):
            cursor.execute("SET sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE'")
            cursor.execute(defined.create_table)
            cursor.execute("SET time_zone = '+00:00', timestamp = UNIX_TIMESTAMP('2024-02-29 12:00:00')")
            names = [f"c{n}" for n, (*_, default) in enumerate(DEFAULTS) if default is not None]
            others = [f"c{n}" for n, (*_, default) in enumerate(DEFAULTS) if default is None]
            cursor.execute(f"INSERT INTO t (id, {', '.join(others)}) VALUES (1{', NULL' * len(others)})")
            cursor.execute(f"SELECT {', '.join(f'CAST({name} AS CHAR)' for name in names)} FROM t")
            assert list(cursor.fetchall()[0]) == [default for *_, default in DEFAULTS if default is not None]
    for said in (*(f"column c{n}: no default, which was {more['default']}" for n, (*_, more, default)
                   in enumerate(DEFAULTS) if default is None and more), "index near: over a vector"):  # fmt: skip
        assert said in defined.notes


def load(port: int, folder: Path, statements: str) -> None:
    command = ["mariadb", "-h127.0.0.1", f"-P{port}", "-uroot", "--local-infile=1", "tistream"]
    done = subprocess.run(command, input=statements.encode(), capture_output=True, check=False, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
