"""Pseudo-random numbers that depend on a seed and a step only, so that no state of a generator has to be kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Dice:
    """The throws of one step (splitmix64)."""

    def __init__(self, seed: int, step: int) -> None:
        self._state = _mixed((seed * _GOLDEN + step) & _MASK)

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        self._state = (self._state + _GOLDEN) & _MASK
        return _mixed(self._state) % n

    def one_of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[T, int]]) -> T:
        """One of the items, each as likely as its weight."""
        left = self.below(sum(weight for _, weight in items))
        for item, weight in items:
            left -= weight
            if left < 0:
                return item
        raise AssertionError("weights are positive")


def _mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
