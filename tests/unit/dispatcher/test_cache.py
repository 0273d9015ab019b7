"""The bounded cache of decoded files."""

from __future__ import annotations

from dispatcher.cache import DecodedFile, FileCache
from dispatcher.core.router import directory
from tests.kit.batch_files import subscriptions_of
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey

T = Tenant(1, 1)


def key(seq: int, incarnation: int = 1, store: int = 1) -> BatchKey:
    return BatchKey(tenant=T, store_id=store, incarnation=incarnation, seq=seq)


def file(seq: int, size: int = 10, incarnation: int = 1) -> DecodedFile:
    return DecodedFile(key=key(seq, incarnation), cut_ts=seq, directory=directory(*subscriptions_of([])), bytes=size)


def test_the_bound_holds_and_the_least_recently_used_goes_first() -> None:
    cache = FileCache(30)
    for seq in (1, 2, 3):
        cache.put(file(seq))
        cache.take(key(seq))
    cache.take(key(1))
    cache.put(file(4))
    assert cache.bytes == 30
    assert [cache.holds(key(seq)) for seq in (1, 2, 3, 4)] == [True, False, True, True]


def test_taken_files_make_room_before_files_read_ahead() -> None:
    cache = FileCache(30)
    for seq in (1, 2, 3):
        cache.put(file(seq))
    cache.take(key(3))
    cache.put(file(4))
    assert [cache.holds(key(seq)) for seq in (1, 2, 3, 4)] == [True, True, False, True]


def test_a_file_larger_than_the_bound_still_passes() -> None:
    cache = FileCache(30)
    cache.put(file(1))
    cache.put(file(2, size=100))
    assert cache.take(key(1)) is None
    assert cache.take(key(2)) is not None
    cache.put(file(3))
    assert (cache.bytes, cache.holds(key(2))) == (10, False)


def test_reading_ahead_stops_at_half_of_the_bound() -> None:
    cache = FileCache(40)
    cache.put(file(1))
    assert cache.room_ahead()
    cache.put(file(2))
    assert not cache.room_ahead()
    cache.take(key(1))
    assert cache.room_ahead()


def test_the_same_file_twice_counts_once() -> None:
    cache = FileCache(40)
    cache.put(file(1))
    cache.take(key(1))
    cache.put(file(1))
    assert cache.bytes == 10


def test_forgetting_an_incarnation_behind_a_place() -> None:
    cache = FileCache(1000)
    for seq in (1, 2, 3):
        cache.put(file(seq))
    cache.put(file(9, incarnation=2))
    cache.take(key(1))
    cache.forget(T, 1, 1, 1)
    assert [cache.holds(key(seq)) for seq in (1, 2, 3)] == [True, False, False]
    assert cache.holds(key(9, 2))
    cache.forget(T, 1)
    assert cache.bytes == 0
    assert cache.room_ahead()
