"""How long to wait before a failed region, or the stream of a store, is tried again.

Pauses double from failure to failure, up to a bound, and begin anew once a registration has lived long enough: a region
whose registration is torn down right after its opening scan, again and again, must not be tried ten times a second for
ever. They are spread by the number of what failed, so that a thousand regions do not come back at one moment. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

_SPREAD = 0x9E3779B97F4A7C15  # odd, without a pattern: neighbouring numbers get far-away shares
_WORD = (1 << 64) - 1


@dataclass(slots=True, kw_only=True)
class _Trouble:
    failures: int = 0
    reason: str = ""
    until: float = 0.0


class Pauses:
    """The failures of many, by number."""

    def __init__(self, *, first_s: float, max_s: float, lived_s: float) -> None:
        self._first_s, self._max_s, self._lived_s = first_s, max_s, lived_s
        self._troubles: dict[int, _Trouble] = {}

    def failed(self, number: int, reason: str, now: float, *, lived_s: float, at_least_s: float = 0.0) -> float:
        """A failure after so many seconds of life; until when to wait. Those that come during that pause are of other
        parts of the same thing: they count as one with it."""
        trouble = self._troubles.setdefault(number, _Trouble())
        if now < trouble.until:
            pause = 0.0
        else:
            failures = 0 if lived_s >= self._lived_s else trouble.failures
            pause = min(self._max_s, self._first_s * 2.0 ** min(failures, 30))
            trouble.failures = failures + 1
        trouble.reason = reason
        share = ((number * _SPREAD) & _WORD) / _WORD
        trouble.until = max(trouble.until, now + max(pause, at_least_s) * (1 + share / 2))
        return trouble.until

    def until(self, number: int) -> float:
        """Before then it is not to be tried."""
        return self._troubles[number].until if number in self._troubles else 0.0

    def worked(self, number: int) -> None:
        """It lives long enough: the next failure is a first one."""
        self._troubles.pop(number, None)

    def failing(self, failures_min: int) -> dict[int, tuple[int, str]]:
        """Who has failed so often in a row: how often, and why last."""
        return {n: (t.failures, t.reason) for n, t in self._troubles.items() if t.failures >= failures_min}
