"""What reads hold of a process's memory: who waits for whom."""

from __future__ import annotations

import threading
import time

import pytest

from reading.log.memory import ReadMemory, ReadsFull
from tistream.ids import Tenant

A, B = Tenant(1, 1), Tenant(1, 2)


def test_parts_of_a_read_are_counted_with_it_and_given_back_alone() -> None:
    memory = ReadMemory(100)
    with memory.held(A) as read:
        read.take(10)
        with read.part() as part:
            part.take(30)
            part.add(20)
            part.drop(5)
            assert (part.bytes, read.bytes, memory.taken) == (45, 55, 55)
            with read.part() as other:
                other.take(500)  # the read is alone, so it fits
                assert memory.taken == 555
        assert (read.bytes, memory.taken) == (10, 10)
    assert memory.taken == 0


def test_a_tenant_has_half_while_others_read() -> None:
    memory = ReadMemory(100, wait_s=0.01)
    with memory.held(A) as first, memory.held(A) as second, memory.held(B) as other:
        first.take(40)
        with pytest.raises(ReadsFull):
            second.take(20)
        other.take(50)


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_large_read_gets_its_turn_where_small_ones_wait_for_it(in_turn: bool) -> None:
    """Of two small ones one always reads: without turns there is never room for the large one."""
    memory, ends, read = ReadMemory(100, wait_s=5 if in_turn else 0.5, in_turn=in_turn), threading.Event(), list[str]()

    def small(own: threading.Event, other: threading.Event) -> None:
        while not ends.is_set():
            with memory.held(B) as held:
                held.take(10)
                own.set()
                other.wait(0.2)  # the next one holds some already, unless it has to wait
                other.clear()

    def large() -> None:
        try:
            with memory.held(A) as held:
                held.take(100)
                read.append("large")
        except ReadsFull:
            pass
        ends.set()

    first, second = threading.Event(), threading.Event()
    threads = [threading.Thread(target=small, args=each) for each in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + 5
    while memory.taken < 20:
        assert time.monotonic() < until_s
    threads.append(threading.Thread(target=large))
    threads[-1].start()
    for thread in threads:
        thread.join(10)
    assert bool(read) is in_turn
    assert memory.taken == 0
