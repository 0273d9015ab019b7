"""What pushers say of RawKV, whatever they, regions, stores and PD do: each write as it was, and a marked interval
around each that was never said."""

from __future__ import annotations

import random

import pytest

from simulator.dst.all_mutants import MUTANTS
from simulator.dst.raw_reading import RAW_KEYS
from simulator.push.model_source import ModelSource
from simulator.raw_workload import RawProfile, RawWorkload, raw_cluster
from tests.kit.raw_judge import RawJudge
from tistream import ts as tso

FLOOR = tso.compose(1_750_000_000_000)
STEPS, SEEDS = 300, 4
BROKEN = ("delete-flag-lost", "expiry-dropped", "interval-not-recorded", "marked-once-ready")


class Run:
    """Random steps of an upstream with a pusher for each store."""

    def __init__(self, seed: int) -> None:
        profile = RawProfile(hybrid=bool(seed % 2))
        self.rand = random.Random(seed)
        self.cluster = raw_cluster(profile, floor_ts=FLOOR)
        self.workload = RawWorkload(seed, self.cluster, profile)
        self.judge = RawJudge(self.workload)
        self.sources = [
            ModelSource(self.cluster, store + 1, scan_rows=self.rand.choice((None, 2)), raw_keys=RAW_KEYS)
            for store in range(profile.stores)
        ]

    def play(self) -> list[str]:
        """What is wrong with what was said."""
        for step in range(STEPS):
            self.workload.advance_to(FLOOR + (40 * step << 18))
            self.workload.step()
            for source in self.sources:
                if self.rand.random() < 0.1:
                    self.take(source)
                elif self.rand.random() < 0.02:  # its pusher dies and starts again
                    source.drop()
                    source.resume()
                    self.judge.died(source.store_id)
            if step % 20 == 0:
                self.tick()
        self.workload.drain()
        self.cluster.start_stores()
        last_ts = self.workload.committed[-1].commit_ts
        for step in range(100):
            self.workload.advance_to(FLOOR + (40 * STEPS + 500 * step << 18))
            self.tick()
            if self.judge.complete_ts >= last_ts:
                break
        return self.judge.violations(last_ts)

    def tick(self) -> None:
        now_ts = self.workload.tick()
        self.cluster.tick(now_ts)
        for source in self.sources:
            source.tick(now_ts)
            self.take(source)

    def take(self, source: ModelSource) -> None:
        for event in source.poll(0.0, self.judge.checkpoint_of):
            self.judge.hear(source.store_id, event)


def test_what_is_lacking_lies_in_a_marked_interval() -> None:
    missing = 0
    for seed in range(SEEDS):
        run = Run(seed)
        assert run.play() == []
        missing += run.judge.rules.missing
    assert missing > 20


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(name: str) -> None:
    with MUTANTS[name].patch():
        assert Run(1).play()
