"""What pushers say of RawKV, whatever they, regions, stores and PD do: a plain judge that merges the rows of all
subscriptions has each write as it was, and a marked interval around each that it lacks."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from pusher.core.source import Resolved, Rows, SourceEvent, SubscriptionClosed, SubscriptionOpened, SubscriptionReady
from simulator.dst.all_mutants import MUTANTS
from simulator.dst.raw_reading import RAW_KEYS
from simulator.dst.raw_rules import RawRules
from simulator.push.model_source import ModelSource
from simulator.raw_workload import RawProfile, RawWorkload, raw_cluster
from tistream import ts as tso
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, FLAG_SCANNED, RowKind

FLOOR = tso.compose(1_750_000_000_000)
STEPS, SEEDS = 300, 4
BROKEN = ("delete-flag-lost", "expiry-dropped", "interval-not-recorded", "marked-once-ready")


class Judge:
    """Takes everything that the sources say at once, and resumes subscriptions where it is complete."""

    def __init__(self, seed: int) -> None:
        profile = RawProfile(hybrid=bool(seed % 2))
        self.rand = random.Random(seed)
        self.cluster = raw_cluster(profile, floor_ts=FLOOR)
        self.workload = RawWorkload(seed, self.cluster, profile)
        self.violations: list[str] = []
        self.rules = RawRules(self.workload.versions, RAW_KEYS, self.violations.append)
        self.sources = [
            ModelSource(self.cluster, store + 1, scan_rows=self.rand.choice((None, 2)), raw_keys=RAW_KEYS)
            for store in range(profile.stores)
        ]
        self.open: dict[tuple[int, int], SubscriptionOpened] = {}  # by store and number
        self.ready: set[tuple[int, int]] = set()
        self.complete: dict[bytes, int] = {}  # key -> everything at or below it was said
        self.log: dict[tuple[int, bytes], dict[str, Any]] = {}

    def checkpoint_of(self, range_: KeyRange) -> int:
        return min((self.complete.get(key, 0) for key in self.workload.versions if key in range_), default=0)

    def play(self) -> None:
        for step in range(STEPS):
            self.workload.advance_to(FLOOR + (40 * step << 18))
            self.workload.step()
            for source in self.sources:
                if self.rand.random() < 0.1:
                    self.take(source)
                elif self.rand.random() < 0.02:
                    self.die(source)
            if step % 20 == 0:
                self.tick()
        self.workload.drain()
        self.cluster.start_stores()
        last_ts = self.workload.committed[-1].commit_ts
        for step in range(200):
            if min(self.complete.get(key, 0) for key in self.workload.versions if key in RAW_KEYS) >= last_ts:
                break
            self.workload.advance_to(FLOOR + (40 * STEPS + 500 * step << 18))
            self.tick()
        rows = sorted(self.log.values(), key=lambda row: (row["commit_ts"], row["start_ts"], row["key"]))
        self.rules.read("the judge", pa.Table.from_pylist(rows, COMMITTED), 0, last_ts)
        self.rules.at_rest()

    def tick(self) -> None:
        now_ts = self.workload.tick()
        self.cluster.tick(now_ts)
        for source in self.sources:
            source.tick(now_ts)
            self.take(source)

    def take(self, source: ModelSource) -> None:
        for event in source.poll(0.0, self.checkpoint_of):
            self.hear(source.store_id, event)

    def die(self, source: ModelSource) -> None:
        """The pusher dies and starts again."""
        source.drop()
        source.resume()
        self.ready = {place for place in self.ready if place[0] != source.store_id}

    def hear(self, store: int, event: SourceEvent) -> None:
        match event:
            case SubscriptionOpened():
                self.open[store, event.subscription] = event
                self.rules.opened(event.range, event.checkpoint_ts)
            case SubscriptionReady():
                self.ready.add((store, event.subscription))
            case SubscriptionClosed():
                self.ready.discard((store, event.subscription))
            case Rows():
                for row in event.rows.to_pylist():
                    self.merge({**row, "table_id": 0})
            case Resolved():
                said = dict(zip(event.subscriptions.tolist(), event.resolved_ts.tolist(), strict=True))
                for subscription, ts in said.items():
                    if (store, subscription) in self.ready:
                        self.resolved(self.open[store, subscription].range, ts)

    def resolved(self, range_: KeyRange, ts: int) -> None:
        for key in self.workload.versions:
            if key in range_:
                self.complete[key] = max(ts, self.complete.get(key, 0))

    def merge(self, row: dict[str, Any]) -> None:
        """A row that was not marked once is not marked: its subscription has sent what was before it."""
        assert row["kind"] == RowKind.RAW
        place = row["commit_ts"], row["key"]
        held = self.log.setdefault(place, row)
        if not row["flags"] & FLAG_SCANNED or (held["flags"] & FLAG_SCANNED and row["start_ts"] < held["start_ts"]):
            self.log[place] = row


def test_what_is_lacking_lies_in_a_marked_interval() -> None:
    missing = 0
    for seed in range(SEEDS):
        judge = Judge(seed)
        judge.play()
        assert judge.violations == []
        missing += judge.rules.missing
    assert missing > 20


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(name: str) -> None:
    with MUTANTS[name].patch():
        judge = Judge(1)
        judge.play()
    assert judge.violations
