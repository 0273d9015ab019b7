"""Core of a TiKV feed: streams that end, time out or are damaged, and drops."""

from __future__ import annotations

import itertools

import pytest

from pusher.core.source import Rows, SubscriptionClosed, SubscriptionOpened, Tick
from pusher.tikv.core.effects import AskRegions, CloseStream, OpenStream
from pusher.tikv.core.requests import Register
from tests.kit import change_data as wire
from tests.kit.store_feed import STORE, TABLES, Rig, opened, region
from tistream.errors import CorruptObject
from tistream.model.change import RowKind

# -- the stream --------------------------------------------------------------------------------------------------------


def test_the_end_of_a_stream_ends_every_subscription_on_it() -> None:
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
    assert len([e for e in events if isinstance(e, SubscriptionClosed)]) == 100
    assert len(rig.resolved()) == 100
    rig.answer(*regions)
    assert rig.later(0.3) == [], "a pause"
    assert len(rig.later(1)) == 32
    assert rig.sent(OpenStream) == [OpenStream()]
    assert AskRegions(range=TABLES) in rig.effects, "one question for all"
    assert {r.request_id for r in rig.sent(Register)} == {1}, "another stream, other numbers"


def test_a_silent_stream_is_closed() -> None:
    rig = opened()
    rig.later(59)
    assert rig.sent(CloseStream) == []
    rig.say(wire.resolved(1, [7], 300))
    rig.later(59)
    assert rig.sent(CloseStream) == []
    rig.later(2)
    assert rig.sent(CloseStream) == [CloseStream()]
    assert SubscriptionClosed(subscription=1) in rig.tick()


@pytest.mark.parametrize("ready", [True, False])
def test_damaged_rows_end_the_stream_and_drop_pending_resolved_ts(ready: bool) -> None:
    rig = opened(ready=ready)
    bad = wire.row(RowKind.PREWRITE, b"", 300, value=b"v")  # no key
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 300)), rig.now)
    rig.feed.message(wire.event(7, 1, bad, wire.INITIALIZED), rig.now)
    rig.feed.message(wire.resolved(1, [7], 400), rig.now)
    rig.tick()
    assert rig.resolved() == {}
    assert rig.got(SubscriptionClosed) == [SubscriptionClosed(subscription=1)]
    assert rig.sent(CloseStream) == [CloseStream()]
    damage = rig.feed.take_damage()
    assert isinstance(damage, CorruptObject)
    assert {k: damage.facts[k] for k in ("store", "request", "region")} == {"store": STORE, "request": 1, "region": 7}
    rig.answer(region(7, b"t", b"u"))
    assert rig.later(0.4) == []
    assert len(rig.later(2)) == 1


def test_a_row_that_only_a_newer_store_sends_is_named_and_read_again_ever_more_rarely() -> None:
    """Each stream comes to it again, after an opening scan of a minute."""
    rig = opened(ready=False)
    unknown = max(RowKind) + 10
    pauses = []
    for n in range(1, 14):
        rig.later(60)
        rig.say(wire.event(7, 1, wire.row(unknown, b"ta", 300, value=b"v")))
        rig.tick()
        damage = rig.feed.take_damage()
        assert damage is not None
        assert "an unknown kind" in damage.message
        assert damage.facts["kind"] == unknown
        assert rig.feed.damages.shown == str(damage)
        rig.answer(region(7, b"t", b"u"))
        began = rig.now
        while len(rig.sent(Register)) == n:
            rig.later(0.5)
            assert rig.feed.damages.shown, "also while the next stream is waited for"
        pauses.append(rig.now - began)
    assert pauses[0] < 2
    assert all(later >= earlier for earlier, later in itertools.pairwise(pauses))
    assert 300 <= pauses[-1] <= 460, "the longest pause is bounded"
    rig.say(wire.event(7, 1, wire.INITIALIZED))
    rig.tick()
    assert rig.feed.damages.shown == "", "a store that was put right"


def test_nothing_is_kept_of_regions_that_failed_once_or_left() -> None:
    rig = opened()
    for n in range(100, 400):
        rig.answer(region(n, b"t", b"u", version=n))
        rig.open()
        rig.say(wire.event(n, 1, wire.INITIALIZED))
        rig.tick()
        rig.say(wire.event(n, 1, error=wire.region_not_found(n)))
        rig.later(20)
        rig.feed.failing(5, rig.now)
    rig.later(1000)
    rig.feed.failing(5, rig.now)
    assert len(rig.feed._pauses.failing(0)) < 10
    assert len(rig.feed._used_ids) < 10


def test_an_invalid_message_ends_the_stream() -> None:
    rig = opened()
    rig.say(wire.resolved(1, [7], 400), b"\xff\xff", wire.resolved(1, [7], 500))
    assert [type(e).__name__ for e in rig.tick()] == ["SubscriptionClosed", "Tick"]
    assert rig.feed.take_damage() is not None
    assert rig.feed.take_damage() is None


def test_dropped_and_resumed() -> None:
    rig = opened()
    rig.feed.message(wire.event(7, 1, wire.prewrite(b"ta", 300)), rig.now)
    rig.feed.drop()
    rig.collect()
    assert rig.effects[-1] == CloseStream()
    rig.say(wire.event(7, 1, wire.prewrite(b"tb", 300)), b"\xff")
    assert rig.feed.take_damage() is None, "no stream is open"
    assert rig.got(Rows) == []
    assert rig.tick() == [Tick(cut_ts=rig.ts)]
    assert rig.later(100) == []
    rig.feed.resume()
    (again,) = rig.open()
    assert again.range == TABLES
    assert rig.got(SubscriptionOpened)[-1].subscription == 2
    assert rig.effects[-2] == OpenStream()
