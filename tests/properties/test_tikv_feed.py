"""The core of the TiKV feed against a store that does everything a store may do, and against damaged bytes.

`Store` is a small model of one store's side of the change feed: registrations keyed by (request id, region), opening
scans in pieces between live rows, resolved ts in groups, splits, merges, leaders that go and come back, errors out of
nothing, requests and messages that take their time, streams that break; and of a PD that knows less than the store.
What is checked: a resolved ts is told only when every commit that it covers has been handed over in that
subscription; no pair is registered twice; and in the end, when nothing changes any more, everything that the store
leads is followed.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pusher.core.batcher import Batcher
from pusher.core.source import Resolved, Rows, SubscriptionClosed, SubscriptionOpened, SubscriptionReady
from pusher.tikv.core.effects import AskRegions, CloseStream, OpenStream
from pusher.tikv.core.feed import StoreFeed
from pusher.tikv.core.requests import Deregister, Register
from tests.kit import change_data as wire
from tests.kit.real_tikv import lines
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import region_form

DATA = Path(__file__).parents[1] / "data" / "real_tikv"
WANTED = (KeyRange(b"b", b"h"), KeyRange(b"m", b"s"))
KEYS = [bytes([c]) for c in range(ord("a"), ord("z"))]
ERRORS: list[Callable[[int], bytes]] = [
    wire.region_not_found,
    wire.congested,
    lambda _: wire.epoch_not_match(),
    lambda _: wire.server_is_busy("", 100),
    lambda region: wire.not_leader(region, 0),
    lambda _: wire.unknown_error(),
]


@dataclass(slots=True)
class Downstream:
    """A registration as the store sees it."""

    request: Register
    scan: list[tuple[bytes, int]]  # commits that the opening scan has yet to send
    initialized: bool = False


@dataclass
class Store:
    """One store, its regions by start key, and whether it leads them."""

    rand: random.Random
    ts: int = 1000
    starts: list[bytes] = field(default_factory=lambda: [b""])
    ids: list[tuple[int, int, bool]] = field(default_factory=lambda: [(1, 1, True)])  # id, version, leads
    commits: list[tuple[bytes, int]] = field(default_factory=list)
    downstreams: dict[tuple[int, int], Downstream] = field(default_factory=dict)
    requests: deque[Register | Deregister] = field(default_factory=deque)
    messages: deque[bytes] = field(default_factory=deque)
    region_ids: int = 1
    lists: list[list[Region]] = field(default_factory=list)  # what PD may say, newest last
    duplicates: int = 0

    def now(self) -> int:
        self.ts += 1
        return self.ts

    def regions(self) -> list[Region]:
        ends = [*self.starts[1:], b""]
        return [
            Region(
                id=id_,
                conf_ver=1,
                version=version,
                start=region_form(start),
                end=region_form(end),
                leader_store_id=1 if leads else self.rand.choice([0, 2]),
            )
            for start, end, (id_, version, leads) in zip(self.starts, ends, self.ids, strict=True)
        ]

    # -- what may happen

    def take_request(self) -> None:
        if not self.requests:
            return
        request = self.requests.popleft()
        pair = (request.request_id, request.region_id)
        if isinstance(request, Deregister):
            if self.downstreams.pop(pair, None):
                self.say_error(pair, wire.region_not_found(request.region_id))
            return
        states = [(v, leads) for id_, v, leads in self.ids if id_ == request.region_id]
        if not states or not states[0][1]:
            error = wire.region_not_found(request.region_id) if not states else wire.not_leader(request.region_id, 0)
            self.say_error(pair, error)
        elif pair in self.downstreams:
            self.duplicates += 1
            self.say_error(pair, wire.duplicate_request(request.region_id))
        elif states[0][0] != request.version:
            self.say_error(pair, wire.epoch_not_match())
        else:
            scan = [(k, c) for k, c in self.commits if k in request.range and c > request.checkpoint_ts]
            self.downstreams[pair] = Downstream(request, scan)

    def say_error(self, pair: tuple[int, int], error: bytes) -> None:
        self.messages.append(wire.event(pair[1], pair[0], error=error))

    def end_region(self, id_: int, error: bytes) -> None:
        for pair in [p for p in self.downstreams if p[1] == id_]:
            del self.downstreams[pair]
            self.say_error(pair, error)

    def commit(self) -> None:
        key, ts = self.rand.choice(KEYS), self.now()
        self.commits.append((key, ts))
        for (request, region), d in self.downstreams.items():
            if key in d.request.range:
                self.messages.append(wire.event(region, request, wire.committed(key, ts - 1, ts)))

    def go_on_scanning(self) -> None:
        waiting = [(p, d) for p, d in self.downstreams.items() if not d.initialized]
        for (request, region), d in self.rand.sample(waiting, min(2, len(waiting))):
            said, d.scan = d.scan[:3], d.scan[3:]
            rows = [wire.committed(k, c - 1, c) for k, c in said]
            d.initialized = not d.scan
            rows += [wire.INITIALIZED] * d.initialized
            self.messages.append(wire.event(region, request, *rows))

    def resolve(self) -> None:
        ready = [p for p, d in self.downstreams.items() if d.initialized]
        some = self.rand.sample(ready, self.rand.randint(0, len(ready)))
        ts = self.now() - self.rand.choice([0, 0, 5])  # now and then it falls back
        for request in {request for request, _ in some}:
            self.messages.append(wire.resolved(request, [region for r, region in some if r == request], ts))

    def split(self) -> None:
        key = self.rand.choice(KEYS)
        at = bisect_right(self.starts, key) - 1
        if self.starts[at] == key:
            return
        id_, version, leads = self.ids[at]
        self.region_ids += 1
        self.starts.insert(at + 1, key)
        self.ids[at : at + 1] = [(self.region_ids, version + 1, leads), (id_, version + 1, leads)]
        both = [r for r in self.regions() if r.id in (id_, self.region_ids)]
        self.end_region(id_, wire.epoch_not_match(*both) if self.rand.random() < 0.5 else wire.epoch_not_match())

    def merge(self) -> None:
        if len(self.ids) < 2:
            return
        at = self.rand.randrange(len(self.ids) - 1)
        (source, v, _), (target, w, leads) = self.ids[at : at + 2]
        if self.rand.random() < 0.5:
            source, target = target, source
        self.ids[at : at + 2] = [(target, max(v, w) + 1, leads)]
        del self.starts[at + 1]
        self.end_region(source, wire.region_not_found(source))
        self.end_region(target, wire.epoch_not_match())

    def transfer(self) -> None:
        away = [i for i, (*_, leads) in enumerate(self.ids) if not leads]
        at = self.rand.choice(away or range(len(self.ids)))
        id_, version, leads = self.ids[at]
        self.ids[at] = (id_, version, not leads)
        if leads:
            self.end_region(id_, wire.not_leader(id_, self.rand.choice([0, 2])))

    def fail(self) -> None:
        id_ = self.rand.choice(self.ids)[0]
        self.end_region(id_, self.rand.choice(ERRORS)(id_))

    def hang_up(self) -> None:
        self.downstreams.clear()
        self.requests.clear()
        self.messages.clear()


class World:
    """A store, a core, and what is known of the subscriptions."""

    def __init__(self, seed: int) -> None:
        self.rand = random.Random(seed)
        self.store = Store(self.rand)
        self.feed = StoreFeed(1, WANTED, scans_max=3)
        self.batcher = Batcher()
        self.time = 0.0
        self.durable_ts = 1000
        self.subscriptions: dict[int, SubscriptionOpened] = {}
        self.ready: set[int] = set()
        self.rows: dict[int, set[tuple[bytes, int]]] = {}
        self.asks: deque[KeyRange] = deque()
        self.promises = 0

    def step(self) -> None:
        store, rand = self.store, self.rand
        self.time += rand.choice([0.0, 0.05, 0.5])
        if rand.random() < 0.3:
            store.lists.append(store.regions())
        often = [store.take_request] * 3 + [store.commit, store.go_on_scanning, store.go_on_scanning, store.resolve]
        often += [self.deliver, self.deliver, self.deliver, self.answer, self.open, self.open, self.tick, self.news]
        seldom = [
            store.split,
            store.merge,
            store.transfer,
            store.fail,
            self.news,
            self.resubscribe,
            self.hang_up,
            self.pause,
        ]
        rand.choice(seldom if rand.random() < 0.06 else often)()
        self.collect()

    def deliver(self) -> None:
        for _ in range(min(len(self.store.messages), self.rand.randint(1, 6))):
            self.feed.message(self.store.messages.popleft(), self.time)

    def answer(self) -> None:
        if self.asks:
            self.feed.regions_listed(
                self.asks.popleft(), None if self.rand.random() < 0.1 else self.listed(), self.time
            )

    def news(self) -> None:
        self.feed.regions_listed(None, self.listed(), self.time)

    def listed(self) -> list[Region]:
        """What PD says: what is, or what was."""
        if self.store.lists and self.rand.random() < 0.3:
            return self.rand.choice(self.store.lists[-5:])
        return self.store.regions()

    def open(self) -> None:
        self.feed.advance(self.time)
        if self.feed.is_due(self.time):
            self.feed.open(self.store.now(), lambda _: self.durable_ts, self.time)

    def tick(self) -> None:
        self.feed.tick(self.store.now(), self.time)
        self.durable_ts = max(self.durable_ts, self.store.ts - self.rand.randint(50, 200))

    def resubscribe(self) -> None:
        if self.subscriptions:
            self.feed.resubscribe(self.rand.choices(list(self.subscriptions), k=2), self.time)

    def hang_up(self) -> None:
        self.store.hang_up()
        self.feed.stream_lost("it broke", self.time)

    def pause(self) -> None:
        self.feed.drop()
        self.batcher = Batcher()
        self.subscriptions.clear()
        self.feed.resume()

    def collect(self) -> None:
        for effect in self.feed.take_effects():
            match effect:
                case OpenStream() | CloseStream():
                    self.store.hang_up()
                case AskRegions():
                    self.asks.append(effect.range)
                case Register() | Deregister():
                    self.store.requests.append(effect)
        for event in self.feed.take_events(self.time):
            self.batcher.handle(event)
            match event:
                case SubscriptionOpened():
                    self.subscriptions[event.subscription] = event
                    self.rows[event.subscription] = set()
                case Rows():
                    columns = (event.rows[name].to_pylist() for name in ("key", "commit_ts"))
                    self.rows[event.subscription] |= set(zip(*columns, strict=True))
                case SubscriptionReady():
                    self.ready.add(event.subscription)
                case SubscriptionClosed():
                    del self.subscriptions[event.subscription]
                case Resolved():
                    for subscription, ts in zip(event.subscriptions.tolist(), event.resolved_ts.tolist(), strict=True):
                        self.check(subscription, ts)
        assert self.feed.take_damage() is None
        assert self.feed.fatal is None

    def check(self, subscription: int, ts: int) -> None:
        opened = self.subscriptions[subscription]
        assert subscription in self.ready
        covered = {(k, c) for k, c in self.store.commits if k in opened.range and opened.checkpoint_ts < c <= ts}
        assert covered <= self.rows[subscription]
        self.promises += 1

    def due(self) -> list[KeyRange]:
        """What of the wanted ranges this store leads."""
        store = self.store
        ends = [*store.starts[1:], b""]
        led = [KeyRange(s, e) for s, e, (*_, leads) in zip(store.starts, ends, store.ids, strict=True) if leads]
        return sorted(part for whole in led for watched in WANTED if (part := whole.intersect(watched)))

    def settle(self) -> None:
        """Nothing changes any more, and everything arrives."""
        for _ in range(300):
            self.time += 1.0
            store = self.store
            for act in (store.take_request, store.go_on_scanning, store.resolve, self.deliver, self.open):
                act()
            self.feed.regions_listed(None, self.store.regions(), self.time)
            self.collect()
            while self.asks:
                self.feed.regions_listed(self.asks.popleft(), self.store.regions(), self.time)
        while self.store.messages:
            self.deliver()
        self.tick()
        self.collect()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_store_does(seed: int) -> None:
    promises = 0
    for part in range(5):
        world = World(seed * 5 + part)
        for _ in range(1200):
            world.step()
        promises += world.promises
        world.settle()
        assert sorted(t.range for t in world.subscriptions.values()) == world.due()
        assert set(world.subscriptions) <= world.ready
        assert world.store.duplicates == 0
    assert promises > 10


# -- damage ------------------------------------------------------------------------------------------------------------


def recorded() -> list[bytes]:
    """Messages of all kinds that a real store sent, for one region each, with that region's number made 7."""
    messages = [
        bytes.fromhex(line["msg_hex"])
        for line in lines(DATA / "txn_quiet" / "stream.ndjson.zst")
        if line["dir"] == "recv"
    ]
    return [m for m in messages if len(m) < 400]


