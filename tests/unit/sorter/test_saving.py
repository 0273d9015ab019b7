from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from sorter.core import eviction, sort_buffer
from sorter.core.prewrite_buffer import Undecided
from sorter.core.task_core import NeedResubscribe, TaskCore
from sorter.rows import run
from sorter.rows.run import NotLoaded, require
from sorter.rows.saved import SavedRun, bits_of, flags_of
from sorter.state import saving
from sorter.worker.spill import Spill
from sorter.worker.stored_core import RowsOutOfReach, StateUnreadable, fetch, loaded
from tests.kit.routed import routed
from tests.kit.sorter_oracle import C, D, Mark, P, R, Row
from tests.kit.sorter_states import SnapshotFiles, tables_of
from tests.kit.sorter_world import File, feed_batch, served
from tistream.errors import StoreUnavailable
from tistream.feed.protocol import FeedBatch
from tistream.ids import Position
from tistream.keyrange import KeyRange

ALL = KeyRange()


class Task:
    """A core with files of one store, and its snapshots."""

    def __init__(self) -> None:
        self.files, self.seq = SnapshotFiles(1), 0
        self.core = self.files.bucket.core(1, ALL, 10, 10)

    def take(self, *rows: Row, upto: int = 10, cut: int = 1000, ready_ts: int = 2, check: bool = True) -> None:
        self.seq += 1
        mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=upto, ready_ts=ready_ts)
        self.core.handle(routed(self.batch(self.seq, *rows, mark=mark, cut=cut), self.core.range))
        if check:  # which looks at everything
            self.core.check()

    def batch(self, seq: int, *rows: Row, mark: Mark, cut: int = 1000) -> FeedBatch:
        return feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=cut, rows=rows, marks=(mark,)))

    def restart(self, range_: KeyRange = ALL) -> None:
        state = self.files.load()
        assert state is not None
        self.core = self.files.bucket.core(1, range_, 10, self.core.durable_ts)
        self.core.restore(state, state.positions)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        saved: list[dict[str, Any]] = tables_of(self.core.snapshot(), self.files.bucket.read)[kind].to_pylist()
        return saved

    def open(self) -> list[bytes]:
        return [row["key"] for row in self.rows("open")]


def prewrites(first: int, count: int, start_ts: int = 20) -> list[Row]:
    return [Row(kind=P, key=b"%06d" % i, start_ts=start_ts, value=b"v" * 50) for i in range(first, first + count)]


def rollback(row: Row) -> Row:
    return Row(kind=R, key=row.key, start_ts=row.start_ts, op=0)


def test_what_an_object_holds_is_not_written_again() -> None:
    task = Task()
    task.take(*prewrites(0, 5000))
    first = task.files.save(task.core)
    assert len(first) == 2
    before = task.files.bytes
    assert len(task.files.save(task.core)) == 1, "the state alone"
    task.take(*prewrites(9000, 10))
    assert len(task.files.save(task.core)) == 2
    assert task.files.bytes - before < max(first.values()) / 3
    assert min(first) in task.files.bucket.objects


def test_removed_rows_are_recorded_by_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    task, rows = Task(), prewrites(0, 300)
    task.take(*rows)
    task.files.save(task.core)
    task.take(*(rollback(row) for row in rows[::3]))
    assert len(task.files.save(task.core)) == 1
    task.restart()
    assert task.open() == [row.key for i, row in enumerate(rows) if i % 3]


def test_a_save_that_failed_is_tried_again_with_other_objects() -> None:
    task = Task()
    task.take(*prewrites(0, 100))
    vain = task.files.save(task.core, lands=False)
    assert task.files.load() is None
    task.take(*prewrites(100, 1))
    again = task.files.save(task.core)
    assert not vain.keys() & again.keys()
    task.restart()
    assert len(task.open()) == 101


