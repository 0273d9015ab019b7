"""Core of a TiKV feed: timeouts of scans and streams, regions that left, regions with many parts."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from pusher.core.source import Resolved, Rows, SubscriptionClosed, SubscriptionOpened, SubscriptionReady
from pusher.tikv.core.effects import CloseStream
from pusher.tikv.core.requests import Deregister, Register
from tests.kit import change_data as wire
from tests.kit.store_feed import OTHER, TABLES, Rig, opened, region
from tistream.codec.table_key import INDEX, RECORD, index_key, record_key, table_prefix
from tistream.keyrange import KeyRange, gaps

HALF, REST = region(7, b"t", b"t5"), region(8, b"t5", b"u")


def test_a_subscription_reopened_after_its_scan_is_never_ready() -> None:
    """Its hold on history was lost: what the scan read may have been collected."""
    rig = Rig()
    rig.answer(region(7, b"t", b"u"))
    rig.say(wire.event(7, 1, wire.INITIALIZED), wire.resolved(1, [7], 900))
    rig.feed.resubscribe([1], rig.now)
    rig.collect()
    rig.tick()
    assert not rig.got(SubscriptionReady)
    assert not rig.got(Resolved)
    assert [e.subscription for e in rig.got(SubscriptionClosed)] == [1]
    rig.open()
    assert [e.subscription for e in rig.got(SubscriptionOpened)] == [1, 2]


def test_an_outage_of_pd_does_not_time_out_the_stream() -> None:
    rig = opened()
    rig.say(wire.resolved(1, [7], 300))
    rig.now += 61  # PD had no leader: neither the pusher nor the store had a timestamp
    rig.feed.reset_timeouts(rig.now)
    rig.tick()
    rig.later(1)
    assert not rig.sent(CloseStream)
    rig.later(61)
    assert rig.sent(CloseStream)


def test_scan_timeouts_double_without_progress() -> None:
    rig = opened(ready=False)
    began: list[float] = []
    for _ in range(3600):
        if rig.later(10):
            began.append(rig.now)
        rig.answer(region(7, b"t", b"u"))
        if rig.now == 300:
            assert rig.feed.stalled_scans(rig.now) == {7: 300.0}
    waits = [b - a for a, b in pairwise([0.0, *began])]
    assert 600 <= waits[0] < 700
    assert len(waits) > 3
    assert all(1.9 < b / a < 2.1 for a, b in pairwise(waits[:4]))


def test_one_hanging_scan_among_others() -> None:
    rig = Rig()
    rig.answer(HALF, REST)
    rig.say(wire.event(7, 1, wire.INITIALIZED))
    rig.tick()
    for _ in range(180):
        rig.later(5)
        rig.say(wire.resolved(1, [7], rig.ts))
        rig.tick()
        rig.answer(HALF, REST)
    assert [r.region_id for r in rig.sent(Register)] == [7, 8, 8]
    assert [(d.request_id, d.region_id) for d in rig.sent(Deregister)] == [(1, 8)]
    assert rig.feed.stalled_scans(rig.now).keys() == {8}


def test_a_slow_scan_does_not_time_out() -> None:
    rig = opened(ready=False)
    for n in range(12):
        rig.later(599)
        rig.say(wire.event(7, 1, wire.committed(b"tk%d" % n, 200, 201)))
    assert len(rig.sent(Register)) == 1
    assert not rig.feed.stalled_scans(rig.now)


def fail_often() -> Rig:
    """Region 7 fails here again and again: its leader is elsewhere, and PD does not know yet."""
    rig = Rig()
    for _ in range(9):
        rig.answer(region(7, b"t", b"u"))
        rig.later(16)
        sent = rig.sent(Register)[-1]
        rig.say(wire.event(7, sent.request_id, error=wire.not_leader(7)))
    assert 7 in rig.feed.failing(8, rig.now)
    return rig


def test_a_moved_region_is_not_a_problem_of_its_old_store() -> None:
    rig = fail_often()
    rig.answer(region(7, b"t", b"u", leader=OTHER))
    assert rig.feed.failing(1, rig.now) == {}


def test_the_problem_of_a_merged_or_vanished_region_ends() -> None:
    rig = fail_often()
    rig.answer(region(9, b"t", b"u", version=5))  # it is part of another one now
    rig.later(100)
    assert rig.feed.failing(1, rig.now) == {}


def many_tables(count: int) -> list[KeyRange]:
    """The tables without the index entries of so many of them."""
    left_out = [KeyRange(table_prefix(i) + INDEX, table_prefix(i) + RECORD) for i in range(100, 100 + count)]
    return gaps(TABLES, left_out)


def test_a_region_of_many_wanted_parts_is_registered_once_and_gives_wanted_rows_only() -> None:
    rig = Rig(*many_tables(1000), scans_max=5000)
    rig.answer(region(7, b"t", b"u"))
    assert [r.range for r in rig.sent(Register)] == [TABLES]
    keys = [key for i in (100, 600, 1099) for key in (index_key(i, 1, b"x"), record_key(i, 1))]
    rig.say(wire.event(7, 1, *(wire.committed(key, 200, 201) for key in keys), wire.INITIALIZED))
    rig.say(wire.event(7, 1, *(wire.committed(key, 300, 301) for key in [*keys, index_key(5, 1, b"x")])))
    rig.tick()
    records = [record_key(i, 1) for i in (100, 600, 1099)]
    assert rig.keys(1) == [*records, *records, index_key(5, 1, b"x")]  # table 5 keeps its index entries
    assert all(isinstance(e.rows, pa.RecordBatch) for e in rig.got(Rows))


def test_many_wanted_parts_are_followed_through_a_split() -> None:
    rig = Rig(*many_tables(1000), scans_max=5000)
    rig.answer(region(7, b"t", b"u"))
    middle = table_prefix(600)
    two = [region(7, b"t", middle, version=2), region(8, middle, b"u", version=2)]
    rig.say(wire.event(7, 1, error=wire.epoch_not_match(*two)))
    rig.later(1)
    assert [r.region_id for r in rig.sent(Register)] == [7, 7, 8]
    assert sorted(r.range for r in rig.sent(Register)[1:]) == [KeyRange(b"t", middle), KeyRange(middle, b"u")]
