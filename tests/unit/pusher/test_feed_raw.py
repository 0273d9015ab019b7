"""Core of a TiKV feed that follows RawKV: marks of the opening scan, cuts, damage, and the rate of scans."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from pusher.core.source import Rows, SubscriptionOpened
from pusher.tikv.core.feed import StoreFeed
from tests.kit import change_data as wire
from tests.kit.store_feed import STORE, Rig, region
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, FLAG_SCANNED, RowKind

ONE = KeyRange(b"r\0\0\1", b"r\0\0\2")
A, B, FOREIGN = b"r\0\0\1a", b"r\0\0\1b", b"r\0\0\2a"


def rig(*regions: tuple[bytes, bytes], scan_bytes_s: float = inf) -> Rig:
    new_rig = Rig()
    new_rig.feed = StoreFeed(STORE, (ONE,), unread_bytes_max=0, is_raw=True, scan_bytes_s=scan_bytes_s)
    new_rig.answer(*(region(7 + i, start, end) for i, (start, end) in enumerate(regions or [(b"r", b"s")])))
    return new_rig


def rows(played: Rig) -> list[dict[str, Any]]:
    return [row for event in played.got(Rows) for row in event.rows.to_pylist()]


def test_rows_before_initialized_are_marked_with_the_checkpoint() -> None:
    feed = rig()
    feed.say(wire.event(7, 1, wire.committed(A, 200, 200), wire.committed(B, 90, 90), wire.INITIALIZED))
    feed.say(wire.event(7, 1, wire.committed(A, 300, 300)))
    feed.tick()
    scanned, live = FLAG_OLD_VALUE_UNKNOWN | FLAG_SCANNED, FLAG_OLD_VALUE_UNKNOWN
    marks = [(row["key"], row["start_ts"], row["commit_ts"], row["flags"]) for row in rows(feed)]
    assert marks == [(A, 100, 200, scanned), (B, 90, 90, scanned), (A, 300, 300, live)]
    assert {row["kind"] for row in rows(feed)} == {RowKind.RAW}


def test_what_a_region_holds_of_other_keyspaces_is_cut_off() -> None:
    feed = rig()
    (opened,) = feed.got(SubscriptionOpened)
    assert opened.range == ONE
    feed.say(wire.event(7, 1, wire.committed(FOREIGN, 200, 200), wire.committed(A, 201, 201)))
    assert [row["key"] for row in rows(feed)] == [A]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (wire.committed(b"k1", 200, 200), "without a keyspace"),
        (wire.committed(b"r\0\1", 200, 200), "without a keyspace"),
        (wire.committed(A, 199, 200), "two timestamps"),
        (wire.prewrite(A, 200), "transaction's in a RawKV feed"),
    ],
)
def test_a_row_that_is_no_write_of_a_keyspace_ends_the_stream(row: bytes, words: str) -> None:
    feed = rig()
    feed.say(wire.event(7, 1, row))
    damage = feed.feed.take_damage()
    assert isinstance(damage, CorruptObject)
    assert words in str(damage)
    assert damage.facts["region"] == 7
    assert not rows(feed)


def test_no_scan_starts_above_the_rate() -> None:
    feed = rig((b"r\0\0\1", b"r\0\0\1m"), (b"r\0\0\1m", b"r\0\0\2"), scan_bytes_s=1000)
    assert len(feed.got(SubscriptionOpened)) == 2, "both fit before anything was sent"
    feed.say(wire.event(7, 1, *(wire.committed(A, ts, ts, b"v" * 100) for ts in range(200, 220)), wire.INITIALIZED))
    feed.feed.resubscribe([2], feed.now)
    feed.collect()
    assert not feed.open()
    assert not feed.later(1.0)
    assert len(feed.later(2.5)) == 1
