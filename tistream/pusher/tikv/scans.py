"""How many opening scans of a store may go on at once.

As many as its limit, until what they sent was more than could be taken: then a quarter, down to one by one, until
nothing waits any more. An overflow costs every registration its scan, so to try again with as many would end the same
way, for ever: what has to be scanned grows meanwhile. One scan alone may be waited for (`alone`).

Pure.
"""

from __future__ import annotations

_SHARE = 4


class ScanLimit:
    """`now` is the limit at this moment, never above `most`."""

    def __init__(self, most: int) -> None:
        self._most = self.now = most

    @property
    def alone(self) -> bool:
        """Scans go one by one, because even a few were too much."""
        return self.now == 1 < self._most

    def overflowed(self, scanning: int) -> None:
        """More has come than could be taken, while so many scans went on (0: it was not their doing alone)."""
        self.now = max(1, (min(self.now, scanning) if scanning else self.now) // _SHARE)

    def caught_up(self) -> None:
        """Nothing is scanned, and nothing waits."""
        self.now = self._most
