"""Notifications of new files hurry a look; lost, late, repeated and forged ones change nothing that is read."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dispatcher.subscription import Subscription
from tests.kit.awaited import Awaited
from tests.unit.dispatcher.test_subscription import World
from tistream.errors import FeedGap
from tistream.ids import Position

INTERVALS_S = 60.0, 600.0  # between the files of a rarely writing store, alternating
INTERVAL_S = INTERVALS_S[0]
FILES = 8

Notify = Callable[[World, int, float], None]  #: when file `seq` was put at this time


def never(world: World, seq: int, put_s: float) -> None:
    pass


def at_once(world: World, seq: int, put_s: float) -> None:
    world.tail.hint(1, seq)


def waited(world: World, stream: Awaited[Subscription], seq: int, notify: Notify) -> float:
    """Put a file, notify, and wait for it; the seconds that took."""
    world.put(seq)
    began = world.clock.monotonic()
    notify(world, seq, began)
    batch = stream.next(10_000)
    assert batch is not None
    assert batch.seq == seq
    return world.clock.monotonic() - began


def lags(world: World, notify: Notify, files: int = FILES, first: int = 1) -> list[float]:
    """The lag of each file of a store that writes once a minute, from `first` on."""
    stream, measured = world.subscribe({1: Position(seq=first - 1)}), []
    for seq in range(first, first + files):
        assert stream.next(INTERVALS_S[seq % 2] + seq) is None
        measured.append(waited(world, stream, seq, notify))
    return measured


def gets(world: World) -> int:
    return sum(world.folder.gets.values())


def test_an_announced_store_is_read_at_once_and_asked_for_seldom() -> None:
    cost = {}
    for notify in (never, at_once):
        world = World()
        lags(world, notify, files=3)  # until it counts as idle
        before = gets(world), world.folder.lists
        lags_s = lags(world, notify, first=4)
        cost[notify] = gets(world) - before[0], world.folder.lists - before[1], sum(lags_s) / FILES
    (looked, lists, lag_s), (told_gets, told_lists, told_lag_s) = cost[never], cost[at_once]
    assert told_lag_s == 0.0
    assert told_lists < lists / 2
    assert told_gets < looked / 4
    assert lag_s > 1


def test_a_notification_that_is_lost_costs_no_more_than_the_floor() -> None:
    world = World()
    stream = world.subscribe()
    for seq in range(1, 5):
        stream.next(INTERVAL_S)
        waited(world, stream, seq, at_once)
    stream.next(INTERVAL_S)
    assert waited(world, stream, 5, never) <= 30.0
    stream.next(INTERVAL_S)
    assert waited(world, stream, 6, never) <= 5.0, "without notifications it is polled as before"


def forged(world: World, rand: random.Random) -> None:
    for _ in range(rand.randrange(4)):
        incarnation, seq = rand.choice((0, 1, 1, 1, 2, 99, 1 << 62)), rand.choice((0, 1, rand.randrange(12), 1 << 62))
        world.tail.hint(incarnation, seq)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_notified_the_same_is_read(seed: int) -> None:
    rand, world = random.Random(seed), World()
    stream, seqs, put = world.subscribe(), [], 0
    for _ in range(60):
        for _ in range(rand.choice((0, 0, 1, 1, 3))):
            put += 1
            world.put(put)
            for _ in range(rand.choice((0, 1, 1, 2))):
                world.tail.hint(1, rand.randint(1, put))
        forged(world, rand)
        until = world.clock.monotonic() + rand.choice((0.05, 1.0, 20.0))
        while (left := until - world.clock.monotonic()) > 1e-9:
            if (batch := stream.next(left)) is not None:
                seqs.append(batch.seq)
    while (batch := stream.next(31.0)) is not None:
        seqs.append(batch.seq)
    assert seqs == list(range(1, put + 1))
    assert not world.tail.errors()


def test_forged_notifications_cost_a_bounded_number_of_requests() -> None:
    world = World()
    stream = world.subscribe()
    stream.next(0)
    before, lists = gets(world), world.folder.lists
    for n in range(1000):
        world.tail.hint(1, 1 + n * 1000)
        stream.next(0.01)
    assert gets(world) - before <= 10 / 0.1 + 2
    assert world.folder.lists - lists <= 2


def test_a_gap_is_noticed_by_the_file_behind_it() -> None:
    world = World()
    lags(world, at_once, files=4)
    stream = world.subscribe({1: Position(seq=4)})
    assert stream.next(INTERVAL_S * 5) is None
    world.put(6)
    world.tail.hint(1, 6)
    assert stream.next(0) is None
    with pytest.raises(FeedGap):
        stream.next(20)
