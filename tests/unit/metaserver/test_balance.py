"""When items move, over time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from metaserver.core.assign import UNOWNED, Fleet
from metaserver.core.balance import COOLDOWN_S, SETTLE_S, WAVE_S, Balancer


class Play:
    """Items that go where the balancer says, second by second."""

    def __init__(self, owner: list[int], workers: int) -> None:
        self.owner = owner
        self.bytes_per_s = [0.0] * len(owner)
        self.receives = [True] * workers
        self.leaving = [False] * workers
        self.balancer = Balancer()
        self.now_s = 100.0
        self.log: list[tuple[float, int, int]] = []

    def round(self) -> int:
        """One round; how many items moved."""
        count = len(self.owner)
        fleet = Fleet.of(
            owner=np.array(self.owner, np.int64),
            bytes_per_s=np.array(self.bytes_per_s),
            open_rows=np.zeros(count),
            held=np.zeros(count),
            group=np.full(count, -1, np.int64),
            receives=np.array(self.receives, bool),
        )
        moves = self.balancer.decide(list(range(count)), fleet, np.array(self.leaving, bool), self.now_s)
        for move in moves:
            self.owner[move.item] = move.to
            self.log.append((self.now_s, move.item, move.to))
        return len(moves)

    def run(self, seconds: float) -> None:
        until = self.now_s + seconds
        while self.now_s < until:
            self.round()
            self.now_s += 0.3


def test_what_nobody_has_moves_in_the_same_round() -> None:
    play = Play([UNOWNED] * 50, 2)
    assert play.round() == 50
    play.run(100)
    assert len(play.log) == 50


def test_who_drains_gives_its_items_up_in_waves_until_it_has_none() -> None:
    play = Play([0] * 40 + [1] * 40 + [2] * 40, 3)
    play.receives[0], play.leaving[0] = False, True
    play.run(60)
    assert 0 not in play.owner
    waves = sorted({at for at, _, _ in play.log})
    assert len(waves) > 5
    assert all(b - a >= WAVE_S - 1e-9 for a, b in pairwise(waves))
    assert all(item < 40 for _, item, _ in play.log), "nobody else's items move"


def test_nothing_leaves_the_last_worker() -> None:
    play = Play([0, 0], 1)
    play.receives[0], play.leaving[0] = False, True
    play.run(30)
    assert play.log == []


def test_a_worker_that_joins_is_filled_slowly_and_nothing_moves_after_that() -> None:
    play = Play([0, 1] * 200, 3)
    play.run(SETTLE_S - 1)
    assert play.log == []
    play.run(120)
    moved = play.owner.count(2)
    assert 90 <= moved <= 140
    assert {to for _, _, to in play.log} == {2}
    assert max(np.unique([at for at, _, _ in play.log], return_counts=True)[1]) <= 7
    before = len(play.log)
    play.run(600)
    assert len(play.log) == before


def test_a_short_burst_moves_nothing() -> None:
    play = Play([0, 0, 1, 1], 2)
    for _ in range(20):
        play.bytes_per_s = [1e6, 1e6, 0, 0]
        play.run(SETTLE_S - 1)
        play.bytes_per_s = [0.0] * 4
        play.run(2)
    assert play.log == []


def test_a_load_that_swings_moves_no_item_twice_within_its_rest() -> None:
    play = Play([0, 0, 1, 1], 2)
    for turn in range(12):
        play.bytes_per_s = [1e6, 1e6, 0, 0] if turn % 2 else [0, 0, 1e6, 1e6]
        play.run(12)
    last: dict[int, float] = {}
    for at, item, _ in play.log:
        assert at - last.get(item, -COOLDOWN_S) >= COOLDOWN_S
        last[item] = at
