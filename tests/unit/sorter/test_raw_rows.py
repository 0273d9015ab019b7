"""RawKV rows in a task: complete on arrival, one for each (key, timestamp), marks of opening scans kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sorter.core.task_core import TaskCore
from tests.kit.routed import routed
from tests.kit.sorter_oracle import Mark, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.errors import PromiseContradicted
from tistream.keyrange import KeyRange
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, FLAG_SCANNED, ROWS, RowKind

KEY = b"r\0\0\1k"


def raw(commit_ts: int, value: bytes = b"v", *, scanned_from: int | None = None) -> Row:
    start_ts = commit_ts if scanned_from is None else scanned_from
    return Row(kind=RowKind.RAW, key=KEY, start_ts=start_ts, commit_ts=commit_ts, value=value)


class Task:
    """A task that has written up to 10."""

    def __init__(self) -> None:
        self.core = TaskCore(1, KeyRange(), 10, 10)
        self.seqs = Counter[int]()

    def take(self, store: int, *rows: Row, upto: int) -> None:
        self.seqs[store] += 1
        mark = Mark(region_id=store, start=b"", end=b"", checkpoint_ts=10, resolved_ts=upto)
        seq = self.seqs[store]
        file = feed_batch(File(store_id=store, incarnation=1, seq=seq, cut_ts=100, rows=rows, marks=(mark,)))
        marked = np.array([row.start_ts != row.commit_ts for row in rows])
        flags = np.where(marked, FLAG_SCANNED | FLAG_OLD_VALUE_UNKNOWN, FLAG_OLD_VALUE_UNKNOWN).astype(np.uint8)
        changed = file.rows.set_column(ROWS.names.index("flags"), ROWS.field("flags"), pa.array(flags))
        self.core.handle(routed(replace(file, rows=changed), self.core.range))
        self.core.check()

    def values(self, w: int) -> list[tuple[int, bytes]]:
        rows = self.core.take(w).table().to_pylist()
        self.core.flushed(w)
        return [(row["commit_ts"], row["value"]) for row in rows]

    def written(self, w: int) -> list[tuple[int, int, int]]:
        rows = self.core.take(w).table().to_pylist()
        self.core.flushed(w)
        return [(row["start_ts"], row["commit_ts"], row["flags"] & FLAG_SCANNED) for row in rows]


@pytest.fixture
def task() -> Task:
    return Task()


def test_a_late_live_row_does_not_take_the_mark_away(task: Task) -> None:
    """What its subscription had sent before was at or below what was written, and was dropped: the mark says so."""
    task.take(2, raw(40, scanned_from=10), upto=45)
    assert task.written(30) == []
    task.take(1, raw(20, scanned_from=10), raw(25), raw(40), upto=45)
    assert task.core.stats().dropped_by_store == {1: 2}
    assert task.written(45) == [(10, 40, FLAG_SCANNED)]


def test_of_two_scans_the_earlier_checkpoint_counts(task: Task) -> None:
    task.take(1, raw(40, scanned_from=12), upto=45)
    task.take(2, raw(40, scanned_from=10), upto=45)
    assert task.written(45) == [(10, 40, FLAG_SCANNED)]


def test_rows_wait_for_the_watermark_only_and_come_in_the_order_of_time(task: Task) -> None:
    task.take(1, raw(30, b"b"), raw(20, b"a"), raw(50, b"c"), upto=40)
    assert task.core.stats().open_prewrites == task.core.stats().waiting_commits == 0
    assert task.values(40) == [(20, b"a"), (30, b"b")]
    task.take(1, upto=60)
    assert task.values(60) == [(50, b"c")]


def test_a_request_that_writes_a_key_twice_has_one_timestamp_and_the_later_value(task: Task) -> None:
    task.take(1, raw(20, b"first"), raw(20, b"second"), upto=15)
    task.take(1, raw(20, b"third"), upto=25)
    assert task.core.stats().duplicates == 2
    assert task.values(25) == [(20, b"third")]


def test_a_live_row_does_not_replace_what_a_scan_has_read(task: Task) -> None:
    """The old leader's file comes later, and ends between the two values of one request."""
    task.take(2, raw(40, b"second", scanned_from=10), upto=15)
    task.take(1, raw(40, b"first"), upto=15)
    task.take(2, upto=45)
    assert task.values(45) == [(40, b"second")]


def test_a_late_row_of_a_slower_store_is_taken_above_what_is_written_and_dropped_below(task: Task) -> None:
    """A leader moves: the new store's scan has the newest version, and the old store's file comes after it."""
    task.take(2, raw(40, b"v2", scanned_from=20), upto=50)
    task.take(1, raw(30, b"v1"), upto=35)
    assert task.values(50) == [(30, b"v1"), (40, b"v2")]
    task.take(1, raw(45, b"late"), upto=45)
    assert task.core.stats().dropped_by_store == {1: 1}
    assert task.core.pending() is None


def test_a_store_that_contradicts_its_own_promise_is_refused(task: Task) -> None:
    task.take(1, raw(20), upto=30)
    with pytest.raises(PromiseContradicted):
        task.take(1, raw(25), upto=40)


def test_a_snapshot_keeps_waiting_rows_with_their_marks() -> None:
    task, restored = Task(), Task()
    task.take(1, raw(20, scanned_from=12), raw(30), upto=15)
    restored.core.restore(task.core.snapshot(), task.core.positions())
    restored.seqs = task.seqs
    restored.take(1, raw(30), upto=35)
    assert restored.written(35) == [(12, 20, FLAG_SCANNED), (30, 30, 0)]