def test_a_state_does_not_follow_what_happens_after_it() -> None:
    task, rows = Task(), prewrites(0, 4)
    task.take(*rows)
    state = task.core.snapshot()
    task.take(rollback(rows[0]))
    core = TaskCore(1, KeyRange(), 10, 10)
    core.restore(state, state.positions)
    assert core.positions() == {1: {1: Position(seq=1)}}
    assert core.stats().open_prewrites == 4
    assert task.core.stats().open_prewrites == 3


def test_an_object_of_which_little_is_alive_is_let_go() -> None:
    task, rows = Task(), prewrites(0, 2000)
    task.take(*rows)
    (runs, _state) = sorted(task.files.save(task.core))
    task.take(*(rollback(row) for row in rows[:1000]))
    task.files.save(task.core)
    assert runs in task.files.bucket.objects
    task.restart()  # what is written again must first be fetched
    task.take(*(rollback(row) for row in rows[1000:1900]))
    task.files.save(task.core)
    assert runs not in task.files.bucket.objects
    task.take(*prewrites(5000, 1))
    assert len(task.open()) == 101, "the rows do not hang on the object that is gone"
    task.restart()
    assert len(task.open()) == 100


def test_there_are_never_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "OBJECTS_MAX", 8)
    monkeypatch.setattr(run, "RUN_ROWS", 64)  # so that the runs themselves stay many
    task, most, written = Task(), 0, []
    for i in range(60):
        task.take(*prewrites(10 * i, 10, start_ts=20 + i))
        before = task.files.bytes
        task.files.save(task.core)
        written.append(task.files.bytes - before)
        most = max(most, len(task.files.bucket.objects))
    assert most <= 8 + 1
    assert len(task.open()) == 600
    task.restart()
    assert len(task.open()) == 600


def test_large_runs_are_cut_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "GROUP_BYTES", 5000)
    task = Task()
    task.take(*prewrites(0, 1000))
    task.files.save(task.core)
    state = task.files.load()
    assert state is not None
    assert len(state.open) > 5
    assert sum(run.live for run in state.open) == 1000
    task.take(*(rollback(row) for row in prewrites(0, 990)))
    task.files.save(task.core)
    task.restart()
    assert len(task.open()) == 10


def test_a_restart_fetches_only_what_is_asked_for() -> None:
    task = Task()
    task.take(*prewrites(0, 500), cut=15)
    task.take(*prewrites(500, 500, start_ts=21), cut=2000)
    task.files.save(task.core)
    task.restart()
    fetched: list[int] = []
    read = task.files.bucket.read

    def counted(key: str, offset: int, length: int) -> bytes:
        fetched.append(length)
        return read(key, offset, length)

    task.files.bucket.read = counted  # type: ignore[method-assign]
    task.restart()
    task.take(*prewrites(5000, 10, start_ts=30), upto=14, check=False)
    assert fetched == []
    task.take(Row(kind=C, key=b"000600", start_ts=21, commit_ts=40), upto=19, check=False)
    assert fetched
    assert task.core.stats().open_prewrites == 510, "the first 500 are dead"


def test_a_commit_finds_its_prewrite_after_a_restart() -> None:
    task = Task()
    task.take(*prewrites(0, 50), upto=10)
    task.files.save(task.core)
    task.restart()
    task.take(Row(kind=C, key=b"000007", start_ts=20, commit_ts=30), upto=40)
    w = task.core.pending()
    assert w == 40
    assert [(row.key, row.value) for row in served(task.core.take(w).table())] == [(b"000007", b"v" * 50)]


def test_a_subscription_that_became_ready_after_the_save_is_known_after_a_restart() -> None:
    task = Task()
    task.take(*prewrites(0, 3), upto=0, ready_ts=0)
    task.files.save(task.core)
    task.take(ready_ts=13)
    assert len(task.files.save(task.core)) == 1, "the rows are not written again"
    task.restart()
    assert {row["subscription_ready_ts"] for row in task.rows("open")} == {13}


