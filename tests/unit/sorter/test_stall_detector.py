"""A stalled watermark is shown with the region, the store and the file that it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sorter.core.stall_detector import STALLED_AFTER_S, StallDetector
from sorter.core.task_core import TaskCore
from tests.kit.sorter_oracle import C, Mark, P, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.keyrange import KeyRange

LEFT = Mark(region_id=6, start=b"", end=b"m", checkpoint_ts=10, resolved_ts=20)
RIGHT = Mark(region_id=7, start=b"m", end=b"", checkpoint_ts=10, resolved_ts=20)


class Task:
    """A task, its files, and what is shown of it."""

    def __init__(self) -> None:
        self.core = TaskCore(1, KeyRange(), 10, 10)
        self.standing = StallDetector()
        self.now_s = 100.0
        self.others = 0

    def file(self, store_id: int, seq: int, *marks: Mark, rows: tuple[Row, ...] = (), incarnation: int = 1) -> None:
        cut_ts = max(m.resolved_ts for m in marks) + 12
        new_file = File(store_id=store_id, incarnation=incarnation, seq=seq, cut_ts=cut_ts, rows=rows, marks=marks)
        self.core.handle(feed_batch(new_file))

    def shown(self, after_s: float = STALLED_AFTER_S, *, responded: bool = True) -> list[str]:
        """What is shown when nothing has moved for so long, though stores have `responded`."""
        self.standing.look({1: self.core}, self.now_s)
        self.now_s += after_s / 2
        if responded:
            self.others += 1
            self.core.handle(feed_batch(File(store_id=9, incarnation=1, seq=self.others, cut_ts=99, rows=(), marks=())))
        self.standing.look({1: self.core}, self.now_s)
        self.now_s += after_s / 2
        self.standing.look({1: self.core}, self.now_s)
        return [p.message for p in self.standing.problems]


@pytest.fixture
def task() -> Task:
    return Task()


def test_a_watermark_that_moves_is_no_problem(task: Task) -> None:
    task.file(1, 1, LEFT, RIGHT)
    assert task.shown(STALLED_AFTER_S - 1) == []
    task.file(1, 2, replace(LEFT, resolved_ts=30), replace(RIGHT, resolved_ts=30))
    assert task.shown(STALLED_AFTER_S - 1) == []
    (message,) = task.shown()
    assert "W 30" in message
    task.file(1, 3, replace(LEFT, resolved_ts=40), replace(RIGHT, resolved_ts=40))
    assert task.shown(1) == []


def test_a_task_to_which_nothing_comes_is_no_problem(task: Task) -> None:
    task.file(1, 1, LEFT)
    assert task.shown(responded=False) == []
    assert len(task.shown()) == 1
    assert task.shown(responded=False) == []


def test_a_watermark_gap_is_named_with_its_range(task: Task) -> None:
    task.file(1, 1, LEFT)
    (message,) = task.shown()
    assert message == "the watermark is stalled: [6d, +inf) watermark_gap: no store covers this range"


def test_a_slow_region_is_named_with_its_store_and_file(task: Task) -> None:
    task.file(1, 1, LEFT)
    task.file(2, 1, RIGHT)
    task.file(2, 2, replace(RIGHT, resolved_ts=90))
    task.file(1, 2, LEFT)
    (message,) = task.shown()
    assert "region 6 store 1 file 1/2: its resolved ts is stalled at 20" in message
    assert "region 7" not in message
    (problem,) = task.standing.problems
    assert dict(problem.facts) == {"task": 1, "watermark": 20, "region": 6, "store": 1, "file": "1/2"}


def test_a_store_that_is_gone_is_named_with_its_last_file(task: Task) -> None:
    task.file(1, 1, LEFT)
    task.file(2, 1, RIGHT)
    for seq in range(2, 5):
        task.file(1, seq, replace(LEFT, resolved_ts=20 + seq))
    (message,) = task.shown()
    assert "region 7 store 2 file 1/1: its resolved ts is stalled at 20" in message


def undecided(task: Task, keys: list[bytes]) -> None:
    """Two overlapping subscriptions of one region sent different prewrites, and the commits do not say their values."""
    both = Mark(region_id=3, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0, open_ts=11, ready_ts=0)
    task.file(1, 1, both, rows=tuple(Row(kind=P, key=key, start_ts=11, value=b"old") for key in keys))
    new = replace(both, version=2, open_ts=14, ready_ts=15, resolved_ts=20)
    rows = [Row(kind=P, key=key, start_ts=11, value=b"new") for key in keys]
    rows += [Row(kind=C, key=key, start_ts=11, commit_ts=16) for key in keys]
    task.file(1, 2, new, rows=tuple(rows))


def test_an_undecided_commit_is_named_rather_than_the_regions(task: Task) -> None:
    undecided(task, [b"a"])
    assert task.core.watermark() == 15
    first, last = task.core.explain()
    assert (first.region_id, first.store_id, first.file, first.w) == (3, 1, "1/2", 15)
    assert "transaction 11 committed an unknown value at 16 to key 61; a new subscription was requested" in first.reason
    assert "oldest open transaction began at 11" in last.reason
    assert first.range == KeyRange(b"a", b"a\0")
    (other,) = task.core.explain(KeyRange(b"b"))
    assert (other.w, other.reason) == (20, "its resolved ts is stalled at 20"), "it holds no key of this range"
    (message,) = task.shown()
    assert "region 3 store 1 file 1/2: transaction 11 committed an unknown value at 16" in message


def test_a_huge_undecided_transaction_is_one_line(task: Task) -> None:
    undecided(task, [b"k%05d" % i for i in range(3000)])
    first, last = task.core.explain()
    assert "and 2999 more of this region" in first.reason
    said = "the oldest open transaction began at 11, 6000 of its prewrites are buffered, one locks key "
    assert last.reason.startswith(said + b"k0".hex())


def test_a_huge_open_transaction_is_named_beside_the_region_that_waits_for_it(task: Task) -> None:
    rows = tuple(Row(kind=P, key=b"k%05d" % i, start_ts=21, value=b"v") for i in range(2000))
    task.file(1, 1, replace(LEFT, end=b"", resolved_ts=20), rows=rows)
    region, transaction = task.core.explain()
    assert (region.region_id, region.store_id, region.file) == (6, 1, "1/1")
    said = "the oldest open transaction began at 21, 2000 of its prewrites are buffered, one locks key "
    assert transaction.reason.startswith(said + b"k0".hex())
    assert (transaction.start_ts, transaction.w) == (21, 20)


def test_the_key_of_the_oldest_open_transaction_is_named_whatever_else_is_open(task: Task) -> None:
    rows = tuple(Row(kind=P, key=key, start_ts=ts, value=b"v") for key, ts in ((b"a", 25), (b"c", 21), (b"e", 23)))
    task.file(1, 1, replace(LEFT, end=b"", resolved_ts=20), rows=rows)
    last = task.core.explain()[-1]
    assert (
        last.reason
        == f"the oldest open transaction began at 21, 1 of its prewrites are buffered, it locks key {b'c'.hex()}"
    )
    assert last.range == KeyRange(b"c", b"c\0")
