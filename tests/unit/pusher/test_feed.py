"""Core of a TiKV feed: registrations, rows and resolved timestamps."""

from __future__ import annotations

import pytest

from pusher.core.source import Resolved, Rows, SubscriptionClosed, SubscriptionOpened, SubscriptionReady, Tick
from pusher.tikv.core.effects import AskRegions, CloseStream, OpenStream
from pusher.tikv.core.feed import StoreFeed
from pusher.tikv.core.requests import Deregister, Register
from tests.kit import change_data as wire
from tests.kit.store_feed import META, OTHER, STORE, TABLES, Rig, opened, region
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange

# -- registering -------------------------------------------------------------------------------------------------------


def test_wanted_ranges_are_queried_and_led_regions_registered() -> None:
    rig = Rig(META, TABLES)
    rig.open()
    assert rig.effects == [AskRegions(range=META), AskRegions(range=TABLES)]
    rig.answer(region(7, b"t", b"tm"), region(8, b"tm", b"", leader=OTHER), asked=TABLES)
    assert rig.effects[2:] == [
        OpenStream(),
        Register(request_id=1, region_id=7, conf_ver=1, version=1, range=KeyRange(b"t", b"tm"), checkpoint_ts=100),
    ]
    (subscription,) = rig.got(SubscriptionOpened)
    assert (subscription.subscription, subscription.region_id, subscription.range) == (1, 7, KeyRange(b"t", b"tm"))
    assert (subscription.checkpoint_ts, subscription.open_ts) == (100, rig.ts)
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


def test_concurrent_opening_scans_are_limited() -> None:
    rig = Rig(scans_max=2)
    rig.answer(*(region(n, b"t%d" % n, b"t%d" % (n + 1)) for n in range(5)))
    assert [r.region_id for r in rig.sent(Register)] == [0, 1]
    assert rig.feed.next_action_at() is None, "nothing to wake up for"
    rig.say(wire.event(1, 1, wire.INITIALIZED))
    assert [r.region_id for r in rig.open()] == [2]
    rig.say(wire.event(0, 1, error=wire.region_not_found(0)))
    assert [r.region_id for r in rig.open()] == [3]


def test_an_overflow_lowers_the_scan_limit_until_nothing_waits() -> None:
    rig = Rig(scans_max=8)
    rig.answer(*(region(n, b"t%d" % n, b"t%d" % (n + 1)) for n in range(9)))
    assert len(rig.sent(Register)) == 8
    rig.feed.stream_lost("too much", rig.now, overflow=True)
    everything = [region(n, b"t%d" % n, b"t%d" % (n + 1)) for n in range(9)]
    rig.feed.regions_listed(None, everything, rig.now)
    assert len(rig.later(20)) == 2
    assert not rig.feed.scans_one_at_a_time
    rig.feed.drop()  # two were too much as well
    rig.feed.resume()
    again = rig.later(20)
    for number in range(9):
        assert len(again) == 1, "one by one"
        assert rig.feed.scans_one_at_a_time
        rig.say(wire.event(again[0].region_id, again[0].request_id, wire.INITIALIZED))
        again = rig.open()
        assert len(again) == (number < 8)
    assert not rig.feed.scans_one_at_a_time
    rig.feed.stream_lost("cut", rig.now)
    rig.feed.regions_listed(None, everything, rig.now)
    assert len(rig.later(20)) == 8


def test_a_region_without_a_checkpoint_waits() -> None:
    rig = Rig()
    rig.checkpoints = lambda _: None
    rig.answer(region(7, b"t", b"u"))
    assert rig.sent(Register) == []
    rig.checkpoints = lambda _: 5
    assert [r.checkpoint_ts for r in rig.later(2)] == [5]


def test_an_unreadable_frontier_keeps_the_piece_queued() -> None:
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
    ready, resolved, tick = rig.tick()
    assert ready == SubscriptionReady(subscription=1, ready_ts=rig.ts)
    assert isinstance(resolved, Resolved)
    assert (resolved.subscriptions.tolist(), resolved.resolved_ts.tolist()) == ([1], [600])
    assert tick == Tick(cut_ts=rig.ts)
    rig.say(wire.event(7, 1, wire.commit(b"tb", 120, 700)))
    assert rig.tick() == [Tick(cut_ts=rig.ts)]  # nothing new was resolved


