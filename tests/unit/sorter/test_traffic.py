"""Traffic of a task, its split key, and the sorter's report."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sorter.core.reporting import EXPLAIN_AFTER_S, EXPLAIN_EVERY_S, TASKS_REPORTED_MAX, Reporter
from sorter.core.task_core import TaskCore
from sorter.core.traffic import SAMPLE, KeySample, Traffic
from sorter.core.watermark import Stuck
from tests.kit.sorter_oracle import Mark, P, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.rows.reports import STUCK_MAX
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

WHOLE = KeyRange()


def keys(numbers: np.ndarray) -> pa.Array:
    return pa.array([b"t%09d" % n for n in numbers.tolist()], pa.binary())


def below(split: bytes | None, all_keys: pa.Array) -> float:
    assert split is not None
    below_it = sum(1 for key in all_keys.to_pylist() if key < split)
    return below_it / len(all_keys)


@pytest.mark.parametrize("shape", ["even", "skewed", "growing"])
def test_a_split_key_parts_the_traffic_in_halves(shape: str) -> None:
    rand, sample, batches = np.random.default_rng(5), KeySample(1), []
    for i in range(40):
        numbers = {
            "even": rand.integers(0, 1_000_000, 500),
            "skewed": (rand.exponential(1000, 500)).astype(np.int64),
            "growing": np.arange(i * 500, i * 500 + 500),
        }[shape]
        batches.append(keys(numbers))
        sample.take(batches[-1], SAMPLE / 20_000)
    split = sample.split_key(WHOLE)
    assert 0.35 < below(split, pa.concat_arrays(batches)) < 0.65
    again = KeySample(1)
    for batch in batches:
        again.take(batch, SAMPLE / 20_000)
    assert again.split_key(WHOLE) == split


def test_there_is_no_split_key_where_one_key_has_nearly_all() -> None:
    sample = KeySample(1)
    sample.take(keys(np.zeros(1000, np.int64)), 1.0)
    assert sample.split_key(WHOLE) is None
    sample.take(keys(np.array([0] * 95 + [1, 2, 3, 4, 5])), 1.0)
    assert sample.split_key(WHOLE) is None


def test_a_key_with_half_of_the_traffic_gets_a_side_of_its_own() -> None:
    sample = KeySample(1)
    sample.take(keys(np.array([7] * 500 + list(range(100, 600)))), 1.0)
    split = sample.split_key(WHOLE)
    assert split is not None
    assert b"t%09d" % 7 < split <= b"t%09d" % 200


def test_a_split_key_lies_inside_of_the_range() -> None:
    sample = KeySample(1)
    sample.take(keys(np.arange(1000)), 1.0)
    range_ = KeyRange(b"t%09d" % 500, b"t%09d" % 1000)
    split = sample.split_key(range_)
    assert split is not None
    assert range_.start < split < range_.end
    assert sample.split_key(KeyRange(b"x", b"")) is None, "too few"


def test_what_a_batch_adds_is_bounded() -> None:
    sample = KeySample(1)
    sample.take(keys(np.arange(100_000)), 1.0)
    assert len(sample._keys) == SAMPLE


class Task:
    """As a runner has it."""

    def __init__(self, task_id: int, bytes_held: int = 0) -> None:
        self.row = TaskRow(
            task_id=task_id,
            tenant=Tenant(1, 1),
            kind=TaskKind.DATA,
            range=WHOLE,
            start_ts=1,
            durable_ts=1,
            epoch=3,
            owner="s",
            snapshot_key=None,
            snapshot_no=0,
            resubscribe_id=0,
            error=None,
        )
        self.core = TaskCore(task_id, WHOLE, 1, 1)
        self.traffic = Traffic(task_id)
        self._held = bytes_held
        self.explained = 0

    def held_bytes(self) -> int:
        return self._held

    def take(self, seq: int, count: int) -> None:
        rows = tuple(Row(kind=P, key=b"k%05d" % i, start_ts=1000 * seq + i, value=b"v" * 20) for i in range(count))
        mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=1, resolved_ts=2)
        batch = feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=10**9, rows=rows, marks=(mark,)))
        self.core.handle(batch)
        self.traffic.note(batch)


def test_rates_open_rows_and_held_bytes_are_reported_busiest_first() -> None:
    idle, busy, reporter = Task(1), Task(2, bytes_held=77), Reporter()
    reporter.look([idle, busy], {}, [], 100.0)
    for second in range(1, 21):
        busy.take(second, 50)
        report = reporter.look([idle, busy], {2: 4.0}, [{"code": "TS-1"}], 100.0 + second)
    first, second_ = report.tasks
    assert (first.task_id, second_.task_id) == (2, 1)
    assert first.rows_per_s == pytest.approx(50, rel=0.15)
    assert first.bytes_per_s > 1000
    assert report.bytes_per_s == pytest.approx(first.bytes_per_s, rel=0.01)
    assert first.open_rows == 20 * 50
    assert (first.held_bytes, report.held_bytes, first.standing_s, first.epoch) == (77, 77, 4.0, 3)
    assert first.split_key is not None
    assert (second_.rows_per_s, second_.split_key, second_.watermark) == (0.0, None, None)
    assert report.problems == ({"code": "TS-1"},)


def test_only_stalled_watermarks_are_explained_and_not_in_every_report() -> None:
    moves, stands, reporter = Task(1), Task(2), Reporter()
    explained: list[int] = []
    explain = stands.core.explain

    def counted(range_: KeyRange | None = None) -> list[Stuck]:
        explained.append(1)
        return explain(range_)

    stands.core.explain = counted  # type: ignore[method-assign]
    for second in range(int(EXPLAIN_EVERY_S) * 2):
        report = reporter.look([moves, stands], {1: 1.0, 2: EXPLAIN_AFTER_S}, [], float(second))
    stuck = {task.task_id: task.stuck for task in report.tasks}
    assert stuck[1] == ()
    assert 0 < len(stuck[2]) <= STUCK_MAX
    assert stuck[2][0].watermark is None
    assert len(explained) == 2
    report = reporter.look([moves, stands], {1: 1.0, 2: 0.0}, [], 100.0)
    assert all(task.stuck == () for task in report.tasks)


def test_the_open_transaction_is_reported_beside_very_many_regions() -> None:
    stands = Task(1)
    silent = [Stuck(range=KeyRange(), w=5, region_id=n, reason="silent") for n in range(1, 2 * STUCK_MAX)]
    locked = Stuck(range=KeyRange(b"k", b"k\0"), w=5, start_ts=5, reason="open")
    stands.core.explain = lambda range_=None: [*silent, locked]  # type: ignore[method-assign]
    (task,) = Reporter().look([stands], {1: EXPLAIN_AFTER_S}, [], 0.0).tasks
    assert [s.region_id for s in task.stuck] == [*range(1, STUCK_MAX), 0]
    assert (task.stuck[-1].start_key, task.stuck[-1].start_ts) == (b"k", 5)


def test_of_very_many_tasks_the_busiest_are_reported() -> None:
    tasks = [Task(i) for i in range(TASKS_REPORTED_MAX + 5)]
    reporter = Reporter()
    reporter.look(tasks, {}, [], 0.0)
    tasks[-1].take(1, 3)
    report = reporter.look(tasks, {}, [], 1.0)
    assert len(report.tasks) == TASKS_REPORTED_MAX
    assert report.tasks[0].task_id == TASKS_REPORTED_MAX + 4
