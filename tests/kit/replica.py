"""A replica of the recorded tables by their events, and the rows that TiDB shows at each moment."""

from __future__ import annotations

import base64
import collections
import io
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import zstandard
from sqlalchemy import make_url

Row = dict[str, Any]
#: DDL action types after which rows may have been rewritten without row changes
_REWRITES = {12, 61, 71, 72}


def read_lines(path: Path) -> Iterator[Row]:
    """The JSON objects of an NDJSON file, plain or .zst."""
    with path.open("rb") as raw:
        stream = zstandard.ZstdDecompressor().stream_reader(raw) if path.suffix == ".zst" else raw
        for line in io.TextIOWrapper(stream, "utf-8", newline="\n"):
            yield json.loads(line)


@dataclass
class Moment:
    """TiDB's tables at one timestamp."""

    ts: int
    label: str
    tables: list[Row]
    rows: dict[tuple[str, str], list[Row]]


def moments(expected: Path) -> list[Moment]:
    """All recorded moments in time order; a table that did not change has the rows of the earlier moment."""
    heads = [json.loads(p.read_text("utf-8")) for p in expected.glob("tables-*.json")]
    in_order: list[Moment] = []
    by_label: dict[str, Moment] = {}
    for head in sorted(heads, key=lambda h: int(h["ts"])):
        rows: dict[tuple[str, str], list[Row]] = collections.defaultdict(list)
        for line in read_lines(expected / f"state-{head['label']}.ndjson.zst"):
            rows[line["db"], line["table"]].append(line["row"])
        for table in head["tables"]:
            if table.get("rows_same_as"):
                name = table["db"], table["table"]
                rows[name] = by_label[table["rows_same_as"]].rows[name]
        by_label[head["label"]] = Moment(int(head["ts"]), head["label"], head["tables"], rows)
        in_order.append(by_label[head["label"]])
    return in_order


@dataclass
class Replica:
    """Rows by physical table id and record key."""

    rows: dict[int, dict[str, Row]] = field(default_factory=lambda: collections.defaultdict(dict))
    last_ts: int = 0
    delivered: set[tuple[str, str]] = field(default_factory=set)

    def apply(self, event: Row) -> None:
        """Take one pulled event. AssertionError when it repeats or falls back."""
        if event["type"] in ("ddl", "resolved"):
            return
        at = int(event["commit_ts"])
        assert at >= self.last_ts, f"order: {event}"
        version = event["key"], event["commit_ts"]
        assert version not in self.delivered, f"repeated: {event}"
        self.delivered.add(version)
        self.last_ts = at
        table = self.rows[int(event["table_id"])]
        if event["type"] == "delete":
            table.pop(event["key"], None)
        else:
            table[event["key"]] = event["columns"]


def compare(expected: Path, events: Iterable[Row]) -> int:
    """Replay the events; at each moment every comparable table must equal TiDB's rows. The number of comparisons."""
    rewritten = [
        (int(d["finished_ts"]), d["job"]["table_id"])
        for d in read_lines(expected / "ddl-history.ndjson.zst")
        if d["job"]["type"] in _REWRITES
    ]
    replica, compared = Replica(), 0
    queue = collections.deque(events)
    first, *rest = moments(expected)
    filled = {int(t["table_id"]) for t in first.tables if first.rows[t["db"], t["table"]]}
    for moment in rest:
        while queue and int(queue[0].get("commit_ts") or queue[0]["resolved_ts"]) <= moment.ts:
            replica.apply(queue.popleft())
        touched = filled | {table_id for ts, table_id in rewritten if ts <= moment.ts}
        for table in moment.tables:
            table_id = int(table["table_id"])
            if table["kind"] == "table" and not table.get("partition_ids") and table_id not in touched:
                same_rows(moment, table, list(replica.rows[table_id].values()))
                compared += 1
    return compared


def same_rows(moment: Moment, table: Row, our_rows: list[Row]) -> None:
    """AssertionError unless these rows are the table's at that moment, whatever their order."""
    types = _types(table["create"])
    theirs = moment.rows[table["db"], table["table"]]
    where = f"{table['db']}.{table['table']} at {moment.label}"
    assert len(our_rows) == len(theirs), f"{where}: {len(our_rows)} rows, TiDB has {len(theirs)}"
    names = [n for n in types if all(n in row for row in our_rows)]
    ours = sorted(_row_key([_ours(row[n], types[n]) for n in names]) for row in our_rows)
    want = sorted(_row_key([_tidb(row[n], types[n]) for n in names]) for row in theirs)
    for a, b in zip(ours, want, strict=True):
        assert a == b, f"{where}:\n  {a}\n  {b}"


def _row_key(values: list[object]) -> tuple[str, ...]:
    return tuple(repr(v) for v in values)


def _types(create: str) -> dict[str, str]:
    """Column -> type word(s) in lower case, from SHOW CREATE TABLE."""
    types = {}
    for line in create.split("\n"):
        text = line.strip()
        if text.startswith("`"):
            name, _, rest = text[1:].partition("`")
            types[name] = rest.strip().lower()
    return types


def _word(kind: str) -> str:
    return kind.split("(", maxsplit=1)[0].split(" ", maxsplit=1)[0].rstrip(",")


def _float(value: object, word: str) -> object:
    number = float(str(value))
    if word == "float":  # TiDB's text protocol prints six significant digits
        number = struct.unpack("<f", struct.pack("<f", number))[0]
        return "0" if number == 0 else f"{number:.5e}"
    return number if math.isfinite(number) else str(number)


def _ours(value: Any, kind: str) -> object:
    word = _word(kind)
    if value is None:
        return None
    if word in ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob", "bit"):
        raw = base64.b64decode(value, validate=True).hex()
        return raw.lstrip("0") if word == "bit" else raw
    if word in ("float", "double"):
        return _float(value, word)
    if word == "json":
        return json.dumps(json.loads(value), sort_keys=True)
    if word == "vector":
        return [f"{x:.4e}" for x in value]
    return f"{value:04d}" if word == "year" else str(value)


def _tidb(value: Any, kind: str) -> object:
    word = _word(kind)
    if value is None:
        return None
    if isinstance(value, dict):
        raw: str = value["hex"]
        return raw.lstrip("0") if word == "bit" else raw
    if word in ("float", "double"):
        return _float(value, word)
    if word == "json":
        return json.dumps(json.loads(value), sort_keys=True)
    if word == "vector":
        return [f"{x:.4e}" for x in json.loads(value)]
    return str(value)


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
