"""Pulled Canal-JSON against the messages TiCDC itself produced for the same recorded changes."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.kit.recording import expected
from tests.kit.replica import read_lines
from tistream import ts as tso

#: DDL of partitions that takes effect before its job is done. TiCDC's messages have the later time as its commit_ts.
_EARLY = re.compile(r"altertable.*?((truncate|drop|reorganize|coalesce|add)partition|partitionby|removepartitioning)")


#: the parameters of a pull whose messages are TiCDC's
CANAL: dict[str, Any] = {"enable-tidb-extension": "true"}


def compare_canal(folder: Path, lines: Iterable[bytes]) -> int:
    """Every message of TiCDC exactly once, nothing else, in commit order, none at or below an announced watermark.

    A DDL of partitions comes earlier than TiCDC says: its `finishedTs` is what TiCDC has as its commit_ts.
    `lines` are pulled with enable-tidb-extension. Returns the number of messages; AssertionError at the first fault.
    """
    want: Counter[str] = Counter()
    for d in read_lines(folder / "ticdc-canal-json-tidb.ndjson.zst"):
        if d["kind"] == "checkpoint":
            continue
        message = json.loads(d["msg"])
        want[_normal(message)] += 1
    rendered: Counter[str] = Counter()
    last = announced = 0
    for line in lines:
        message = json.loads(line)
        if message["type"] == "TIDB_WATERMARK":
            assert message["_tidb"]["watermarkTs"] >= announced, "a watermark fell"
            announced = message["_tidb"]["watermarkTs"]
            continue
        at = message["_tidb"]["commitTs"]
        assert at >= last, f"order: {line!r}"
        assert at > announced, f"late: {line!r}"
        last = at
        rendered[_normal(_when_done(message))] += 1
    missing, extra = want - rendered, rendered - want
    assert not missing, f"{missing.total()} missing, for example {next(iter(missing))[:600]}"
    assert not extra, f"{extra.total()} too many, for example {next(iter(extra))[:600]}"
    return rendered.total()


def compare_lake(folder: Path, *, repeated: bool = False) -> int:
    """What a changefeed wrote to a folder as Canal-JSON, with partitions in one folder, is what TiCDC wrote: each row
    of each table once, in order; `repeated`: each row at least once. Returns the number of rows; AssertionError at the
    first table that differs."""
    wanted: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in expected("ticdc-canal-json-tidb"):
        if entry["kind"] == "row":
            wanted[entry["db"], entry["table"]].append(json.loads(message_text(entry["msg"])))
    written = _rows_in(folder)
    assert written.keys() == wanted.keys()
    for table, messages in wanted.items():
        for message in (*messages, *written[table]):
            del message["ts"]
        if repeated:
            assert {_text(row) for row in written[table]} ^ {_text(row) for row in messages} == set(), table
        else:
            assert written[table] == messages, table
    return sum(map(len, wanted.values()))


def _text(message: dict[str, Any]) -> str:
    return json.dumps(message, sort_keys=True)


def _rows_in(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The messages of each table, in the order of versions, dates and numbers."""
    files = [path for path in folder.glob("*/*/*/**/CDC*.json") if path.name != "CDC.index"]
    placed = sorted((path.parts[len(folder.parts) :], path) for path in files)
    messages: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for (db, table, version, *_), path in sorted(placed, key=lambda each: (each[0][:2], int(each[0][2]), each[0][3:])):
        assert version.isdigit()
        messages[db, table] += [json.loads(line) for line in path.read_bytes().split(b"\r\n")[:-1]]
    return messages


def message_text(message: Any) -> str:
    """What TiCDC wrote, as recorded; bytes that are not UTF-8 become U+FFFD, as everywhere in TiStream."""
    if isinstance(message, dict):
        return bytes.fromhex(message["hex"]).decode("utf-8", "replace")
    return str(message)


def takes_effect_early(sql: str) -> bool:
    """Whether the statement, in any spelling, is a DDL that may take effect before its job is done."""
    return _EARLY.match("".join(sql.replace("`", "").lower().split())) is not None


def _when_done(message: dict[str, Any]) -> dict[str, Any]:
    """A pulled message with the time at which its DDL was done as its commit_ts, as TiCDC writes it."""
    done = message["_tidb"].get("finishedTs")
    if done is None:
        return message
    assert takes_effect_early(message["sql"]), f"not a DDL that takes effect early: {message}"
    assert done > message["_tidb"]["commitTs"], f"done before it takes effect: {message}"
    extension = {name: value for name, value in message["_tidb"].items() if name != "finishedTs"}
    return {**message, "es": tso.physical_ms(done), "_tidb": {**extension, "commitTs": done}}


def _normal(message: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in message.items() if k not in ("ts", "id")}, sort_keys=True)
