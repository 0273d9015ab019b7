"""Backoff of failed regions and streams.

Pauses double with each failure up to a bound, and restart from the first once a registration has lived long enough: a
region whose registration fails after each opening scan must not be retried ten times a second for ever. They are
jittered by the id, so that a thousand regions do not retry at once. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

_SPREAD = 0x9E3779B97F4A7C15  # odd, without a pattern: neighbouring ids get distant shares
_WORD = (1 << 64) - 1
_DAMAGE_MAX_S = 300.0
_SOUND_S = 3600.0  # without damage, after which the next one is a first one


@dataclass(slots=True, kw_only=True)
class _Trouble:
    failures: int = 0
    reason: str = ""
    until: float = 0.0


class Pauses:
    def __init__(self, *, first_s: float, max_s: float, lived_s: float) -> None:
        self._first_s, self._max_s, self._lived_s = first_s, max_s, lived_s
        self._troubles: dict[int, _Trouble] = {}

    def failed(self, number: int, reason: str, now: float, *, lived_s: float, at_least_s: float = 0.0) -> float:
        """Note a failure after `lived_s` seconds of success; returns when to retry. Failures during the pause are of
        other parts of the same thing and count as one."""
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
        """Do not retry before."""
        return self._troubles[number].until if number in self._troubles else 0.0

    def worked(self, number: int) -> None:
        """It lived long enough: the next failure is a first one."""
        self._troubles.pop(number, None)

    def failing(self, failures_min: int) -> dict[int, tuple[int, str]]:
        """Ids with at least this many failures in a row: (failures, last reason)."""
        return {n: (t.failures, t.reason) for n, t in self._troubles.items() if t.failures >= failures_min}


class Damages:
    """Damage of a store's stream, such as a row that only a newer TiKV sends. Each new stream begins with opening scans
    of all regions and comes to the same bytes, however long it has lived: the pauses grow, and the cause is shown until
    a stream has passed its opening scans."""

    def __init__(self, store_id: int) -> None:
        self._store_id, self._at = store_id, float("-inf")
        self._pauses = Pauses(first_s=0.5, max_s=_DAMAGE_MAX_S, lived_s=_SOUND_S)
        self.shown = ""  #: what the last stream ended with

    def found(self, text: str, now: float) -> float:
        """Note damage; returns when a new stream may begin."""
        lived_s, self._at, self.shown = now - self._at, now, text
        return self._pauses.failed(self._store_id, text, now, lived_s=lived_s)

    def passed(self) -> None:
        """A stream has passed its opening scans."""
        self.shown = ""
