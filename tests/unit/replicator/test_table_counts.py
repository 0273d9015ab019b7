"""What lanes have written, by table."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import cast

import pytest

from replicator import table_counts
from tests.kit.recording import changed_rows, expected, recorded_history
from tests.kit.storage_sink import stretches
from tests.kit.ticdc import message_text
from tistream.catalog.work.lanes import LaneRow
from tistream.ids import Tenant
from tistream.runtime import metrics

_numbers = itertools.count(1)


def lane() -> LaneRow:
    """Of a changefeed of its own."""
    return cast(LaneRow, SimpleNamespace(tenant=Tenant(1, 1), changefeed_id=f"counted-{next(_numbers)}"))


def counted(of: LaneRow, name: str) -> dict[str, float]:
    """The samples of a counter, by table."""
    counts: dict[str, float] = {}
    for family in metrics.REGISTRY.collect():
        for sample in family.samples:
            if sample.name == name and sample.labels["changefeed"] == of.changefeed_id:
                counts[sample.labels["table"]] = sample.value
    return counts


def count_all(of: LaneRow) -> None:
    """The recording, in as many stretches as it has timestamps of DDL."""
    history = recorded_history()
    ends = sorted({event.commit_ts - 1 for event in history.events(history.start_ts, history.resolved_ts)})
    bounds = [0, *(ts for ts in ends if ts > history.start_ts), history.resolved_ts]
    for stretch in stretches(history, changed_rows(), bounds):
        table_counts.count_tables(of, stretch)


def test_each_table_has_the_changes_that_ticdc_has_of_it() -> None:
    """But for tables where TiCDC splits an update of a unique key into a delete and an insert."""
    of_lane, by_table, types = lane(), Counter[str](), defaultdict[tuple[str, int], set[str]](set)
    count_all(of_lane)
    for entry in expected("ticdc-canal-json-tidb"):
        if entry["kind"] == "row":
            message, name = json.loads(message_text(entry["msg"])), f"{entry['db']}.{entry['table']}"
            by_table[name] += 1
            types[name, message["_tidb"]["commitTs"]].add(message["type"])
    split = {name for (name, _), counts in types.items() if {"DELETE", "INSERT"} <= counts}
    counts = counted(of_lane, "tistream_replication_table_rows_total")
    assert counts.keys() - {""} == by_table.keys()
    whole = by_table.keys() - split
    assert {name: counts[name] for name in whole} == {name: by_table[name] for name in whole}
    assert len(whole) > 50
    pairs = changed_rows().select(["key", "value"]).to_pylist()
    sizes = [len(pair["key"]) + len(pair["value"] or b"") for pair in pairs]
    assert sum(counted(of_lane, "tistream_replication_table_bytes_total").values()) == sum(sizes)


def test_tables_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    of_lane = lane()
    monkeypatch.setattr(metrics, "TABLES_SHOWN_MAX", len(table_counts._known) + 3)
    count_all(of_lane)
    counts = counted(of_lane, "tistream_replication_table_rows_total")
    assert len(counts.keys() - {""}) <= 3
    assert sum(counts.values()) == changed_rows().num_rows
