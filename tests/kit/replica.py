"""A replica built from pulled NDJSON, compared with what TiDB itself answered at recorded moments.

Written against the value table of the API documentation, not against TiStream's encoder. Tables whose rows change
without row changes (partition DDL, type-changing MODIFY COLUMN) are left to other tests; `compare` says how many tables
it looked at, so that a test can insist on it.
"""

from __future__ import annotations

import base64
import collections
import io
import json
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

Row = dict[str, Any]
#: DDL action types after which rows may have been rewritten without row changes
_REWRITES = {12, 61, 71, 72}


def read_lines(path: Path) -> Iterator[Row]:
    """The JSON objects of an NDJSON file, plain or .zst."""
    with path.open("rb") as raw:
        stream = zstandard.ZstdDecompressor().stream_reader(raw) if path.suffix == ".zst" else raw
        for line in io.TextIOWrapper(stream, "utf-8", newline="\n"):  # type: ignore[type-var]
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
    found: list[Moment] = []
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
        found.append(by_label[head["label"]])
    return found


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


def same_rows(moment: Moment, table: Row, mine: list[Row]) -> None:
    """AssertionError unless these rows are the table's at that moment, whatever their order."""
    types = _types(table["create"])
    theirs = moment.rows[table["db"], table["table"]]
    where = f"{table['db']}.{table['table']} at {moment.label}"
    assert len(mine) == len(theirs), f"{where}: {len(mine)} rows, TiDB has {len(theirs)}"
    names = [n for n in types if all(n in row for row in mine)]
    ours = sorted(_row_key([_ours(row[n], types[n]) for n in names]) for row in mine)
    want = sorted(_row_key([_tidb(row[n], types[n]) for n in names]) for row in theirs)
    for a, b in zip(ours, want, strict=True):
        assert a == b, f"{where}:\n  {a}\n  {b}"


def _row_key(values: list[object]) -> tuple[str, ...]:
    return tuple(repr(v) for v in values)


def _types(create: str) -> dict[str, str]:
    """Column -> type word(s) in lower case, from SHOW CREATE TABLE."""
    found = {}
    for line in create.split("\n"):
        text = line.strip()
        if text.startswith("`"):
            name, _, rest = text[1:].partition("`")
            found[name] = rest.strip().lower()
    return found


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