def test_what_was_written_out_since_leaves_at_a_restart_with_its_prewrites() -> None:
    task = Task()
    task.take(*prewrites(0, 3), Row(kind=C, key=b"000001", start_ts=20, commit_ts=25), upto=10)
    task.files.save(task.core)
    task.core._durable_ts = 30
    task.restart()
    stats = task.core.stats()
    assert (stats.waiting_commits, stats.open_prewrites) == (0, 2)
    task.core.check()


def test_a_part_of_the_range_takes_its_rows_only() -> None:
    task = Task()
    task.take(*prewrites(0, 100))
    task.files.save(task.core)
    task.restart(KeyRange(b"000030", b"000040"))
    assert len(task.open()) == 10
    task.restart(KeyRange(b"000000", b"000100"))
    assert len(task.open()) == 100


def test_rows_that_cannot_be_fetched_are_distinguished_from_a_bad_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task()
    task.take(*prewrites(0, 5))
    task.files.save(task.core)

    def away(key: str, _offset: int, _length: int) -> bytes:
        raise StoreUnavailable(key=key)

    read, ended = task.files.bucket.read, rollback(prewrites(1, 1)[0])
    monkeypatch.setattr(task.files.bucket, "read", away)
    task.restart()
    before = task.core.stats(), task.core.positions()
    with pytest.raises(RowsOutOfReach):
        task.take(ended, upto=40, check=False)
    assert (task.core.stats(), task.core.positions()) == before
    monkeypatch.setattr(task.core, "_read", read)
    task.seq -= 1
    task.take(ended, upto=40)
    assert (task.core.pending(), len(task.open())) == (40, 4)


def test_a_step_names_the_parts_that_it_reads_and_changes_nothing_without_them() -> None:
    task = Task()
    task.take(*prewrites(0, 5))
    task.files.save(task.core)
    state = task.files.load()
    assert state is not None
    mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=40)
    far = Row(kind=C, key=b"000009", start_ts=20, commit_ts=50)
    core = TaskCore(1, ALL, 10, 10)  # which cannot fetch
    core.restore(state, state.positions)
    core.handle(task.batch(1, far, mark=mark))  # the batch was taken before
    core.handle(task.batch(2, far, mark=mark))  # no saved key is near
    assert not core.settling
    commit = task.batch(2, Row(kind=C, key=b"000001", start_ts=20, commit_ts=30), mark=mark)
    core = TaskCore(1, ALL, 10, 10)
    core.restore(state, state.positions)
    read = []
    while core.batches == 0 or core.settling:
        before = core.counts(), core.open_rows(), core.positions()
        try:
            core.settle() if core.settling else core.handle(commit)
        except NotLoaded as e:
            assert (core.counts(), core.open_rows(), core.positions()) == before
            read += [need.part for need in e.needs]
            for need in e.needs:
                assert isinstance(need.run, SavedRun)
                need.run.load(need.part, fetch(need.run.group, task.files.bucket.read, need.part))
    assert sorted(read) == ["keys", "numbers", "origins", "values"]
    assert core.pending() == 40


def test_what_became_undecided_is_asked_for_although_the_batch_had_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task()
    mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=40)
    batch = task.batch(1, *prewrites(0, 1), mark=mark)
    core, undecided = TaskCore(1, ALL, 10, 10), cast(Undecided, "of an earlier batch")
    buffer = core._prewrites

    def decide_next(*_: object) -> list[Undecided]:
        buffer.settling = False
        return [undecided]

    def away(_: FeedBatch) -> None:
        raise NotLoaded([])

    buffer.settling = True
    monkeypatch.setattr(buffer, "decide_next", decide_next)
    monkeypatch.setattr(core, "_take_rows", away)
    with pytest.raises(NotLoaded):
        core.handle(batch)
    monkeypatch.undo()
    assert NeedResubscribe(task_id=1, undecided=undecided) in core.handle(batch)


