"""Following a store: order, reading ahead, gaps, damaged files, ended incarnations. No threads, no real time."""

from __future__ import annotations

from functools import partial

import pytest
import structlog

from dispatcher.admission import LargeFiles
from dispatcher.cache import FileCache
from dispatcher.subscription import Subscription
from dispatcher.tail import Tail, TailTiming
from tests.kit.awaited import Awaited
from tests.kit.batch_files import InlineExecutor, batch_bytes
from tests.kit.manual_clock import ManualClock
from tests.kit.open_folder import OpenFolder
from tistream import ts as tso
from tistream.errors import AheadOfTime, CorruptObject, FeedGap, FeedUnavailable, StoreUnavailable, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.limits import PREFETCH_FILES_MAX
from tistream.objectstore.layout import BatchKey
from tistream.runtime.service_time import ServiceTime

T = Tenant(1, 2)


class World:
    """One store's folder, its tail, and subscriptions to it."""

    def __init__(self, timing: TailTiming | None = None) -> None:
        self.folder, self.clock = OpenFolder(), ManualClock()
        self.cache = FileCache(1 << 20)
        self.served = True
        self.time = ServiceTime(self.clock, skew_max_ms=1000)
        self.time.note(self.clock.unix_ms())
        self.tail = Tail(
            T,
            7,
            store=self.folder,
            cache=self.cache,
            pool=InlineExecutor(),
            clock=self.clock,
            time=self.time,
            timing=timing or TailTiming(),
            large=LargeFiles(),
        )
        self.tail.set_newest(1)

    def key(self, seq: int, incarnation: int = 1) -> BatchKey:
        return BatchKey(tenant=T, store_id=7, incarnation=incarnation, seq=seq)

    def put(self, *seqs: int, incarnation: int = 1, cut_ts: int = 0) -> None:
        for seq in seqs:
            key = self.key(seq, incarnation)
            self.folder.put(str(key), batch_bytes(key, [(b"a", b"c", [b"b"])], cut_ts))

    def ahead(self, seconds: float) -> int:
        """A timestamp so far ahead of the database's clock."""
        return tso.compose(self.clock.unix_ms() + int(seconds * 1000))

    def subscribe(self, positions: dict[int, Position] | None = None) -> Awaited[Subscription]:
        keys = KeyRange(b"a", b"z")
        request = FeedRequest(
            tenant=T, store_id=7, task_id=1, epoch=1, worker_id="s1", range=keys, positions=positions or {}
        )
        return Awaited(partial(Subscription, self.tail, request, check=self._check), self.clock)

    def _check(self) -> None:
        if not self.served:
            raise FeedUnavailable(store=7)


def drain(stream: Awaited[Subscription]) -> list[tuple[int, int, bool]]:
    """Everything that is there now: (incarnation, seq, closes)."""
    out = []
    while (batch := stream.next(0)) is not None:
        out.append((batch.incarnation, batch.seq, batch.closes))
    return out


def error_of(stream: Awaited[Subscription], timeout_s: float = 0.0) -> TiStreamError:
    with pytest.raises(TiStreamError) as raised:
        stream.next(timeout_s)
    return raised.value


@pytest.fixture
def world() -> World:
    return World()


def test_files_come_in_order_with_their_cut_ts_and_rows(world: World) -> None:
    world.put(1, 2, 3)
    stream = world.subscribe({1: Position(seq=1)})
    batch = stream.next(0)
    assert isinstance(batch, FeedBatch)
    assert (batch.store_id, batch.incarnation, batch.seq, batch.cut_ts) == (7, 1, 2, 1002)
    assert batch.rows["key"].to_pylist() == [b"b"]
    assert drain(stream) == [(1, 3, False)]
    assert world.tail.max_cut_ts == 1003


def test_waiting_polls_and_returns_none_in_time(world: World) -> None:
    stream = world.subscribe()
    assert stream.next(0.5) is None
    assert world.clock.monotonic() == pytest.approx(0.5)
    assert 4 <= world.folder.gets[str(world.key(1))] <= 7


def test_polling_slows_down_while_nothing_comes(world: World) -> None:
    stream = world.subscribe()
    stream.next(100)
    before = world.folder.gets.total()
    stream.next(100)
    assert world.folder.gets.total() - before <= 101


