"""The sorter's cores under every history that a small TiKV can make; what is checked stands in tests.kit."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.kit.sorter_run import EDGES, KEYS, RANGES, STORES, SorterRun

keys = st.sampled_from(KEYS)
stores = st.integers(1, STORES)
tasks = st.sampled_from(list(RANGES))
regions = st.integers(0, 5)
values = st.sampled_from([b"v", b"w", None])


class SorterMachine(RuleBasedStateMachine):
    """Each rule is a step of SorterRun, which checks the promises by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.run = SorterRun()

    @rule(key=keys, value=values, old=st.booleans())
    def prewrite(self, key: bytes, value: bytes | None, old: bool) -> None:
        self.run.prewrite(key, value, old=old)

    @rule(key=keys)
    def begin(self, key: bytes) -> None:
        self.run.begin(key)

    @rule(key=keys, how=st.sampled_from(["commit", "commit with value", "fetch", "refresh", "roll back"]))
    def decide(self, key: bytes, how: str) -> None:
        self.run.decide(key, how=how)

    @rule(key=keys)
    def commit_at_once(self, key: bytes) -> None:
        self.run.commit_at_once(key, b"1pc")

    @rule(key=keys)
    def overlapped_rollback(self, key: bytes) -> None:
        self.run.overlapped_rollback(key)

    @rule(region=regions, store=stores, from_its_end=st.booleans())
    def move(self, region: int, store: int, from_its_end: bool) -> None:
        self.run.move(region, store, from_its_end=from_its_end)

    @rule(region=regions, at=st.sampled_from(EDGES), store=stores)
    def split(self, region: int, at: bytes, store: int) -> None:
        self.run.split(region, at, store)

    @rule(left=regions, right=regions)
    def merge(self, left: int, right: int) -> None:
        self.run.merge(left, right)

    @rule(store=stores, scanned=st.sampled_from([0, 1, 9]))
    def cut(self, store: int, scanned: int) -> None:
        self.run.cut(store, scanned)

    @rule(store=stores)
    def crash_pusher(self, store: int) -> None:
        self.run.crash_pusher(store)

    @rule(task=tasks, store=stores, restart=st.booleans())
    def lose_file(self, task: int, store: int, restart: bool) -> None:
        self.run.lose_file(task, store)
        if restart:
            self.run.restart(task)

    @rule(task=tasks, store=stores, files=st.integers(1, 3))
    def deliver(self, task: int, store: int, files: int) -> None:
        for _ in range(files):
            self.run.deliver(task, store)

    @rule(task=tasks, lands=st.booleans())
    def flush(self, task: int, lands: bool) -> None:
        self.run.flush(task, lands=lands)

    @rule(task=tasks, lands=st.sampled_from([True, True, True, False]))
    def snapshot(self, task: int, lands: bool) -> None:
        self.run.snapshot(task, lands=lands)

    @rule(task=tasks)
    def restart(self, task: int) -> None:
        self.run.restart(task)

    def teardown(self) -> None:
        self.run.finish()


TestSorterMachine = SorterMachine.TestCase
TestSorterMachine.settings = settings(
    max_examples=30, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
