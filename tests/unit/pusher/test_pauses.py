"""Backoff of failed regions and streams."""

from __future__ import annotations

import pytest

from pusher.tikv.core.pauses import Pauses


def pauses() -> Pauses:
    return Pauses(first_s=0.1, max_s=10.0, lived_s=10.0)


def test_pauses_double_up_to_a_bound() -> None:
    p = pauses()
    waits = [p.failed(0, "r", 100.0 * n, lived_s=0.0) - 100.0 * n for n in range(1, 10)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])


def test_pauses_restart_after_success() -> None:
    p = pauses()
    for n in range(5):
        p.failed(0, "r", 20.0 * n, lived_s=9.9)
    assert p.failed(0, "r", 200.0, lived_s=10.0) == pytest.approx(200.1)
    assert p.failing(2) == {}
    p.failed(0, "again", 300.0, lived_s=0.0)
    assert p.failing(2) == {0: (2, "again")}
    p.worked(0)
    p.worked(0)
    assert p.failing(1) == {}
    assert p.until(0) == 0.0


def test_parts_of_one_thing_that_fail_together_count_once() -> None:
    p = pauses()
    assert p.failed(0, "a", 100.0, lived_s=50.0) == pytest.approx(100.1)
    assert p.failed(0, "b", 100.05, lived_s=50.0) == pytest.approx(100.1)
    assert p.failed(0, "c", 100.05, lived_s=50.0, at_least_s=0.5) == pytest.approx(100.55)
    assert p.failing(1) == {0: (1, "c")}
    assert p.failed(0, "d", 100.6, lived_s=0.0) == pytest.approx(100.8)


def test_the_requested_pause_is_the_minimum() -> None:
    p = pauses()
    assert p.failed(0, "r", 5.0, lived_s=0.0, at_least_s=2.0) == pytest.approx(7.0)
    assert p.until(0) == pytest.approx(7.0)


def test_pauses_are_spread_by_id() -> None:
    p = pauses()
    waits = [p.failed(n, "r", 0.0, lived_s=0.0) for n in range(1000)]
    assert min(waits) >= 0.1
    assert max(waits) <= 0.15
    assert len({round(w, 3) for w in waits}) > 40
