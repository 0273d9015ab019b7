"""The plain judge: which of two stores' prewrites a commit committed, and what it does when nobody can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.kit.oracle import Change, WatermarkOracle
from tistream.codec.batch_file import BatchFile
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS, ROWS, Op, RowKind
from tistream.objectstore.layout import BatchKey

KEY, RANGE = b"tk", KeyRange(b"t", b"u")
START_TS, COMMIT_TS = 100, 120
OLD, NEW = b"old", b"new"


@dataclass
class Leader:
    """One store's subscription of the region, a file at a time."""

    store_id: int
    open_ts: int
    ready_ts: int
    seq: int = 0

    def file(self, *rows: dict[str, Any], resolved_ts: int) -> BatchFile:
        self.seq += 1
        times = {"subscription_open_ts": self.open_ts, "subscription_ready_ts": self.ready_ts, "checkpoint_ts": 50}
        where = {"region_id": 1, "version": 1, "start_key": RANGE.start, "end_key": RANGE.end}
        region = {**where, **times, "resolved_ts": resolved_ts, "row_offset": 0, "row_count": len(rows)}
        return BatchFile(
            key=BatchKey(tenant=Tenant(1, 1), store_id=self.store_id, incarnation=1, seq=self.seq),
            cut_ts=resolved_ts + 30,
            write_id="w",
            rows=pa.RecordBatch.from_pylist(list(rows), schema=ROWS),
            regions=pa.RecordBatch.from_pylist([region], schema=REGIONS),
        )


def row(kind: RowKind, value: bytes | None, commit_ts: int = 0) -> dict[str, Any]:
    times = {"start_ts": START_TS, "commit_ts": commit_ts, "generation": 0, "expire_ts": 0, "flags": 0}
    return {"kind": kind, "op": Op.PUT, "key": KEY, "value": value, "old_value": None, **times}


def two_prewrites(first: Leader, second: Leader, committed: bytes | None) -> WatermarkOracle:
    """The first leader sent OLD, the second NEW; then the commit comes, and the region is resolved above it."""
    oracle = WatermarkOracle(50, RANGE)
    oracle.feed(second.file(row(RowKind.PREWRITE, NEW), resolved_ts=90))
    oracle.feed(first.file(row(RowKind.PREWRITE, OLD), resolved_ts=80))
    oracle.feed(second.file(row(RowKind.COMMIT, committed, COMMIT_TS), resolved_ts=150))
    return oracle


def test_the_prewrite_of_a_subscription_that_opened_when_the_other_was_ready_is_the_newer() -> None:
    oracle = two_prewrites(Leader(1, 60, 65), Leader(2, 70, 75), None)
    assert oracle.served == {(KEY, COMMIT_TS): Change(START_TS, Op.PUT, NEW, None)}
    oracle = two_prewrites(Leader(1, 70, 75), Leader(2, 60, 65), None)
    assert oracle.served == {(KEY, COMMIT_TS): Change(START_TS, Op.PUT, OLD, None)}


def test_where_subscriptions_overlap_the_commits_value_tells() -> None:
    oracle = two_prewrites(Leader(1, 60, 75), Leader(2, 70, 80), OLD)
    assert oracle.served == {(KEY, COMMIT_TS): Change(START_TS, Op.PUT, OLD, None)}
    assert (oracle.undecided, oracle.durable_ts) == (frozenset(), 150)


def test_an_undecided_commit_holds_the_log_until_a_new_subscription_sends_it_whole() -> None:
    oracle = two_prewrites(Leader(1, 60, 75), Leader(2, 70, 80), None)
    assert oracle.undecided == {(KEY, COMMIT_TS)}
    assert (oracle.served, oracle.durable_ts, oracle.watermark) == ({}, COMMIT_TS - 1, 150)
    oracle.feed(Leader(3, 160, 165).file(row(RowKind.COMMITTED, NEW, COMMIT_TS), resolved_ts=170))
    assert oracle.served == {(KEY, COMMIT_TS): Change(START_TS, Op.PUT, NEW, None)}
    assert (oracle.undecided, oracle.durable_ts) == (frozenset(), 170)
