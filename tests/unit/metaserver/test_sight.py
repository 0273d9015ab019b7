"""Who is silent, as seen from one process."""

from __future__ import annotations

from metaserver.core.failure_detector import GAP, SILENT, Beat, Sight
from tistream.limits import HEARTBEAT_MS, LEASE_MS

SILENT_S = SILENT * LEASE_MS / 1000
STEP_S = 0.3


def watch(sight: Sight, beats: dict[str, Beat], start_s: float, seconds: float) -> float:
    now = start_s
    while now <= start_s + seconds:
        sight.look(beats, now)
        now += STEP_S
    return now


def test_who_does_not_beat_for_long_enough_is_silent() -> None:
    sight, beats = Sight(), {"a": (1, 1000), "b": (1, 1000)}
    now = watch(sight, beats, 0.0, SILENT_S - 1)
    assert not sight.is_silent("a")
    beats["b"] = (1, 3000)
    watch(sight, beats, now, 2)
    assert sight.is_silent("a")
    assert not sight.is_silent("b")
    assert not sight.is_silent("never heard of")


def test_a_new_life_has_beaten() -> None:
    sight, beats = Sight(), {"a": (1, 1000)}
    now = watch(sight, beats, 0.0, SILENT_S - 1)
    watch(sight, {"a": (2, 1000)}, now, 2)
    assert not sight.is_silent("a")


def test_after_the_database_was_away_everybody_has_time_to_beat_again() -> None:
    sight, beats = Sight(), {"a": (1, 1000), "dead": (1, 1000)}
    now = watch(sight, beats, 0.0, 5)
    back = now + 300
    now = watch(sight, beats, back, 5)
    assert not sight.is_silent("a")
    now = watch(sight, {**beats, "a": (1, 400_000)}, now, SILENT_S - 4)
    assert not sight.is_silent("a")
    assert sight.is_silent("dead"), "who is really dead is found nevertheless"


def test_a_short_gap_does_not_begin_the_count_anew() -> None:
    sight, beats = Sight(), {"a": (1, 1000)}
    now = watch(sight, beats, 0.0, SILENT_S - 1)
    watch(sight, beats, now + GAP * LEASE_MS / 1000 - STEP_S - 0.1, 1)
    assert sight.is_silent("a")


def test_a_step_of_the_databases_clock_changes_nothing() -> None:
    sight = Sight()
    beats: dict[str, Beat] = {"a": (1, 10_000_000), "dead": (1, 10_000_000)}
    now = 0.0
    for i in range(12):
        at = 10_000_000 + i * HEARTBEAT_MS - (5_000_000 if i > 3 else 0)
        now = watch(sight, {**beats, "a": (1, at)}, now, HEARTBEAT_MS / 1000 - STEP_S)
        assert not sight.is_silent("a")
    assert sight.is_silent("dead")