def test_live_rows_of_a_subscription_are_joined_in_order() -> None:
    rig = opened()
    for n in range(3):
        rig.feed.message(wire.event(7, 1, wire.prewrite(b"t%d" % n, 200), wire.LOCK_ONLY), rig.now)
    (rows,) = [e for e in rig.feed.take_events(rig.now) if isinstance(e, Rows)]
    assert rows.rows["key"].to_pylist() == [b"t0", b"t1", b"t2"]
    assert not rows.scan


def test_live_rows_wait_for_a_tick_or_the_size_limit() -> None:
    feed = StoreFeed(STORE, [TABLES], unread_bytes_max=200)
    feed.regions_listed(None, [region(7, b"t", b"u")], 0.0)
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
    assert [type(e) for e in feed.take_events(0.0)] == [Rows, SubscriptionReady, Tick]


def test_rows_precede_the_resolved_ts_that_covers_them() -> None:
    rig = opened()
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 200)), rig.now)
    rig.feed.message(wire.resolved(1, [7], 700), rig.now)
    assert [type(e) for e in rig.tick()] == [Rows, Resolved, Tick]


def test_rows_of_a_registration_that_fails_right_behind_them() -> None:
    rig = opened()
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 200)), rig.now)
    rig.feed.message(wire.resolved(1, [7], 700), rig.now)
    rig.feed.message(wire.event(7, 1, error=wire.region_not_found(7)), rig.now)
    assert [type(e) for e in rig.tick()] == [Rows, Resolved, SubscriptionClosed, Tick]


def test_decreasing_resolved_ts_and_those_below_the_checkpoint_are_ignored() -> None:
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


def test_resolved_ts_of_unknown_regions_are_ignored() -> None:
    rig = Rig()
    rig.answer(*(region(n, b"t%d" % n, b"t%d" % (n + 1)) for n in (2, 4, 6)))
    rig.say(*(wire.event(n, 1, wire.INITIALIZED) for n in (2, 4, 6)), wire.resolved(1, [2, 4, 6], 200))
    rig.say(wire.resolved(1, [1, 3, 5, 99], 400))
    rig.tick()
    assert rig.resolved() == {1: 200, 2: 200, 3: 200}
    rig.say(wire.event(4, 1, error=wire.region_not_found(4)), wire.resolved(1, [2, 4, 6], 500))
    rig.tick()
    assert rig.resolved() == {1: 500, 2: 200, 3: 500}


def test_a_resolved_ts_in_the_future_ends_the_stream() -> None:
    rig = opened()
    rig.say(wire.resolved(1, [7], 1 << 60))
    events = rig.tick()
    assert [type(e).__name__ for e in events] == ["SubscriptionClosed", "Tick"]
    assert rig.sent(CloseStream) == [CloseStream()]
    assert "future" in str(rig.feed.take_damage())


# -- the opening scan --------------------------------------------------------------------------------------------------


def test_contradicting_prewrites_in_an_opening_scan_reopen_the_subscription() -> None:
    rig = opened(ready=False)
    rig.say(wire.event(7, 1, wire.prewrite(b"ta", 200, b"new")), wire.event(7, 1, wire.prewrite(b"ta", 200, b"new")))
    rig.say(wire.event(7, 1, wire.prewrite(b"tb", 200), wire.prewrite(b"ta", 200, b"old"), wire.INITIALIZED))
    assert rig.keys(1) == [b"ta", b"ta"], "nothing of the event that contradicts"
    assert rig.effects[-1] == Deregister(request_id=1, region_id=7)
    assert [type(e).__name__ for e in rig.tick()] == ["SubscriptionClosed", "Tick"], "never ready"
    assert rig.later(0.4) == []
    (again,) = rig.later(5)
    assert (again.request_id, again.range) == (2, TABLES)
    rig.say(wire.event(7, 2, wire.prewrite(b"ta", 200, b"new"), wire.INITIALIZED))
    assert SubscriptionReady(subscription=2, ready_ts=rig.ts + 1000) in rig.tick()


def test_a_key_may_be_flushed_again_behind_the_opening_scan() -> None:
    rig = opened()
    rig.say(wire.event(7, 1, wire.prewrite(b"ta", 200, b"one")), wire.event(7, 1, wire.prewrite(b"ta", 200, b"two")))
    assert rig.keys(1) == [b"ta", b"ta"]
    assert rig.sent(Deregister) == []
