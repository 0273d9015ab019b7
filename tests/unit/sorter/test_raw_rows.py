"""RawKV rows in a task: the mark of an opening scan stays, whoever else sent the row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from sorter.core.task_core import TaskCore
from tests.kit.routed import routed
from tests.kit.sorter_oracle import Mark, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.keyrange import KeyRange
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, FLAG_SCANNED, ROWS, RowKind

KEY = b"r\0\0\1k"


def raw(commit_ts: int, *, scanned_from: int | None = None) -> Row:
    start_ts = commit_ts if scanned_from is None else scanned_from
    return Row(kind=RowKind.RAW, key=KEY, start_ts=start_ts, commit_ts=commit_ts, value=b"%d" % commit_ts)


class Task:
    """A task that has written up to 10."""

    def __init__(self) -> None:
        self.core = TaskCore(1, KeyRange(), 10, 10)

    def take(self, store: int, *rows: Row, upto: int) -> None:
        mark = Mark(region_id=store, start=b"", end=b"", checkpoint_ts=10, resolved_ts=upto)
        file = feed_batch(File(store_id=store, incarnation=1, seq=1, cut_ts=100, rows=rows, marks=(mark,)))
        marked = np.array([row.start_ts != row.commit_ts for row in rows])
        flags = np.where(marked, FLAG_SCANNED | FLAG_OLD_VALUE_UNKNOWN, FLAG_OLD_VALUE_UNKNOWN).astype(np.uint8)
        changed = file.rows.set_column(ROWS.names.index("flags"), ROWS.field("flags"), pa.array(flags))
        self.core.handle(routed(replace(file, rows=changed), self.core.range))
        self.core.check()

    def written(self, w: int) -> list[tuple[int, int, int]]:
        rows = self.core.take(w).table().to_pylist()
        self.core.flushed(w)
        return [(row["start_ts"], row["commit_ts"], row["flags"] & FLAG_SCANNED) for row in rows]


def test_a_late_live_row_does_not_take_the_mark_away() -> None:
    """What its subscription had sent before was at or below what was written, and was dropped: the mark says so."""
    task = Task()
    task.take(2, raw(40, scanned_from=10), upto=45)
    assert task.written(30) == []
    task.take(1, raw(20, scanned_from=10), raw(25), raw(40), upto=45)
    assert task.core.stats().dropped_by_store == {1: 2}
    assert task.written(45) == [(10, 40, FLAG_SCANNED)]


def test_of_two_scans_the_earlier_checkpoint_counts() -> None:
    task = Task()
    task.take(1, raw(40, scanned_from=12), upto=45)
    task.take(2, raw(40, scanned_from=10), upto=45)
    assert task.written(45) == [(10, 40, FLAG_SCANNED)]