def test_damaged_rows_stop_the_task() -> None:
    task = Task()
    task.take(*prewrites(0, 5))
    (runs, _state) = sorted(task.files.save(task.core))
    data = bytearray(task.files.bucket.objects[runs])
    data[30] ^= 1
    task.files.bucket.objects[runs] = bytes(data)
    task.restart()
    with pytest.raises(StateUnreadable, match=f"{runs}.*checksum"):
        task.take(Row(kind=C, key=b"000001", start_ts=20, commit_ts=30), upto=40)


def test_fetched_rows_count_as_memory_until_they_are_moved_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", 1)
    task = Task()
    task.take(*prewrites(0, 2000))
    task.files.save(task.core)
    task.restart()
    nothing = task.core.bytes_held()
    task.core.check()
    bytes_held = task.core.bytes_held()
    assert nothing < 3000 < 100_000 < bytes_held
    task.core.evict(Spill(0), bytes_held)
    stats = task.core.stats()
    assert stats.bytes_on_disk > 100_000 > stats.bytes_held
    assert len(task.open()) == 2000


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64])
def test_flags_are_packed_the_first_one_lowest(count: int) -> None:
    alive = np.arange(count) % 3 == 1
    bits = bits_of(alive)
    assert bits is not None
    assert [bits[i // 8] >> i % 8 & 1 for i in range(count)] == [int(i % 3 == 1) for i in range(count)]
    assert flags_of(bits, count).tolist() == alive.tolist()
    assert bits_of(np.ones(count, np.bool_)) is None
    assert flags_of(None, count).all()


def test_columns_of_one_value_are_facts() -> None:
    task = Task()
    task.take(*prewrites(0, 5))
    task.files.save(task.core)
    state = task.files.load()
    assert state is not None
    saved_run = state.open[0].run
    assert isinstance(saved_run, SavedRun)
    loaded(partial(require, [saved_run]), task.files.bucket.read)
    group = saved_run.saved[0].group
    assert group.same["start_ts"] == ("uint64", 20)
    assert group.spans == {"start_ts": (20, 20)}
    assert group.keys == (b"000000", b"000004")
    assert set(group.parts) <= set(run.PARTS)
    assert saved_run.numbers["start_ts"].tolist() == [20] * 5


@pytest.mark.parametrize("with_old", ["first", "last"])
def test_a_group_of_two_segments_keeps_what_only_one_of_them_has(
    with_old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that is as large as a segment may be takes two of them; its inserts lie in one, its updates in the
    other."""
    put, restored = saved_in_two_segments(with_old, monkeypatch)
    assert restored == put
    assert restored[-1 if with_old == "last" else 0][2] is not None


def test_a_group_with_the_columns_of_its_first_segment_only_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_has", lambda run, name: name in run.refs.segments[0].columns)
    put, restored = saved_in_two_segments("last", monkeypatch)
    assert restored != put


Image = tuple[bytes, bytes | None, bytes | None]


def saved_in_two_segments(with_old: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Image], list[Image]]:
    """(rows of which only some have an old value, what is written of them after a restart)."""
    of_row = len(b"000000") + 50
    for module in (run, saving, sort_buffer):
        monkeypatch.setattr(module, "SEGMENT_BYTES", 16 * of_row, raising=False)
    monkeypatch.setattr(saving, "GROUP_BYTES", 16 * of_row)
    rows = [replace(row, kind=D, commit_ts=row.start_ts + 1) for row in prewrites(0, 16)]
    for i in range(len(rows)) if with_old == "first" else [15]:
        rows[i] = replace(rows[i], value=b"v" * 25, old_value=b"o" * 25)
    if with_old == "first":
        rows[-1] = replace(rows[-1], value=b"v" * 50, old_value=None)
    task = Task()
    task.take(*rows)
    task.files.save(task.core)
    task.restart()
    task.take(upto=900)
    restored = served(task.core.take(900).table())
    return [(r.key, r.value, r.old_value) for r in rows], [(r.key, r.value, r.old_value) for r in restored]
