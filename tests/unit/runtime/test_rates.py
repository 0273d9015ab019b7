"""Averages over the recent past."""

from __future__ import annotations

import pytest

from tistream.runtime.rates import Rate


def steady(per_s: float, seconds: int, rate: Rate, start: float) -> float:
    for i in range(1, seconds + 1):
        rate.add(per_s, start + i)
    return start + seconds


def test_a_steady_flow_is_told_right_from_the_start() -> None:
    rate = Rate(10.0, 100.0)
    assert rate.per_s() == 0.0
    now = steady(50.0, 2, rate, 100.0)
    assert rate.per_s() == pytest.approx(50, rel=0.1)
    steady(50.0, 60, rate, now)
    assert rate.per_s() == pytest.approx(50, rel=0.1)


def test_what_is_long_past_is_forgotten() -> None:
    rate = Rate(10.0, 0.0)
    now = steady(1000.0, 30, rate, 0.0)
    steady(0.0, 60, rate, now)
    assert rate.per_s() < 5


def test_one_batch_at_once_is_no_flood() -> None:
    rate = Rate(10.0, 0.0)
    rate.add(100.0, 0.0)
    assert rate.per_s() < 110
