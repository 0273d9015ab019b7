"""Splits and merges of tasks, modelled over the sorter's real cores; what is checked stands in tests.kit.

How the service does it is played by the simulator's scenario `shapes`: this says which rules that needs, and that the
cores bear it.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from sorter.core.task_core import TaskCore
from tests.kit.routed import routed
from tests.kit.sorter_oracle import Mark, Row
from tests.kit.sorter_run import EDGES, KEYS, START_TS, STORES
from tests.kit.sorter_world import File, feed_batch
from tests.kit.task_shapes import BROKEN, TaskShapes, joined
from tistream.errors import TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

STEPS = 150
LEFT, RIGHT = KeyRange(b"", b"m"), KeyRange(b"m", b"")
#: broken rule -> the first seed that shows it, with STEPS steps
SHOWN_BY = {
    "merge-at-the-larger-durable-watermark": 1,
    "merge-at-the-smaller-durable-watermark": 1,
    "merge-at-the-larger-position": 4,
    "merge-keeps-one-snapshot": 4,
    "split-without-snapshot": 14,
    "split-at-the-live-position": 5,
}

keys = st.sampled_from(KEYS)
stores = st.integers(1, STORES)
numbers = st.integers(0, 5)


class ShapesMachine(RuleBasedStateMachine):
    """Each rule is a step of TaskShapes, which checks the promises by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.run = TaskShapes()

    def task(self, number: int) -> int:
        return sorted(self.run.ranges)[number % len(self.run.ranges)]

    @rule(key=keys, value=st.sampled_from([b"v", b"w", None]), old=st.booleans())
    def prewrite(self, key: bytes, value: bytes | None, old: bool) -> None:
        self.run.prewrite(key, value, old=old)

    @rule(key=keys, how=st.sampled_from(["commit", "commit with value", "fetch", "refresh", "roll back"]))
    def decide(self, key: bytes, how: str) -> None:
        self.run.decide(key, how=how)

    @rule(key=keys)
    def commit_at_once(self, key: bytes) -> None:
        self.run.commit_at_once(key, b"1pc")

    @rule(region=numbers, store=stores, from_its_end=st.booleans())
    def move(self, region: int, store: int, from_its_end: bool) -> None:
        self.run.move(region, store, from_its_end=from_its_end)

    @rule(store=stores, scanned=st.sampled_from([1, 9]))
    def cut(self, store: int, scanned: int) -> None:
        self.run.cut(store, scanned)

    @rule(task=numbers, store=stores, files=st.integers(1, 3))
    def deliver(self, task: int, store: int, files: int) -> None:
        for _ in range(files):
            self.run.deliver(self.task(task), store)

    @rule(task=numbers, lands=st.booleans())
    def flush(self, task: int, lands: bool) -> None:
        self.run.flush(self.task(task), lands=lands)

    @rule(task=numbers)
    def snapshot(self, task: int) -> None:
        self.run.snapshot(self.task(task))

    @rule(task=numbers)
    def restart(self, task: int) -> None:
        self.run.restart(self.task(task))

    @rule(task=numbers, at=st.sampled_from(EDGES))
    def split_task(self, task: int, at: bytes) -> None:
        self.run.split_task(self.task(task), at)

    @rule(task=numbers)
    def merge_with_the_next(self, task: int) -> None:
        left = self.task(task)
        for right, range_ in list(self.run.ranges.items()):
            if range_.start == self.run.ranges[left].end:
                self.run.merge_tasks(left, right)
                return

    def teardown(self) -> None:
        self.run.finish()


TestShapesMachine = ShapesMachine.TestCase
TestShapesMachine.settings = settings(
    max_examples=20, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


def play(seed: int, broken: str = "") -> TaskShapes:
    rand, run = random.Random(seed), TaskShapes(broken)
    for _ in range(STEPS):
        run.random_step(rand)
    run.finish()
    return run


def test_random_histories_have_splits_and_merges_and_hold() -> None:
    runs = [play(seed) for seed in (1, 3, 4)]
    assert min(sum(run.splits for run in runs), sum(run.merges for run in runs)) >= 3


@pytest.mark.parametrize(("broken", "seed"), SHOWN_BY.items())
def test_a_broken_rule_is_noticed(broken: str, seed: int) -> None:
    with pytest.raises((AssertionError, TiStreamError)):
        play(seed, broken)


def heard(task: int, range_: KeyRange, *files: File) -> TaskCore:
    core = TaskCore(task, range_, START_TS, START_TS)
    for file in files:
        core.handle(routed(feed_batch(file), range_))
    return core


def file(store: int, *rows: Row, checkpoint_ts: int, resolved_ts: int) -> File:
    """The first file of a store that leads everything."""
    mark = Mark(region_id=store, start=b"", end=b"", checkpoint_ts=checkpoint_ts, resolved_ts=resolved_ts)
    return File(store_id=store, incarnation=1, seq=1, cut_ts=resolved_ts, rows=rows, marks=(mark,))


def test_what_waits_in_one_half_says_nothing_about_the_other() -> None:
    """The right half has heard of a region that spans both, the left half not yet: its commit there is in that file."""
    commits = [Row(kind=RowKind.COMMITTED, key=key, start_ts=21, commit_ts=25, value=b"v") for key in (b"a", b"x")]
    early, late = file(1, checkpoint_ts=10, resolved_ts=20), file(2, *commits, checkpoint_ts=15, resolved_ts=30)
    halves = (LEFT, heard(1, LEFT, early).snapshot()), (RIGHT, heard(2, RIGHT, late).snapshot())

    def merged(broken: str = "") -> TaskCore:
        state = joined(*halves, broken=broken)
        assert state.positions == {}
        core = TaskCore(3, KeyRange(), START_TS, START_TS)
        core.restore(state, state.positions)
        core.handle(feed_batch(early))
        return core

    core = merged()
    assert core.watermark() == 20
    core.handle(feed_batch(late))
    core.check()
    assert (core.watermark(), core.take(30).table()["key"].to_pylist()) == (30, [b"a", b"x"])
    wrong = merged("waiting-rows-for-both")
    assert (wrong.watermark(), wrong.take(30).table()["key"].to_pylist()) == (30, [b"x"]), (
        "the commit of b'a' is not there yet"
    )


def test_every_broken_rule_is_tried() -> None:
    assert BROKEN.keys() == SHOWN_BY.keys() | {"waiting-rows-for-both"}