def test_each_file_is_read_once_for_all_subscribers(world: World) -> None:
    world.put(*range(1, 11))
    first, second = world.subscribe(), world.subscribe()
    assert drain(first) == drain(second) == [(1, seq, False) for seq in range(1, 11)]
    assert {world.folder.gets[str(world.key(seq))] for seq in range(1, 11)} == {1}


def test_reading_ahead_is_bounded_and_begins_small(world: World) -> None:
    world.put(*range(1, 101))
    stream = world.subscribe()
    stream.next(0)
    assert world.folder.gets.total() == 1
    for _ in range(9):
        stream.next(0)
    assert world.folder.gets.total() == 10 + PREFETCH_FILES_MAX


def test_nothing_is_cached_without_subscribers(world: World) -> None:
    world.put(*range(1, 20))
    stream = world.subscribe()
    for _ in range(5):
        stream.next(0)
    assert world.cache.bytes > 0
    stream.close()
    assert world.cache.bytes == 0
    assert not world.tail.has_listeners


def test_a_gap_in_the_newest_incarnation_is_an_alarm_and_is_never_skipped(world: World) -> None:
    world.put(1, 3, 4)
    stream = world.subscribe()
    assert drain(stream) == [(1, 1, False)]
    error = error_of(stream, 30)
    assert isinstance(error, FeedGap)
    assert error.facts["missing"] == str(world.key(2))
    assert error.facts["later"] == str(world.key(3))
    assert world.tail.errors()[0].facts == error.facts
    assert isinstance(error_of(stream, 30), FeedGap)
    world.put(2)
    assert stream.next(5) is not None
    assert drain(stream) == [(1, 3, False), (1, 4, False)]
    assert world.tail.errors() == []


def test_a_file_that_is_only_late_is_no_gap(world: World) -> None:
    stream = world.subscribe()
    assert stream.next(20) is None
    assert world.folder.lists > 0
    world.put(1)
    assert drain(stream) or stream.next(1) is not None


def test_a_short_overtaking_after_a_long_silence_is_no_gap() -> None:
    world = World(TailTiming(list_every_s=0.0))
    stream = world.subscribe()
    assert stream.next(20) is None
    world.put(2)
    assert stream.next(0.5) is None
    world.put(1)
    assert stream.next(2) is not None


def test_a_corrupt_file_is_named_and_waited_for(world: World) -> None:
    world.put(1, 2, 3)
    good = world.folder.objects[str(world.key(2))]
    world.folder.objects[str(world.key(2))] = good[:-30] + bytes([good[-30] ^ 1]) + good[-29:]
    stream = world.subscribe()
    assert stream.next(0) is not None
    error = error_of(stream, 10)
    assert isinstance(error, CorruptObject)
    assert error.facts["object"] == str(world.key(2))
    assert isinstance(error_of(stream, 10), CorruptObject)
    assert isinstance(error_of(stream), CorruptObject)
    world.folder.objects[str(world.key(2))] = good
    assert stream.next(2) is not None
    assert drain(stream) == [(1, 3, False)]


def test_a_file_under_a_foreign_key_is_corrupt(world: World) -> None:
    world.folder.put(str(world.key(1)), batch_bytes(world.key(2)))
    assert isinstance(error_of(world.subscribe(), 1), CorruptObject)


def test_a_store_that_is_away_moves_nothing(world: World) -> None:
    world.put(1)
    world.folder.away = True
    stream = world.subscribe()
    assert isinstance(error_of(stream, 5), StoreUnavailable)
    assert world.clock.monotonic() == 0  # told at once
    assert isinstance(error_of(stream, 5), StoreUnavailable)
    assert world.clock.monotonic() == pytest.approx(5)
    world.folder.away = False
    assert stream.next(2) is not None


def test_a_superseded_incarnation_ends_at_its_last_contiguous_file(world: World) -> None:
    world.put(1, 2, 4)
    world.put(1, incarnation=2)
    stream = world.subscribe()
    assert drain(stream) == [(1, 1, False), (1, 2, False)]
    world.tail.set_newest(2)
    with structlog.testing.capture_logs() as logs:
        assert drain(stream) == [(1, 2, True), (2, 1, False)]
    assert [log["behind"] for log in logs if log["log_level"] == "warning"] == [str(world.key(4))]


def test_a_last_file_that_arrives_with_the_new_incarnation_is_still_used(world: World) -> None:
    world.put(1)
    stream = world.subscribe()
    assert drain(stream) == [(1, 1, False)]
    world.put(2)  # after the miss, before the next look
    world.tail.set_newest(2)
    assert drain(stream) == [(1, 2, False), (1, 2, True)]


