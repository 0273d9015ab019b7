"""Pulled Canal-JSON against the messages TiCDC itself produced for the same recorded changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tistream.testing.replica import read_lines


def compare_canal(expected: Path, lines: Iterable[bytes]) -> int:
    """Every message of TiCDC exactly once, nothing else, in commit order, none at or below an announced watermark.

    `lines` are pulled with enable-tidb-extension. Returns the number of messages; AssertionError at the first fault.
    """
    want: Counter[str] = Counter()
    also: dict[str, str] = {}  # a DDL as the user wrote it -> as TiCDC restored it
    for d in read_lines(expected / "ticdc-canal-json-tidb.ndjson.zst"):
        if d["kind"] == "checkpoint":
            continue
        message = json.loads(d["msg"])
        want[_normal(message, message["sql"])] += 1
        if d["kind"] == "ddl":
            also[_normal(message, d.get("job_query") or "")] = _normal(message, message["sql"])
    got: Counter[str] = Counter()
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
        text = _normal(message, message["sql"])
        got[also.get(text, text)] += 1
    missing, extra = want - got, got - want
    assert not missing, f"{missing.total()} missing, for example {next(iter(missing))[:600]}"
    assert not extra, f"{extra.total()} too many, for example {next(iter(extra))[:600]}"
    return got.total()


def _normal(message: dict[str, Any], sql: str) -> str:
    kept = {k: v for k, v in message.items() if k not in ("ts", "id", "sql")}
    squashed = "".join(sql.replace("`", "").lower().split()).rstrip(";")
    return json.dumps([kept, squashed], sort_keys=True)
