"""A transaction is as large as TiDB lets it be: its rows exceed what one Arrow array of bytes can hold. The bound of an
array is lowered here, so that a few rows exceed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from simulator.dst.bounds import lowered
from sorter.rows import payload
from sorter.rows.payload import RowRefs, Segment
from sorter.worker.spill import Spill
from tests.kit.routed import routed
from tests.kit.sorter_oracle import C, Mark, P, Row
from tests.kit.sorter_states import SnapshotFiles
from tests.kit.sorter_world import File, feed_batch
from tistream.errors import TiStreamError
from tistream.keyrange import KeyRange

ARRAY_BYTES = 400
ROWS, ROWS_OF_A_FILE = 40, 5
MARK = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=10)
KEYS = [b"%04d" % (i * 7 % ROWS) + b"k" * 60 for i in range(ROWS)]  # in no order; more than `kernels.TIES_SMALL`
BOUNDS = {
    "sorter.rows.payload.COLUMN_BYTES_MAX": ARRAY_BYTES,
    # what is cut by bytes anyway is cut below the bound of an array, as it is with the real bounds
    "sorter.rows.run.SEGMENT_BYTES": 300,
    "sorter.state.saving.GROUP_BYTES": 100,
    "sorter.rows.output.PIECE_ROWS": 1,
    "sorter.rows.output.PIECE_BYTES": 100,
    "sorter.core.prewrite_buffer.COPY_BYTES_MAX": 1,
}


@pytest.fixture(autouse=True)
def small_arrays() -> Iterator[None]:
    with lowered(BOUNDS):
        yield


class Task:
    """A core that is saved and starts again whenever it is told to."""

    def __init__(self) -> None:
        self.files, self.seq, self.asked = SnapshotFiles(1), 0, 0
        self.core = self.files.bucket.core(1, KeyRange(), 10, 10)

    def take(self, *rows: Row, mark: Mark = MARK, cut: int = 1000) -> None:
        self.seq += 1
        file = File(store_id=1, incarnation=1, seq=self.seq, cut_ts=cut, rows=rows, marks=(mark,))
        self.asked += len(self.core.handle(routed(feed_batch(file), self.core.range)))
        while self.core.settling:
            self.asked += len(self.core.settle())

    def take_all(self, rows: Sequence[Row], mark: Mark = MARK, cut: int = 1000) -> None:
        for at in range(0, len(rows), ROWS_OF_A_FILE):
            self.take(*rows[at : at + ROWS_OF_A_FILE], mark=mark, cut=cut)

    def restart(self, range_: KeyRange) -> None:
        self.files.save(self.core)
        state = self.files.load()
        assert state is not None
        self.core = self.files.bucket.core(1, range_, 10, self.core.durable_ts)
        self.core.restore(state, state.positions)

    def written(self) -> list[tuple[bytes, bytes]]:
        """(key, value) of all rows that are due, in the order of the log."""
        w = self.core.pending()
        assert w is not None
        pairs = []
        for piece in self.core.take(w).pieces():
            assert all(piece.column(name).nbytes <= ARRAY_BYTES for name in ("key", "value", "old_value"))
            pairs += list(zip(piece.column("key").to_pylist(), piece.column("value").to_pylist(), strict=True))
        return pairs


def prewrites(value: bytes) -> list[Row]:
    return [Row(kind=P, key=key, start_ts=20, value=value) for key in KEYS]


def commits(value: bytes | None = None, start_ts: int = 20) -> list[Row]:
    return [Row(kind=C, key=key, start_ts=start_ts, commit_ts=30, value=value) for key in KEYS]


@pytest.mark.parametrize("half", [KeyRange(), KeyRange(b"0004"), KeyRange(b"", b"0036")])
@pytest.mark.parametrize("spills", [False, True])
def test_a_transaction_larger_than_an_array_is_taken_saved_restored_and_written(half: KeyRange, spills: bool) -> None:
    task, value = Task(), b"v" * 60
    task.take_all(prewrites(value))
    task.restart(half)
    if spills:
        task.core.evict(Spill(0), 1 << 30)
    task.take_all(commits())
    task.restart(half)
    task.take(mark=replace(MARK, resolved_ts=50))
    task.restart(half)
    assert task.written() == [(key, value) for key in sorted(KEYS) if key in half]


def test_commits_that_bring_the_values_of_prewrites_without_any_are_larger_than_an_array() -> None:
    """An opening scan sends a lock without its value; a second copy of each commit has it."""
    task, value = Task(), b"v" * 60
    task.take_all(prewrites(b""))
    task.take_all(commits())
    task.take_all(commits(value))
    task.take(mark=replace(MARK, resolved_ts=50))
    assert task.written() == [(key, value) for key in sorted(KEYS)]


def test_undecided_commits_larger_than_an_array_are_asked_for_and_decided() -> None:
    """Two overlapping subscriptions of a region sent different values, and the commits do not say which is theirs."""
    task = Task()
    old = replace(MARK, resolved_ts=0, open_ts=11, ready_ts=0)
    new = replace(old, version=2, open_ts=14, ready_ts=15)
    task.take_all(prewrites(b"old"), mark=old)
    task.take_all(prewrites(b"new"), mark=new)
    task.take_all(commits(), mark=new)
    task.take(mark=replace(new, resolved_ts=50))
    assert task.asked == ROWS
    task.restart(KeyRange())
    assert task.core.stats().undecided_commits == ROWS
    task.take_all(commits(b"new"), mark=replace(new, resolved_ts=50))
    assert task.written() == [(key, b"new") for key in sorted(KEYS)]


def test_rows_for_polars_may_exceed_an_array_and_keep_their_nulls() -> None:
    values = [None if i % 3 == 0 else b"%d" % i * 30 for i in range(ROWS)]
    segments = [
        Segment(*(pa.array(v, pa.binary()) for v in (KEYS[i : i + 4], values[i : i + 4]))) for i in range(0, ROWS, 4)
    ]
    refs = payload.stacked([RowRefs.whole(segment) for segment in segments])
    nulls = np.arange(ROWS) % 4 == 1
    plain = [None if is_null else value for value, is_null in zip(values, nulls, strict=True)]
    assert refs.series("key").to_list() == KEYS
    assert refs.series("value").to_list() == values
    assert refs.series("value", nulls).to_list() == plain
    assert refs.series("value", nulls, empty_for_null=True).to_list() == [
        value if is_null else value or b"" for value, is_null in zip(plain, nulls, strict=True)
    ]
    with pytest.raises(TiStreamError, match="a column grows beyond its offsets"):
        refs.column("key")
