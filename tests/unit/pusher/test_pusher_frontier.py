from __future__ import annotations

import pytest

from pusher.frontier import FrontierEntry, FrontierReader, checkpoint_for, wants_resubscribe
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tistream.errors import NotFound
from tistream.ids import Tenant
from tistream.keyrange import KeyRange


def entry(start: bytes, end: bytes, durable_ts: int, resubscribe_id: int = 0) -> FrontierEntry:
    return FrontierEntry(range=KeyRange(start, end), durable_ts=durable_ts, resubscribe_id=resubscribe_id)


FRONTIER = (entry(b"b", b"f", 30), entry(b"f", b"m", 20), entry(b"p", b"r", 50))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"b", b"f", 30),  # one task
        (b"c", b"d", 30),  # inside of one
        (b"a", b"g", 20),  # over a gap and two tasks: the lower one
        (b"", b"", 20),  # over everything
        (b"f", b"m", 20),  # ends are open
        (b"m", b"p", 50),  # of no task: the largest known
        (b"", b"b", 50),
        (b"r", b"", 50),
    ],
)
def test_checkpoint_is_the_lowest_durable_ts_that_the_region_touches(start: bytes, end: bytes, expected: int) -> None:
    assert checkpoint_for(FRONTIER, KeyRange(start, end)) == expected


def test_no_checkpoint_without_a_frontier() -> None:
    assert checkpoint_for((), KeyRange()) is None


AB = (entry(b"a", b"m", 5, 5), entry(b"m", b"z", 5, 1))


@pytest.mark.parametrize(
    ("now", "region", "expected"),
    [
        (AB, KeyRange(), False),
        ((entry(b"a", b"m", 9, 5), entry(b"m", b"z", 9, 1)), KeyRange(), False),  # only the durable watermarks moved
        ((entry(b"a", b"m", 5, 5), entry(b"m", b"z", 5, 2)), KeyRange(), True),  # the lower id was raised
        ((entry(b"a", b"m", 5, 5), entry(b"m", b"z", 5, 2)), KeyRange(b"b", b"c"), False),  # elsewhere
        ((entry(b"a", b"f", 5, 5), entry(b"f", b"m", 5, 5), AB[1]), KeyRange(), False),  # a task was split
        ((entry(b"a", b"z", 5, 5),), KeyRange(), False),  # tasks were merged
        ((entry(b"a", b"z", 5, 6),), KeyRange(), True),
        ((*AB, entry(b"z", b"", 3)), KeyRange(b"y"), True),  # a new task
        ((*AB, entry(b"z", b"", 3)), KeyRange(b"b", b"c"), False),
        (AB[:1], KeyRange(), False),  # a task went away
    ],
)
def test_a_subscription_is_opened_again_where_the_resubscribe_id_rose(
    now: tuple[FrontierEntry, ...], region: KeyRange, expected: bool
) -> None:
    assert wants_resubscribe(AB, now, region) is expected


def test_reader_asks_again_only_when_the_answer_has_aged() -> None:
    clock, control = ManualClock(), MemoryControl(Tenant(1, 1), FRONTIER)
    reader = FrontierReader(control, clock)
    assert reader.read() == FRONTIER
    control.entries = [entry(b"", b"", 99)]
    assert (reader.read(), control.requests) == (FRONTIER, 1)
    clock.advance(0.2)
    assert reader.read() == (entry(b"", b"", 99),)


def test_reader_keeps_the_last_frontier_while_the_service_is_away() -> None:
    clock, control = ManualClock(), MemoryControl(Tenant(1, 1), FRONTIER)
    reader = FrontierReader(control, clock)
    reader.read()
    control.away = True
    clock.advance(0.2)
    assert reader.read() == FRONTIER
    assert reader.error is not None
    assert (reader.read(), control.requests) == (FRONTIER, 2)  # an outage is not hammered
    control.away = False
    control.entries = [entry(b"", b"", 99)]
    clock.advance(2)
    assert reader.read() == (entry(b"", b"", 99),)
    assert not reader.error


def test_reader_raises_final_errors() -> None:
    class Gone:
        def frontier(self) -> list[FrontierEntry]:
            raise NotFound("no such tenant")

    with pytest.raises(NotFound):
        FrontierReader(Gone(), ManualClock()).read()
