"""Percentiles and lines of the lags that the overview saw."""

from __future__ import annotations

from apiserver.console.lag_history import SAMPLES_MAX, LagHistory
from tistream.ids import Tenant

A, B = Tenant(1, 1), Tenant(1, 2)


def test_percentiles_are_of_the_asked_tenants_alone() -> None:
    seen = LagHistory()
    for n in range(100):
        seen.note(2.0 * n, {A: 1000.0 + n, B: 90_000.0})
    percentiles = seen.percentiles([A])
    assert (percentiles.p50_s, percentiles.p99_s, percentiles.seconds) == (1049, 1098, 198)
    assert seen.percentiles([A, B]).p99_s == 90_000
    assert seen.percentiles([Tenant(9, 9)]).p50_s is None


def test_looks_within_a_second_are_one() -> None:
    seen = LagHistory()
    for n in range(10):
        seen.note(n / 10, {A: float(n)})
    assert seen.percentiles([A]).p99_s == 0
    assert not seen.line(A)["points"], "one sample is no line"


def test_what_is_kept_is_bounded_and_the_newest() -> None:
    seen = LagHistory()
    for n in range(2 * SAMPLES_MAX):
        seen.note(float(n), {A: float(n)})
    percentiles = seen.percentiles([A])
    assert percentiles.seconds == SAMPLES_MAX - 1
    assert percentiles.p50_s == SAMPLES_MAX + SAMPLES_MAX // 2 - 1


def test_a_line_rises_with_the_lag_and_stays_in_its_box() -> None:
    seen = LagHistory()
    for n, lag_s in enumerate((0, 5, 20)):
        seen.note(2.0 * n, {A: float(lag_s)})
    line = seen.line(A)
    points = [tuple(map(float, point.split(","))) for point in str(line["points"]).split()]
    assert [x for x, _ in points] == [0, 60, 120]
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True)
    assert (max(heights), min(heights)) == (23, 1)
    assert heights[1] == line["limit_y"]
