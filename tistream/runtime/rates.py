"""Rate per second, averaged over the recent past. Pure: the caller passes the time."""

from __future__ import annotations

import math

_AGE_MIN_S = 1.0  # shorter observations count as this: one batch after a start is no rate


class Rate:
    """An exponential average: amounts `window_s` old weigh 1/e. Unbiased from the start: the sum is divided by the
    weight of the elapsed time, not of the whole window."""

    __slots__ = ("_at", "_began", "_sum", "_window_s")

    def __init__(self, window_s: float, now_s: float) -> None:
        self._window_s = window_s
        self._began = self._at = now_s
        self._sum = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Add an amount received since the last call."""
        self._sum = self._sum * math.exp((self._at - now_s) / self._window_s) + amount
        self._at = now_s

    def per_s(self) -> float:
        """The rate per second as of the last `add`."""
        age = max(self._at - self._began, _AGE_MIN_S)
        return self._sum / (self._window_s * (1 - math.exp(-age / self._window_s)))
