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
    found: dict[str, float] = {}
    for family in metrics.REGISTRY.collect():
        for sample in family.samples:
            if sample.name == name and sample.labels["changefeed"] == of.changefeed_id:
                found[sample.labels["table"]] = sample.value
    return found


def count_all(of: LaneRow) -> None:
    """The recording, in as many stretches as it has timestamps of DDL."""
    history = recorded_history()
    ends = sorted({event.commit_ts - 1 for event in history.events(history.start_ts, history.resolved_ts)})
    bounds = [0, *(ts for ts in ends if ts > history.start_ts), history.resolved_ts]
    for stretch in stretches(history, changed_rows(), bounds):
        table_counts.count_tables(of, stretch)


def test_each_table_has_the_changes_that_ticdc_has_of_it() -> None:
    """But for tables where TiCDC splits an update of a unique key into a delete and an insert."""
    mine, wanted, types = lane(), Counter[str](), defaultdict[tuple[str, int], set[str]](set)
    count_all(mine)
    for entry in expected("ticdc-canal-json-tidb"):
        if entry["kind"] == "row":
            message, name = json.loads(message_text(entry["msg"])), f"{entry['db']}.{entry['table']}"
            wanted[name] += 1
            types[name, message["_tidb"]["commitTs"]].add(message["type"])
    split = {name for (name, _), found in types.items() if {"DELETE", "INSERT"} <= found}
    found = counted(mine, "tistream_replication_table_rows_total")
    assert found.keys() - {""} == wanted.keys()
    whole = wanted.keys() - split
    assert {name: found[name] for name in whole} == {name: wanted[name] for name in whole}
    assert len(whole) > 50
    pairs = changed_rows().select(["key", "value"]).to_pylist()
    sizes = [len(pair["key"]) + len(pair["value"] or b"") for pair in pairs]
    assert sum(counted(mine, "tistream_replication_table_bytes_total").values()) == sum(sizes)


def test_tables_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = lane()
    monkeypatch.setattr(metrics, "TABLES_SHOWN_MAX", len(table_counts._known) + 3)
    count_all(mine)
    found = counted(mine, "tistream_replication_table_rows_total")
    assert len(found.keys() - {""}) <= 3
    assert sum(found.values()) == changed_rows().num_rows