RECORDED = recorded()
REGIONS = {1312: (b"t", b"t\x80"), 1240: (b"t\x80", b"u")}


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A recorded message, or one with a bit turned, a part missing, or something put into it."""
    data = bytearray(draw(st.sampled_from(RECORDED)))
    at = draw(st.integers(0, len(data) - 1))
    match draw(st.sampled_from(["whole", "whole", "bit", "cut", "put", "twice"])):
        case "bit":
            data[at] ^= 1 << draw(st.integers(0, 7))
        case "cut":
            del data[at : at + draw(st.integers(1, 20))]
        case "put":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        case "twice":
            return bytes(data) * 2
    return bytes(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(damaged(), max_size=12))
def test_damaged_messages_end_the_stream_at_most(messages: list[bytes]) -> None:
    feed, batcher = StoreFeed(1, [KeyRange(b"t", b"u")]), Batcher()
    regions = [
        Region(id=n, conf_ver=1, version=1, start=region_form(s), end=region_form(e), leader_store_id=1)
        for n, (s, e) in REGIONS.items()
    ]
    now, ts = 0.0, 1 << 59
    for message in [*messages, None]:
        now += 20.0 if message is None else 0.1
        if feed.fatal is not None:
            return  # an error that was turned into a refusal
        feed.regions_listed(None, regions, now)
        feed.open(ts, lambda _: 1, now)
        if message is not None:
            feed.message(message, now)
        ts += 1
        feed.tick(ts, now)
        for event in feed.take_events(now):
            batcher.handle(event)
        damage = feed.take_damage()
        if damage is not None:
            assert isinstance(damage, CorruptObject)
            assert damage.facts["store"] == 1
            assert {"region", "request"} <= set(damage.facts)
    if feed.fatal is None:
        followed = {(t.range.start, t.range.end) for t in batcher.subscriptions.values()}
        assert followed == set(REGIONS.values()), "in the end both are followed again"
