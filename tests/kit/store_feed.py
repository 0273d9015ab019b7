"""The core of a TiKV feed with a clock, and what came out of it: for tests that go rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pusher.core.source import Resolved, Rows, SourceEvent
from pusher.tikv.core.effects import Effect
from pusher.tikv.core.feed import StoreFeed
from pusher.tikv.core.requests import Register
from tests.kit import change_data as wire
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import region_form

META, TABLES = KeyRange(b"m", b"n"), KeyRange(b"t", b"u")
STORE, OTHER = 1, 2
T = TypeVar("T")


def region(id_: int, start: bytes, end: bytes, version: int = 1, leader: int = STORE) -> Region:
    return Region(
        id=id_, conf_ver=1, version=version, start=region_form(start), end=region_form(end), leader_store_id=leader
    )


class Rig:
    """A core, a clock and what came out."""

    def __init__(self, *ranges: KeyRange, scans_max: int = 32) -> None:
        self.feed = StoreFeed(STORE, ranges or (TABLES,), scans_max=scans_max, unread_bytes_max=0)
        self.now, self.ts = 0.0, 1000
        self.checkpoints: Callable[[KeyRange], int | None] = lambda _: 100
        self.effects: list[Effect] = []
        self.events: list[SourceEvent] = []

    def answer(self, *regions: Region, asked: KeyRange | None = None) -> None:
        self.feed.regions_listed(asked, regions, self.now)
        self.open()

    def say(self, *messages: bytes) -> None:
        for message in messages:
            self.feed.message(message, self.now)
        self.collect()

    def open(self) -> list[Register]:
        self.ts += 1
        before = len(self.effects)
        self.feed.advance(self.now)
        self.feed.open(self.ts, self.checkpoints, self.now)
        self.collect()
        return [e for e in self.effects[before:] if isinstance(e, Register)]

    def later(self, seconds: float) -> list[Register]:
        self.now += seconds
        return self.open()

    def tick(self) -> list[SourceEvent]:
        self.ts += 1000
        before = len(self.events)
        self.feed.tick(self.ts, self.now)
        self.collect()
        return self.events[before:]

    def collect(self) -> None:
        self.effects += self.feed.take_effects()
        self.events += self.feed.take_events(self.now)

    def sent(self, kind: type[T]) -> list[T]:
        return [e for e in self.effects if isinstance(e, kind)]

    def got(self, kind: type[T]) -> list[T]:
        return [e for e in self.events if isinstance(e, kind)]

    def keys(self, subscription: int) -> list[bytes]:
        return [key for e in self.got(Rows) if e.subscription == subscription for key in e.rows["key"].to_pylist()]

    def resolved(self) -> dict[int, int]:
        promises: dict[int, int] = {}
        for e in self.got(Resolved):
            promises |= dict(zip(e.subscriptions.tolist(), e.resolved_ts.tolist(), strict=True))
        return promises


def opened(*, ready: bool = True) -> Rig:
    """A core with region 7 of all tables registered as (request 1, subscription 1)."""
    rig = Rig()
    rig.answer(region(7, b"t", b"u"))
    if ready:
        rig.say(wire.event(7, 1, wire.INITIALIZED))
        rig.tick()
    return rig