def test_the_closing_batch_is_empty_and_comes_once(world: World) -> None:
    world.tail.set_newest(3)
    stream = world.subscribe({1: Position(seq=9, closed=True), 2: Position(seq=0)})
    batch = stream.next(0)
    assert batch is not None
    assert (batch.incarnation, batch.seq, batch.cut_ts, batch.closes) == (2, 0, 0, True)
    assert (batch.rows.num_rows, batch.regions.num_rows) == (0, 0)
    assert stream.next(0) is None


def test_a_corrupt_file_of_a_superseded_incarnation_ends_it(world: World) -> None:
    world.put(1, 2, 3)
    world.folder.objects[str(world.key(2))] = b"torn"
    world.put(1, incarnation=2)
    world.tail.set_newest(2)
    stream = world.subscribe()
    assert stream.next(0) is not None
    assert isinstance(error_of(stream, 10), CorruptObject)
    batch = stream.next(10)
    assert batch is not None
    assert (batch.incarnation, batch.seq, batch.closes) == (1, 1, True)
    assert drain(stream) == [(2, 1, False)]


def test_a_subscriber_below_the_reclaimed_seq_gets_an_error(world: World) -> None:
    world.put(5, 6)
    world.tail.set_reclaimed(1, 4)
    error = error_of(world.subscribe({1: Position(seq=3)}))
    assert isinstance(error, FeedGap)
    assert error.facts["reclaimed_seq"] == 4
    assert "snapshot" in error.message
    assert drain(world.subscribe({1: Position(seq=4)})) == [(1, 5, False), (1, 6, False)]


def test_a_stream_of_a_store_that_moved_away_raises_and_stays_usable(world: World) -> None:
    world.put(1, 2)
    stream = world.subscribe()
    assert stream.next(0) is not None
    world.served = False
    assert isinstance(error_of(stream, 1), FeedUnavailable)
    world.served = True
    assert drain(stream) == [(1, 2, False)]


def test_with_a_known_tick_no_look_comes_right_after_an_arrival() -> None:
    world = World(TailTiming(tick_s=0.9))
    stream = world.subscribe()
    assert stream.next(0.5) is None
    world.put(1)
    assert stream.next(1) is not None
    before = world.folder.gets[str(world.key(2))]
    stream.next(0.8)
    assert world.folder.gets[str(world.key(2))] == before
    stream.next(0.3)
    assert world.folder.gets[str(world.key(2))] > before


def test_a_pusher_faster_than_the_tick_is_not_followed_ever_later() -> None:
    world = World(TailTiming(tick_s=1.0))
    stream = world.subscribe()
    stream.next(0.2)
    for tick in range(1, 41):
        world.put(*[seq for seq in (2 * tick - 1, 2 * tick) if str(world.key(seq)) not in world.folder.objects])
        deadline = world.clock.monotonic() + 1.0
        while (left := deadline - world.clock.monotonic()) > 1e-9:
            stream.next(left)
    assert (80 - int(stream.stream._positions[1].seq)) <= 2


def test_an_idle_store_without_rows_is_not_looked_at_right_after_a_file(world: World) -> None:
    stream = world.subscribe()
    stream.next(0.5)
    for seq in (1, 2, 3):  # a file each 30 s
        world.folder.put(str(world.key(seq)), batch_bytes(world.key(seq), [(b"a", b"c", [])]))
        assert stream.next(6) is not None
        assert stream.next(24 if seq < 3 else 0) is None
    before = sum(world.folder.gets.values())
    assert stream.next(4.9) is None
    assert sum(world.folder.gets.values()) == before
    world.put(4)
    assert stream.next(0.2) is not None


def test_a_folder_long_without_a_file_is_listed_less_and_less(world: World) -> None:
    stream = world.subscribe()
    assert stream.next(40) is None
    before = world.folder.lists
    assert 2 <= before <= 3
    assert stream.next(600) is None
    assert 8 <= world.folder.lists - before <= 12
    world.put(2)
    assert isinstance(error_of(stream, 70), FeedGap)


