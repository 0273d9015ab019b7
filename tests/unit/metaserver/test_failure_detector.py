"""Who is silent, as seen from one process."""

from __future__ import annotations

from metaserver.core.failure_detector import GAP, SUSPECTED, Beat, FailureDetector
from tistream.limits import HEARTBEAT_MS, LEASE_MS

SILENT_S = SUSPECTED * LEASE_MS / 1000
STEP_S = 0.3


def watch(detector: FailureDetector, beats: dict[str, Beat], start_s: float, seconds: float) -> float:
    now = start_s
    while now <= start_s + seconds:
        detector.observe(beats, now)
        now += STEP_S
    return now


def test_who_does_not_beat_for_long_enough_is_silent() -> None:
    detector, beats = FailureDetector(), {"a": (1, 1000), "b": (1, 1000)}
    now = watch(detector, beats, 0.0, SILENT_S - 1)
    assert not detector.is_suspected("a")
    beats["b"] = (1, 3000)
    watch(detector, beats, now, 2)
    assert detector.is_suspected("a")
    assert not detector.is_suspected("b")
    assert not detector.is_suspected("never heard of")


def test_a_new_life_has_beaten() -> None:
    detector, beats = FailureDetector(), {"a": (1, 1000)}
    now = watch(detector, beats, 0.0, SILENT_S - 1)
    watch(detector, {"a": (2, 1000)}, now, 2)
    assert not detector.is_suspected("a")


def test_after_the_database_was_away_everybody_has_time_to_beat_again() -> None:
    detector, beats = FailureDetector(), {"a": (1, 1000), "dead": (1, 1000)}
    now = watch(detector, beats, 0.0, 5)
    back = now + 300
    now = watch(detector, beats, back, 5)
    assert not detector.is_suspected("a")
    now = watch(detector, {**beats, "a": (1, 400_000)}, now, SILENT_S - 4)
    assert not detector.is_suspected("a")
    assert detector.is_suspected("dead"), "who is really dead is found nevertheless"


def test_a_short_gap_does_not_begin_the_count_anew() -> None:
    detector, beats = FailureDetector(), {"a": (1, 1000)}
    now = watch(detector, beats, 0.0, SILENT_S - 1)
    watch(detector, beats, now + GAP * LEASE_MS / 1000 - STEP_S - 0.1, 1)
    assert detector.is_suspected("a")


def test_a_step_of_the_databases_clock_changes_nothing() -> None:
    detector = FailureDetector()
    beats: dict[str, Beat] = {"a": (1, 10_000_000), "dead": (1, 10_000_000)}
    now = 0.0
    for i in range(12):
        at = 10_000_000 + i * HEARTBEAT_MS - (5_000_000 if i > 3 else 0)
        now = watch(detector, {**beats, "a": (1, at)}, now, HEARTBEAT_MS / 1000 - STEP_S)
        assert not detector.is_suspected("a")
    assert detector.is_suspected("dead")
