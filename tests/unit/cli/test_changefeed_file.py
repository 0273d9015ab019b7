"""Every option of a TiCDC changefeed's file is applied, refused, or named as one without a meaning: none is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tistream.cli.filter_options import parse_changefeed, with_options
from tistream.errors import InvalidInput

PATH = Path("changefeed.toml")
URI, NOTE, REFUSED = "in the URI", "named", "refused"
ANY = "1"
#: TiCDC's options by their dotted names, a value, and what becomes of it
OPTIONS: list[tuple[str, Any, str]] = [
    *((name, ANY, NOTE) for name in (
        "memory-quota", "force-replicate", "check-gc-safe-point", "enable-table-monitor", "ignore-ineligible-table",
        "sync-point-interval", "sync-point-retention", "changefeed-error-stuck-duration", "sql-mode",
        "synced-status.synced-check-interval", "synced-status.checkpoint-interval", "mounter.worker-num",
        "scheduler.enable-table-across-nodes", "scheduler.region-threshold", "scheduler.write-key-threshold",
        "integrity.corruption-handle-level", "consistent.max-log-size", "consistent.flush-interval",
        "consistent.storage", "sink.encoder-concurrency", "sink.advance-timeout-in-sec", "sink.schema-registry",
        "sink.transaction-atomicity", "sink.safe-mode", "sink.enable-kafka-sink-v2",
        "sink.send-bootstrap-interval-in-sec", "sink.send-bootstrap-in-msg-count",
        "sink.send-bootstrap-to-all-partition", "sink.kafka-config.partition-num",
        "sink.kafka-config.codec-config.max-batch-size", "sink.pulsar-config.pulsar-version",
        "sink.mysql-config.worker-count",
    )),
    *((name, False, NOTE) for name in ("case-sensitive", "enable-sync-point", "bdr-mode")),
    *((name, True, REFUSED) for name in ("case-sensitive", "enable-sync-point", "bdr-mode")),
    ("sink.delete-only-output-handle-key-columns", False, NOTE),
    ("sink.delete-only-output-handle-key-columns", True, REFUSED),
    ("integrity.integrity-check-level", "none", NOTE),
    ("integrity.integrity-check-level", "correctness", REFUSED),
    ("consistent.level", "none", NOTE),
    ("consistent.level", "eventual", REFUSED),
    *((f"sink.{name}", ANY, URI) for name in (
        "protocol", "terminator", "date-separator", "enable-partition-separator", "file-index-digit",
        "only-output-updated-columns", "content-compatible", "debezium-disable-schema", "csv.delimiter", "csv.quote",
        "csv.null", "csv.include-commit-ts", "csv.binary-encoding-method", "csv.output-old-value",
        "cloud-storage-config.worker-count", "cloud-storage-config.flush-interval", "cloud-storage-config.file-size",
        "cloud-storage-config.output-column-id", "cloud-storage-config.file-expiration-days",
    )),
    ("sink.dispatchers", [{"matcher": ["a.*"], "partition": "ts"}], REFUSED),
    ("sink.open.output-old-value", True, REFUSED),
    ("sink.column-selectors", [{"matcher": ["a.b"], "columns": ["*", "!secret"]}], REFUSED),
    ("sink.column-selectors", [{"matcher": ["*.*"], "columns": ["a"]}] * 2, REFUSED),
    ("ignore-txn-start-ts-unknown", [1], REFUSED),
    ("filter.ignore-txn-start-ts", [1], REFUSED),
    ("sink.unknown", 1, REFUSED),
    ("cyclic-replication.enable", True, REFUSED),
]  # fmt: skip


def written(name: str, value: Any) -> dict[str, Any]:
    *sections, last = name.split(".")
    found: dict[str, Any] = {last: value}
    for section in reversed(sections):
        found = {section: found}
    return found


@pytest.mark.parametrize(("name", "value", "what"), OPTIONS, ids=[f"{name}={value}" for name, value, _ in OPTIONS])
def test_an_option(name: str, value: Any, what: str) -> None:
    if what == REFUSED:
        with pytest.raises(InvalidInput, match=name.rpartition(".")[2]):
            parse_changefeed(PATH, written(name, value))
        return
    made = parse_changefeed(PATH, written(name, value))
    if what == URI:
        assert made.sink == {name.rpartition(".")[2]: value}
    elif made.notes:
        assert name in made.notes[0]
    else:
        assert value in (False, "none"), "what is so here anyway"


def test_columns_of_all_tables_and_filters_are_applied() -> None:
    found = {"filter": {"rules": ["a.*"]}, "sink": {"column-selectors": [{"matcher": ["*.*"], "columns": ["*", "!s"]}]}}
    assert parse_changefeed(PATH, found).filters == {"tables": ["a.*"], "columns": ["*", "!s"]}


def test_options_of_the_uri_win() -> None:
    options = {"protocol": "csv", "delimiter": "|"}
    assert with_options("file:///out", options) == "file:///out?protocol=csv&delimiter=%7C"
    assert with_options("s3://b/p?protocol=canal-json", options) == "s3://b/p?protocol=canal-json&delimiter=%7C"
