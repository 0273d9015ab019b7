"""Whose turn it is: hurried or timed, in order, bounded, nobody passed over."""

from __future__ import annotations

import threading

from tests.kit.manual_clock import ManualClock
from tistream.clock import SystemClock
from tistream.runtime.ready_queue import ReadyQueue


def test_who_is_hurried_comes_once_in_order_and_so_many_at_a_time() -> None:
    turns = ReadyQueue(ManualClock())
    for number in (3, 1, 2, 3):
        turns.mark_ready(number)
    assert turns.take(0.0, 2) == [3, 1]
    turns.mark_ready(3)
    assert turns.take(0.0, 9) == [2, 3]
    assert turns.take(0.0, 9) == []


def test_a_time_counts_until_another_is_named() -> None:
    clock = ManualClock()
    turns = ReadyQueue(clock)
    turns.at(1, 5.0)
    turns.at(2, 3.0)
    turns.at(1, 7.0)
    turns.at(3, float("inf"))
    assert turns.take(0.0, 9) == []
    clock.advance(5.0)
    assert turns.take(0.0, 9) == [2]
    clock.advance(2.0)
    assert turns.take(0.0, 9) == [1]
    clock.advance(100.0)
    assert turns.take(0.0, 9) == []


def test_who_is_forgotten_does_not_come() -> None:
    clock = ManualClock()
    turns = ReadyQueue(clock)
    turns.mark_ready(1)
    turns.at(1, 1.0)
    turns.mark_ready(2)
    turns.forget(1)
    clock.advance(2.0)
    assert turns.take(0.0, 9) == [2]


def test_waiting_ends_with_a_hurry_a_time_or_a_wake() -> None:
    clock = SystemClock()
    turns = ReadyQueue(clock)
    far = clock.monotonic() + 60
    for begin, taken in ((lambda: turns.mark_ready(7), [7]), (lambda: turns.at(8, 0.0), [8]), (turns.wake, [])):
        threading.Timer(0.02, begin).start()
        assert turns.take(far, 9) == taken
    turns.at(9, clock.monotonic() + 0.02)
    assert turns.take(far, 9) == [9]
    assert clock.monotonic() < far - 1
