"""The lag cut into stages."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tistream import ts
from tistream.admin.core.waterfall import MEANS, STAGES, Points, Stage, waterfall

NOW = 1_700_000_000_000


def at(ago_ms: int) -> int:
    return ts.compose(NOW - ago_ms)


WHOLE = Points(
    durable=at(100), fetched=at(300), taken_in=at(350), watermark=at(900), durable_ts=at(950), served=at(1000)
)


def lengths(points: Points) -> list[tuple[str, int]]:
    return [("+".join(stage.stages), stage.ms) for stage in waterfall(points, NOW)]


def test_each_stage_is_the_time_between_two_points() -> None:
    assert lengths(WHOLE) == [
        ("upstream_flush", 100),
        ("fetch", 200),
        ("match", 50),
        ("watermark_gap_wait", 550),
        ("flush", 50),
        ("serve", 50),
    ]


def test_what_is_not_known_joins_its_neighbours() -> None:
    assert lengths(replace(WHOLE, taken_in=None)) == [
        ("upstream_flush", 100),
        ("fetch", 200),
        ("match+watermark_gap_wait", 600),
        ("flush", 50),
        ("serve", 50),
    ]
    assert lengths(replace(WHOLE, taken_in=None, watermark=None, durable=None)) == [
        ("upstream_flush+fetch", 300),
        ("match+watermark_gap_wait+flush", 650),
        ("serve", 50),
    ]
    alone = Points(durable=None, fetched=None, taken_in=None, watermark=None, durable_ts=at(10), served=at(10))
    assert lengths(alone) == [("upstream_flush+fetch+match+watermark_gap_wait+flush", 10), ("serve", 0)]


def test_points_told_at_different_moments_never_make_a_stage_negative() -> None:
    """A watermark that is reported late lies below what was written since; a cut of the upstream may be ahead of us."""
    stages = lengths(replace(WHOLE, watermark=at(2000), durable=at(-500)))
    assert stages == [
        *(("upstream_flush", 0), ("fetch", 300), ("match", 50), ("watermark_gap_wait", 600)),
        *(("flush", 0), ("serve", 50)),
    ]


def test_every_stage_is_explained() -> None:
    assert tuple(MEANS) == STAGES
    assert (
        Stage(stages=("match", "watermark_gap_wait"), ms=1).means
        == f"{MEANS['match']}; or {MEANS['watermark_gap_wait']}"
    )


POINT = st.none() | st.integers(-1000, 100_000).map(at)


@given(POINT, POINT, POINT, POINT, st.integers(-1000, 100_000).map(at), st.integers(0, 100_000).map(at))
def test_the_stages_are_the_whole_lag_in_order(
    durable: int | None, fetched: int | None, heard: int | None, watermark: int | None, durable_ts: int, served: int
) -> None:
    points = Points(
        durable=durable,
        fetched=fetched,
        taken_in=heard,
        watermark=watermark,
        durable_ts=max(durable_ts, served),
        served=served,
    )
    stages = waterfall(points, NOW)
    assert all(stage.ms >= 0 for stage in stages)
    assert sum(stage.ms for stage in stages) == NOW - ts.physical_ms(served)
    assert tuple(name for stage in stages for name in stage.stages) == STAGES
