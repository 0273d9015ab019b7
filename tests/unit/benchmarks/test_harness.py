"""The harness says who is faster and by how much, on a clock that only the two sides move."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest

from benchmarks.harness import compare


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], str]]:
    """Makes a side that takes the given seconds, the last of them for ever after."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def make(*seconds: float, result: str = "same") -> Callable[[], str]:
        left = list(seconds)

        def run() -> str:
            now[0] += left.pop(0) if len(left) > 1 else left[0]
            return result

        return run

    return make


def test_higher_is_speed_and_lower_is_time(side: Callable[..., Callable[[], str]]) -> None:
    fast = compare("x", side(1.0), side(4.0), proof=str.__eq__, target=3.0)
    assert (fast.ratio, fast.min, fast.max, fast.runs, fast.met) == (4.0, 4.0, 4.0, 9, True)
    slow = compare("x", side(4.0), side(1.0), proof=str.__eq__, target=3.0, better="lower")
    assert (slow.ratio, slow.met) == (4.0, False)
    assert not compare("x", side(4.0), side(1.0), proof=str.__eq__, target=3.0).met


def test_the_median_of_paired_runs_counts(side: Callable[..., Callable[[], str]]) -> None:
    # one call for the proof, one to see how often to repeat, then the runs
    comparison = compare("x", side(9, 1, 1, 2, 2, 2, 10), side(9, 1, 20), proof=str.__eq__, target=1.0, runs=5)
    assert (comparison.ratio, comparison.min, comparison.max) == (10.0, 2.0, 20.0)


def test_short_sides_are_repeated(side: Callable[..., Callable[[], str]]) -> None:
    comparison = compare("x", side(0.001), side(0.002), proof=str.__eq__, target=1.0)
    assert comparison.ratio == pytest.approx(2.0)


def test_sides_that_differ_are_no_result(side: Callable[..., Callable[[], str]]) -> None:
    with pytest.raises(ValueError, match="same result"):
        compare("x", side(1.0), side(1.0, result="other"), proof=str.__eq__, target=1.0)
    with pytest.raises(ValueError, match="prove nothing"):
        compare("x", side(1.0), side(1.0), proof=str.__eq__, target=1.0, runs=4)


def test_the_garbage_collector_comes_back() -> None:
    seen = []
    compare("x", lambda: seen.append(gc.isenabled()), lambda: None, proof=lambda a, b: a is b, target=1.0, runs=5)
    assert gc.isenabled()
    assert not any(seen[1:])
