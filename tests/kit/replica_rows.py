"""The rows of a MariaDB server in the form that NDJSON has, to be compared with what TiDB answered."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pymysql
from sqlalchemy import make_url

BINARY_TYPES = ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob", "bit")


def open_server(url: str) -> pymysql.Connection[Any]:
    """A connection that gives every value as the server's text."""
    parsed = make_url(url)
    texts = {code: str for code in vars(pymysql.constants.FIELD_TYPE).values() if isinstance(code, int)}
    return pymysql.connect(
        host="127.0.0.1", port=parsed.port or 0, user="root", charset="utf8mb4",
        conv={**pymysql.converters.encoders, **texts}, init_command="SET time_zone = '+00:00'",
    )  # fmt: skip


def selected(connection: pymysql.Connection[Any], table: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of a table of `replica.Moment`."""
    vectors = re.findall(r"`(\w+)` vector", table["create"])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "ORDER BY ordinal_position",
            (table["db"], table["table"]),
        )
        types = dict(cursor.fetchall())
        shown = ",".join(_expression(name.replace("`", "``"), kind) for name, kind in types.items())
        cursor.execute(f"SELECT {shown} FROM `{table['db']}`.`{table['table']}`")
        rows = cursor.fetchall()
    return [
        {
            name: _value(value, kind, name in vectors)
            for (name, kind), value in zip(types.items(), row, strict=True)
        }
        for row in rows
    ]  # fmt: skip


def _expression(name: str, kind: str) -> str:
    """How a column is asked for: bytes in hexadecimal, floats with all digits, numbers without ZEROFILL's zeros."""
    if kind in BINARY_TYPES:
        return f"HEX(`{name}`)"
    if kind == "float":
        return f"CAST(`{name}` AS DOUBLE)"
    return f"`{name}` + 0" if kind == "int" else f"`{name}`"


def _value(value: Any, kind: str, is_vector: bool) -> Any:
    if value is None:
        return None
    if kind in BINARY_TYPES:
        return base64.b64encode(bytes.fromhex(value.rjust(len(value) + len(value) % 2, "0"))).decode()
    if kind == "year":
        return int(value)
    return json.loads(value) if is_vector else value
