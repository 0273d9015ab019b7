"""The service's time: the database's clock between two reads of it, never ahead of it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.manual_clock import ManualClock
from tistream import ts as tso
from tistream.runtime.service_time import AGE_MAX_S, ServiceTime

DATABASE_MS = 1_600_000_000_000  # three years behind the clock of the process


def at(seconds: float) -> int:
    return tso.compose(DATABASE_MS + int(seconds * 1000))


def test_before_the_first_read_everything_waits() -> None:
    time = ServiceTime(ManualClock())
    assert time.wait_s(1) == math.inf
    error = time.ahead(1, "batch file", object="o")
    assert error is not None
    assert (error.facts, "not read yet" in error.message) == ({"object": "o", "ts": 1}, True)


def test_a_timestamp_counts_up_to_the_skew() -> None:
    clock = ManualClock()
    time = ServiceTime(clock, skew_max_ms=2000)
    time.note(DATABASE_MS)
    assert (time.wait_s(0), time.wait_s(at(2)), time.ahead(at(2), "seed")) == (0, 0, None)
    assert time.wait_s(at(5)) == 3
    error = time.ahead(at(5), "seed", object="o")
    assert error is not None
    assert error.message == (
        "the seed has a timestamp 5.0 s ahead of the catalog's clock: it counts at 2020-09-13T12:26:43.000Z, and until "
        "then waits with all that follow it"
    )
    assert error.facts["time"] == "2020-09-13T12:26:45.000Z"
    clock.advance(1)
    assert time.wait_s(at(5)) == 2
    time.note(DATABASE_MS - 10_000)  # the database's clock was set back
    assert time.wait_s(at(5)) == 13


@given(
    st.lists(
        st.tuples(st.floats(0, 2 * AGE_MAX_S), st.floats(0, 5), st.integers(-3_600_000, 3_600_000)),
        min_size=1,
        max_size=8,
    ),
    st.floats(0, 2 * AGE_MAX_S),
    st.integers(0, 10_000),
)
def test_nothing_counts_before_its_time(reads: list[tuple[float, float, int]], later_s: float, skew_ms: int) -> None:
    """Whatever the answers' delays, and however the database's clock is set."""
    clock = ManualClock()
    time = ServiceTime(clock, skew_max_ms=skew_ms)
    set_by = 0
    for pause_s, delay_s, jump_ms in reads:
        clock.advance(pause_s)
        set_by = jump_ms
        there_ms = DATABASE_MS + int(clock.monotonic() * 1000) + set_by
        clock.advance(delay_s)
        time.note(there_ms)
    clock.advance(later_s)
    now_ms = DATABASE_MS + int(clock.monotonic() * 1000) + set_by
    for ahead_ms in (2, 1000, 10**9):
        assert time.wait_s(tso.compose(now_ms + skew_ms + ahead_ms)) > 0
    known_ms = now_ms - int(1000 * (reads[-1][1] + max(0.0, later_s - AGE_MAX_S))) - 2
    assert time.wait_s(tso.compose(known_ms + skew_ms)) == 0
