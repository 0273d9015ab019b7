"""The core of a TiKV feed, rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from tistream.change import Op, RowKind
from tistream.errors import CorruptObject, InvalidInput
from tistream.keyrange import KeyRange
from tistream.pusher.source import Resolved, Rows, SourceEvent, TenureClosed, TenureOpened, TenureReady, Tick
from tistream.pusher.tikv.effects import AskRegions, CloseStream, Effect, Moved, OpenStream
from tistream.pusher.tikv.feed import StoreFeed
from tistream.pusher.tikv.pd_messages import Region
from tistream.pusher.tikv.regions import region_form
from tistream.pusher.tikv.requests import Deregister, Register
from tistream.testing import change_data as wire

META, TABLES = KeyRange(b"m", b"n"), KeyRange(b"t", b"u")
STORE, OTHER = 1, 2
T = TypeVar("T")


def region(id_: int, start: bytes, end: bytes, version: int = 1, leader: int = STORE) -> Region:
    return Region(
        id=id_, conf_ver=1, version=version, start=region_form(start), end=region_form(end), leader_store_id=leader
    )


class Rig:
    """A core, a clock and what came out."""

    def __init__(self, *wanted: KeyRange, scans_max: int = 32) -> None:
        self.feed = StoreFeed(STORE, wanted or (TABLES,), scans_max=scans_max, unread_bytes_max=0)
        self.now, self.ts = 0.0, 1000
        self.checkpoints: Callable[[KeyRange], int | None] = lambda _: 100
        self.effects: list[Effect] = []
        self.events: list[SourceEvent] = []

    def answer(self, *regions: Region, asked: KeyRange | None = None) -> None:
        self.feed.answered(asked, regions, self.now)
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

    def keys(self, tenure: int) -> list[bytes]:
        return [key for e in self.got(Rows) if e.tenure == tenure for key in e.rows["key"].to_pylist()]

    def resolved(self) -> dict[int, int]:
        told: dict[int, int] = {}
        for e in self.got(Resolved):
            told |= dict(zip(e.tenures.tolist(), e.resolved_ts.tolist(), strict=True))
        return told


def opened(*, ready: bool = True) -> Rig:
    """A core with region 7 of all tables registered as (request 1, tenure 1)."""
    rig = Rig()
    rig.answer(region(7, b"t", b"u"))
    if ready:
        rig.say(wire.event(7, 1, wire.INITIALIZED))
        rig.tick()
    return rig


# -- registering -------------------------------------------------------------------------------------------------------


def test_it_asks_for_what_is_wanted_and_registers_what_its_store_leads() -> None:
    rig = Rig(META, TABLES)
    rig.open()
    assert rig.effects == [AskRegions(range=META), AskRegions(range=TABLES)]
    rig.answer(region(7, b"t", b"tm"), region(8, b"tm", b"", leader=OTHER), asked=TABLES)
    assert rig.effects[2:] == [
        OpenStream(),
        Register(request_id=1, region_id=7, conf_ver=1, version=1, range=KeyRange(b"t", b"tm"), checkpoint_ts=100),
    ]
    (tenure,) = rig.got(TenureOpened)
    assert (tenure.tenure, tenure.region_id, tenure.range) == (1, 7, KeyRange(b"t", b"tm"))
    assert (tenure.checkpoint_ts, tenure.open_ts) == (100, rig.ts)
    assert rig.later(60) == []


def test_a_store_that_leads_nothing_ticks() -> None:
    rig = Rig()
    rig.answer(region(7, b"", b"", leader=OTHER))
    assert rig.tick() == [Tick(cut_ts=rig.ts)]
    assert rig.sent(OpenStream) == []


def test_one_region_of_two_wanted_ranges_is_registered_twice_others_share_a_request() -> None:
    rig = Rig(META, TABLES)
    rig.answer(region(7, b"", b"tm"), region(8, b"tm", b""))
    sent = rig.sent(Register)
    assert [(r.request_id, r.region_id, r.range) for r in sent] == [
        (1, 7, META),
        (2, 7, KeyRange(b"t", b"tm")),
        (1, 8, KeyRange(b"tm", b"u")),
    ]


def test_only_so_many_opening_scans_at_once() -> None:
    rig = Rig(scans_max=2)
    rig.answer(*(region(n, b"t%d" % n, b"t%d" % (n + 1)) for n in range(5)))
    assert [r.region_id for r in rig.sent(Register)] == [0, 1]
    assert rig.feed.due_at() is None, "nothing to wake up for"
    rig.say(wire.event(1, 1, wire.INITIALIZED))
    assert [r.region_id for r in rig.open()] == [2]
    rig.say(wire.event(0, 1, error=wire.region_not_found(0)))
    assert [r.region_id for r in rig.open()] == [3]


def test_a_region_without_a_checkpoint_waits() -> None:
    rig = Rig()
    rig.checkpoints = lambda _: None
    rig.answer(region(7, b"t", b"u"))
    assert rig.sent(Register) == []
    rig.checkpoints = lambda _: 5
    assert [r.checkpoint_ts for r in rig.later(2)] == [5]


def test_a_frontier_that_cannot_be_read_costs_nothing() -> None:
    rig = Rig()

    def fail(_: KeyRange) -> int:
        raise InvalidInput("no")

    rig.checkpoints = fail
    with pytest.raises(InvalidInput):
        rig.answer(region(7, b"t", b"u"))
    rig.checkpoints = lambda _: 5
    assert len(rig.open()) == 1


# -- rows and resolved ts ----------------------------------------------------------------------------------------------


def test_from_the_opening_scan_to_resolved() -> None:
    rig = opened(ready=False)
    rig.say(wire.event(7, 1, wire.commit(b"ta", 90, 110), wire.committed(b"ta", 90, 110)))
    assert rig.keys(1) == [b"ta", b"ta"]
    rig.say(wire.resolved(1, [7], 500))  # no store does that
    assert rig.tick() == [Tick(cut_ts=rig.ts)]
    rig.say(wire.event(7, 1, wire.prewrite(b"tb", 120), wire.INITIALIZED), wire.resolved(1, [7], 600))
    assert rig.keys(1) == [b"ta", b"ta", b"tb"]
    ready, told, tick = rig.tick()
    assert ready == TenureReady(tenure=1, ready_ts=rig.ts)
    assert isinstance(told, Resolved)
    assert (told.tenures.tolist(), told.resolved_ts.tolist()) == ([1], [600])
    assert tick == Tick(cut_ts=rig.ts)
    rig.say(wire.event(7, 1, wire.commit(b"tb", 120, 700)))
    assert rig.tick() == [Tick(cut_ts=rig.ts)]  # nothing new was resolved


def test_live_rows_of_a_tenure_are_joined_in_order() -> None:
    rig = opened()
    for n in range(3):
        rig.feed.message(wire.event(7, 1, wire.prewrite(b"t%d" % n, 200), wire.LOCK_ONLY), rig.now)
    (rows,) = [e for e in rig.feed.take_events(rig.now) if isinstance(e, Rows)]
    assert rows.rows["key"].to_pylist() == [b"t0", b"t1", b"t2"]
    assert not rows.scan


def test_live_rows_wait_for_a_tick_or_until_there_is_much() -> None:
    feed = StoreFeed(STORE, [TABLES], unread_bytes_max=200)
    feed.answered(None, [region(7, b"t", b"u")], 0.0)
    feed.open(1, lambda _: 1, 0.0)
    feed.message(wire.event(7, 1, wire.INITIALIZED), 0.0)
    feed.take_events(0.0)
    row = wire.event(7, 1, wire.prewrite(b"ta", 200, b"v" * 100))
    feed.message(row, 0.0)
    assert feed.take_events(0.0) == []
    feed.message(row, 0.0)
    assert [type(e) for e in feed.take_events(0.0)] == [Rows]
    feed.message(row, 0.0)
    assert feed.take_events(0.0) == []
    feed.tick(5, 0.0)
    assert [type(e) for e in feed.take_events(0.0)] == [Rows, TenureReady, Tick]


def test_rows_come_before_what_covers_them() -> None:
    rig = opened()
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 200)), rig.now)
    rig.feed.message(wire.resolved(1, [7], 700), rig.now)
    assert [type(e) for e in rig.tick()] == [Rows, Resolved, Tick]


def test_rows_of_a_registration_that_fails_right_behind_them() -> None:
    rig = opened()
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 200)), rig.now)
    rig.feed.message(wire.resolved(1, [7], 700), rig.now)
    rig.feed.message(wire.event(7, 1, error=wire.region_not_found(7)), rig.now)
    assert [type(e) for e in rig.tick()] == [Rows, Resolved, TenureClosed, Tick]


def test_lock_only_events_say_nothing() -> None:
    rig = opened()
    rig.say(wire.event(7, 1, wire.LOCK_ONLY, wire.LOCK_ONLY))
    assert rig.got(Rows) == []


def test_resolved_ts_that_fall_or_lie_below_the_checkpoint_are_passed_over() -> None:
    rig = opened()
    rig.say(wire.resolved(1, [7], 99))
    rig.tick()
    assert rig.resolved() == {}
    rig.say(wire.resolved(1, [7], 100))
    rig.tick()
    assert rig.resolved() == {1: 100}
    rig.say(wire.resolved(1, [7], 300), wire.resolved(1, [7], 200))
    rig.tick()
    assert rig.resolved() == {1: 300}
    rig.say(wire.resolved(1, [7], 250))
    assert [type(e) for e in rig.tick()] == [Tick]


def test_one_message_resolves_many_regions() -> None:
    rig = Rig()
    rig.answer(*(region(n, b"t%d" % n, b"t%d" % (n + 1)) for n in range(1, 6)))
    rig.say(*(wire.event(n, 1, wire.INITIALIZED) for n in range(1, 5)))
    rig.say(wire.resolved(1, [3, 1, 77, 5], 400), wire.resolved(1, [2], 300), wire.resolved(9, [4], 300))
    rig.say(wire.event(4, 1, resolved_ts=350))  # the form of older stores
    rig.tick()
    assert rig.resolved() == {1: 400, 2: 300, 3: 400, 4: 350}


def test_resolved_ts_of_regions_that_nobody_follows_change_nothing() -> None:
    rig = Rig()
    rig.answer(*(region(n, b"t%d" % n, b"t%d" % (n + 1)) for n in (2, 4, 6)))
    rig.say(*(wire.event(n, 1, wire.INITIALIZED) for n in (2, 4, 6)), wire.resolved(1, [2, 4, 6], 200))
    rig.say(wire.resolved(1, [1, 3, 5, 99], 400))
    rig.tick()
    assert rig.resolved() == {1: 200, 2: 200, 3: 200}
    rig.say(wire.event(4, 1, error=wire.region_not_found(4)), wire.resolved(1, [2, 4, 6], 500))
    rig.tick()
    assert rig.resolved() == {1: 500, 2: 200, 3: 500}


def test_a_resolved_ts_of_the_future_ends_the_stream() -> None:
    rig = opened()
    rig.say(wire.resolved(1, [7], 1 << 60))
    events = rig.tick()
    assert [type(e) for e in events] == [TenureClosed, Tick]
    assert rig.sent(CloseStream) == [CloseStream()]
    assert "future" in str(rig.feed.take_damage())


def test_raw_data() -> None:
    rig = Rig(KeyRange(b"r\0\0\1", b"r\0\0\2"))
    rig.answer(region(7, b"r", b"s"))
    put = wire.row(RowKind.COMMITTED, b"r\0\0\1k", 200, 200, value=b"v", expire_ts=1_700_000_000)
    delete = wire.row(RowKind.COMMITTED, b"r\0\0\1k", 210, 210, op=Op.DELETE)
    rig.say(wire.event(7, 1, put, delete, wire.INITIALIZED))
    (rows,) = rig.got(Rows)
    assert rows.rows["expire_ts"].to_pylist() == [1_700_000_000, 0]
    assert rows.rows["value"].to_pylist() == [b"v", None]


# -- the opening scan --------------------------------------------------------------------------------------------------


def test_a_tenure_that_contradicts_itself_in_its_opening_scan_is_opened_again() -> None:
    rig = opened(ready=False)
    rig.say(wire.event(7, 1, wire.prewrite(b"ta", 200, b"new")), wire.event(7, 1, wire.prewrite(b"ta", 200, b"new")))
    rig.say(wire.event(7, 1, wire.prewrite(b"tb", 200), wire.prewrite(b"ta", 200, b"old"), wire.INITIALIZED))
    assert rig.keys(1) == [b"ta", b"ta"], "nothing of the event that contradicts"
    assert rig.effects[-1] == Deregister(request_id=1, region_id=7)
    assert [type(e) for e in rig.tick()] == [TenureClosed, Tick], "never ready"
    assert rig.later(0.4) == []
    (again,) = rig.later(5)
    assert (again.request_id, again.range) == (2, TABLES)
    rig.say(wire.event(7, 2, wire.prewrite(b"ta", 200, b"new"), wire.INITIALIZED))
    assert TenureReady(tenure=2, ready_ts=rig.ts + 1000) in rig.tick()


def test_a_key_may_be_flushed_again_behind_the_opening_scan() -> None:
    rig = opened()
    rig.say(wire.event(7, 1, wire.prewrite(b"ta", 200, b"one")), wire.event(7, 1, wire.prewrite(b"ta", 200, b"two")))
    assert rig.keys(1) == [b"ta", b"ta"]
    assert rig.sent(Deregister) == []


# -- errors ------------------------------------------------------------------------------------------------------------

ENDING = {
    "no leader": (wire.not_leader(7), 0.0),
    "epoch": (wire.epoch_not_match(), 0.0),
    "not found": (wire.region_not_found(7), 0.0),
    "busy": (wire.server_is_busy("scans", 0), 0.5),
    "busy for long": (wire.server_is_busy("scans", 4000), 4.0),
    "busy for ever": (wire.server_is_busy("scans", 1 << 63), 60.0),
    "congested": (wire.congested(7), 1.0),
    "unknown": (wire.unknown_error(), 1.0),
    "duplicate": (wire.duplicate_request(7), 1.0),
}


@pytest.mark.parametrize(("error", "pause_s"), list(ENDING.values()), ids=list(ENDING))
def test_an_error_ends_the_registration_and_pd_is_asked_after_a_pause(error: bytes, pause_s: float) -> None:
    rig = opened()
    rig.feed.answered(TABLES, [region(7, b"t", b"u")], rig.now)
    rig.say(wire.resolved(1, [7], 300))
    rig.say(wire.event(7, 1, error=error))
    rig.say(wire.event(7, 1, wire.committed(b"ta", 400, 410)), wire.resolved(1, [7], 500))
    rig.answer(region(7, b"t", b"u"))
    assert len(rig.sent(Register)) == 1, "not before the pause, whoever asked PD"
    told, closed, _ = rig.tick()
    assert isinstance(told, Resolved)
    assert told.resolved_ts.tolist() == [300], "the last word of a tenure is kept, what came later is not"
    assert closed == TenureClosed(tenure=1)
    assert rig.keys(1) == []
    assert rig.later(pause_s * 0.99) == []
    (again,) = rig.later(0.2 + pause_s / 2)
    burnt = error in (ENDING["unknown"][0], ENDING["duplicate"][0])
    assert again.request_id == (2 if burnt else 1)
    assert rig.sent(Deregister) == ([Deregister(request_id=1, region_id=7)] if burnt else [])


def test_pd_is_asked_for_the_part_that_failed() -> None:
    rig = Rig()
    rig.answer(region(7, b"t", b"tm"), region(8, b"tm", b""), asked=TABLES)
    rig.say(wire.event(8, 1, error=wire.region_not_found(8)))
    rig.effects.clear()
    rig.later(1)
    assert rig.sent(AskRegions) == [AskRegions(range=KeyRange(b"tm", b"u"))]
    assert rig.later(60) == [], "an answer is awaited"
    rig.feed.answered(KeyRange(b"tm", b"u"), None, rig.now)
    rig.later(1)
    assert len(rig.sent(AskRegions)) == 2, "PD did not answer"
    rig.answer(region(8, b"tm", b"", leader=0), asked=KeyRange(b"tm", b"u"))
    rig.later(1)
    assert len(rig.sent(AskRegions)) == 3, "nobody led it"
    rig.answer(region(9, b"tp", b"", leader=OTHER), asked=KeyRange(b"tm", b"u"))
    rig.later(1)
    assert rig.sent(AskRegions)[3:] == [AskRegions(range=KeyRange(b"tm", b"tp"))], "the rest is another store's"


def test_a_new_leader_is_told_of() -> None:
    rig = opened()
    rig.say(wire.event(7, 1, error=wire.not_leader(7, OTHER)))
    (moved,) = rig.sent(Moved)
    assert moved.region == region(7, b"t", b"u", leader=OTHER)
    other = StoreFeed(OTHER, [TABLES])
    other.answered(None, [moved.region], 0.0)
    other.open(5, lambda _: 100, 0.0)
    assert [e.range for e in other.take_effects() if isinstance(e, Register)] == [TABLES]


def test_a_split_is_followed_without_pd() -> None:
    rig = opened()
    left, right = region(9, b"t", b"tm", version=2), region(7, b"tm", b"u", version=2)
    rig.say(wire.event(7, 1, error=wire.epoch_not_match(left, right)))
    assert [(r.region_id, r.version, r.range) for r in rig.open()] == [
        (9, 2, KeyRange(b"t", b"tm")),
        (7, 2, KeyRange(b"tm", b"u")),
    ]
    rig.answer(region(7, b"t", b"u", version=1))
    rig.later(60)
    assert len(rig.sent(Register)) == 3, "a list of PD that is older changes nothing"


def test_after_a_merge_both_parts_are_one_registration_from_the_lower_checkpoint() -> None:
    rig = Rig()
    uppers = {b"t": 300, b"tm": 200}
    rig.checkpoints = lambda part: min(u for start, u in uppers.items() if start in part)
    rig.answer(region(7, b"t", b"tm"), region(8, b"tm", b"u"))
    merged = region(8, b"t", b"u", version=3)
    rig.say(wire.event(7, 1, error=wire.region_not_found(7)))
    rig.now += 1
    rig.answer(merged)
    assert len(rig.sent(Register)) == 2, "the other part is registered still: the store ends that"
    rig.say(wire.event(8, 1, error=wire.epoch_not_match()))
    rig.now += 1
    rig.answer(merged)
    (union,) = rig.sent(Register)[2:]
    assert (union.region_id, union.range, union.checkpoint_ts) == (8, TABLES, 200)


def test_pauses_grow_until_a_registration_lives() -> None:
    rig = opened()

    def fail_and_count() -> float:
        rig.say(wire.event(7, 1, error=wire.region_not_found(7)))
        began = rig.now
        while True:
            rig.answer(region(7, b"t", b"u"))
            if (7, 1) in [(r.region_id, r.request_id) for r in rig.sent(Register)]:
                rig.say(wire.event(7, 1, wire.INITIALIZED))
                rig.effects.clear()
                return round(rig.now - began, 2)
            rig.now += 0.05

    rig.effects.clear()
    pauses = [fail_and_count() for _ in range(9)]
    assert pauses[0] < 0.3
    assert pauses == sorted(pauses)
    assert 9 < pauses[-1] < 16
    assert rig.feed.failing(9, rig.now) == {7: (9, "REGION_NOT_FOUND")}
    rig.now += 20
    assert rig.feed.failing(1, rig.now) == {}
    assert fail_and_count() < 0.3


@pytest.mark.parametrize("error", [wire.compatibility("6.2.0"), wire.cluster_id_mismatch(5, 6)])
def test_a_store_that_refuses_ends_it_all(error: bytes) -> None:
    rig = opened(ready=False)
    rig.say(wire.event(7, 1, error=error))
    assert isinstance(rig.feed.fatal, InvalidInput)
    assert rig.feed.fatal.facts["store"] == STORE
    assert "6.2.0" in str(rig.feed.fatal) or "5, not 6" in str(rig.feed.fatal)
    rig.answer(region(7, b"t", b"u"))
    assert rig.later(100) == []


# -- deregistering -----------------------------------------------------------------------------------------------------


def test_reopening_does_not_wait_for_the_answer_and_is_not_fooled_by_it() -> None:
    rig = opened()
    rig.feed.reopen([1, 55], rig.now)
    (again,) = rig.open()
    assert rig.sent(Deregister) == [Deregister(request_id=1, region_id=7)]
    assert (again.request_id, again.region_id) == (2, 7)
    rig.say(wire.event(7, 1, wire.committed(b"ta", 300, 310)), wire.event(7, 1, error=wire.region_not_found(7)))
    rig.say(wire.event(7, 2, wire.committed(b"tb", 300, 310), wire.INITIALIZED), wire.resolved(2, [7], 400))
    events = rig.tick()
    assert TenureClosed(tenure=1) in events
    assert TenureClosed(tenure=2) not in events
    assert (rig.keys(1), rig.keys(2), rig.resolved()) == ([], [b"tb"], {2: 400})
    rig.feed.reopen([2], rig.now)
    assert [r.request_id for r in rig.open()] == [3], "an answered number is not used again either"


# -- who leads what ----------------------------------------------------------------------------------------------------


def test_two_stores_may_claim_one_region() -> None:
    rig = opened()
    rig.answer(region(7, b"t", b"u", leader=OTHER))
    rig.say(wire.event(7, 1, wire.committed(b"ta", 300, 310)), wire.resolved(1, [7], 400))
    rig.tick()
    assert rig.keys(1) == [b"ta"], "the store's own word counts, not PD's"
    assert rig.resolved() == {1: 400}


def test_what_waits_goes_when_another_store_leads_it() -> None:
    rig = Rig()
    rig.checkpoints = lambda _: None
    rig.answer(region(7, b"t", b"u", version=4))
    rig.answer(region(7, b"t", b"u", version=3, leader=OTHER))
    rig.checkpoints = lambda _: 5
    assert len(rig.later(2)) == 1, "the older list did not count"
    rig = Rig()
    rig.checkpoints = lambda _: None
    rig.answer(region(7, b"t", b"u", version=4))
    rig.answer(region(7, b"t", b"u", version=4, leader=OTHER))
    rig.checkpoints = lambda _: 5
    assert rig.later(2) == []


def test_what_is_registered_stays_though_something_else_waits() -> None:
    rig = Rig()
    rig.checkpoints = lambda part: 5 if part.start == b"t" else None
    rig.answer(region(7, b"t", b"tm"), region(8, b"tm", b"u"))
    rig.answer(region(7, b"t", b"tm", leader=OTHER), region(8, b"tm", b"u", leader=OTHER))
    rig.say(wire.event(7, 1, wire.INITIALIZED), wire.resolved(1, [7], 300))
    rig.tick()
    assert rig.resolved() == {1: 300}
    rig.checkpoints = lambda _: 5
    rig.answer(region(7, b"t", b"tm"))
    assert [r.region_id for r in rig.later(2)] == []
    assert len(rig.sent(Register)) == 1


def test_the_higher_version_waits() -> None:
    rig = Rig()
    rig.checkpoints = lambda _: None
    rig.answer(region(7, b"t", b"tm", version=4))
    rig.answer(region(8, b"t", b"u", version=3))
    rig.checkpoints = lambda _: 5
    assert [r.region_id for r in rig.later(2)] == [7]


# -- the stream --------------------------------------------------------------------------------------------------------


def test_the_end_of_a_stream_ends_every_tenure_on_it() -> None:
    rig = Rig()
    regions = [region(n, b"t%03d" % n, b"t%03d" % (n + 1)) for n in range(1, 101)]
    rig.feed.advance(0)
    rig.answer(*regions, asked=TABLES)
    for _ in range(4):
        rig.say(*(wire.event(n, 1, wire.INITIALIZED) for n in range(1, 101)))
        rig.open()
    rig.say(wire.resolved(1, list(range(1, 101)), 300))
    rig.effects.clear()
    rig.feed.stream_lost("EOF", rig.now)
    rig.say(wire.event(3, 1, wire.committed(b"t003", 400, 410)))
    assert len(rig.got(Rows)) == 0
    events = rig.tick()
    assert len([e for e in events if isinstance(e, TenureClosed)]) == 100
    assert len(rig.resolved()) == 100
    rig.answer(*regions)
    assert rig.later(0.3) == [], "a pause"
    assert len(rig.later(1)) == 32
    assert rig.sent(OpenStream) == [OpenStream()]
    assert AskRegions(range=TABLES) in rig.effects, "one question for all"
    assert {r.request_id for r in rig.sent(Register)} == {1}, "another stream, other numbers"


def test_a_silent_stream_is_given_up() -> None:
    rig = opened()
    rig.later(59)
    assert rig.sent(CloseStream) == []
    rig.say(wire.resolved(1, [7], 300))
    rig.later(59)
    assert rig.sent(CloseStream) == []
    rig.later(2)
    assert rig.sent(CloseStream) == [CloseStream()]
    assert TenureClosed(tenure=1) in rig.tick()


@pytest.mark.parametrize("ready", [True, False])
def test_damaged_rows_end_the_stream_and_what_covers_them_is_not_told(ready: bool) -> None:
    rig = opened(ready=ready)
    bad = wire.row(RowKind.PREWRITE, b"", 300, value=b"v")  # no key
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 300)), rig.now)
    rig.feed.message(wire.event(7, 1, bad, wire.INITIALIZED), rig.now)
    rig.feed.message(wire.resolved(1, [7], 400), rig.now)
    rig.tick()
    assert rig.resolved() == {}
    assert rig.got(TenureClosed) == [TenureClosed(tenure=1)]
    assert rig.sent(CloseStream) == [CloseStream()]
    damage = rig.feed.take_damage()
    assert isinstance(damage, CorruptObject)
    assert {k: damage.facts[k] for k in ("store", "request", "region")} == {"store": STORE, "request": 1, "region": 7}
    rig.answer(region(7, b"t", b"u"))
    assert rig.later(0.4) == []
    assert len(rig.later(2)) == 1


def test_a_message_that_is_none_ends_the_stream() -> None:
    rig = opened()
    rig.say(wire.resolved(1, [7], 400), b"\xff\xff", wire.resolved(1, [7], 500))
    assert [type(e) for e in rig.tick()] == [TenureClosed, Tick]
    assert rig.feed.take_damage() is not None
    assert rig.feed.take_damage() is None


def test_dropped_and_resumed() -> None:
    rig = opened()
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 300)), rig.now)
    rig.feed.drop()
    rig.collect()
    assert rig.effects[-1] == CloseStream()
    rig.say(wire.event(7, 1, wire.prewrite(b"tb", 300)), b"\xff")
    assert rig.feed.take_damage() is None, "nobody listens"
    assert rig.got(Rows) == []
    assert rig.tick() == [Tick(cut_ts=rig.ts)]
    assert rig.later(100) == []
    rig.feed.resume()
    (again,) = rig.open()
    assert again.range == TABLES
    assert rig.got(TenureOpened)[-1].tenure == 2
    assert rig.effects[-2] == OpenStream()
