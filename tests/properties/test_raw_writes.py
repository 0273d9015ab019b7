"""RawKV timestamps under random splits, merges, leader moves and outages of PD, with both designs of clocks.

Per key the order of timestamps is the order of writes, and nothing comes at or below a resolved ts. A model with one of
its rules broken is noticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from simulator.core.causal import BATCH_MAX, BATCH_MIN, Hlc, NotSynced, Timestamps, TsoCache
from simulator.core.cluster import Cluster, Region
from simulator.core.raw_writes import RawWrites
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange

STORES, SEEDS, STEPS = (1, 2, 3), 12, 300
CLOCKS: dict[str, Callable[[], Timestamps]] = {"cache": TsoCache, "hlc": Hlc}


class Violation(AssertionError):
    """A promise was broken."""


class Run:
    """One random run."""

    def __init__(self, seed: int, clock: Callable[[], Timestamps]) -> None:
        self.rand = random.Random(seed)
        cluster = Cluster([Region(region_id=1, version=1, store_id=1, range=KeyRange(b""))], floor_ts=1)
        self.raw = RawWrites(cluster, clock)
        self.tso, self.next_id = 1000, 2
        self.newest: dict[bytes, int] = {}  # key -> timestamp of its newest version
        self.resolved: dict[bytes, int] = {}  # key -> highest resolved ts
        self.pd_away, self.writes, self.refused = False, 0, 0

    def renew(self, store_id: int) -> None:
        if not self.pd_away:
            self.raw.clock(store_id).renewed(self.tso, 20)
            self.tso += 20

    def region(self) -> int:
        return self.rand.choice(self.raw.cluster.regions()).region_id

    def step(self) -> None:
        """Do something, and judge what became of it. The model of a store refuses a version below the newest one."""
        try:
            self.act()
        except InvalidInput as e:
            raise Violation(str(e)) from e
        self.check()

    def act(self) -> None:
        rand, raw = self.rand, self.raw
        match rand.choices(
            ["put", "apply", "resolve", "renew", "move", "split", "merge", "kill", "pd"],
            [30, 20, 10, 20, 5, 3, 3, 1, 1],
        )[0]:
            case "put":
                try:
                    raw.propose(bytes([rand.randrange(40)]), rand.choice([b"v", None]))
                except NotSynced:
                    self.refused += 1
            case "apply":
                raw.apply(self.region())
            case "resolve":
                self.resolve(self.region())
            case "renew":
                self.renew(rand.choice(STORES))
            case "move":
                raw.move_leader(self.region(), rand.choice(STORES))
            case "split":
                self.split(bytes([rand.randrange(1, 40)]))
            case "merge" if len(regions := raw.cluster.regions()) > 1:
                at = rand.randrange(len(regions) - 1)
                raw.merge(regions[at].region_id, regions[at + 1].region_id)
            case "kill":
                self.kill(rand.choice(STORES))
            case "pd":
                self.pd_away = not self.pd_away

    def kill(self, store_id: int) -> None:
        others = [store for store in STORES if store != store_id]
        regions = self.raw.cluster.regions(store_id)
        self.raw.kill_store(store_id, {region.region_id: self.rand.choice(others) for region in regions})
        self.raw.cluster.start_store(store_id)

    def split(self, key: bytes) -> None:
        region = self.raw.cluster.region_of(key)
        if key != region.range.start:
            self.raw.split(region.region_id, [key], [self.next_id])
            self.next_id += 1

    def resolve(self, region_id: int) -> None:
        if (ts := self.raw.resolved(region_id)) is not None:
            inside = self.raw.cluster.region(region_id).range
            for key in (bytes([n]) for n in range(40)):
                if key in inside:
                    self.resolved[key] = max(ts, self.resolved.get(key, 0))

    def check(self) -> None:
        for key in (bytes([n]) for n in range(40)):
            versions = [version.commit_ts for version in self.raw.cluster.versions(key)]
            if not versions or versions[-1] == self.newest.get(key):
                continue
            self.writes += 1
            if versions[-1] <= self.resolved.get(key, 0):
                raise Violation(f"{key!r} was written at {versions[-1]} after {self.resolved[key]} was resolved")
            self.newest[key] = versions[-1]


def play(clock: Callable[[], Timestamps], seeds: int = SEEDS) -> list[Run]:
    runs = []
    for seed in range(seeds):
        run = Run(seed, clock)
        for _ in range(STEPS):
            run.step()
        runs.append(run)
    return runs


@pytest.mark.parametrize("name", CLOCKS)
def test_the_order_of_timestamps_is_the_order_of_writes(name: str) -> None:
    runs = play(CLOCKS[name])
    assert sum(run.writes for run in runs) > 20 * len(runs)
    assert any(run.refused for run in runs), "PD was away, or asked too late"


@contextmanager
def broken(target: object, name: str, how: Callable[..., object]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, how)
        yield


def _resolved_ignoring_flights(self: RawWrites, region_id: int) -> int | None:
    try:
        return self.clock(self.cluster.region(region_id).store_id).take()
    except NotSynced:
        return None


def _resolved_unknown_to_peers(self: RawWrites, region_id: int) -> int | None:
    ts = _resolved_ignoring_flights(self, region_id)
    return None if ts is None else min([ts, *(write.ts - 1 for write in self.in_flight(region_id))])


def _split(self: RawWrites, region_id: int, keys: Sequence[bytes], new_ids: Sequence[int]) -> object:
    self._settle(region_id)
    return self.cluster.split(region_id, keys, new_ids)


def _merge(self: RawWrites, source_id: int, target_id: int) -> object:
    max_ts = self._max_ts.get(target_id, 0)
    merged = _true_merge(self, source_id, target_id)
    self._max_ts[target_id] = max_ts
    return merged


_true_merge = RawWrites.merge

MUTANTS: dict[str, tuple[str, object, str, Callable[..., object]]] = {
    "the cache is kept when a leader moves": ("cache", TsoCache, "led_elsewhere", lambda self, ts: None),
    "the clock is not advanced when a leader moves": ("hlc", Hlc, "led_elsewhere", lambda self, ts: None),
    "Region-Max-TS is not copied on split": ("hlc", RawWrites, "split", _split),
    "Region-Max-TS is dropped on merge": ("hlc", RawWrites, "merge", _merge),
    "resolved ts ignores writes in flight": ("cache", RawWrites, "resolved", _resolved_ignoring_flights),
    "the next leader does not know what was resolved": ("hlc", RawWrites, "resolved", _resolved_unknown_to_peers),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    name, target, attribute, how = MUTANTS[rule]
    with broken(target, attribute, how), pytest.raises(Violation):
        play(CLOCKS[name], 60)


# ---- the clocks alone


def test_a_cache_is_sized_by_its_use_and_the_outage_to_be_endured() -> None:
    cache = TsoCache(outage_ms=3000)
    assert cache.wanted() == BATCH_MIN
    cache.renewed(1000, 200)
    for _ in range(150):
        cache.take()
    assert cache.wanted() == 150 * 30 - 50
    cache.renewed(5000, 5000)
    for _ in range(1000):
        cache.take()
    assert cache.wanted() == BATCH_MAX


def test_a_cache_gives_the_oldest_first_and_nothing_after_a_flush() -> None:
    cache = TsoCache()
    with pytest.raises(NotSynced):
        cache.take()
    cache.renewed(10, 2)
    cache.renewed(20, 2)
    assert [cache.take() for _ in range(3)] == [10, 11, 20]
    cache.led_elsewhere(15)
    with pytest.raises(NotSynced):
        cache.take()
    with pytest.raises(InvalidInput, match="again"):
        cache.renewed(21, 5)
    cache.renewed(22, 5)
    assert cache.take() == 22


def test_a_hybrid_clock_needs_one_tso_and_then_none() -> None:
    clock = Hlc()
    clock.led_elsewhere(500)
    with pytest.raises(NotSynced):
        clock.take()
    clock.renewed(100, 1)
    assert [clock.take(), clock.take()] == [501, 502]
    clock.led_elsewhere(600)
    assert clock.take() == 601
    clock.renewed(300, 1)
    assert clock.take() == 602
