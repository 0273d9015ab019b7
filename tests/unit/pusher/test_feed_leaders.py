"""Core of a TiKV feed: errors of registrations, deregistrations and leader changes."""

from __future__ import annotations

import pytest

from pusher.core.source import Resolved, SubscriptionClosed
from pusher.tikv.core.effects import AskRegions, Moved
from pusher.tikv.core.feed import StoreFeed
from pusher.tikv.core.requests import Deregister, Register
from tests.kit import change_data as wire
from tests.kit.store_feed import OTHER, STORE, TABLES, Rig, opened, region
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange

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
    rig.feed.regions_listed(TABLES, [region(7, b"t", b"u")], rig.now)
    rig.say(wire.resolved(1, [7], 300))
    rig.say(wire.event(7, 1, error=error))
    rig.say(wire.event(7, 1, wire.committed(b"ta", 400, 410)), wire.resolved(1, [7], 500))
    rig.answer(region(7, b"t", b"u"))
    assert len(rig.sent(Register)) == 1, "not before the pause"
    resolved, closed, _ = rig.tick()
    assert isinstance(resolved, Resolved)
    assert resolved.resolved_ts.tolist() == [300], "the last one of the subscription, nothing later"
    assert closed == SubscriptionClosed(subscription=1)
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
    rig.feed.regions_listed(KeyRange(b"tm", b"u"), None, rig.now)
    rig.later(1)
    assert len(rig.sent(AskRegions)) == 2, "PD did not answer"
    rig.answer(region(8, b"tm", b"", leader=0), asked=KeyRange(b"tm", b"u"))
    rig.later(1)
    assert len(rig.sent(AskRegions)) == 3, "it had no leader"
    rig.answer(region(9, b"tp", b"", leader=OTHER), asked=KeyRange(b"tm", b"u"))
    rig.later(1)
    assert rig.sent(AskRegions)[3:] == [AskRegions(range=KeyRange(b"tm", b"tp"))], "the rest is another store's"


def test_a_new_leader_is_reported() -> None:
    rig = opened()
    rig.say(wire.event(7, 1, error=wire.not_leader(7, OTHER)))
    (moved,) = rig.sent(Moved)
    assert moved.region == region(7, b"t", b"u", leader=OTHER)
    other = StoreFeed(OTHER, [TABLES])
    other.regions_listed(None, [moved.region], 0.0)
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
    durable_timestamps = {b"t": 300, b"tm": 200}
    rig.checkpoints = lambda part: min(u for start, u in durable_timestamps.items() if start in part)
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
def test_a_store_that_refuses_the_feed_is_fatal(error: bytes) -> None:
    rig = opened(ready=False)
    rig.say(wire.event(7, 1, error=error))
    assert isinstance(rig.feed.fatal, InvalidInput)
    assert rig.feed.fatal.facts["store"] == STORE
    assert "6.2.0" in str(rig.feed.fatal) or "5, not 6" in str(rig.feed.fatal)
    rig.answer(region(7, b"t", b"u"))
    assert rig.later(100) == []


# -- deregistering -----------------------------------------------------------------------------------------------------


def test_resubscribing_ignores_the_late_answer_to_the_deregistration() -> None:
    rig = opened()
    rig.feed.resubscribe([1, 55], rig.now)
    (again,) = rig.open()
    assert rig.sent(Deregister) == [Deregister(request_id=1, region_id=7)]
    assert (again.request_id, again.region_id) == (2, 7)
    rig.say(wire.event(7, 1, wire.committed(b"ta", 300, 310)), wire.event(7, 1, error=wire.region_not_found(7)))
    rig.say(wire.event(7, 2, wire.committed(b"tb", 300, 310), wire.INITIALIZED), wire.resolved(2, [7], 400))
    events = rig.tick()
    assert SubscriptionClosed(subscription=1) in events
    assert SubscriptionClosed(subscription=2) not in events
    assert (rig.keys(1), rig.keys(2), rig.resolved()) == ([], [b"tb"], {2: 400})
    rig.feed.resubscribe([2], rig.now)
    assert [r.request_id for r in rig.open()] == [3], "an answered number is not used again either"


# -- who leads what ----------------------------------------------------------------------------------------------------


def test_two_stores_may_claim_one_region() -> None:
    rig = opened()
    rig.answer(region(7, b"t", b"u", leader=OTHER))
    rig.say(wire.event(7, 1, wire.committed(b"ta", 300, 310)), wire.resolved(1, [7], 400))
    rig.tick()
    assert rig.keys(1) == [b"ta"], "the store's own word counts, not PD's"
    assert rig.resolved() == {1: 400}


@pytest.mark.parametrize(("version", "left"), [(3, 1), (4, 0)], ids=["an older list", "a list of now"])
def test_a_waiting_piece_is_removed_when_another_store_leads_it(version: int, left: int) -> None:
    rig = Rig()
    rig.checkpoints = lambda _: None
    rig.answer(region(7, b"t", b"u", version=4))
    rig.answer(region(7, b"t", b"u", version=version, leader=OTHER))
    rig.checkpoints = lambda _: 5
    assert len(rig.later(2)) == left


def test_a_registered_piece_is_kept() -> None:
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
