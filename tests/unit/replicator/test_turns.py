"""Turns of lanes: a destination that never answers delays no other changefeed."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from replicator.core import turns
from replicator.core.turns import Turns

SLOTS = 4
DEADLINE_S, QUICK_S, AGAIN_S = 6.0, 0.05, 0.25


def waits(
    lanes: dict[str, int], silent: Callable[[str, float], bool], until_s: float, slots: int = SLOTS
) -> dict[str, list[tuple[float, float]]]:
    """(when, s) of each turn of each changefeed: how long it was due before it began. `lanes`: of each changefeed.
    A turn of a silent one lasts for a whole deadline and fails; the lane is due again a moment later."""
    ours, now_s = Turns(slots), 0.0
    feeds = [feed for feed, count in lanes.items() for _ in range(count)]
    due = dict.fromkeys(range(len(feeds)), 0.0)
    for lane, feed in enumerate(feeds):
        ours.add(lane, feed, 0.0)
    waited: dict[str, list[tuple[float, float]]] = {feed: [] for feed in lanes}
    running: list[tuple[float, int, bool]] = []
    while now_s < until_s:
        while len(running) < ours.threads and (turn := ours.take(now_s)) is not None:
            waited[feeds[turn]].append((now_s, now_s - due[turn]))
            fails = silent(feeds[turn], now_s)
            heapq.heappush(running, (now_s + (DEADLINE_S if fails else QUICK_S), turn, fails))
        now_s = min(now_s + QUICK_S, running[0][0]) if running else now_s + QUICK_S
        while running and running[0][0] <= now_s:
            _, lane, fails = heapq.heappop(running)
            due[lane] = now_s + AGAIN_S
            ours.ended(lane, now_s, due[lane], has_moved=not fails, has_failed=fails)
    return waited


@pytest.mark.parametrize("count", [4, 12, 48, 256])
def test_one_changefeed_without_an_answer_delays_no_other(count: int) -> None:
    waited = waits({"dead": count, "good": 1, "fine": 3}, lambda feed, _: feed == "dead", 60.0)
    for feed in ("good", "fine"):
        assert max(wait for _, wait in waited[feed]) <= turns.PATIENCE_S + AGAIN_S, feed
        assert len(waited[feed]) > 100
    assert waited["dead"], "it is tried again and again"


def test_many_that_fall_silent_at_once_delay_others_once() -> None:
    """Others wait for one deadline: until then nothing tells the silent ones from them."""
    lanes = {f"dead {n}": 3 for n in range(4)} | {"good": 1}
    waited = waits(lanes, lambda feed, now_s: feed != "good" and now_s > 20, 90.0)
    assert max(wait for _, wait in waited["good"]) <= 2 * DEADLINE_S + AGAIN_S
    assert max(wait for at_s, wait in waited["good"] if at_s > 20 + 3 * DEADLINE_S) <= 2 * QUICK_S
    late = [feed for feed in lanes if not any(at_s > 80 - 4 * DEADLINE_S for at_s, _ in waited[feed])]
    assert late == [], "each of them is still tried"


def test_one_that_answers_again_has_all_its_lanes_back() -> None:
    waited = waits({"away": 8, "good": 1}, lambda feed, now_s: feed == "away" and now_s < 30, 60.0)
    assert len([at for at, _ in waited["away"] if at > 45]) > 100
    assert max(wait for at_s, wait in waited["away"] if at_s > 45) <= 4 * QUICK_S


def test_a_slow_answer_is_an_answer() -> None:
    """A destination whose turns last long, and succeed, keeps all slots that it may have."""
    ours = Turns(SLOTS)
    for lane in range(8):
        ours.add(lane, "slow", 0.0)
    first = [ours.take(0.0) for _ in range(8)]
    assert [lane for lane in first if lane is not None] == [0, 1, 2, 3]
    for lane in range(4):
        ours.ended(lane, 5.0, 5.0, has_moved=True, has_failed=False)
    assert [ours.take(5.0) for _ in range(5)] == [4, 5, 6, 7, None]


def test_a_lane_that_is_over_is_first() -> None:
    ours = Turns(1)
    for lane in range(3):
        ours.add(lane, lane, 10.0)
    ours.hurry(2)
    assert ours.take(0.0) == 2
    ours.forget(2)
    assert ours.take(0.0) is None
    ours.wake(1, 0.0)
    assert ours.take(0.0) == 1


def test_without_patience_and_shares_others_are_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without both rules a wait exceeds the bound of the tests above."""
    monkeypatch.setattr(turns, "PATIENCE_S", 1e9)
    waited = waits({"dead": 12, "good": 1}, lambda feed, _: feed == "dead", 60.0)
    assert max(wait for _, wait in waited["good"]) > DEADLINE_S - AGAIN_S - 1
