"""The faults of a run and their probabilities, drawn from the seed. Off once the run has to settle."""

from __future__ import annotations

import random
from collections.abc import Mapping


class Dice:
    """Named faults with their probabilities; each concern draws from its own stream."""

    def __init__(self, seed: str, chances: Mapping[str, float], without: frozenset[str] = frozenset()) -> None:
        self.rand = random.Random(seed)
        self._chances = {name: 0.0 if name in without else chance for name, chance in chances.items()}
        self.on = True
        self.hit: dict[str, int] = {}  #: how often each fault happened

    def roll(self, *names: str) -> str:
        """One of these faults, or "" for none. One draw, so that leaving a fault out moves nothing else."""
        at = self.rand.random()
        if not self.on:
            return ""
        for name in names:
            chance = self._chances.get(name, 0.0)
            if at < chance:
                self.hit[name] = self.hit.get(name, 0) + 1
                return name
            at -= chance
        return ""

    def latency(self) -> float:
        """Seconds that a request takes: mostly little, sometimes a lot."""
        at = self.rand.random()
        if not self.on:
            return 0.005 + at / 100
        if at > self._chances.get("slow", 0.0):
            return 0.003 + at / 25
        return 0.1 + self.rand.random() * self._chances.get("slow_s", 1.0)
