"""No opening scan is called ready whose history was collected, whatever machine, PD and frontier do meanwhile.

PD is a model: it has its own clock, GC barriers expire, and garbage collection stops at those that have not. So is
the machine: its monotonic clock stops while it is suspended. GcBarrier, HeldFrontier and a store's feed are real.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from pusher.core.source import SubscriptionClosed, SubscriptionOpened, SubscriptionReady
from pusher.frontier import FrontierEntry, checkpoint_for
from pusher.tikv.core.requests import Register
from pusher.tikv.history import GcBarrier, HeldFrontier
from tests.kit import change_data as wire
from tests.kit.manual_clock import ManualClock
from tests.kit.store_feed import Rig, region
from tistream import ts
from tistream.errors import TsExpired
from tistream.keyrange import KeyRange

HOUR_S = 3600
LIFE_S = 600  #: what garbage collection leaves


class Pd:
    """Holds by PD's clock."""

    def __init__(self) -> None:
        self.ms, self.safe, self.newest_tso = 1_700_000_000_000, 0, 0
        self.holds: dict[str, tuple[int, int]] = {}

    def tso(self) -> int:
        self.ms += 1
        self.newest_tso = ts.compose(self.ms)
        return self.newest_tso

    def hold_history(self, name: str, at: int, ttl_s: int) -> None:
        if at < self.safe:
            raise TsExpired("PD has collected history above the timestamp")
        self.holds[name] = (at, self.ms + ttl_s * 1000)

    def release_history(self, name: str) -> None:
        self.holds.pop(name, None)

    def collect(self) -> None:
        live = [at for at, end in self.holds.values() if end > self.ms]
        self.safe = max(self.safe, min([ts.compose(self.ms - LIFE_S * 1000), *live]))


class Control:
    """A published frontier."""

    def __init__(self, durable_ts: int) -> None:
        self.durable_ts = durable_ts

    def frontier(self) -> list[FrontierEntry]:
        return [FrontierEntry(range=KeyRange(), durable_ts=self.durable_ts, resubscribe_id=0)]


class World:
    """One store of two regions, and what is true of its subscriptions."""

    def __init__(self, seed: int) -> None:
        self.rand = random.Random(seed)
        self.pd, self.clock = Pd(), ManualClock()
        self.control = Control(ts.compose(self.pd.ms - 2000))
        self.barrier = GcBarrier(self.pd, "me", clock=self.clock, cap_s=24 * HOUR_S)
        self.frontier = HeldFrontier(self.control, self.clock, self.barrier)
        self.rig = Rig()
        self.rig.checkpoints = lambda part: checkpoint_for(self.frontier.read(), part)
        self.regions = [region(7, b"t", b"t5"), region(8, b"t5", b"u")]
        self.living: dict[int, tuple[Register, int]] = {}  # subscription -> its registration, and its checkpoint
        self.scanned: dict[int, bool] = {}  # subscription -> whether its scan saw everything
        self.ready: set[int] = set()

    def step(self) -> None:
        """One thing happens, as threads and clocks have it: nothing else is done behind it."""
        steps = (self.wait, self.sleep, self.renew, self.catch_up, self.register, self.scan, self.cut, self.look)
        self.rand.choices(steps, WEIGHTS)[0]()
        self.pd.collect()

    def wait(self) -> None:
        seconds = self.rand.choice([1, 10, 60])
        self.clock.advance(seconds)
        self.rig.now += seconds
        self.pd.ms += seconds * 1000

    def sleep(self) -> None:
        """The machine is suspended."""
        self.pd.ms += self.rand.choice([60, HOUR_S, 23 * HOUR_S, 25 * HOUR_S, 49 * HOUR_S]) * 1000

    def renew(self) -> None:
        """As whoever owns the push does, every few seconds of its own clock."""
        with suppress(TsExpired):
            self.barrier.renew(min([self.control.durable_ts, *self.opening().values()]))

    def catch_up(self) -> None:
        behind_s = self.rand.choice([1, 300, 20 * HOUR_S])
        self.control.durable_ts = max(self.control.durable_ts, ts.compose(self.pd.ms - behind_s * 1000))

    def register(self) -> None:
        self.rig.ts = self.pd.tso()
        self.rig.feed.regions_listed(None, self.regions, self.rig.now)
        self.rig.feed.advance(self.rig.now)
        self.rig.feed.open(self.rig.ts, self.rig.checkpoints, self.rig.now)
        self.take()

    def scan(self) -> None:
        """A store ends its opening scans: what they saw was there until now."""
        for subscription, (sent, checkpoint_ts) in list(self.living.items()):
            if subscription not in self.scanned:
                self.scanned[subscription] = self.pd.safe <= checkpoint_ts
                self.rig.say(wire.event(sent.region_id, sent.request_id, wire.INITIALIZED))

    def cut(self) -> None:
        self.rig.feed.stream_lost("cut", self.rig.now)
        self.take()

    def look(self) -> None:
        """A tick, and what the pusher does behind it."""
        self.rig.ts = self.pd.tso()
        self.rig.feed.tick(self.rig.ts, self.rig.now, self.barrier.covers)
        self.take()
        opening = self.opening()
        if opening and not self.barrier.covers(min(opening.values())):
            self.rig.feed.resubscribe(list(opening), self.rig.now)
            self.take()

    def opening(self) -> dict[int, int]:
        """Subscriptions that are not ready, and their checkpoints."""
        return {subscription: at for subscription, (_, at) in self.living.items() if subscription not in self.ready}

    def take(self) -> None:
        """What the feed says and wants."""
        self.rig.collect()
        sent = self.rig.sent(Register)
        opened = self.rig.got(SubscriptionOpened)
        self.living |= {o.subscription: (s, o.checkpoint_ts) for o, s in zip(opened, sent, strict=True)}
        for event in self.rig.events:
            if isinstance(event, SubscriptionReady):
                self.ready.add(event.subscription)
                assert self.scanned[event.subscription], "ready, though what it had to scan was collected"
            elif isinstance(event, SubscriptionClosed):
                del self.living[event.subscription]
        self.rig.events.clear()
        self.rig.effects.clear()


WEIGHTS = (6, 1, 3, 3, 4, 4, 1, 4)


@pytest.mark.parametrize("block", range(4))
def test_nothing_is_ready_that_was_not_held_to_the_end_of_its_scan(block: int) -> None:
    ready = 0
    for seed in range(block * 40, block * 40 + 40):
        world = World(seed)
        for _ in range(120):
            world.step()
        ready += len(world.ready)
    assert ready > 40  # it is about something
