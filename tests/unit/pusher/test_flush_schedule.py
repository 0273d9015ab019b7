"""Flush schedule: shared ticks, spread tenants, idle clusters."""

from __future__ import annotations

import pytest

from pusher.flush_schedule import IDLE_AFTER_S, FlushSchedule
from tests.kit.manual_clock import ManualClock
from tistream.clock import Clock
from tistream.ids import Tenant

_UNIX_MS = 1_700_000_000_000  # a whole second, and a whole half minute but for 20 s


def ticks(schedule: FlushSchedule, clock: ManualClock, seconds: float) -> list[float]:
    """The ticks of a source that polls 50 times a second, in milliseconds from the start."""
    tick_times, ticked_at = [], clock.monotonic()
    for _ in range(round(seconds * 50)):
        clock.advance(0.02)
        if clock.monotonic() >= schedule.next_tick_at(ticked_at):
            ticked_at = clock.monotonic()
            tick_times.append(round(ticked_at, 2))
    return tick_times


@pytest.mark.parametrize("begun_s", [0.0, 0.3, 0.72])
def test_stores_that_begin_at_any_time_tick_at_whole_seconds(begun_s: float) -> None:
    clock = ManualClock(unix_ms=_UNIX_MS)
    schedule = FlushSchedule(clock)
    clock.advance(begun_s)
    tick_times = ticks(schedule, clock, 4)
    assert [at - round(at) for at in tick_times] == pytest.approx([0.0] * len(tick_times), abs=0.021)
    assert len(tick_times) in (3, 4)


def test_a_tick_that_came_early_does_not_put_off_the_next_by_more_than_half_an_interval() -> None:
    clock = ManualClock(unix_ms=_UNIX_MS)
    schedule = FlushSchedule(clock)
    clock.advance(0.3)
    assert schedule.next_tick_at(clock.monotonic()) == pytest.approx(1.0)
    clock.advance(0.4)
    assert schedule.next_tick_at(clock.monotonic()) == pytest.approx(2.0)


def test_a_clock_jump_shifts_a_tick_by_at_most_half_an_interval() -> None:
    for jump_ms in (-3_600_000, -400, 700, 86_400_000):
        clock = ManualClock(unix_ms=_UNIX_MS + jump_ms)
        due_at = FlushSchedule(clock).next_tick_at(0.0)
        assert 0.5 < due_at <= 1.5


def test_an_idle_cluster_uses_the_idle_interval_until_the_first_row() -> None:
    clock = ManualClock(unix_ms=_UNIX_MS)
    schedule = FlushSchedule(clock, idle_s=30)
    busy = ticks(schedule, clock, IDLE_AFTER_S)
    assert len(busy) in (9, 10)
    assert len(ticks(schedule, clock, 120)) in (3, 4)
    ticked_at = clock.monotonic()
    clock.advance(7)
    assert schedule.next_tick_at(ticked_at) > clock.monotonic()
    schedule.note_rows()
    assert schedule.next_tick_at(ticked_at) <= clock.monotonic()
    assert len(ticks(schedule, clock, 5)) in (4, 5)


def test_without_an_idle_interval_idle_stores_tick_each_second() -> None:
    clock = ManualClock(unix_ms=_UNIX_MS)
    assert len(ticks(FlushSchedule(clock), clock, 60)) in (59, 60)


def test_ticks_are_spread_by_tenant_and_shared_by_its_stores() -> None:
    clock: Clock = ManualClock(unix_ms=_UNIX_MS)
    due = {n: FlushSchedule.for_tenant(Tenant(1, n), clock, idle_s=30).next_tick_at(0.0) for n in range(1, 200)}
    assert due == {n: FlushSchedule.for_tenant(Tenant(1, n), clock, idle_s=30).next_tick_at(0.0) for n in due}
    fifths = [sum(0.5 + i / 5 < at <= 0.7 + i / 5 for at in due.values()) for i in range(5)]
    assert min(fifths) > 20
