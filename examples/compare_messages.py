"""Compare TiCDC's messages with TiStream's, one by one: `python examples/compare_messages.py messages.ndjson`.

The file has one message of TiCDC a line, as `kafka-console-consumer` prints it or the storage sink writes it, of a
changefeed with `protocol=canal-json` or `debezium` and `enable-tidb-extension=true`. The same span of commit timestamps
is pulled from TiStream in the same format. The exit status is 0 when both have the same messages.

    missing      TiCDC has it, TiStream has not
    additional   TiStream has it, TiCDC has not
    repeated     TiCDC delivered it more than once, which at-least-once allows
    disordered   TiCDC delivered it after a later message of its table: a repetition, or another partition

Equal messages count once: in a table without a primary key, one transaction may have several equal rows.
Members that tell when a message was made (`ts`, `ts_ms`, `id`) are left out. A DDL of partitions has the end of its
job as its commit timestamp in TiCDC; in debezium the times of a DDL are therefore not compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tistream.client import connect

Table = tuple[str, str]


@dataclass(frozen=True)
class Message:
    table: Table
    commit_ts: int
    text: str  # comparable

    @property
    def sentence(self) -> str:
        return f"{'.'.join(self.table)} at {self.commit_ts}: {self.text[:300]}"


@dataclass
class Report:
    equal: int = 0
    missing: list[Message] = field(default_factory=list)
    additional: list[Message] = field(default_factory=list)
    repeated: int = 0
    disordered: int = 0


def canal(message: dict[str, Any]) -> Message | None:
    """A row or a DDL; None for a watermark."""
    if message["type"] == "TIDB_WATERMARK":
        return None
    extension = dict(message.get("_tidb") or {})
    if "commitTs" not in extension:
        raise SystemExit("A message has no _tidb.commitTs: the changefeed needs enable-tidb-extension=true.")
    done = extension.pop("finishedTs", None)
    kept = {name: value for name, value in message.items() if name not in ("ts", "id")}
    if done is not None:  # TiStream's place of a DDL of partitions; TiCDC's is the end of its job
        extension["commitTs"], kept["es"] = done, done >> 18
    kept["_tidb"] = extension
    return Message((message["database"], message["table"]), extension["commitTs"], json.dumps(kept, sort_keys=True))


def debezium(message: dict[str, Any]) -> Message | None:
    """A row or a DDL, given with or without its key and its schema; None for a watermark."""
    value = message.get("value", message)
    payload = dict(value.get("payload", value))
    source = dict(payload["source"])
    payload.pop("ts_ms", None)
    if payload.get("op") == "m":
        return None
    commit_ts = source["commit_ts"]
    if "ddl" in payload:
        source = {name: value for name, value in source.items() if name not in ("ts_ms", "commit_ts")}
    payload["source"] = source
    return Message((source["db"], source["table"]), commit_ts, json.dumps(payload, sort_keys=True))


READ = {"canal-json": canal, "debezium": debezium}


def messages(lines: Iterable[str | bytes], protocol: str) -> Iterator[Message]:
    for line in lines:
        if line.strip():
            found = READ[protocol](json.loads(line))
            if found is not None:
                yield found


def compare(theirs: Iterable[Message], ours: Iterable[Message]) -> Report:
    """Messages of TiCDC and of TiStream from the same span. Needs memory for all of them."""
    report = Report()
    wanted: dict[Message, None] = {}
    newest: dict[Table, int] = {}
    for message in theirs:
        report.repeated += message in wanted
        report.disordered += message.commit_ts < newest.get(message.table, 0)
        newest[message.table] = max(newest.get(message.table, 0), message.commit_ts)
        wanted[message] = None
    found = dict.fromkeys(ours)
    report.missing = [message for message in wanted if message not in found]
    report.additional = [message for message in found if message not in wanted]
    report.equal = len(found) - len(report.additional)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare TiCDC's messages with TiStream's.")
    parser.add_argument("file", help="TiCDC's messages, one a line")
    parser.add_argument("--protocol", choices=READ, default="canal-json")
    parser.add_argument("--url", default="http://127.0.0.1:8711")
    parser.add_argument("--cluster", type=int, default=1)
    parser.add_argument("--tenant", type=int, default=1)
    parser.add_argument("--tables", default="*.*", help="TiCDC's table rules, for a changefeed of some tables")
    asked = parser.parse_args()

    with open(asked.file, encoding="utf-8") as file:
        theirs = [*messages(file, asked.protocol)]
    if not theirs:
        raise SystemExit(f"{asked.file} has no rows and no DDL.")
    start, end = min(m.commit_ts for m in theirs) - 1, max(m.commit_ts for m in theirs)
    with connect(asked.url) as tistream:
        changes = tistream.tenant(asked.cluster, asked.tenant).changes(start=start, end=end, tables=[asked.tables])
        pages = changes.pages(asked.protocol, {"enable-tidb-extension": "true"})
        report = compare(theirs, messages((line for page in pages for line in page.lines()), asked.protocol))
    for name in ("missing", "additional"):
        for message in getattr(report, name)[:20]:
            print(name, message.sentence)
    print(
        f"{report.equal} equal, {len(report.missing)} missing, {len(report.additional)} additional;"
        f" TiCDC: {report.repeated} repeated, {report.disordered} disordered"
    )
    return 1 if report.missing or report.additional else 0


if __name__ == "__main__":
    sys.exit(main())
