"""Decides when items move: unowned items at once, those of draining workers in waves, uneven load slowly.

    no owner           all, in the round that finds them, at most PLACED_MAX per round
    owner drains       a wave each WAVE_S, so that tasks are taken over before the next ones move
    uneven load        after it was uneven for SETTLE_S, in waves, and no item twice within COOLDOWN_S

A wave moves at most a twentieth of a fair share (at least two items) from or to a worker: a new worker is filled within
about 20 waves, without starting everything at once. `metaserver.core.assign` decides what moves. Pure: the caller
passes the time. The state may be lost: a new leader waits SETTLE_S before it evens out load.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from metaserver.core.assign import I64, UNOWNED, Fleet, Mask, Move, improve, place

WAVE_S = 1.0
SETTLE_S = 5.0
COOLDOWN_S = 60.0
WAVES = 20  #: in which a fair share moves
WAVE_MIN = 2
PLACED_MAX = 5_000


class Balancer:
    """The decisions of one leader about one kind of item, over time."""

    def __init__(self, *, settle_s: float = SETTLE_S, wave_s: float = WAVE_S, cooldown_s: float = COOLDOWN_S) -> None:
        self._settle_s, self._wave_s, self._cooldown_s = settle_s, wave_s, cooldown_s
        self._uneven_since: float | None = None
        self._next_wave_s = -math.inf
        self._moved: dict[Hashable, float] = {}

    def decide(self, keys: Sequence[Hashable], fleet: Fleet, leaving: Mask, now_s: float) -> list[Move]:
        """The moves of this round. `keys` identify items between calls; `leaving`: draining workers. Items of workers
        that neither receive nor leave stay."""
        made = place(fleet, _heaviest(fleet, np.flatnonzero(fleet.owner == UNOWNED)))
        if not made and now_s >= self._next_wave_s:
            made = self._leave(fleet, leaving) or self._even_out(keys, fleet, now_s)
            self._next_wave_s = now_s + self._wave_s
        return made

    def _leave(self, fleet: Fleet, leaving: Mask) -> list[Move]:
        """The next items of each draining worker."""
        going = [np.flatnonzero(fleet.owner == worker)[: _wave(fleet)] for worker in np.flatnonzero(leaving)]
        return place(fleet, np.concatenate(going)) if going else []

    def _even_out(self, keys: Sequence[Hashable], fleet: Fleet, now_s: float) -> list[Move]:
        self._moved = {key: at for key, at in self._moved.items() if now_s - at < self._cooldown_s}
        may_move = np.ones(len(keys), bool)
        if self._moved:
            may_move = np.fromiter((key not in self._moved for key in keys), bool, len(keys))
        made = improve(fleet, may_move, _wave(fleet))
        if not made:
            self._uneven_since = None
            return []
        if self._uneven_since is None:
            self._uneven_since = now_s
        if now_s - self._uneven_since < self._settle_s:
            return []
        self._moved |= {keys[move.item]: now_s for move in made}
        return made


def _heaviest(fleet: Fleet, items: I64) -> I64:
    """The items to place in this round."""
    return items[np.argsort(-fleet.weight[items], kind="stable")[:PLACED_MAX]] if len(items) > PLACED_MAX else items


def _wave(fleet: Fleet) -> int:
    """Items that a worker gives or takes in a wave."""
    share = len(fleet.owner) / max(1, int(fleet.receives.sum()))
    return max(WAVE_MIN, math.ceil(share / WAVES))
