"""The cost of following a real TiKV store: idle regions, and changes.

- idle: the share of a second that 10,000 regions without changes take, which is their resolved ts in one message and a
  tick. For comparison, a dict from region to subscription, one lookup for each region, and the same event;
- changes: messages of recorded shape (20 rows each, of 100 live regions) become Rows, in units of the speed of decoding
  each message's events alone. MB/s of messages are printed too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.harness import Result, compare
from pusher.core.cdcpb import read_change_data
from pusher.core.source import Resolved, Rows, SourceEvent
from pusher.tikv.core.feed import StoreFeed
from tests.kit import change_data as wire
from tistream.codec.protobuf import message, uint
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import region_form

IDLE_REGIONS = 10_000
BUSY_REGIONS = 100
MESSAGES = 2000
ROWS_PER_MESSAGE = 20
_SECOND_TS = 1000 << 18
_START_TS = 450_000_000_000_000_000


class Store:
    """A core with this many regions, all of them ready."""

    def __init__(self, count: int) -> None:
        self.count, self.ts, self.now = count, _START_TS, 0.0
        self.feed = StoreFeed(1, [KeyRange(b"t", b"u")], scans_max=count)
        bounds = [b"t" + n.to_bytes(4, "big") for n in range(1, count)]
        ends = [*bounds, b"u"]
        regions = [
            Region(id=n, conf_ver=1, version=1, start=region_form(s), end=region_form(e), leader_store_id=1)
            for n, (s, e) in enumerate(zip([b"t", *bounds], ends, strict=True), 1)
        ]
        self.feed.regions_listed(None, regions, 0.0)
        self.feed.open(self.ts, lambda _: 1, 0.0)
        for region in regions:
            self.feed.message(wire.event(region.id, 1, wire.INITIALIZED), 0.0)
        self.tick()

    def tick(self) -> list[SourceEvent]:
        self.ts, self.now = self.ts + _SECOND_TS, self.now + 1.0
        self.feed.tick(self.ts, self.now)
        return self.feed.take_events(self.now)


def idle() -> Result:
    """One second of regions without changes."""
    store = Store(IDLE_REGIONS)
    order = list(range(1, IDLE_REGIONS + 1))
    random.Random(7).shuffle(order)
    groups = [order[:8], order[8:40], order[40:168], order[168:]]  # as a store does
    parts = [b"".join(uint(1, region) for region in group) for group in groups]
    plain = {region: [0, region] for region in order}
    stamp = _START_TS

    def second() -> int:
        for part in parts:
            store.feed.message(_resolved(part, store.ts), store.now)
        return sum(len(e.subscriptions) for e in store.tick() if isinstance(e, Resolved))

    def second_of_a_dict() -> int:
        nonlocal stamp
        stamp += _SECOND_TS
        resolved: dict[int, int] = {}
        for part in parts:
            said = read_change_data(_resolved(part, stamp)).resolved
            for region in said.regions.tolist() if said else ():
                entry = plain.get(region)
                if entry is not None and stamp > entry[0]:
                    entry[0] = stamp
                    resolved[entry[1]] = stamp
        event = Resolved(
            subscriptions=np.fromiter(resolved, np.int64, len(resolved)),
            resolved_ts=np.fromiter(resolved.values(), np.uint64, len(resolved)),
        )
        return len(event.subscriptions)

    began = time.process_time()
    rounds = 50
    for _ in range(rounds):
        second()
    took = (time.process_time() - began) / rounds
    print(f"    {IDLE_REGIONS} idle regions: {took:.2%} of a core, {took * 1000 / IDLE_REGIONS:.3%} for each 1,000")
    return compare(
        "idle regions, time against a dict", second, second_of_a_dict, proof=int.__eq__, target=1.0, better="lower"
    )


def _resolved(regions: bytes, ts: int) -> bytes:
    return message(2, regions + uint(2, ts) + uint(3, 1))


def changes() -> Result:
    """A burst of live rows."""
    store, rand = Store(BUSY_REGIONS), random.Random(7)
    messages = []
    for n in range(MESSAGES):
        region = rand.randint(1, BUSY_REGIONS)
        rows = [
            wire.prewrite(b"t%08d" % (n * ROWS_PER_MESSAGE + i), _START_TS + n, rand.randbytes(120))
            for i in range(ROWS_PER_MESSAGE)
        ]
        messages.append(wire.event(region, 1, *rows))
    size = sum(map(len, messages))

    def joined() -> int:
        for said in messages:
            store.feed.message(said, store.now)
        return sum(e.rows.num_rows for e in store.tick() if isinstance(e, Rows))

    def one_by_one() -> int:
        return sum(e.rows.num_rows for m in messages for e in read_change_data(m).events if e.rows is not None)

    joined()
    began = time.process_time()
    joined()
    print(f"    changes: {size / 1e6 / (time.process_time() - began):.0f} MB of messages for each second of a core")
    return compare("changes, speed against event by event", joined, one_by_one, proof=int.__eq__, target=2.0)


def run() -> Iterator[Result]:
    yield idle()
    yield changes()