def test_an_idle_store_is_looked_at_seldom_and_a_busy_one_soon_again(world: World) -> None:
    stream = world.subscribe()
    stream.next(0.5)
    for seq in (1, 2, 3):  # a file each 30 s
        world.put(seq)
        assert stream.next(6) is not None
        assert stream.next(24 if seq < 3 else 0) is None
    before = sum(world.folder.gets.values())
    assert stream.next(24) is None
    assert sum(world.folder.gets.values()) - before <= 9
    world.put(4)  # something is written, and then there is a file each second
    assert stream.next(5.1) is not None
    assert stream.next(0.9) is None
    for seq in range(5, 9):
        world.put(seq)
        assert stream.next(1.1) is not None
        stream.next(0.9)
    world.put(9)
    assert stream.next(0.3) is not None


# -- files ahead of the service's time


def test_a_file_ahead_of_time_waits_with_all_behind_it_and_counts_when_its_time_has_come(world: World) -> None:
    world.put(1, 3)
    world.put(2, cut_ts=world.ahead(5))
    stream = world.subscribe()
    assert drain_until_error(stream) == [(1, 1, False)]
    error = error_of(stream)
    assert isinstance(error, AheadOfTime)
    assert (error.facts["object"], error.facts["tenant"], error.facts["store"]) == (str(world.key(2)), str(T), 7)
    assert (error.facts["ts"], error.facts["ahead_s"]) == (world.ahead(5), 5.0)
    assert error.facts["time"] == tso.to_text(world.ahead(5))
    assert error.facts["counts_at"] == tso.to_text(world.ahead(4))
    assert (world.tail.held, world.tail.max_cut_ts) == (1, 1001)
    world.clock.advance(3.9)
    error_of(stream)
    assert [e.facts["ahead_s"] for e in world.tail.errors()] == [1.1]
    assert world.folder.gets[str(world.key(2))] == 1
    due = tso.compose(world.clock.unix_ms() + 1000)
    assert drain(stream_after(stream, world, 1.1)) == [(1, 2, False), (1, 3, False)]
    assert (world.tail.held, world.tail.errors()) == (0, [])
    assert world.tail.max_cut_ts > due


def test_the_database_clock_decides_and_stops_without_reads(world: World) -> None:
    world.put(1, cut_ts=world.ahead(3600))
    stream = world.subscribe()
    assert isinstance(error_of(stream), AheadOfTime)
    world.clock.advance(7200)  # this process's own time says nothing about the database's
    assert isinstance(error_of(stream), AheadOfTime)
    world.time.note(world.clock.unix_ms())
    assert drain(stream_after(stream, world, 1.1)) == [(1, 1, False)]


def test_a_superseded_incarnation_ends_before_a_file_ahead_of_time(world: World) -> None:
    world.put(1)
    world.put(2, cut_ts=(1 << 63) - 1)
    world.put(1, incarnation=2)
    stream = world.subscribe()
    assert drain_until_error(stream) == [(1, 1, False)]
    assert "3084" in str(error_of(stream))
    world.tail.set_newest(2)
    assert drain(stream) == [(1, 1, True), (2, 1, False)]
    assert world.tail.max_cut_ts == 1001


def test_reading_ahead_does_not_hand_out_a_held_file(world: World) -> None:
    world.put(1, 2, 4)
    world.put(3, cut_ts=world.ahead(3600))
    first, second = world.subscribe(), world.subscribe()
    assert drain_until_error(first) == drain_until_error(second) == [(1, 1, False), (1, 2, False)]
    assert world.folder.gets[str(world.key(3))] == 1


def drain_until_error(stream: Awaited[Subscription]) -> list[tuple[int, int, bool]]:
    out = []
    try:
        while (batch := stream.next(0)) is not None:
            out.append((batch.incarnation, batch.seq, batch.closes))
    except AheadOfTime:
        return out
    raise AssertionError("no file is held")


def stream_after(stream: Awaited[Subscription], world: World, seconds: float) -> Awaited[Subscription]:
    """The stream, some time later."""
    world.clock.advance(seconds)
    return stream


@pytest.mark.parametrize("ahead", [False, True])
def test_a_file_before_which_an_incarnation_ended_delays_nobody_any_more(world: World, ahead: bool) -> None:
    world.put(1)
    world.put(2, cut_ts=world.ahead(3600) if ahead else 0)
    if not ahead:
        world.folder.objects[str(world.key(2))] = b"torn"
    world.put(1, 2, incarnation=2)
    stream = world.subscribe()
    stream.next(0)
    error_of(stream, 10)
    assert len(world.tail.errors()) == 1
    world.tail.set_newest(2)
    while stream.next(5) is not None:
        pass
    assert world.tail.errors() == []
    assert world.tail.held == 0
